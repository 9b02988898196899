"""
The window of deduplication keys of one topic: a message whose key was published a moment ago is not stored again.

Theory of operation
-------------------
The truth is the log: each key is a column of the batch that its message lies in, so the key is remembered if and only if the message
is there. The table in memory is made from the last window of the logs when a key is first used after opening.

A key that is being committed stands in the table as *pending*: a second publisher of the same key waits for the first one, and gets its
receipt, or its turn if the first one failed. The table holds at most `KEYS_MAX` keys; beyond that the oldest is forgotten early, which
can mean a duplicate and never a loss, and is counted.

The time of the table is the monotonic clock: a key counts for the window after its message was stored, whatever the wall clock does
meanwhile. Only what a restart reads back has the wall clock's times. There a key that is ahead of the clock, because that was set back,
counts as if it had just been stored; and the clock is not believed if it has just jumped forward (`clock.WatchedClock`). So a clock that is
wrong makes keys last longer over a restart, and never shorter than since the newest message.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from penstock import threads as threading
from penstock.format import columns as c

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.log.partition_log import PartitionLog

KEYS_MAX = 100_000


class Seen(NamedTuple):
    """A key's message."""

    partition: int
    offset: int
    at_us: int
    """When it was stored, by the monotonic clock."""


class Pending:
    """A key that is being published."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = threading.Event()


class DedupWindow:
    """The keys of one topic. Safe to use from any thread."""

    def __init__(
        self, logs: Sequence[PartitionLog], window_ms: int, wall_us: Callable[[], int], keys_max: int = KEYS_MAX
    ) -> None:  # fmt: skip
        """*wall_us* tells the time that the log's times are compared with; all other times are of the monotonic clock."""
        self._logs = logs
        self._wall_us = wall_us
        self._window_us = window_ms * 1000
        self._keys_max = keys_max
        self._lock = threading.Lock()
        # In a dict the first key is the slower to find the more before it were removed.
        self._table: OrderedDict[bytes, Seen | Pending] = OrderedDict()
        self._loaded = False
        self.evicted = 0
        """Keys that were forgotten before their window ended."""

    def claim(self, keys: Sequence[bytes], now_us: int) -> tuple[list[Seen | None], Pending]:
        """
        Ask for *keys* at once: for each the message it has already, or None: then it is claimed, until `settle` is called.

        Waits while another thread publishes one of them.
        """
        while True:
            with self._lock:
                self._prepare(now_us)
                busy = next((one for key in keys if isinstance(one := self._table.get(key), Pending)), None)
                if busy is None:
                    pending = Pending()
                    found = [self._find(key, now_us) for key in keys]
                    for key, seen in zip(keys, found, strict=True):
                        if seen is None:
                            self._table.pop(key, None)  # to the end, where the newest are
                            self._table[key] = pending
                    return found, pending
            busy.done.wait()

    def floor(self, partition: int, now_us: int) -> int | None:
        """The first offset of a partition whose key is still remembered: retention keeps it, or a restart would forget the key."""
        with self._lock:
            self._prepare(now_us)
            seen = [one for one in self._table.values() if isinstance(one, Seen)]
            return min([one.offset for one in seen if one.partition == partition and self._counts(one, now_us)], default=None)

    def settle(self, pending: Pending, places: dict[bytes, Seen] | None, keys: Sequence[bytes]) -> None:
        """The claim of *keys* ended: their messages lie at *places*, or, with None, were not stored."""
        with self._lock:
            for key in keys:
                if self._table.get(key) is pending:
                    del self._table[key]
            if places is not None:
                for key, seen in places.items():
                    self._remember(key, seen, seen.at_us)
        pending.done.set()

    def _counts(self, seen: Seen, now_us: int) -> bool:
        return now_us - seen.at_us < self._window_us

    def _find(self, key: bytes, now_us: int) -> Seen | None:
        """The message of a key that nobody is publishing, if it counts."""
        seen = self._table.get(key)
        return seen if isinstance(seen, Seen) and self._counts(seen, now_us) else None

    def _prepare(self, now_us: int) -> None:
        if not self._loaded:
            self._load(now_us)
            self._loaded = True
        self._forget_old(now_us)

    def _remember(self, key: bytes, seen: Seen, now_us: int) -> None:
        self._table[key] = seen
        while len(self._table) > self._keys_max:
            _, oldest = self._table.popitem(last=False)
            self.evicted += isinstance(oldest, Pending) or self._counts(oldest, now_us)

    def _forget_old(self, now_us: int) -> None:
        """Drop the keys whose window has ended from the front, where the oldest are."""
        while self._table:
            key = next(iter(self._table))
            seen = self._table[key]
            if isinstance(seen, Pending) or self._counts(seen, now_us):
                break
            del self._table[key]

    def _load(self, now_us: int) -> None:
        """Read the keys of the last window back from the logs."""
        found: list[tuple[int, bytes, Seen]] = []
        wall_us = self._wall_us()
        for partition, log in enumerate(self._logs):
            offset = max(log.offset_of_time(wall_us - self._window_us), log.log_start)
            while batches := log.read(offset):
                for batch in batches:
                    if batch.entry(c.DEDUP_KEY) is None:
                        continue
                    for index in range(batch.index_of(offset), len(batch)):
                        key = batch.dedup_key(index)
                        if key is not None:
                            time_us = batch.append_time_us(index)
                            age_us = max(0, wall_us - time_us)
                            found.append((time_us, bytes(key), Seen(partition, batch.offset(index), now_us - age_us)))
                offset = batches[-1].end_offset
        found.sort(key=lambda entry: entry[0])
        for _, text, seen in found:
            if self._counts(seen, now_us):
                self._table.pop(text, None)
                self._remember(text, seen, now_us)
