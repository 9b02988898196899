"""
The lanes of a partition whose topic has priorities.

Theory of operation
-------------------
In such a topic everything that is committed is looked at, once, when somebody asks for messages: the priority column of each batch says
which offsets are medium and high, and those two sets are the *index*. From then on `cursor.ready` is an inbox: what came in or came back is
sorted from there into the lanes, bitmaps of what waits, by `sort`. After a restart the index is built anew from the open offsets, and that
is all: nothing else of the lanes is stored.

A lane is served by offset. What waited longer than the topic's `aging_ms` is served as one lane higher, and after twice that as two.
Offsets rise with time, so no message has to be looked at for that: below one offset all have waited long enough (`_once`), below another
one twice as long (`_twice`), and a few *marks* tell where these are at any moment. A message that was delayed waits only since it was due,
whatever its offset: those are kept apart, as *late* ones, until they have waited for that long too.

Inside a lane what has aged and what belongs there take turns, the aged one first. If the aged ones came first altogether, an old backlog
of low messages would keep new high ones waiting behind all of it; if they came last, they would starve.

An offset in a lane may be finished meanwhile, by a commit: whoever takes it out finds that it is not open any more.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from typing import TYPE_CHECKING

from penstock.groups.delays import Delays
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock.format.batch import Batch

LOW, MEDIUM, HIGH = range(3)
_MARKS = 32
"""So many marks for the time in which a message ages once: it may age late by such a part."""
_PRUNE_FROM = 65_536
_FIRE_MAX = 4_096
"""So many messages of a lane that are due wait there at most; the others come when there is room for them."""


class Lanes:
    """What waits in one partition, by priority. Not locked: its cursor's group is."""

    __slots__ = (
        "_index", "_late_index", "_late_once", "_late_since", "_lately", "_marks", "_once", "_prune_at", "_turn", "_twice",
        "_waiting", "age_us", "delays", "indexed_end", "is_indexed",
    )  # fmt: skip

    def __init__(self, age_us: int) -> None:
        self.age_us = age_us
        """How long a message waits until it is served as one lane higher; 0: for ever."""
        self.is_indexed = False
        """Whether the index has all open offsets; it does not after a restart."""
        self.indexed_end = 0
        """Until then: it has those below this one."""
        self._index = (OffsetSet(), OffsetSet(), OffsetSet())
        """By lane, which offsets belong there; nothing is kept for the low ones."""
        self._prune_at = _PRUNE_FROM
        self._waiting = (OffsetSet(), OffsetSet(), OffsetSet())
        self.delays = (Delays(), Delays(), Delays())
        """By lane, what is not due yet."""
        self._once = self._twice = 0
        self._marks: deque[tuple[int, int]] = deque()
        """(time, offset): all before that offset were appended by that time. Of the time in which messages age twice."""
        self._lately = (OffsetSet(), OffsetSet(), OffsetSet())
        """By lane, what waits and was delayed until a short while ago."""
        self._late_once = (OffsetSet(), OffsetSet(), OffsetSet())
        """The same of those that have aged once."""
        self._late_since: list[tuple[int, OffsetSet]] = []
        """(time, offsets): these wait since then, or a little longer. In order."""
        self._late_index = OffsetSet()
        self._turn = [True, True, True]
        """By lane, whether it is the turn of those that have aged."""

    # -- coming in --------------------------------------------------------------------------------------------------

    def index(self, batch: Batch, among: OffsetSet) -> None:
        """Learn what of *batch* is medium and high; *among* are the offsets of interest in it."""
        priorities = batch.priorities()
        if priorities is None:
            return
        first = batch.first_offset
        if batch.header.offset_span == len(batch):
            medium = [at for at, one in enumerate(priorities, first) if one == MEDIUM]
            high = [at for at, one in enumerate(priorities, first) if one >= HIGH]
        else:
            medium = [batch.offset(at) for at, one in enumerate(priorities) if one == MEDIUM]
            high = [batch.offset(at) for at, one in enumerate(priorities) if one >= HIGH]
        self._index[MEDIUM].update(OffsetSet(medium) & among)
        self._index[HIGH].update(OffsetSet(high) & among)

    def prune(self, open_offsets: OffsetSet) -> None:
        """Forget of the index what is finished, now and then."""
        if len(self._index[MEDIUM]) + len(self._index[HIGH]) > self._prune_at:
            for lane in (MEDIUM, HIGH):
                self._index[lane].intersection_update(open_offsets)
            self._prune_at = _PRUNE_FROM + 2 * (len(self._index[MEDIUM]) + len(self._index[HIGH]))

    def lane_of(self, offset: int) -> int:
        """Where *offset* belongs."""
        return HIGH if offset in self._index[HIGH] else MEDIUM if offset in self._index[MEDIUM] else LOW

    def delay(self, entries: Iterable[tuple[int, int]]) -> None:
        """These (due time, offset) are not due yet."""
        apart: tuple[list[tuple[int, int]], ...] = ([], [], [])
        for entry in entries:
            apart[self.lane_of(entry[1])].append(entry)
        for lane, chosen in enumerate(apart):
            chosen.sort()
            self.delays[lane].add(chosen)

    def age(self, batch: Batch, now_us: int) -> None:
        """Learn how long the messages of *batch* have waited; it comes behind all others so far."""
        if not self.age_us:
            return
        newest_us, step_us = batch.header.max_time_us, max(1, self.age_us // _MARKS)
        if batch.is_merged:
            for time_us in range(now_us - 2 * self.age_us, min(newest_us, now_us) + 1, step_us):
                index = batch.index_of_append_time(time_us)
                if index > 0:
                    self._mark(time_us, batch.offset(index), now_us)
        self._mark(newest_us, batch.end_offset, now_us)

    def _mark(self, time_us: int, offset: int, now_us: int) -> None:
        """All before *offset* were appended by *time_us*."""
        if time_us <= now_us - 2 * self.age_us:
            self._once = max(self._once, offset)
            self._twice = max(self._twice, offset)
            return
        marks = self._marks
        if marks and marks[-1][0] >= time_us:
            time_us = marks.pop()[0]
        elif len(marks) > 1 and time_us - marks[-2][0] < self.age_us // _MARKS:
            marks.pop()
        marks.append((time_us, offset))

    def sort(self, inbox: OffsetSet) -> None:
        """Let what is in *inbox* wait in its lane; it is empty then."""
        for lane in (HIGH, MEDIUM):
            chosen = inbox & self._index[lane]
            if chosen:
                inbox.difference_update(chosen)
                self._wait(lane, chosen)
        self._wait(LOW, inbox)
        inbox.clear()

    def _wait(self, lane: int, offsets: OffsetSet) -> None:
        if self._late_index:
            late = offsets & self._late_index
            if late:
                self._lately[lane].update(late)  # those that have aged already are moved by the next `advance`
                offsets = offsets - late
        self._waiting[lane].update(offsets)

    def fire(self, now_us: int, open_offsets: OffsetSet) -> None:
        """What is due waits from now on; if it is very much, some of it, the earliest of each lane."""
        for lane, delays in enumerate(self.delays):
            fired: list[int] = []
            while len(fired) < _FIRE_MAX and (entry := delays.pop(now_us)) is not None:
                due_us, offset = entry
                if offset in open_offsets:
                    fired.append(offset)
                    self.late(due_us, (offset,), now_us)
            if fired:
                self._wait(lane, OffsetSet(fired))

    def late(self, due_us: int, offsets: Sequence[int], now_us: int) -> None:
        """These were delayed: they wait since *due_us* only."""
        if not self.age_us or due_us <= now_us - 2 * self.age_us:
            return
        since, late_us = self._late_since, max(1, self.age_us // _MARKS)
        time_us = -(-due_us // late_us) * late_us
        at = bisect_left(since, time_us, key=_time)
        if at == len(since) or since[at][0] != time_us:
            since.insert(at, (time_us, OffsetSet()))
        for offset in offsets:
            since[at][1].add(offset)
            self._late_index.add(offset)

    # -- going out --------------------------------------------------------------------------------------------------

    def advance(self, now_us: int) -> None:
        """It is *now_us*: see what has aged."""
        if not self.age_us:
            return
        marks = self._marks
        while marks and marks[0][0] <= now_us - 2 * self.age_us:
            self._twice = max(self._twice, marks.popleft()[1])
        at = bisect_right(marks, now_us - self.age_us, key=_time)
        self._once = max(self._once, self._twice, marks[at - 1][1] if at else 0)
        since = self._late_since
        while since and since[0][0] <= now_us - 2 * self.age_us:
            # From now on they are like all others: their offsets lie below `_twice`, or will soon.
            _, grown = since.pop(0)
            self._late_index.difference_update(grown)
            for lane in (LOW, MEDIUM, HIGH):
                for late in (self._lately[lane], self._late_once[lane]):
                    moved = late & grown
                    late.difference_update(moved)
                    self._waiting[lane].update(moved)
        for time_us, grown in since:
            if time_us > now_us - self.age_us:
                break
            for lane in (LOW, MEDIUM):
                moved = self._lately[lane] & grown
                self._lately[lane].difference_update(moved)
                self._late_once[lane].update(moved)

    def has(self, level: int) -> bool:
        """Whether something waits that is served in lane *level* now."""
        return self._own(level) is not None or self._aged(level) is not None

    def __bool__(self) -> bool:
        return any(self._waiting) or bool(self._late_index and (any(self._lately) or any(self._late_once)))

    def __len__(self) -> int:
        return sum(map(len, (*self._waiting, *self._lately, *self._late_once)))

    def _own(self, level: int) -> tuple[int, OffsetSet] | None:
        """The first one that belongs to *level*."""
        found = None
        for waiting in (self._waiting[level], self._lately[level]):
            if waiting and (found is None or waiting.min() < found[0]):
                found = waiting.min(), waiting
        return found

    def _aged(self, level: int) -> tuple[int, OffsetSet] | None:
        """The first one that belongs to a lower lane and is served in *level* now."""
        found = None
        for lane, below in ((level - 1, self._once), (level - 2, self._twice)):
            if lane < LOW:
                break
            waiting = self._waiting[lane]
            if waiting and waiting.min() < below and (found is None or waiting.min() < found[0]):
                found = waiting.min(), waiting
        if level > LOW:
            waiting = self._late_once[level - 1]
            if waiting and (found is None or waiting.min() < found[0]):
                found = waiting.min(), waiting
        return found

    def pop(self, level: int) -> int | None:
        """Take out the next one of lane *level*."""
        own, aged = self._own(level), self._aged(level)
        if own is not None and aged is not None:
            chosen = aged if self._turn[level] else own
            self._turn[level] = not self._turn[level]
        elif own is None and aged is None:
            return None
        else:
            chosen = own or aged  # type: ignore[assignment]
            self._turn[level] = True
        offset, waiting = chosen
        waiting.discard(offset)
        return offset


def _time(entry: tuple[int, object]) -> int:
    return entry[0]
