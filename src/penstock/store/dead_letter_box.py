"""
The dead letters of a topic: look at them, send them back, or throw them away.

They are the messages of the topic `X.dlq`, which is an ordinary log and never changed. Which of them are still there is the state of a
group of its own, the box, that nobody can subscribe to: sending a message back, or throwing it away, finishes it in that group, in the same
frame that publishes it. Groups of users over `X.dlq` get what is there, and finishing a letter there takes it out (`groups/letters.py`).
"""

from __future__ import annotations

import contextlib
import datetime as dt
from itertools import islice
from typing import TYPE_CHECKING

from penstock.arguments import check_whole_number, shown
from penstock.errors import BadArgument, OffsetOutOfRange
from penstock.groups.dead_letters import BOX_GROUP, HEADER_PREFIX, TTL_HEADER
from penstock.groups.letters import is_there
from penstock.offset_set import OffsetSet
from penstock.settings import GroupSettings
from penstock.store import reading
from penstock.topics.options import US_MAX

if TYPE_CHECKING:
    import builtins
    import threading
    from collections.abc import Callable, Iterable, Iterator

    from penstock.groups.group import Group
    from penstock.groups.registry import Groups
    from penstock.store.transaction import Transaction
    from penstock.topics.message import Message
    from penstock.topics.topic import Topic

_TOGETHER = 100
"""How many messages are sent back in one transaction."""
_GAP = 1_000
"""More than so many that are gone are passed over by reading anew behind them."""


class DeadLetters:
    """The dead letters of one topic. Made by `Store.dead_letters`. Safe to use from any thread, one change at a time."""

    def __init__(
        self,
        source: Topic,
        dead: Callable[[], Topic | None],
        groups: Groups,
        transaction: Callable[[], Transaction],
        lock: threading.Lock,
    ) -> None:
        self._lock = lock
        self._source = source
        self._dead = dead
        self._groups = groups
        self._transaction = transaction

    def _group(self, dead: Topic) -> Group:
        return open_box(self._groups, dead)

    def __iter__(self) -> Iterator[Message]:
        return self.between(0)

    def between(self, start: int, end: int | None = None) -> Iterator[Message]:
        """Those that are there from offset *start* up to, not with, *end*, oldest first; what lies before, or is gone, costs nothing."""
        dead = self._dead()
        if dead is None:
            return
        group = self._group(dead)
        for partition, log in enumerate(dead.logs):
            # What lies before is gone, however much it is.
            first: int | None = max(group.position(partition), log.log_start, start)
            with contextlib.suppress(OffsetOutOfRange):  # retention took all that there was meanwhile, or it is past the end
                while first is not None:
                    following, first = reading.messages(dead.name, [(partition, log)], first, end, None), None
                    for message in following:
                        if _is_there(group, message):
                            yield message
                        elif (ahead := _next(group, message)) - message.offset > _GAP:
                            first = ahead
                            break

    def list(
        self, max_messages: int | None = None, filter: Callable[[Message], bool] | None = None  # noqa: A002
    ) -> builtins.list[Message]:  # fmt: skip
        """The dead letters that are there, oldest first; with *filter* those that it takes, see `DeadLetterFilter`."""
        check_filter(filter)
        limit = reading.OFFSET_MAX if max_messages is None else check_whole_number("max_messages", max_messages, 0, 1 << 62)
        found: builtins.list[Message] = []
        for message in self:
            if len(found) >= limit:
                break
            if filter is None or filter(message):
                found.append(message)
        return found

    def _oldest(self) -> Message | None:
        """The oldest of those that are there. It costs the same however many there are: one batch is read."""
        dead = self._dead()
        if dead is None:
            return None
        group = self._group(dead)
        for partition, log in enumerate(dead.logs):
            first = max(group.position(partition), log.log_start)
            with contextlib.suppress(OffsetOutOfRange):  # as in `between`
                while (message := next(reading.messages(dead.name, [(partition, log)], first, None, 1), None)) is not None:
                    if _is_there(group, message):
                        return message
                    first = max(_next(group, message), message.offset + 1)
        return None

    def __len__(self) -> int:
        dead = self._dead()
        if dead is None:
            return 0
        return sum(cursor.unfinished() for cursor in self._group(dead).cursors)

    def replay(self, filter: Callable[[Message], bool] | None = None, offsets: Iterable[int] | None = None) -> int:  # noqa: A002
        """
        Send dead letters back to their topic, to the partition they came from, and take them out; returns how many.

        *filter*, a function or a `DeadLetterFilter`, chooses by the message, *offsets* by its place in the dead letters. The headers that
        dead-lettering added are taken off, and every group counts from the beginning. Each has the priority that it had, is due at once,
        and lives as long as it was to live before, from now on. After a crash each of them is in one of the two places, never in both.
        """
        return self._take_out(filter, offsets, republish=True)

    def discard(self, filter: Callable[[Message], bool] | None = None, offsets: Iterable[int] | None = None) -> int:  # noqa: A002
        """Throw dead letters away; returns how many."""
        return self._take_out(filter, offsets, republish=False)

    def _take_out(self, choose: Callable[[Message], bool] | None, offsets: Iterable[int] | None, *, republish: bool) -> int:
        wanted = None if offsets is None else _offsets(offsets)
        check_filter(choose)
        dead = self._dead()
        if dead is None:
            return 0
        group = self._group(dead)
        # All are chosen before anything is changed. Their places only: the letters themselves may be a million.
        chosen: dict[int, OffsetSet] = {}
        for message in iter(self) if wanted is None else self.between(min(wanted), max(wanted) + 1) if wanted else ():
            if (wanted is None or message.offset in wanted) and (choose is None or choose(message)):
                chosen.setdefault(message.partition, OffsetSet()).add(message.offset)
        count = 0
        letters = _letters_at(dead, chosen)
        while together := list(islice(letters, _TOGETHER)):
            with self._lock:
                # Another thread may have taken some of them out while this one chose.
                part = [message for message in together if _is_there(group, message)]
                if part:
                    self._take_out_part(group, part, republish=republish)
            count += len(part)
        return count

    def _take_out_part(self, group: Group, part: builtins.list[Message], *, republish: bool) -> None:
        with self._transaction() as transaction:
            for message in part:
                if republish:
                    transaction.publish(
                        self._source.name,
                        message.value,
                        key=message.key,
                        headers=[pair for pair in message.headers if not pair[0].startswith(HEADER_PREFIX)],
                        partition=self._partition(message),
                        timestamp=message.timestamp,
                        ttl=_ttl(message),
                        priority=message.priority if self._source.settings.priorities else None,
                    )
            for partition in {message.partition for message in part}:
                transaction.finish_unleased(
                    group, partition, [message.offset for message in part if message.partition == partition]
                )

    def expire(self, before_us: int) -> int:
        """Throw away what was dead-lettered before a time, microseconds since 1970; returns how many. Raises nothing if there is none."""
        dead = self._dead()
        if dead is None:
            return 0
        ends = [(log.identity.partition, log.offset_of_time(before_us), log.log_start) for log in dead.logs]
        if all(end <= first for _, end, first in ends):
            return 0
        group = self._group(dead)
        with self._lock:
            before = len(self)
            for partition, end, _ in ends:
                if end > group.position(partition):
                    group.commit(partition, end)
            return before - len(self)

    def _partition(self, message: Message) -> int | None:
        text = message.headers.get(HEADER_PREFIX + "source-partition", b"")
        number = int(text) if text.isdigit() else self._source.partitions
        return number if number < self._source.partitions else None


def open_box(groups: Groups, dead: Topic) -> Group:
    """The group that knows which dead letters are there, made if it is not."""
    found = groups.find(dead.topic_id, BOX_GROUP)
    if found is not None:
        return found
    return groups.make(
        dead.topic_id, dead.name, BOX_GROUP, lambda _: GroupSettings(), lambda: [log.log_start for log in dead.logs]
    )


def _letters_at(dead: Topic, places: dict[int, OffsetSet]) -> Iterator[Message]:
    """The letters at *places*, offsets by partition; what retention takes meanwhile is left out."""
    for partition, offsets in places.items():
        log = dead.logs[partition]
        with contextlib.suppress(OffsetOutOfRange):
            start = max(offsets.min(), log.log_start)
            for message in reading.messages(dead.name, [(partition, log)], start, offsets.max() + 1, None):
                if message.offset in offsets:
                    yield message


def _ttl(message: Message) -> dt.timedelta | None:
    """How long the message was to live, if it said so itself."""
    text = message.headers.get(TTL_HEADER, b"")
    return dt.timedelta(microseconds=min(int(text), US_MAX)) if text.isdigit() and int(text) > 0 else None


def check_filter(choose: object) -> None:
    """Raise `BadArgument` if *choose* is no filter."""
    if choose is not None and not callable(choose):
        raise BadArgument("filter", shown(choose), "must be a function that takes a message, or a DeadLetterFilter")


def _is_there(group: Group, message: Message) -> bool:
    return is_there(group, message.partition, message.offset)


def _next(group: Group, message: Message) -> int:
    """The first offset from *message* on that may be there."""
    with group.lock:
        cursor = group.cursors[message.partition]
        return next(cursor.open.iter_equal_or_larger(message.offset), cursor.scan)


def _offsets(offsets: Iterable[int]) -> set[int]:
    try:
        return {check_whole_number("offsets", offset, 0, reading.OFFSET_MAX) for offset in offsets}
    except TypeError:
        raise BadArgument("offsets", shown(offsets), "must be a list of offsets") from None
