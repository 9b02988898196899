"""
Deliveries on the wire.

```
fields  lots: one entry a batch of the payload
          [partition, first index, tags, attempts, offsets]
        tags       the number of the first delivery; the others count on
        attempts   a number if all are the same, else a list
        offsets    the offset of the first message if they follow each other, else a list
payload the batches, one behind the other; a delivery is message `first index + n` of its batch
```

A batch travels as it is on disk where most of it is delivered, or where it is small; else the delivered messages are cut out of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BadBytes
from penstock.format.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.files import Buffer
    from penstock.groups.delivery import Delivery

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
    at = 0
    while at < len(deliveries):
        first = deliveries[at]
        batch, index = first._batch, first._index  # noqa: SLF001
        stop = at + 1
        # Those that follow each other in a batch travel together.
        while stop < len(deliveries) and deliveries[stop]._batch is batch and deliveries[stop]._index == index + stop - at:  # noqa: SLF001
            stop += 1
        run = deliveries[at:stop]
        attempts = {one.attempt for one in run}
        offsets = [one.offset for one in run]
        dense = offsets[-1] - offsets[0] == len(run) - 1
        data, first_index = _bytes_of(batch, index, len(run))
        payload.append(data)
        lots.append(
            [
                first.partition,
                first_index,
                [first_tag + at, len(run)],
                first.attempt if len(attempts) == 1 else [one.attempt for one in run],
                offsets[0] if dense else offsets,
            ]
        )
        at = stop
    return lots, payload


def _bytes_of(batch: Batch, index: int, count: int) -> tuple[Buffer, int]:
    if len(batch.buffer) <= WHOLE_BYTES_MAX or count * 2 >= len(batch):
        return batch.buffer, index
    piece = batch.slice(index, index + count).encode()
    header = batch.header
    piece.stamp(
        batch.offset(index), batch.append_time_us(index), header.max_time_us, header.segment_uid, header.durable_end, header.log_epoch
    )  # fmt: skip
    return piece.data, 0


def decode_deliveries(lots: Any, payload: memoryview) -> list[Delivered]:
    """The deliveries of a frame. Raises `BadBytes`; the messages themselves are checked when they are looked at."""
    found: list[Delivered] = []
    position = 0
    try:
        for partition, first_index, (tag, count), attempts, offsets in lots:
            batch = Batch(payload, position)
            if not 0 <= first_index <= first_index + count <= len(batch):
                raise BadBytes("deliveries", f"name messages [{first_index}, {first_index + count}) of a batch of {len(batch)}")
            position += batch.header.total_bytes
            for number in range(count):
                attempt = attempts if type(attempts) is int else attempts[number]
                offset = offsets + number if type(offsets) is int else offsets[number]
                found.append(Delivered(tag + number, partition, offset, attempt, batch, first_index + number))
    except (TypeError, ValueError, IndexError) as error:
        raise BadBytes("deliveries", f"do not decode: {error}") from None
    if position != len(payload):
        raise BadBytes("deliveries", "have more bytes than batches")
    return found


def split_batches(payload: memoryview) -> list[Batch]:
    """The batches that a payload holds. Raises `BadBytes`."""
    found = []
    position = 0
    while position < len(payload):
        batch = Batch(payload, position)
        position += batch.header.total_bytes
        if position > len(payload):
            raise BadBytes("payload", "a batch is cut off")
        found.append(batch)
    return found
