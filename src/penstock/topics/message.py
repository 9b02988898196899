"""A message as its reader sees it: a view of one place in a batch."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

from penstock.errors import UsageError
from penstock.topics.options import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.format.batch import Batch

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
SHOWN_BYTES = 40
"""How much of a key and of a value is printed with a message."""
_LAST = dt.datetime.max.replace(tzinfo=dt.UTC)


def _moment(time_us: int | None) -> dt.datetime | None:
    """A time as a datetime; one that is later than those can say is the last of them."""
    if time_us is None:
        return None
    try:
        return _EPOCH + dt.timedelta(microseconds=time_us)
    except OverflowError:
        return _LAST if time_us > 0 else dt.datetime.min.replace(tzinfo=dt.UTC)


class Headers(tuple[tuple[str, bytes], ...]):
    """
    The headers of a message: (name, value) pairs in their order; a name may come more than once.

    ``headers["name"]`` is the first value of that name, ``headers[0]`` the first pair.
    """

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            for name, value in self:
                if name == key:
                    return value
            raise KeyError(key)
        return super().__getitem__(key)

    def get(self, name: str, default: Any = None) -> Any:
        """The first value of *name*, else *default*."""
        for one, value in self:
            if one == name:
                return value
        return default

    def get_all(self, name: str) -> list[bytes]:
        """All values of *name*, in their order."""
        return [value for one, value in self if one == name]

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return any(name == key for name, _ in self)
        return super().__contains__(key)

    def names(self) -> Iterator[str]:
        """The names, in their order."""
        return (name for name, _ in self)


class Message:
    """
    One message of a topic. Its fields are decoded when they are asked for; they never change.

    `partition` and `offset` are its identity in its topic.
    """

    __slots__ = ("_batch", "_index", "_topic", "offset", "partition")

    def __init__(self, topic: str, partition: int, batch: Batch, index: int, offset: int) -> None:
        self._topic = topic
        self.partition = partition
        self.offset = offset
        self._batch = batch
        self._index = index

    @property
    def topic(self) -> str:
        """The name of its topic."""
        return self._topic

    @property
    def value(self) -> bytes | None:
        """What was published; None for a tombstone."""
        view = self._batch.value(self._index)
        return None if view is None else bytes(view)

    @property
    def key(self) -> bytes | None:
        """Its key, None if it has none."""
        view = self._batch.key(self._index)
        return None if view is None else bytes(view)

    @property
    def headers(self) -> Headers:
        """Its headers."""
        return Headers(self._batch.headers(self._index))

    @property
    def timestamp_us(self) -> int:
        """When it was made, as its publisher said, or else when it was appended; microseconds since 1970 UTC."""
        return self._batch.time_us(self._index)

    @property
    def timestamp(self) -> dt.datetime:
        """The same as a datetime in UTC."""
        return _EPOCH + dt.timedelta(microseconds=self.timestamp_us)

    @property
    def append_time_us(self) -> int:
        """When it was appended to the log; microseconds since 1970 UTC."""
        return self._batch.append_time_us(self._index)

    @property
    def log_epoch(self) -> int:
        """The log epoch in which it was written; see `TopicPositions`."""
        return self._batch.header.log_epoch

    @property
    def dedup_key(self) -> bytes | None:
        """The key by which it was deduplicated, None if it has none."""
        view = self._batch.dedup_key(self._index)
        return None if view is None else bytes(view)

    @property
    def expires_us(self) -> int | None:
        """When it expires, by its own ttl or else by its topic's; microseconds since 1970 UTC, None if it does not."""
        return self._batch.expires_us(self._index)

    @property
    def expires_at(self) -> dt.datetime | None:
        """The same as a datetime in UTC."""
        return _moment(self.expires_us)

    @property
    def deliver_us(self) -> int | None:
        """Before when it is not delivered to groups; microseconds since 1970 UTC, None if it was due at once."""
        return self._batch.deliver_us(self._index)

    @property
    def deliver_at(self) -> dt.datetime | None:
        """The same as a datetime in UTC."""
        return _moment(self.deliver_us)

    @property
    def priority(self) -> str:
        """How urgent it is: "low" (also where nobody said), "medium" or "high"."""
        number = self._batch.priority(self._index)
        return PRIORITIES[min(number, len(PRIORITIES) - 1)]

    def ack(self, *, wait: bool = False) -> None:  # noqa: ARG002
        """Only a message that a group delivered can be acknowledged."""
        raise UsageError(f"{self!r} was read without a group, so there is nothing to acknowledge or return")

    def nack(self, *, delay: object = None, reason: object = None) -> None:  # noqa: ARG002
        """Only a message that a group delivered can be returned."""
        self.ack()

    def reject(self, reason: object = None) -> None:  # noqa: ARG002
        """Only a message that a group delivered can be rejected."""
        self.ack()

    def extend(self, seconds: object = None) -> None:  # noqa: ARG002
        """Only a message that a group delivered has a lease."""
        self.ack()

    def __repr__(self) -> str:
        try:
            key, value = self.key, self.value
        except Exception as error:  # noqa: BLE001 - whoever looks into trouble prints messages, also damaged ones
            carried = f" {type(error).__name__}"
        else:
            carried = "" if key is None else f" key={_short(key)}"
            carried += f" value={_short(value)}"
        return f"<{type(self).__name__} {self.topic}/{self.partition} offset {self.offset}{carried}>"


def _short(data: bytes | None) -> str:
    """The beginning of *data*, and how much there is of it if that is not all."""
    return repr(data) if data is None or len(data) <= SHOWN_BYTES else f"{data[:SHOWN_BYTES]!r}... ({len(data):,} bytes)"
