"""
When the messages of a batch expire, and when they are due.

The directory of a batch tells the earliest and the latest moment of a column, so mostly nothing is looked at but that. A message that
says nothing itself expires as its topic says, counted from when it was appended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.format.columns import DELIVER, EXPIRES

if TYPE_CHECKING:
    from penstock.format.batch import Batch


def first_expiry_us(batch: Batch) -> int | None:
    """Before this moment nothing of *batch* expires; None: nothing ever does."""
    span = batch.moment_span(EXPIRES)
    if span is None:
        return batch.append_time_span()[0] + batch.ttl_us if batch.ttl_us else None
    earliest, _, some_have_none = span
    return min(earliest, batch.append_time_span()[0] + batch.ttl_us) if some_have_none and batch.ttl_us else earliest


def last_expiry_us(batch: Batch) -> int | None:
    """From this moment on all of *batch* has expired; None: some of it never does."""
    span = batch.moment_span(EXPIRES)
    if span is None:
        return batch.append_time_span()[1] + batch.ttl_us if batch.ttl_us else None
    _, latest, some_have_none = span
    if not some_have_none:
        return latest
    return max(latest, batch.append_time_span()[1] + batch.ttl_us) if batch.ttl_us else None


def expiries_us(batch: Batch, start: int, stop: int) -> list[int | None]:
    """When messages [start, stop) expire; None: never."""
    own: list[int | None] = [None] * (stop - start)
    if batch.entry(EXPIRES) is not None:
        own = batch.moments(EXPIRES, start, stop)
    if batch.ttl_us:
        return [batch.append_time_us(start + at) + batch.ttl_us if one is None else one for at, one in enumerate(own)]
    return own


def last_due_us(batch: Batch) -> int | None:
    """From this moment on all of *batch* is due; None: it is from the beginning."""
    span = batch.moment_span(DELIVER)
    return None if span is None else span[1]


def dues_us(batch: Batch, start: int, stop: int) -> list[int | None]:
    """When messages [start, stop) of a batch with such a column are due; None: at once."""
    return batch.moments(DELIVER, start, stop)
