"""
Deliveries on the wire.

```
fields  lots: one entry a run of messages
          [batch, partition, first index, tags, attempts, offsets]
        batch      which batch of the payload, from 0; several lots may be of one
        tags       [first, count]: the number of the first delivery, the others count on
        attempts   a number if all are the same, else a list
        offsets    the offset of the first message if they follow each other, else a list
payload the batches, one behind the other; a delivery is message `first index + n` of its batch
```

A batch travels as it is on disk where most of it is delivered, or where it is small; else the delivered messages are cut out of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

from penstock.errors import BadBytes
from penstock.format.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.files import Buffer
    from penstock.groups.delivery import Delivery

Made = TypeVar("Made")

WHOLE_BYTES_MAX = 4 * 1024
"""A batch of so many bytes is not cut."""


class Delivered(NamedTuple):
    """One message as the other side delivered it."""

    tag: int
    partition: int
    offset: int
    attempt: int
    batch: Batch
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls on it


def encode_deliveries(deliveries: Sequence[Delivery], first_tag: int) -> tuple[list[Any], list[Buffer]]:
    """The lots and the payload of *deliveries*, whose tags count from *first_tag*."""
    lots: list[Any] = []
    payload: list[Buffer] = []
    whole: dict[int, int] = {}  # which batch of the payload a batch is, by its identity
    at, end = 0, len(deliveries)
    batches = [one._batch for one in deliveries]  # noqa: SLF001
    indices = [one._index for one in deliveries]  # noqa: SLF001
    while at < end:
        first = deliveries[at]
        batch, index = batches[at], indices[at]
        # Those that follow each other in a batch travel together.
        stop = at + 1
        while stop < end and batches[stop] is batch and indices[stop] == index + stop - at:
            stop += 1
        run = deliveries[at:stop]
        attempts = {one.attempt for one in run}
        offsets = [one.offset for one in run]
        dense = offsets[-1] - offsets[0] == len(run) - 1
        number = whole.get(id(batch))
        if number is None:
            number = len(payload)
            if len(batch.buffer) <= WHOLE_BYTES_MAX or len(run) * 2 >= len(batch):
                whole[id(batch)] = number
                payload.append(batch.buffer)
            else:
                payload.append(_cut(batch, index, len(run)))
                index = 0
        lots.append(
            [
                number,
                first.partition,
                index,
                [first_tag + at, len(run)],
                first.attempt if len(attempts) == 1 else [one.attempt for one in run],
                offsets[0] if dense else offsets,
            ]
        )
        at = stop
    return lots, payload


def _cut(batch: Batch, index: int, count: int) -> Buffer:
    piece = batch.slice(index, index + count).encode()
    header = batch.header
    piece.stamp(
        batch.offset(index), batch.append_time_us(index), header.max_time_us, header.segment_uid, header.durable_end, header.log_epoch
    )  # fmt: skip
    return piece.data


@overload
def decode_deliveries(lots: Any, payload: memoryview) -> list[Delivered]: ...
@overload
def decode_deliveries(
    lots: Any, payload: memoryview, make: Callable[[int, int, int, int, Batch, int], Made], ttl_us: int
) -> list[Made]: ...
def decode_deliveries(lots: Any, payload: memoryview, make: Callable[..., Any] = Delivered, ttl_us: int = 0) -> list[Any]:
    """
    The deliveries of a frame, made by *make* of the fields of a `Delivered`: no other object is made for a message.

    *ttl_us* is the ttl of their topic. Raises `BadBytes`; the messages themselves are checked when they are looked at.
    """
    batches = split_batches(payload, ttl_us)
    if not isinstance(lots, list):
        raise BadBytes("deliveries", "are no list")
    found: list[Any] = []
    for lot in lots:
        found += _decode_lot(lot, batches, make)
    return found


def _decode_lot(lot: Any, batches: list[Batch], make: Callable[..., Any]) -> list[Any]:
    if not isinstance(lot, list) or len(lot) != 6 or not isinstance(lot[3], list) or len(lot[3]) != 2:
        raise BadBytes("deliveries", "have a lot that is none")
    which, partition, index, (tag, count), attempts, offsets = lot
    if any(type(one) is not int or one < 0 for one in (which, partition, index, tag, count)) or which >= len(batches):
        raise BadBytes("deliveries", "have a lot with impossible numbers")
    batch = batches[which]
    if index + count > len(batch):
        raise BadBytes("deliveries", f"name messages [{index}, {index + count}) of a batch of {len(batch)}")
    if type(attempts) is int and type(offsets) is int and attempts >= 0 and offsets >= 0:
        # As it mostly is.
        return [make(tag + at, partition, offsets + at, attempts, batch, index + at) for at in range(count)]
    if type(attempts) is int:
        attempts = [attempts] * count
    if type(offsets) is int:
        offsets = range(offsets, offsets + count)
    for numbers in (attempts, offsets):
        if (
            not isinstance(numbers, (list, range))
            or len(numbers) != count
            or any(type(one) is not int or one < 0 for one in numbers)
        ):
            raise BadBytes("deliveries", "have attempts or offsets that do not fit")
    return [make(tag + at, partition, offsets[at], attempts[at], batch, index + at) for at in range(count)]


def split_batches(payload: memoryview, ttl_us: int = 0) -> list[Batch]:
    """The batches that a payload holds; *ttl_us* is the ttl of their topic. Raises `BadBytes`."""
    found = []
    position = 0
    while position < len(payload):
        batch = Batch(payload, position)
        position += batch.header.total_bytes
        if position > len(payload):
            raise BadBytes("payload", "a batch is cut off")
        batch.ttl_us = ttl_us
        found.append(batch)
    return found
