"""
Whether the messages that offsets stood for are still the same and still there: what cannot be read any more is told, never skipped.

Offsets lose their meaning when retention removed the messages, when the topic is gone or another one has its name (its id differs), and
when a store that died lost the end of a log that was not synced: then the log is shorter than it was, or other messages have the lost
offsets, and those were written in a later log epoch than the one in which the offsets were seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import DataLost, Unavailable
from penstock.log_events import get_logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.spark.offsets import Offsets
    from penstock.spark.planning import Chosen
    from penstock.store.reading import TopicPositions

_log = get_logger("penstock")


class LossCheck:
    """
    Compares offsets with what a store has. With *fail* a loss raises `DataLost`, else it is logged and reading goes on behind it.

    *advice* is what `DataLost` says can be done.
    """

    def __init__(self, store: Any, *, fail: bool, advice: str = DataLost.ADVICE) -> None:
        self._store = store
        self._fail = fail
        self._advice = advice

    def lost(self, topic: str, partition: int | None, reason: str) -> None:
        """Tell that messages are lost."""
        if self._fail:
            raise DataLost(topic, partition, reason, self._advice)
        _log.warning("%s/%s: %s; going on, since failOnDataLoss is false", topic, partition, reason)

    def begin(self, start: Offsets, positions: Mapping[str, TopicPositions]) -> Chosen:
        """
        Where to go on in each partition of *positions* behind *start*; partitions that *start* does not have begin at 0.

        Raises `DataLost`.
        """
        for topic in start.topics:
            if topic not in positions:
                self.lost(topic, None, "the topic is gone")
        chosen: Chosen = {}
        for topic, now in positions.items():
            known = start.topics.get(topic, {})
            identity = start.ids.get(topic)
            if identity is not None and identity != now.topic_id.hex():
                self.lost(topic, None, "the topic was deleted and made again since; its old messages are gone")
                known = {}
            for number in known:
                if number not in now.ends:
                    self.lost(topic, number, "the partition is gone")
            chosen[topic] = {number: self.resume(topic, number, known.get(number, 0), start.epoch, now) for number in now.ends}
        return chosen

    def resume(self, topic: str, partition: int, offset: int, epoch: int, now: TopicPositions) -> int:
        """Where to go on in one partition that was read up to *offset* in *epoch*. Raises `DataLost`."""
        first, end = now.starts[partition], now.ends[partition]
        if offset > end or (epoch < now.log_epoch and offset > first and self._is_other(topic, partition, offset - 1, epoch)):
            if offset > end and not getattr(getattr(self._store, "volume", None), "is_live", True):
                raise Unavailable(f"{topic}/{partition}: the store was not recovered since this machine started; open it once")
            if offset > end:
                reason = f"it ends at {end}, before offset {offset}: messages were lost when the store died, or that offset never was"
            else:
                reason = f"messages before offset {offset} were lost when the store died, and others have their offsets"
            self.lost(topic, partition, reason)
            offset = self._first_of_later_epoch(topic, partition, epoch, first, min(offset, end))
        if offset < first:
            self.lost(topic, partition, f"the messages from offset {offset} to {first} were removed by retention")
            return first
        return offset

    def _is_other(self, topic: str, partition: int, offset: int, epoch: int) -> bool:
        written = self._store.epoch_at(topic, partition, offset)
        return written is not None and written > epoch

    def _first_of_later_epoch(self, topic: str, partition: int, epoch: int, first: int, end: int) -> int:
        """Where below *end* the messages that were written after *epoch* begin: epochs only grow along a log, which may have holes."""
        low, high = first, end
        while low < high:
            middle = (low + high) // 2
            found = next(iter(self._store.read(topic, partition, start=middle, end=high, max_messages=1)), None)
            if found is None or found.log_epoch > epoch:
                high = middle
            else:
                low = found.offset + 1
        return low
