"""
What becomes of old messages: retention, vacuum and compaction of the topics of a store, by their settings.

Retention drops whole sealed segments, vacuum takes finished messages out of segments that must stay, compaction keeps the latest message
of each key. This module knows the topics' rules and what groups have not finished; how files change is the volume's matter. Retention is
quick and runs in the store's own thread; the others rewrite files and have a thread that is there only while there is work.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from penstock import threads as threading
from penstock.clock import asked_us, settled_us
from penstock.errors import Closed, Corrupt, NoAccess, PenstockError, TopicNotFound, Unavailable
from penstock.groups.dead_letters import is_dead_letter_topic
from penstock.log.coalescing import gains_by_sealing
from penstock.log.filtering import EVERYTHING, Protection, Removed
from penstock.log_events import Troubles, event, get_logger
from penstock.offset_set import OffsetSet
from penstock.volume.housekeeping import Rules

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.clock import Clock
    from penstock.groups.group import Group
    from penstock.groups.registry import Groups
    from penstock.log.partition_log import PartitionLog
    from penstock.topics.topic import Topic
    from penstock.volume.volume import Volume

_log = get_logger("penstock")
_EMPTY_KEPT_US = 7 * 86_400 * 1_000_000
"""Without a `retention_age` a segment of which nothing is left goes when its messages would be so old."""
_WORK_SECONDS = 0.005
_PAUSE_SECONDS = 0.0005


class Retained(NamedTuple):
    """What retention removed."""

    segments: int
    bytes: int


class Rewritten(NamedTuple):
    """What vacuum or compaction removed."""

    segments: int
    """Segments that were rewritten."""
    messages: int
    tombstones: int
    """How many of the messages were tombstones whose grace was over."""
    bytes: int


@dataclass(slots=True)
class Counters:
    """Of one topic, since the store was opened."""

    removed_segments: int = 0
    """By retention."""
    removed_messages: int = 0
    """By vacuum and compaction."""
    removed_unfinished: int = 0
    """Segments that `retention_bytes_hard` took from groups that had not finished them."""
    expired_groups: int = 0
    """Groups that hold nothing back now, since they had no member for too long."""


class Housekeeper:
    """Retention, vacuum and compaction of one store. Safe to call from any thread."""

    def __init__(self, volume: Volume, groups: Groups, clock: Clock, stop: threading.Event, *, keep_finished: bool) -> None:
        """*stop* is set when the store closes; without *keep_finished* what all groups have finished is removed at once."""
        self._volume = volume
        self._groups = groups
        self._clock = clock
        self._stop = stop
        self._keep_finished = keep_finished
        self._counters: dict[bytes, Counters] = {}
        self._expired: set[tuple[bytes, str]] = set()
        self._thread: threading.Thread | None = None
        self._paused = 0.0
        self.troubles = Troubles(_log)

    def _now_us(self, *, background: bool) -> int:
        """The time that decides what is too old."""
        return settled_us(self._clock) if background else asked_us(self._clock)

    def counters(self, topic: Topic) -> Counters:
        """What was done to *topic*."""
        found = self._counters.setdefault(topic.topic_id, Counters())
        if topic.logs[0].deleted:
            self._counters.pop(topic.topic_id, None)  # whoever still works on it
        return found

    def forget(self, topic: Topic) -> None:
        """The topic is deleted."""
        self._counters.pop(topic.topic_id, None)
        self._expired = {one for one in self._expired if one[0] != topic.topic_id}
        self.troubles.forget(lambda what: what == topic.topic_id or (isinstance(what, tuple) and topic.topic_id in what))

    # -- sealing ----------------------------------------------------------------------------------------------------

    def seal(self, topics: Sequence[Topic], *, background: bool = False) -> int:
        """
        Seal the active segments of *topics* that are too old, also where nothing is published any more; returns how many.

        That is where `segment_age` is over, or all messages of the segment are older than `retention_age`: only sealed segments can be
        removed. In the *background* also where a segment is full of small batches and nothing comes any more: only sealed ones are merged.
        A segment without messages is never sealed, so an idle topic costs a look and no file. Raises as `retain` does.
        """
        count = 0
        apart = _Apart(self.troubles if background else None, "sealing")
        for topic in topics:
            settings = topic.settings
            now_us = self._now_us(background=background)
            before_us = now_us - settings.retention_age_ms * 1000 if settings.retention_age_ms else None
            for log in topic.logs:
                is_due = partial(log.is_overdue, now_us, before_us)
                if not is_due() and background:
                    is_due = partial(gains_by_sealing, log, now_us)
                if is_due():
                    # On a full disk, or without descriptors, retention goes on with what is sealed, and this is tried again.
                    with suppress(Unavailable), apart.each(topic, log):
                        count += self._volume.roll(log, is_due)
        apart.end()
        return count

    # -- retention --------------------------------------------------------------------------------------------------

    def retain(self, topics: Sequence[Topic], *, background: bool = False) -> Retained:
        """
        Remove what the rules of *topics* say. A damaged log stops no other one, and is raised at the end; in the *background* it is told.

        Raises `PenstockError`, `OSError`; what went before stays gone.
        """
        segments = freed = 0
        apart = _Apart(self.troubles if background else None, "retention")
        for topic in topics:
            if topic.logs[0].deleted:
                continue
            now_us = self._now_us(background=background)
            groups = self._protected_groups(topic, now_us)
            for log in topic.logs:
                try:
                    with apart.each(topic, log):
                        removed = self._retain_log(topic, log, groups, now_us)
                        segments += removed[0]
                        freed += removed[1]
                except TopicNotFound:
                    if not log.deleted:
                        raise
                    break  # at this moment
        apart.end()
        return Retained(segments, freed)

    def _retain_log(self, topic: Topic, log: PartitionLog, groups: list[Group], now_us: int) -> tuple[int, int]:
        settings = topic.settings
        partition = log.identity.partition
        with self._groups.standstill():
            finished = _finished(groups, partition)
            if finished is None:
                log.floors.pop("groups", None)
            else:
                log.floors["groups"] = finished
        if len(log.segment_firsts) > 1:
            needed = topic.dedup_floor(partition)
            if needed is None:
                log.floors.pop("deduplication", None)
            else:
                log.floors["deduplication"] = needed

        @contextmanager
        def floors_hold() -> Iterator[None]:
            with self._groups.standstill():
                # Only lower: the rules go by the groups that were there.
                now = _finished(self._protected_groups(topic, now_us), partition)
                if now is not None:
                    log.floors["groups"] = now if finished is None else min(now, finished)
                yield

        rules = self._rules(topic, groups, now_us)
        if not self._volume.housekeeping.begins_empty(log):
            rules = rules._replace(empty_before_us=None)
        segments, freed = self._volume.housekeeping.retain(log, rules, floors_hold=floors_hold)
        counters = self.counters(topic)
        if settings.retention_bytes_hard and finished is not None:
            hard = self._volume.housekeeping.retain(log, Rules(bytes_max=settings.retention_bytes_hard), without="groups")
            if hard[0]:
                counters.removed_unfinished += hard[0]
                _log.warning(
                    "retention_bytes_hard of topic %s took %d segments of partition %d that a group had not finished",
                    topic.name, hard[0], partition,
                    extra=event("unfinished_removed", topic=topic.name, partition=partition, segments=hard[0], bytes=hard[1]),
                )  # fmt: skip
                segments, freed = segments + hard[0], freed + hard[1]
        counters.removed_segments += segments
        return segments, freed

    def _rules(self, topic: Topic, groups: list[Group], now_us: int) -> Rules:
        settings = topic.settings
        messages_max = settings.retention_messages or None
        return Rules(
            before_time_us=now_us - settings.retention_age_ms * 1000 if settings.retention_age_ms else None,
            bytes_max=settings.retention_bytes or None,
            messages_max=0 if groups and not self._keep_finished else messages_max,
            empty_before_us=None if settings.retention_age_ms or settings.compaction else now_us - _EMPTY_KEPT_US,
        )

    def _protected_groups(self, topic: Topic, now_us: int) -> list[Group]:
        """The groups whose unfinished messages stay: all with ``retain="until_acked"`` but those that were idle for too long."""
        settings = topic.settings
        if settings.retain != "until_acked":
            return []
        groups = self._groups.of_topic(topic.topic_id)
        if not settings.group_expiry_ms:
            return groups
        before_us = now_us - settings.group_expiry_ms * 1000
        idle = {group.name for group in groups if group.last_seen_us() < before_us}
        for name in sorted(idle):
            if (topic.topic_id, name) not in self._expired:
                _log.warning(
                    "group %s of topic %s had no member for too long and holds nothing back any more", name, topic.name,
                    extra=event("group_expired", topic=topic.name, group=name),
                )  # fmt: skip
        expired = set() if topic.logs[0].deleted else {(topic.topic_id, name) for name in idle}
        self._expired = {one for one in self._expired if one[0] != topic.topic_id} | expired
        self.counters(topic).expired_groups = len(idle)
        return [group for group in groups if group.name not in idle]

    # -- vacuum and compaction --------------------------------------------------------------------------------------

    def vacuum(self, topics: Sequence[Topic], *, background: bool = False) -> Rewritten:
        """Take what is finished and past its retention out of segments that groups keep. Raises as `retain` does."""
        total = Removed()
        apart = _Apart(self.troubles if background else None, "vacuum")
        for topic in topics:
            now_us = self._now_us(background=background)
            groups = [] if topic.logs[0].deleted else self._protected_groups(topic, now_us)
            if not groups:
                continue
            for log in topic.logs:
                if len(log.segment_firsts) > 1:
                    rules = self._rules(topic, groups, now_us)
                    with apart.each(topic, log):
                        removed = self._volume.housekeeping.vacuum(
                            log, rules, self._protection(topic, log, groups, now_us), self._pause
                        )
                        self.counters(topic).removed_messages += removed.messages
                        total.add(removed)
        apart.end()
        return Rewritten(total.segments, total.messages, total.tombstones, total.bytes)

    def expire(self, topics: Sequence[Topic], *, background: bool = False) -> Rewritten:
        """
        Take expired messages out of segments of which they are most; what a consumer holds stays.

        In a topic with ``expired="dead_letter"`` they go when every group has finished them, and without groups they stay. So do those of a
        topic with compaction: else an older message of the same key would be the latest again. Raises as `retain` does.
        """
        total = Removed()
        apart = _Apart(self.troubles if background else None, "expiry")
        for topic in topics:
            if not _takes_expired(topic):
                continue
            now_us = self._now_us(background=background)
            for log in topic.logs:
                if background and not self._volume.housekeeping.is_expiry_due(log, now_us):
                    continue
                protection, taken = self._protection_of_expired(topic, log, now_us)
                with apart.each(topic, log):
                    removed = self._volume.housekeeping.expire(
                        log, protection, taken, now_us, self._pause, asked=not background
                    )
                    self.counters(topic).removed_messages += removed.messages
                    total.add(removed)
        apart.end()
        return Rewritten(total.segments, total.messages, total.tombstones, total.bytes)

    def seal_expired(self, topics: Sequence[Topic], *, background: bool = False) -> int:
        """Seal the active segments of *topics* of which most has expired, so that `expire` can take it out. Raises as `retain` does."""
        count = 0
        apart = _Apart(self.troubles if background else None, "sealing")
        for topic in topics:
            if not _takes_expired(topic):
                continue
            now_us = self._now_us(background=background)
            for log in topic.logs:
                if background and not self._volume.housekeeping.is_expiry_due(log, now_us):
                    continue
                protection, _ = self._protection_of_expired(topic, log, now_us)
                with suppress(Unavailable), apart.each(topic, log):
                    count += self._volume.housekeeping.seal_expired(
                        log, protection, now_us, self._pause, asked=not background
                    )  # fmt: skip
        apart.end()
        return count

    def compact(self, topics: Sequence[Topic], *, background: bool = False) -> Rewritten:
        """Compact those of *topics* that say so, in the *background* only what is worth it now. Raises as `retain` does."""
        total = Removed()
        apart = _Apart(self.troubles if background else None, "compaction")
        for topic in topics:
            if not topic.settings.compaction or topic.logs[0].deleted:
                continue
            now_us = self._now_us(background=background)
            groups = self._protected_groups(topic, now_us)
            for log in topic.logs:
                with apart.each(topic, log):
                    if background and not self._volume.housekeeping.is_compaction_due(log, now_us):
                        continue
                    removed = self._volume.housekeeping.compact(
                        log, self._protection(topic, log, groups, now_us), now_us, self._pause
                    )  # fmt: skip
                    self.counters(topic).removed_messages += removed.messages
                    total.add(removed)
        apart.end()
        return Rewritten(total.segments, total.messages, total.tombstones, total.bytes)

    def _protection(self, topic: Topic, log: PartitionLog, groups: list[Group], now_us: int) -> Protection:
        partition = log.identity.partition
        open_offsets = OffsetSet()
        floor = min([EVERYTHING, *[one for name, one in list(log.floors.items()) if name not in ("groups", "deduplication")]])
        generations = {}
        for group in groups:
            scan, unfinished, generation = group.unfinished(partition)
            floor = min(floor, scan)
            open_offsets |= unfinished
            generations[group.identity] = generation  # one of the same name that is made meanwhile is another one

        @contextmanager
        def holds() -> Iterator[bool]:
            with self._groups.standstill():
                now = self._protected_groups(topic, now_us)
                yield {group.identity: group.unfinished(partition)[2] for group in now} == generations

        dedup_from_us = now_us - topic.settings.dedup_window_ms * 1000
        return Protection(floor, open_offsets, dedup_from_us, holds)

    def _protection_of_expired(self, topic: Topic, log: PartitionLog, now_us: int) -> tuple[Protection, OffsetSet]:
        """
        What stays of a log though it has expired; and a set for the offsets that are about to go, which no group may have in hand.

        All groups count, idle ones too, and also with ``retain="always"``: a group may finish what it has in hand, and what becomes a dead
        letter it moves when it comes to it.
        """
        partition = log.identity.partition
        moves = topic.settings.expired == "dead_letter"
        groups = self._groups.of_topic(topic.topic_id)
        floor = min([EVERYTHING, *[one for name, one in list(log.floors.items()) if name not in ("groups", "deduplication")]])
        open_offsets, taken = OffsetSet(), OffsetSet()
        generations = {}
        for group in groups:
            scan, unfinished, generation = group.unfinished(partition)
            open_offsets |= unfinished
            generations[group.identity] = generation
            if moves:
                floor = min(floor, scan)
        if moves and not groups:
            floor = 0

        @contextmanager
        def holds() -> Iterator[bool]:
            with self._groups.standstill():
                now = [(group.identity, group.unfinished(partition)) for group in self._groups.of_topic(topic.topic_id)]
                same = not moves or {identity: generation for identity, (_, _, generation) in now} == generations
                yield same and not any(unfinished.intersect(taken) for _, (_, unfinished, _) in now)

        dedup_from_us = now_us - topic.settings.dedup_window_ms * 1000
        return Protection(floor, open_offsets, dedup_from_us, holds), taken

    def _pause(self) -> None:
        """Let others run, now and then."""
        if self._stop.is_set():
            raise Closed("the store")
        now = self._clock.monotonic()
        if now - self._paused >= _WORK_SECONDS:
            self._stop.wait(_PAUSE_SECONDS)
            self._paused = self._clock.monotonic()

    # -- in the background ------------------------------------------------------------------------------------------

    def begin_rewriting(self, topics: Sequence[Topic]) -> None:
        """Vacuum and compact what is worth it, in a thread of its own, unless the last one is still at it."""
        if self._thread is not None and self._thread.is_alive():
            return
        wanted = [topic for topic in topics if self._is_rewritable(topic) or self._may_have_expired(topic)]
        if wanted:
            self._thread = threading.Thread(target=self._rewrite, args=(wanted,), name="penstock-compaction", daemon=True)
            self._thread.start()

    @staticmethod
    def _is_rewritable(topic: Topic) -> bool:
        return (topic.settings.compaction or topic.settings.retain == "until_acked") and any(
            len(log.segment_firsts) > 1 for log in topic.logs
        )

    def _may_have_expired(self, topic: Topic) -> bool:
        if not _takes_expired(topic):
            return False
        now_us = self._now_us(background=True)
        return any(self._volume.housekeeping.is_expiry_due(log, now_us) for log in topic.logs)

    def _rewrite(self, topics: Sequence[Topic]) -> None:
        for topic in topics:
            what = "rewriting", topic.topic_id
            try:
                self.seal_expired([topic], background=True)
                self.expire([topic], background=True)
                self.vacuum([topic], background=True)
                self.compact([topic], background=True)
                self.troubles.end(what)
            except Closed:
                return
            except (PenstockError, OSError) as error:
                text = f"vacuum and compaction of topic {topic.name} stopped for now"
                self.troubles.tell(what, text, "rewriting_failed", error, topic=topic.name, partition=None)

    def join(self) -> None:
        """Wait for the thread; `stop` is set."""
        if self._thread is not None:
            self._thread.join()


def _takes_expired(topic: Topic) -> bool:
    """Whether expired messages of *topic* are taken out of it. Dead letters never expire."""
    return not (topic.settings.compaction or topic.logs[0].deleted or is_dead_letter_topic(topic.name))


class _Apart:
    """Keeps what is wrong with the files of one log from stopping the work on others."""

    def __init__(self, troubles: Troubles | None, work: str) -> None:
        """With *troubles* it is told there, else raised at the end."""
        self._troubles = troubles
        self._work = work
        self._failed: Corrupt | NoAccess | OSError | None = None

    @contextmanager
    def each(self, topic: Topic, log: PartitionLog) -> Iterator[None]:
        """The work on one log; what is wrong with all of the store is raised through it."""
        partition = log.identity.partition
        what = self._work, topic.topic_id, partition
        try:
            yield
        except (Corrupt, NoAccess, OSError) as error:
            if self._troubles is None:
                self._failed = self._failed or error
                return
            name = "retention_failed" if self._work in ("retention", "sealing") else "rewriting_failed"
            text = f"{self._work} of partition {partition} of topic {topic.name} stopped for now"
            self._troubles.tell(what, text, name, error, topic=topic.name, partition=partition)
        else:
            if self._troubles is not None:
                self._troubles.end(what)

    def end(self) -> None:
        """All logs had their turn. Raises the first of what was wrong."""
        if self._failed is not None:
            raise self._failed


def _finished(groups: Sequence[Group], partition: int) -> int | None:
    """What all of *groups* have finished of a partition; None without groups."""
    return min([group.position(partition) for group in groups], default=None)
