"""
Small batches of a stage are joined before they are written.

Rows that come keyed, in small pieces or one at a time would fill a stage with batches of some kilobytes, and each of them costs an entry
of the frame that commits it, and a reader time for as long as it is kept. Order and contents stay as they are; a batch that says more
than its messages do (who published it, by which schema) stays alone, and so does a long one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import PenstockError
from penstock.format import columns as c
from penstock.format.batch import Batch, EncodedBatch, encode_batch
from penstock.format.compression import Codec, is_writable
from penstock.format.merge import cut, join
from penstock.log.coalescing import packing_of
from penstock.values import BATCH_MESSAGES_MAX, batch_bytes_limit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.settings import TopicSettings

_RAW_FACTOR = 4
"""A joined batch may be so many times as long before it is compressed."""
_FLAGS = slice(14, 16)
"""Where a header tells what a reader must understand of it."""


class _Shape(NamedTuple):
    """What of a batch decides whether it may be joined with another."""

    raw_bytes: int
    times: tuple[int | None, int | None]
    """For the columns that tell when messages expire and are due: whether they count from the appending; None: there is none."""
    is_single: bool
    """Whether it is one value and nothing else."""
    is_alone: bool


def _shape(batch: EncodedBatch) -> _Shape:
    data = batch.data
    end = batch.header_bytes
    raw_bytes = 0
    expires = deliver = None
    is_alone = any(data[_FLAGS])
    is_single = batch.count == 1 and data[13] == 1
    for column, codec, flags, _, _, stored, raw, _, _, _ in c.ENTRY.iter_unpack(
        memoryview(data)[end - data[13] * c.ENTRY.size : end]
    ):
        raw_bytes += max(stored, raw)
        if codec:
            is_single = False
            # Joining inflates it and compresses it again.
            is_alone = is_alone or not is_writable(Codec(codec))
        if column == c.EXPIRES:
            expires = flags & c.RELATIVE
        elif column == c.DELIVER:
            deliver = flags & c.RELATIVE
        elif column == c.VALUE and flags:
            is_single = False
    return _Shape(raw_bytes, (expires, deliver), is_single, is_alone)


class _Group:
    """Batches that follow each other in one log and become one."""

    def __init__(self) -> None:
        self.batches: list[EncodedBatch] = []
        self.bytes = self._raw_bytes = self._messages = 0
        self._times: tuple[int | None, int | None] = (None, None)
        self._is_single = True
        self.is_alone = False

    def takes(self, batch: EncodedBatch, shape: _Shape, raw_bytes_max: int) -> bool:
        """Whether *batch* may join."""
        return not self.batches or not (
            self.is_alone
            or shape.is_alone
            or self._raw_bytes + shape.raw_bytes > raw_bytes_max
            or self._messages + batch.count > BATCH_MESSAGES_MAX
            or (
                shape.times != self._times
                and any(one != other and None not in (one, other) for one, other in zip(self._times, shape.times, strict=True))
            )
        )

    def add(self, batch: EncodedBatch, shape: _Shape) -> None:
        """Let *batch* join."""
        self.batches.append(batch)
        self.bytes += len(batch.data)
        self._raw_bytes += shape.raw_bytes
        self._messages += batch.count
        if shape.times != self._times:
            expires, deliver = self._times
            self._times = (shape.times[0] if expires is None else expires, shape.times[1] if deliver is None else deliver)
        self._is_single = self._is_single and shape.is_single
        self.is_alone = shape.is_alone

    def join(self, settings: TopicSettings) -> list[EncodedBatch]:
        """The one batch; all of them as they are where that fails, which the bytes of a client can bring about."""
        batches = self.batches
        if len(batches) == 1:
            return batches
        codec, level = packing_of(settings)
        try:
            if self._is_single:
                values: list[bytes | None] = [_value(batch) for batch in batches]
                joined = encode_batch(values, codec=codec, level=level)
            else:
                for batch in batches:
                    _stamp(batch)
                joined = join([Batch(batch.data) for batch in batches], codec, level)
        except PenstockError:
            return batches
        most = batch_bytes_limit(settings.max_message_bytes)
        return batches if len(joined.data) > most or joined.raw_bytes > most else [joined]


def _value(batch: EncodedBatch) -> bytes:
    """The value of a batch that holds one and nothing else."""
    data, at = batch.data, batch.header_bytes
    length = int.from_bytes(data[at + 4 : at + 8], "little")
    return bytes(memoryview(data)[at + 8 : at + 8 + length])


def _stamp(batch: EncodedBatch) -> None:
    # The header's checksum is written when a batch is stamped.
    batch.stamp(0, 0, 0, 0, 0, 0)


def join_small(
    batches: Iterable[EncodedBatch], settings: TopicSettings, bytes_least: int, *, all_of_them: bool
) -> tuple[list[EncodedBatch], list[EncodedBatch]]:
    """
    *batches* for one log, joined to such of about *bytes_least*, in their order; and those at the end that more may join.

    Of the latter there are none if *all_of_them* is set. They are not to be used any more by whoever gave them.
    """
    raw_bytes_max = min(_RAW_FACTOR * bytes_least, batch_bytes_limit(settings.max_message_bytes))
    done: list[EncodedBatch] = []
    group = _Group()
    for batch in batches:
        shape = _shape(batch)
        is_long = 2 * len(batch.data) >= bytes_least
        if group.batches and (is_long or not group.takes(batch, shape, raw_bytes_max)):
            done += group.join(settings)
            group = _Group()
        group.add(batch, shape)
        if is_long or group.bytes >= bytes_least or group.is_alone:
            done += group.join(settings)
            group = _Group()
    if all_of_them and group.batches:
        done += group.join(settings)
        group = _Group()
    return done, group.batches


def cut_first(batch: EncodedBatch) -> tuple[EncodedBatch, EncodedBatch] | None:
    """The first message of *batch*, and the others; None where it cannot be cut."""
    if batch.count == 1 or _shape(batch).is_alone:
        return None
    _stamp(batch)
    try:
        content = Batch(batch.data)
        return cut(content, 0, 1), cut(content, 1, batch.count)
    except PenstockError:
        return None
