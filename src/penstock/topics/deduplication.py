"""
The window of deduplication keys of one topic: a message whose key was published a moment ago is not stored again.

Theory of operation
-------------------
The truth is the log: each key is a column of the batch that its message lies in, so the key is remembered if and only if the message
is there. The table in memory is made from the last window of the logs when a key is first used after opening.

A key that is being committed stands in the table as *pending*: a second publisher of the same key waits for the first one, and gets its
receipt, or its turn if the first one failed. The table holds at most `KEYS_MAX` keys; beyond that the oldest is forgotten early, which
can mean a duplicate and never a loss, and is counted.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from penstock.format import columns as c

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.log.partition_log import PartitionLog

KEYS_MAX = 100_000


class Seen(NamedTuple):
    """A key's message."""

    partition: int
    offset: int
    append_time_us: int


class Pending:
    """A key that is being published."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = threading.Event()


class DedupWindow:
    """The keys of one topic. Safe to use from any thread."""

    def __init__(self, logs: Sequence[PartitionLog], window_ms: int, keys_max: int = KEYS_MAX) -> None:
        self._logs = logs
        self._window_us = window_ms * 1000
        self._keys_max = keys_max
        self._lock = threading.Lock()
        self._table: dict[bytes, Seen | Pending] = {}
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
                if not self._loaded:
                    self._load(now_us)
                    self._loaded = True
                self._forget_old(now_us)
                busy = next((one for key in keys if isinstance(one := self._table.get(key), Pending)), None)
                if busy is None:
                    pending = Pending()
                    found = []
                    for key in keys:
                        seen = self._table.get(key)
                        found.append(seen if isinstance(seen, Seen) else None)
                    for key, seen in zip(keys, found, strict=True):
                        if seen is None:
                            self._table[key] = pending
                    return found, pending
            busy.done.wait()

    def floor(self, partition: int, now_us: int) -> int | None:
        """The first offset of a partition whose key is still remembered: retention keeps it, or a restart would forget the key."""
        with self._lock:
            if not self._loaded:
                self._load(now_us)
                self._loaded = True
            self._forget_old(now_us)
            return min(
                [seen.offset for seen in self._table.values() if isinstance(seen, Seen) and seen.partition == partition],
                default=None,
            )

    def settle(self, pending: Pending, places: dict[bytes, Seen] | None, keys: Sequence[bytes]) -> None:
        """The claim of *keys* ended: their messages lie at *places*, or, with None, were not stored."""
        with self._lock:
            for key in keys:
                if self._table.get(key) is pending:
                    del self._table[key]
            if places is not None:
                for key, seen in places.items():
                    self._remember(key, seen)
        pending.done.set()

    def _remember(self, key: bytes, seen: Seen) -> None:
        self._table[key] = seen
        while len(self._table) > self._keys_max:
            del self._table[next(iter(self._table))]
            self.evicted += 1

    def _forget_old(self, now_us: int) -> None:
        oldest = now_us - self._window_us
        while self._table:
            key = next(iter(self._table))
            seen = self._table[key]
            if isinstance(seen, Pending) or seen.append_time_us > oldest:
                return
            del self._table[key]

    def _load(self, now_us: int) -> None:
        """Read the keys of the last window back from the logs."""
        found: list[tuple[int, bytes, Seen]] = []
        for partition, log in enumerate(self._logs):
            offset = max(log.offset_of_time(now_us - self._window_us), log.log_start)
            while batches := log.read(offset):
                for batch in batches:
                    if batch.entry(c.DEDUP_KEY) is None:
                        continue
                    for index in range(batch.index_of(offset), len(batch)):
                        key = batch.dedup_key(index)
                        if key is not None:
                            time_us = batch.append_time_us(index)
                            found.append((time_us, bytes(key), Seen(partition, batch.offset(index), time_us)))
                offset = batches[-1].end_offset
        found.sort(key=lambda entry: entry[0])
        for time_us, text, seen in found:
            if time_us > now_us - self._window_us:
                self._table.pop(text, None)
                self._remember(text, seen)
