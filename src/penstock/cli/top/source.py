"""
Where looks come from: the numbers that `penstock stats` shows, and single messages that tell what those do not.

The age of a topic's oldest message, and why its newest dead letter is one, stand in messages. One is read when it became the first of its
partition, or the newest dead letter, and then it is known until another one is. So a look at a store in which nothing moves is one call, a
look never reads more than a few messages, however many there are; what is left is read with the next looks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cli.stats import look
from penstock.cli.top.history import Snapshot
from penstock.errors import PenstockError, Unavailable
from penstock.groups.dead_letters import HEADER_PREFIX, SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.clock import Clock
    from penstock.store.metrics import StoreMetrics
    from penstock.store.read_only import ReadOnlyStore
    from penstock.store.stats import TopicStats
    from penstock.topics.message import Message

READS_MAX = 4
"""With each look of the live view. A read costs a server about as much as the numbers of a few topics."""
PRINTED_READS_MAX = 16
"""With a frame that is printed, which no other may follow."""
_REASON = HEADER_PREFIX + "reason"


class Source:
    """Looks at *store*, at the topics that *takes* takes, with at most *reads_max* messages. One thread at a time."""

    def __init__(
        self, store: ReadOnlyStore, clock: Clock, takes: Callable[[str], bool] = lambda _topic: True, reads_max: int = READS_MAX
    ) -> None:
        self.is_whole = hasattr(store, "metrics")
        """Whether groups, dead letters and times are told."""
        self._store = store
        self._clock = clock
        self._takes = takes
        self._times: dict[tuple[str, int], tuple[tuple[int, int], int | None]] = {}
        """When the first message of a partition was appended, by its offset and how many messages had been removed then."""
        self._reasons: dict[str, tuple[int, str | None]] = {}
        """The reason of the newest dead letter, and the end of their log then."""
        self._reads_max = reads_max
        self._reads_left = 0

    def look(self) -> Snapshot:
        """What there is now. Raises `Unavailable` while a server is away, and what else asking it raises."""
        numbers = look(self._store)
        at_s = self._clock.monotonic()
        self._reads_left = self._reads_max
        return Snapshot(at_s, numbers, self.is_whole, self._oldest(numbers), self._newest_reasons(numbers))

    def _oldest(self, numbers: StoreMetrics) -> dict[str, float]:
        now_us, found = self._clock.now_us(), {}
        times: dict[tuple[str, int], tuple[tuple[int, int], int | None]] = {}
        for name, topic in numbers.stats.topics.items():
            if not self._takes(name):
                continue
            known = [
                self._time_us(name, number, topic, times)
                for number in topic.starts
                if topic.starts[number] < topic.ends[number]
            ]
            appended = [one for one in known if one is not None]
            if appended and len(appended) == len(known):
                found[name] = max(0, now_us - min(appended)) / 1e6
        self._times = times
        return found

    def _time_us(
        self, name: str, partition: int, topic: TopicStats, times: dict[tuple[str, int], tuple[tuple[int, int], int | None]]
    ) -> int | None:
        start = topic.starts[partition]
        state, known = (start, topic.removed_messages), self._times.get((name, partition))
        if known is None or known[0] != state:
            if not self._reads_left:
                return None
            message = self._read(name, partition, start)
            known = state, None if message is None else message.append_time_us
        times[name, partition] = known
        return known[1]

    def _newest_reasons(self, numbers: StoreMetrics) -> dict[str, str]:
        reasons: dict[str, tuple[int, str | None]] = {}
        for name, metrics in numbers.topics.items():
            dead = numbers.stats.topics.get(name + SUFFIX)
            if dead is None or not metrics.dead_letters or not self._takes(name):
                continue
            end, known = dead.ends[0], self._reasons.get(name)
            if (known is None or known[0] != end) and self._reads_left:
                message = self._read(name + SUFFIX, 0, end - 1)
                text = None if message is None else next((text for key, text in message.headers if key == _REASON), None)
                known = end, None if text is None else text.decode("utf-8", "replace")
            if known is not None:
                reasons[name] = known
        self._reasons = reasons
        return {name: reason for name, (_, reason) in reasons.items() if reason is not None}

    def _read(self, topic: str, partition: int, offset: int) -> Message | None:
        self._reads_left -= 1
        try:
            return next(iter(self._store.read(topic, partition, start=offset, max_messages=1)), None)
        except Unavailable:
            raise
        except PenstockError:  # retention may take it, and somebody may delete the topic, at any moment
            return None
