"""
The position in the database, and the log and the group that it is about: whether they fit, and how each follows the other.

Theory of operation
-------------------
What the group delivers next is not always what is next in the log. A *hole* is what is not finished in the database and lies before
something that was delivered. What lies in a hole is one of these:

- a message that is delayed, or in a topic with priorities a less urgent one: the group has it, and it comes later. It stays a hole.
- a message that has expired: the group leaves it out, and so does the position.
- nothing: compaction took it, or it never was.
- a message that the group has finished and this database has not: another database, or a backup that was restored. The group is
  sought back.

`examine` tells them apart when messages come from beyond what is finished, by one bounded look into the log. Where it cannot tell, as with
a message that was delayed and is due by now, the hole stays: nothing is ever taken for finished without a reason. `catch_up`, when the
consumer is opened and when it has nothing to do, looks at holes that the group is past: the group's position is its first unfinished
message, so whatever lies before it comes only if the group is sought back.

Where a message seems to be there by our clock, and the group leaves it out after it was sought back to it, the server's clock is right: it
has expired.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.clock import SystemClock, WatchedClock
from penstock.database.dialect import Transaction
from penstock.database.positions import Position
from penstock.errors import PositionLost
from penstock.log_events import event, get_logger
from penstock.offset_set import OffsetSet
from penstock.settings import StoreSettings
from penstock.store import reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.database.dialect import PostgresDialect, SqliteDialect
    from penstock.database.positions import Positions
    from penstock.groups.delivery import Delivery
    from penstock.store.reading import TopicPositions
    from penstock.topics.message import Message

_log = get_logger("penstock.database")

_clock = WatchedClock(SystemClock(), StoreSettings().clock_jump_grace_ms / 1000)
LOOK_AT_MESSAGES = 1_000
"""So many messages of holes are looked at in one go; what lies behind them stays a hole."""
_LOOK_AT_HOLES = 100
_OTHER_TOPIC = "the position is one of another topic of this name: it was made again, or is in another store"


@dataclass(slots=True)
class Passed:
    """What is finished without an effect, and why."""

    void: OffsetSet = field(default_factory=OffsetSet)
    """The offsets, also those at which there is nothing."""
    expired: int = 0
    skipped: int = 0
    """Messages that retention took."""
    log_epoch: int = 0
    """The log epoch in which it was looked at, 0 if nothing was."""


class Following:
    """How the positions of one consumer follow its log, and its group follows the positions."""

    def __init__(self, store: Any, topic: str, group: str, positions: Positions, *, reset: str, start: Any) -> None:
        info = store.topic(topic)
        self._store = store
        self.topic = topic
        self.group = group
        self._positions = positions
        self._reset = reset
        self._start = start
        self._topic_id = info.topic_id.hex()
        self.has_lanes: bool = info.settings.priorities
        """Whether urgent messages overtake others: then a message that has not come yet is nothing special."""
        self._waits_for_us = info.settings.retain == "until_acked" and not info.settings.retention_bytes_hard
        """Whether retention takes only what the group has finished."""
        self._is_following = False
        """Whether the group was seen not to be ahead: from then on it finishes by itself only what has expired."""
        self._sought: dict[int, int] = {}
        """Partition -> where its group was sought to."""
        self.expired = 0
        self.skipped = 0

    def count(self, passed: Passed) -> None:
        """It is committed."""
        self.expired += passed.expired
        self.skipped += passed.skipped

    def handled(self, message: Delivery) -> None:
        """It came, and was handled: a group that was sought back to it has done what it should."""
        if self._sought and self._sought.get(message.partition) == message.offset:
            del self._sought[message.partition]

    # -- checking ---------------------------------------------------------------------------------------------------

    def lost(self, partition: int, reason: str) -> PositionLost:
        """The error that says so."""
        return PositionLost(self.topic, partition, self.group, reason)

    def _positions_now(self) -> TopicPositions:
        found: TopicPositions = self._store.positions([self.topic])[self.topic]
        return found

    def get(self, dialect: SqliteDialect | PostgresDialect, cursor: Any, partition: int) -> Position:
        """The position in a partition of this topic. Raises `PositionLost`."""
        found = self._positions.get(dialect, cursor, partition)
        if found is None:
            raise self.lost(partition, "somebody removed the position while this consumer ran")
        if found.topic_id != self._topic_id:
            raise self.lost(partition, _OTHER_TOPIC)
        return found

    def check_all(self, dialect: SqliteDialect | PostgresDialect) -> None:
        """
        Before anything is consumed: whether the positions are those of this topic, and the log still has what was seen.

        Where there is none yet, it is made. Raises `PositionLost`.
        """
        now = self._positions_now()
        with Transaction(dialect) as cursor:
            known = self._positions.all(dialect, cursor)
            for partition in now.ends.keys() - known.keys():
                place = _place(self._store, self._start, self.topic, partition, now)
                self._positions.add(dialect, cursor, Position(partition, self._topic_id, place, now.log_epoch))
        for partition, position in known.items():
            if position.topic_id != self._topic_id:
                raise self.lost(partition, _OTHER_TOPIC)
            # The ends were read first, so another consumer may have come further than they say: look again.
            if position.end > now.ends.get(partition, 0):
                now = self._positions_now()
            if position.end > now.ends.get(partition, 0):
                raise self.lost(partition, f"the log ends at {now.ends.get(partition, 0)}, before the position {position.end}")
            self._check_epoch_at(position, now.log_epoch)
            self._check_start(position, now.starts[partition])

    def _check_start(self, position: Position, first: int) -> int:
        """How many messages retention took before they were finished, in a log that begins at *first*. Raises `PositionLost`."""
        if first <= position.offset:
            return 0
        reason = f"retention removed the messages from offset {position.offset} to {first} before they had their effect"
        if self._reset == "fail":
            raise self.lost(position.partition, f'{reason}; reset="earliest" goes on behind them')
        return _unfinished(position, first)

    def check_epoch(self, position: Position, message: Delivery) -> None:
        """Whether the log is the one that was seen. Raises `PositionLost`."""
        if message.log_epoch > position.log_epoch:
            if message.offset < position.end:
                raise self.lost(
                    position.partition, f"other messages have the offsets from {message.offset} on since the store died"
                )
            self._check_epoch_at(position, message.log_epoch)

    def _check_epoch_at(self, position: Position, log_epoch: int) -> None:
        if position.end > 0 and log_epoch > position.log_epoch:
            written = self._store.epoch_at(self.topic, position.partition, position.end - 1)
            if written is not None and written > position.log_epoch:
                raise self.lost(position.partition, f"other messages lie before offset {position.end} since the store died")

    # -- following --------------------------------------------------------------------------------------------------

    def examine(self, position: Position, line: Sequence[Delivery]) -> Passed | None:
        """
        What lies before messages of *line* and needs no waiting for; None if the group was sought back, and all comes again.

        Raises `PositionLost`.
        """
        reach = position.end
        offsets = [message.offset for message in line if message.offset >= reach]
        if self.has_lanes or not offsets or max(offsets) - reach == len(offsets) - 1:
            return Passed()  # they follow at once, or only time tells
        partition, last = position.partition, max(offsets)
        now = self._positions_now()
        first = now.starts[partition]
        passed = self._pass_over_removed(position, now)
        # A seek finishes what lies before it, so it goes to the first that is not finished here.
        begin, place = max(reach, first), max(position.offset, first)
        void = passed.void
        void.add_range(begin, last)
        void -= OffsetSet(offsets)
        known, looked_at = set(offsets), 0
        for message in self._store.read(self.topic, partition, start=begin, end=last) if begin < last else ():
            if message.offset in known:
                continue
            looked_at += 1
            if looked_at > LOOK_AT_MESSAGES:
                void.remove_range(message.offset, last)
                break
            if message.deliver_us is not None and not _has_expired(message):
                void.discard(message.offset)
            elif self._is_left_out(partition, message, place):
                passed.expired += 1
            elif self._sought.get(partition) == place:
                void.discard(message.offset)  # it is open in the group, so it comes
            else:
                self._seek(partition, place)
                return None
        return passed

    def catch_up(self, dialect: SqliteDialect | PostgresDialect) -> set[int]:
        """
        Look at what the group is past and the database is not; returns the partitions whose group was sought back.

        What has expired or is gone is passed over, in a transaction of its own. Raises `PositionLost`.
        """
        # In this order: a group is never told before the database is.
        reached = self._reached()
        with Transaction(dialect) as cursor:
            known = self._positions.all(dialect, cursor)
        sought = set()
        now = self._positions_now()
        for partition, position in known.items():
            past = reached.get(partition, 0)
            place, passed = self._look_below(position, past, now)
            # Their dead letters are written: nothing below the group's position is open any more.
            rejected = {at: why for at, why in position.rejected.items() if at >= past}
            if passed.void or rejected != position.rejected:
                with Transaction(dialect) as cursor:
                    moved = self._positions.move(
                        dialect,
                        cursor,
                        position,
                        (),
                        max(position.log_epoch, passed.log_epoch),
                        void=passed.void,
                        rejected=rejected,
                    )
                if moved:
                    self.count(passed)
            if place is not None:
                self._seek(partition, place)
                sought.add(partition)
        self._is_following = True
        return sought

    def _look_below(self, position: Position, reached: int, now: TopicPositions) -> tuple[int | None, Passed]:
        """Where the group must go back to, if anywhere, and what needs no waiting for, below *reached*."""
        first = now.starts[position.partition]
        passed = self._pass_over_removed(position, now)
        void = passed.void
        looked_at = 0
        for number, (start, end) in enumerate(position.holes(reached)):
            begin = max(start, first)
            if begin >= end:
                continue
            if number >= _LOOK_AT_HOLES:
                break
            void.add_range(begin, end)
            for message in self._store.read(self.topic, position.partition, start=begin, end=end):
                looked_at += 1
                is_left_out = looked_at <= LOOK_AT_MESSAGES and self._is_left_out(position.partition, message, message.offset)
                if not is_left_out:
                    void.remove_range(message.offset, end)
                    return (message.offset if looked_at <= LOOK_AT_MESSAGES else None), passed
                passed.expired += 1
        return None, passed

    def _pass_over_removed(self, position: Position, now: TopicPositions) -> Passed:
        """What retention took, in a log that is as *now* says. Raises `PositionLost`."""
        # What is passed over may have been written in a later epoch than anything that was handled.
        self._check_epoch_at(position, now.log_epoch)
        passed = Passed(log_epoch=now.log_epoch)
        first = now.starts[position.partition]
        if first <= position.offset:
            return passed
        if self._is_following and self._waits_for_us:
            # The group has finished it, and this consumer did not see it: it had expired.
            passed.expired = _unfinished(position, first)
        else:
            passed.skipped = self._check_start(position, first)
            _log.warning(
                "%s/%d in group %s: retention removed messages from offset %d to %d before they had their effect; going on",
                self.topic, position.partition, self.group, position.offset, first,
                extra=event(
                    "messages_skipped", topic=self.topic, group=self.group, partition=position.partition, messages=passed.skipped
                ),
            )  # fmt: skip
        passed.void.add_range(position.offset, first)
        return passed

    def _is_left_out(self, partition: int, message: Message, place: int) -> bool:
        """Whether the group, if it was sought back to *place*, passes over *message* for good."""
        if _has_expired(message):
            return True
        return self._sought.get(partition) == place and self._reached().get(partition, 0) > message.offset

    def _reached(self) -> dict[int, int]:
        """The first message of each partition that the group has not finished."""
        topic = self._store.stats().topics.get(self.topic)
        group = None if topic is None else topic.groups.get(self.group)
        return {} if group is None else group.positions

    def _seek(self, partition: int, offset: int) -> None:
        _log.info("group %s of %s/%d goes back to %d, the position in the database", self.group, self.topic, partition, offset)
        self._sought[partition] = offset
        self._store.seek(self.topic, self.group, {partition: offset})


def _unfinished(position: Position, end: int) -> int:
    return sum(stop - begin for begin, stop in position.holes(end))


def _has_expired(message: Message) -> bool:
    end_us = message.expires_us
    return end_us is not None and end_us <= _now_us(message.append_time_us)


def _now_us(since_us: int) -> int:
    # A position that passed over a message does not come back to it: a wall clock that has just jumped ahead is not believed.
    return _clock.ended_us(since_us)


def _place(store: Any, start: Any, topic: str, partition: int, now: TopicPositions) -> int:
    """The offset that *start* means in a partition."""

    class Log:
        log_start = now.starts[partition]
        committed_end = now.ends[partition]

        @staticmethod
        def offset_of_time(time_us: int) -> int:
            moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=time_us)
            return int(store.offset_of_time(topic, partition, moment))

    return reading.place("start", start, Log())
