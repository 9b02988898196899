"""
A group: hands the messages of a topic to its members, each message to one of them, until it is finished.

Theory of operation
-------------------
Nothing is done for a message before a member asks for it. `take` hands out what the member has leased, and leases more when that is
used up (`leasing.py`). What it was handed is acked, nacked or given back, or its lease ends (`settling.py`). Leases, acks and failures
change the memory, the group's book (`book.py`), at once, and reach the journal with the next frame (`registry.py`): a crash forgets at
most the last few milliseconds of them, which means that messages are delivered again. What a crash means for messages that somebody
held is told in `replay.py`.

Time: a lease runs from the moment a message is handed to its user. What is pushed to a client, ahead of its user, waits there without
one, as long as the client is heard (`Member.waiting`). Whoever takes next, or waits, looks at the earliest deadline and the earliest due
time, and so does a thread while anything is with a consumer (`deadlines.py`).

Clients: a consumer may be in this process, and lives as long as it does, or its client is somewhere else (`watch`). Such a one is
*suspended* when it lets a lease end, or is silent for as long as one while pushed messages wait there: these go back at once, uncounted,
others get its partitions, and it is given nothing more until it is heard (`heard`).

Locks: `lock` guards all of it, and is taken here and nowhere else. Nothing waits for a commit while holding it, and what needs one (dead
letters, suspects) is done after it was released. The cycle's leader takes it to apply committed operations.

Interrupts: Ctrl-C may come at any instruction. Whoever is interrupted while it changes the group lets it be mended (`mending.py`).
"""

from __future__ import annotations

import contextlib
import math
from functools import partial
from typing import TYPE_CHECKING

from penstock import threads as threading
from penstock.arguments import check_seconds
from penstock.errors import Closed, ConsumerEvicted, LeaseExpired, OffsetOutOfRange, PenstockError
from penstock.groups import operations as ops
from penstock.groups.book import Book
from penstock.groups.cursor import READ_BYTES
from penstock.groups.dead_letters import is_dead_letter_topic, reason_text
from penstock.groups.delivery import is_valid, key_of
from penstock.groups.delivery_times import RecordedLeasing
from penstock.groups.leasing import Leasing
from penstock.groups.member import FETCHES, LATE, PUSHES, SILENT, Member
from penstock.groups.mending import Mending
from penstock.groups.moves import Moves
from penstock.groups.push_window import PushWindow
from penstock.groups.replay import Replay
from penstock.groups.reservation import Reservation
from penstock.groups.settling import Settling
from penstock.groups.snapshot import cursor_operations, member_operations
from penstock.log_events import Often, event, get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.clock import Clock
    from penstock.groups.cursor import Cursor
    from penstock.groups.dead_letters import Move
    from penstock.groups.delivery import Delivery
    from penstock.groups.delivery_times import DeliveryTimes
    from penstock.groups.hands import HandsBefore
    from penstock.groups.journal import Journal
    from penstock.groups.member import Client
    from penstock.groups.reservation import Place
    from penstock.groups.waiters import Waiter
    from penstock.log.partition_log import PartitionLog
    from penstock.offset_set import OffsetSet
    from penstock.settings import GroupSettings

_log = get_logger("penstock")

EXTEND_MAX_S = 86_400.0
DELAY_MAX_S = 3_650 * 86_400.0
_OF_USERS = frozenset([ops.SOUGHT, ops.COMMITTED])
"""Operations by which a group is used without a member."""
RECALL_AFTER_S = 0.02
"""A pushed message waits so long at a busy client before an idle one may have it: most are begun long before."""
RECALL_ANSWER_S = 0.5
"""A client that has not answered for so long keeps no other from being asked."""
CAREFUL_LEASES = 1_000
"""After the store was not closed in order, so many leases are durable before anything of them is handed out: whatever killed the last
process may be among what comes first, and may do so again before the lease would have been noted."""
DEAD_LETTER_LINES = (10, 1.0)
"""So many dead letters of a group are logged in so many seconds: a line for each, but not for each of a million that expire at once."""
MOVE_AGAIN_S = 5.0
"""When a dead letter could not be written, the message waits so long before the next try."""


class Group:
    """
    One group of one topic. Safe to call from any thread.

    `identity` is its number in the journal and never used again.
    """

    def __init__(
        self,
        identity: int,
        topic_id: bytes,
        topic: str,
        name: str,
        settings: GroupSettings,
        starts: Sequence[int],
        journal: Journal,
        seen_us: int = 0,
    ) -> None:
        self._seen_us = seen_us
        self.identity = identity
        self.topic_id = topic_id
        self.topic = topic
        self.name = name
        self.deleted = False
        self.lock = threading.Lock()
        self._journal = journal
        self._book = Book(identity, topic, name, settings, starts, journal)
        self._moves = Moves(self)
        self._leasing = Leasing(self._book, self._moves)
        self._settling = Settling(self._book, self._moves)
        self._replay = Replay(self._book)
        self._mending = Mending(self._book)
        self.cursors = self._book.cursors
        self.counters = self._book.counters
        self._waiters = self._book.waiters
        self._clock: Clock = None  # type: ignore[assignment]  # set by attach
        self._mover: Callable[[Move], None] = None  # type: ignore[assignment]
        self._unlisten: list[Callable[[], None]] = []
        self._careful = 0
        self._look_at = math.inf
        """When it is looked at next, if nobody asks before."""
        self._dead_letter_lines = Often(*DEAD_LETTER_LINES)
        self.configure(settings)

    def __repr__(self) -> str:
        return f"<Group {self.topic}/{self.name}>"

    @property
    def settings(self) -> GroupSettings:
        """What it works by."""
        return self._book.settings

    @property
    def ordered(self) -> bool:
        """Whether each partition belongs to one member."""
        return self._book.ordered

    @property
    def has_lanes(self) -> bool:
        """Whether its topic has priorities."""
        return self._book.has_lanes

    @property
    def members(self) -> list[Member]:
        """Who is there now."""
        return list(self._book.members.values())

    @property
    def may_wait(self) -> bool:
        """Whether handing out may have to wait for the disk, as it does for a while after a crash."""
        return self._careful > 0 or any(cursor.suspects for cursor in self._book.suspected)

    def configure(self, settings: GroupSettings) -> None:
        """Work by *settings* from now on; the caller holds the lock, or has the group for itself."""
        if settings.lease_ms != self.settings.lease_ms:
            # What was handed out keeps the lease it was handed out with; the tables are in the order of deadlines.
            for member in self._book.members.values():
                member.extended |= member.handed  # what waits with clients has no deadline
                member.handed = {}
        self._book.configure(settings)
        self._lease_s = settings.lease_ms / 1000

    def attach(
        self, logs: Sequence[PartitionLog], clock: Clock, mover: Callable[[Move], None], *, careful: bool = False
    ) -> None:
        """
        Give the group what it needs to deliver. *mover* writes dead letters, and may wait for that.

        *careful*: the process before this one died, perhaps by what is handed out next, and perhaps before it could note anything.
        """
        self._clock = clock
        # Of one that was stored without that it is not known: its time begins now. Clocks may go back.
        self._seen_us = min(self._seen_us or clock.now_us(), clock.now_us())
        self._careful = CAREFUL_LEASES if careful else 0
        self._mover = mover
        self._leasing.clock = clock
        nests = is_dead_letter_topic(self.topic)
        for cursor, log in zip(self.cursors, logs, strict=True):
            cursor.attach(log, nests=nests)
            self._book.has_lanes = cursor.lanes is not None

    def record_deliveries(self, times: DeliveryTimes) -> None:
        """From now on *times*, which the group's lock guards, sees what is handed out; once for each group."""
        with self.lock:
            self._leasing = RecordedLeasing(self._leasing, times)

    @property
    def lease_s(self) -> float:
        """How long a message is a consumer's, unless it is renewed."""
        return self._lease_s

    # -- members ----------------------------------------------------------------------------------------------------

    def join(self, identity: int, prefetch: int, prefetch_bytes: int, concurrency: int) -> Member:
        """A new member."""
        book = self._book
        member: Member | None = None
        try:
            with self.lock:
                if self.deleted:
                    raise Closed(f"group {self.name}")
                hand = self._journal.claim_hand(self.identity, identity, concurrency)
                member = Member(self, identity, prefetch, prefetch_bytes, concurrency, hand)
                member.since_us, member.took = self._clock.now_us(), self._clock.monotonic()
                if not book.members:
                    self._unlisten = [cursor.log.add_listener(partial(self._arrived, cursor)) for cursor in self.cursors]
                    book.offer_all()
                book.members[identity] = member
                if book.ordered:
                    book.rebalance()
            return member
        except PenstockError:
            raise
        except BaseException:
            if member is not None:
                member.closed = True  # nobody knows of it
            self._mend()
            raise

    def leave(self, member: Member) -> None:
        """The member is gone in order: what it had goes back at once, and none of it counts as failed."""
        book = self._book
        try:
            with self.lock:
                if member.closed:
                    return
                member.closed = True
                self._seen_us = self._clock.now_us()
                book.return_all(member)
                self._journal.release_hand(member.hand)
                self._journal.note(ops.encode_left(self.identity, member.identity))
                del book.members[member.identity]
                if book.ordered:
                    book.rebalance()
                self._stop_listening()
            self._journal.wake()
            self._waiters.wake_all()
        except BaseException as error:
            self._mend_after(error)
            raise

    def evict(self, member: Member) -> int:
        """
        Take *member* out of the group: what it had goes back at once, uncounted; returns how many messages that were.

        Whoever takes for it is told `ConsumerEvicted`.
        """
        with self.lock:
            if member.closed:
                return 0
            member.evicted = True
            held = member.in_flight + member.buffered
        self.leave(member)
        if member.on_evicted is not None:
            member.on_evicted()
        return held

    def _gone(self, member: Member) -> PenstockError:
        return ConsumerEvicted(self.topic, self.name) if member.evicted else Closed(f"the consumer of {self.topic}/{self.name}")

    def leave_all(self, members: Sequence[Member]) -> None:
        """The same for several."""
        for member in members:
            self.leave(member)

    def _stop_listening(self) -> None:
        """If nobody is there, arrivals are told to nobody."""
        if not self._book.members:
            for stop in self._unlisten:
                stop()
            self._unlisten = []
            for cursor in self.cursors:
                cursor.forget_batches()

    def _arrived(self, cursor: Cursor) -> None:
        self._book.arrived(cursor)
        self.wake()

    def flush(self) -> None:
        """Return when every ack and nack so far is durable."""
        self._journal.flush()

    # -- handing out ------------------------------------------------------------------------------------------------

    def take(self, member: Member, count: int, *, pushed: bool = False) -> list[Delivery]:
        """
        Up to *count* messages for *member*; empty if there are none, or it holds as many as it may, or it is paused or suspended.

        *pushed*: its client did not ask for them now: they wait there, and their leases do not run yet.

        Empty too where so much is delayed that looking for more would take long: then `member.passing` says to ask again.

        Raises:
            OffsetOutOfRange: retention took what comes next, and the group's `reset` is ``fail``.
            Corrupt: the log is damaged there.
            Closed: the member has left.
        """
        now = self._clock.monotonic()
        noted = begun = False
        found: list[Delivery] = []
        book, leasing = self._book, self._leasing
        try:
            with self.lock:
                if member.closed:
                    raise self._gone(member)
                member.took = now
                if now >= book.deadline:
                    self._expire(now)
                if now >= book.due:
                    book.collect_due(now, self._clock.now_us())
                member.passing = False
                if member.suspended == LATE and not pushed and member.silent_at > now:
                    self._reinstate(member)  # it asks, and its client is alive
                if not member.paused and not member.suspended:
                    deadline = now + self._lease_s
                    if pushed:
                        window = member.window
                        if window is not None and (window.always or len(book.members) > 1):
                            count = min(count, window.room(member.in_flight, alone=len(book.members) == 1))
                        if not member.waiting:
                            member.silent_at = now + member.patience_s
                        elif self._must_leave_it(member):
                            count = 0
                        if count <= 0:
                            member.starved = True
                            return found
                    if member.lots:
                        begun = leasing.hand_out(member, count, deadline, found, pushed=pushed)
                    while len(found) < count and not begun and not member.lots:
                        try:
                            noted |= leasing.refill(member, count)
                        except (PenstockError, OSError):
                            if not found:
                                raise
                            # The caller gets what there is, and the error with the next call.
                        if not member.lots:
                            break
                        begun = leasing.hand_out(member, count - len(found), deadline, found, pushed=pushed)
                        if found:
                            break
                        # All of it has expired, as what another member leased long ago may have: there may be more.
                    if found:
                        member.asks = ""
                        if pushed:
                            member.is_spent = False
                            if member.window is not None:
                                member.window.pushed(now)
                            book.deadline = min(book.deadline, member.silent_at)
                    else:
                        member.asks = PUSHES if pushed else FETCHES
                        if len(book.members) > 1:
                            self._recall_for(member, now)
                    if not found:
                        member.starved = (
                            member.in_flight + member.buffered >= member.prefetch or member.held_bytes >= member.prefetch_bytes
                        )
                    if member.lots and book.has_lanes:
                        # Nothing is leased ahead: a more urgent one may come before the next call.
                        book.return_lots(member)
                if book.suspected and member.lots and not begun:
                    book.return_waiting_suspects(member)
                more = bool(found) and bool(self._waiters)
                if book.deadline < self._look_at:
                    self._look_again(book.deadline)
                if noted and self._careful:
                    self._careful -= 1
                    begun = True
            if noted or begun:
                self._journal.wake()
            if self._moves.planned:
                self._move()
            if more:
                # The next one who waits may find more: a commit wakes one waiter only.
                self.wake()
            if begun:
                # Whatever happens now can be put down to this message.
                try:
                    self._journal.flush()
                except PenstockError:
                    # Nobody gets them, so nobody failed.
                    for delivery in found:
                        self.give_back(delivery)
                    raise
            return found
        except BaseException as error:
            self._mend_after(error, found)
            raise

    def _must_leave_it(self, member: Member) -> bool:
        """Whether another one is idle, and is to have what there is before *member* is pushed more. It is woken then."""
        if self._book.ordered or not self._waiters.hungry(member):
            return False
        self._waiters.wake_one()
        return True

    def _recall_for(self, member: Member, now: float) -> None:
        """
        If there is nothing for *member*, and it is idle, ask the client at which most messages wait to give half of them back.

        It decides which: those that it has not begun.
        """
        if not member.is_hungry or self._book.ordered:
            return
        holder: Member | None = None
        asked, again = 0, math.inf
        for one in self._book.members.values():
            if one.is_recalled:
                answer_at = one.recalled_at + RECALL_ANSWER_S
                if now < answer_at:
                    asked += 1
                    again = min(again, answer_at)
                continue
            client = one.client
            if client is None or not client.recalls or not one.waiting or one is member:
                continue
            if not one.is_spent and (holder is None or len(one.waiting) > len(holder.waiting)):
                holder = one
        if holder is None or holder.client is None:
            return
        if asked > len(self._waiters.hungry(member)):
            # One for each that is idle. If that one does not answer, the next is asked.
            if again < self._look_at:
                self._look_again(again)
            return
        may_at = next(iter(holder.waiting.values()))._deadline - self._lease_s + RECALL_AFTER_S  # noqa: SLF001
        if now < may_at:
            if may_at < self._look_at:
                self._look_again(may_at)
            return
        holder.is_recalled = True
        holder.recalled_at = now
        self._book.deadline = min(self._book.deadline, holder.answer_by)
        if self._book.deadline < self._look_at:
            self._look_again(self._book.deadline)
        holder.client.recall(-(-len(holder.waiting) // 2))

    def recalled(self, member: Member, deliveries: Iterable[Delivery], *, spent: bool) -> None:
        """The client of *member* answered a recall with what it gives back; *spent*: that is less than it was asked for."""
        with self.lock:
            member.is_recalled = False
            member.is_spent = spent
        self.give_back_all(deliveries, delivered=False)
        self._waiters.wake_all()

    # -- what is due by itself --------------------------------------------------------------------------------------

    def _look_again(self, moment: float) -> None:
        """Be looked at then; under the lock."""
        self._look_at = moment
        self._journal.look_at(moment, self)

    def look(self, moment: float) -> None:
        """*moment*, which was told to the journal, has come: leases may have ended, or an idle member may have what waits with another."""
        try:
            with self.lock:
                if moment != self._look_at or self.deleted:
                    return  # it was looked at meanwhile, or will be
                now = self._clock.monotonic()
                self._look_at = math.inf
                ended = now >= self._book.deadline
                if ended:
                    self._expire(now)
                for member in self._waiters.hungry(None):
                    self._recall_for(member, now)
                if self._book.deadline < self._look_at:
                    self._look_again(self._book.deadline)
            self._journal.wake()
            if self._moves.planned:
                self._move()
            if ended:
                self._waiters.wake_all()
        except BaseException as error:
            self._mend_after(error)
            raise

    def cold_read(self, member: Member) -> Callable[[], None] | None:
        """
        What reads what `take` will want next of the disk, for a thread that may wait; None if that is in memory, as it mostly is.

        `take` reads under the group's lock, which an event loop takes too: it must not have to wait for the disk there.
        """
        with self.lock:
            if member.closed or member.lots:
                return None
            cursor = next(iter(self._book.rota_of(member)), None)
            offset = None if cursor is None else cursor.cold_offset()
            messages, size = min(member.prefetch - member.in_flight, member.ahead), member.prefetch_bytes - member.held_bytes
        if cursor is None or offset is None:
            return None
        log, start = cursor.log, offset

        def read() -> None:
            """As much as is leased at once."""
            at, left = start, size
            with contextlib.suppress(PenstockError):  # `take` will meet it too
                while left > 0 and at < min(start + messages, log.committed_end):
                    batches = log.read(at, READ_BYTES)
                    if not batches:
                        return
                    at = batches[-1].end_offset
                    left -= sum([len(batch.buffer) for batch in batches])

        return read

    def _expire(self, now: float) -> None:
        """Leases that have ended are failures; those of running handlers go on."""
        for delivery in self._settling.ended(now, self._lease_s):
            # It has waited long enough: the lease was the delay.
            self._fail(delivery, "lease expired", now, 0.0)

    # -- settling ---------------------------------------------------------------------------------------------------

    def ack(self, deliveries: Sequence[Delivery], *, wait: bool = False) -> None:
        """
        They are done. Those that are not the member's any more change nothing.

        Raises `LeaseExpired` if there are such; all others are done nevertheless.
        """
        now = self._clock.monotonic()
        try:
            with self.lock:
                if now >= self._book.deadline:
                    self._expire(now)
                if len(deliveries) == 1:
                    late = () if self._settling.ack_one(deliveries[0]) else deliveries
                else:
                    late = self._settling.ack_many(deliveries)
                if deliveries and (len(self._book.members) > 1 or deliveries[0]._lot.member.window is not None):  # noqa: SLF001
                    self._has_finished(deliveries, now)
            self._journal.wake()
            if self._moves.planned:
                self._move()
            if wait:
                self._journal.flush()
            if late:
                raise self._expired(late)
        except BaseException as error:
            self._mend_after(error)
            raise

    def _has_finished(self, deliveries: Sequence[Delivery], now: float) -> None:
        """A member has finished something: perhaps it was all it had, or it may be pushed more."""
        member = deliveries[0]._lot.member  # noqa: SLF001
        if member.window is not None:
            member.window.finished(len(deliveries), now, member.in_flight, alone=len(self._book.members) == 1)
        if self._waiters:
            self._recall_for(member, now)

    def nack(
        self, deliveries: Sequence[Delivery], *, delay: object = None, reason: object = None, reject: bool = False
    ) -> None:
        """They failed: deliver them again later, or dead-letter them. Raises `LeaseExpired` like `ack`."""
        delay_s = None if delay is None else check_seconds("delay", delay, 0, DELAY_MAX_S)
        text = reason_text(reason)
        now = self._clock.monotonic()
        late: list[Delivery] = []
        try:
            with self.lock:
                if now >= self._book.deadline:
                    self._expire(now)
                for delivery in deliveries:
                    member = delivery._lot.member  # noqa: SLF001
                    released = member.release(delivery)
                    if member.hand.many:
                        member.hand.recount(member.in_hand)
                    if not released:
                        late.append(delivery)
                        continue
                    self.counters.nacked += 1
                    self._fail(delivery, text, now, delay_s, reject=reject)
                    member.starved = False
            self._journal.wake()
            if self._moves.planned:
                self._move()
            self._waiters.wake_all()
            if late:
                raise self._expired(late)
        except BaseException as error:
            self._mend_after(error)
            raise

    def _fail(self, delivery: Delivery, reason: str, now: float, delay_s: float | None, *, reject: bool = False) -> None:
        self._settling.fail(delivery, reason, now, self._clock.now_us(), delay_s, reject=reject)
        if self._book.ordered:
            self._withdraw_behind(delivery._lot.cursor, delivery.offset)  # noqa: SLF001

    def _withdraw_behind(self, cursor: Cursor, offset: int) -> None:
        """In an ordered group nothing behind a failed message may be finished before it: take it all back."""
        self._settling.withdraw_behind(cursor, offset)

    def give_back(self, delivery: Delivery, *, delivered: bool = True) -> None:
        """
        It was not handled, and that is nobody's fault: ready again at once, uncounted. Late ones change nothing.

        *delivered*: somebody had it; else it does not count as delivered either.
        """
        self.give_back_all([delivery], delivered=delivered)

    def give_back_all(self, deliveries: Iterable[Delivery], *, delivered: bool = True) -> None:
        """The same for several, in the order in which they are given."""
        given = False
        try:
            with self.lock:
                for delivery in deliveries:
                    lot = delivery._lot  # noqa: SLF001
                    if not lot.member.holds(delivery):
                        continue
                    lot.member.drop(delivery)
                    given = True
                    if not delivered:
                        self.counters.delivered -= 1
                        self.counters.redelivered -= delivery.attempt > 1
                        self._leasing.undo(delivery, delivery._deadline - self._lease_s)  # noqa: SLF001
                    if lot.epoch == lot.cursor.epoch:
                        self._settling.give_back(delivery)
                        if self._book.ordered:
                            self._withdraw_behind(lot.cursor, delivery.offset)
            if given:
                self._journal.wake()
                self._waiters.wake_all()
        except BaseException as error:
            self._mend_after(error)
            raise

    # -- clients ----------------------------------------------------------------------------------------------------

    def watch(self, member: Member, client: Client, *, lease_s: float | None = None, window_always: bool = False) -> None:
        """
        From now on *member* is that of a *client* somewhere else, which may fall silent.

        *lease_s*: how long the leases of what is pushed to it are, if not as the group's. *window_always*: see `PushWindow`.
        """
        with self.lock:
            member.client = client
            member.window = None if client.recalls or client.beats else PushWindow(member.concurrency, always=window_always)
            member.lease_s = lease_s
            member.patience_s = self._lease_of(member)
            member.silent_at = member.idle_at = self._clock.monotonic() + member.patience_s

    def _lease_of(self, member: Member) -> float:
        return self._lease_s if member.lease_s is None else member.lease_s

    def heard(self, member: Member, *, acting: bool = True) -> None:
        """
        The client of *member* was heard. *acting*: it did something for this consumer; else it is only alive.

        Who let a lease end is alive perhaps, and hangs: only who acts is given messages again.
        """
        if member.client is not None and not member.client.beats:
            member.patience_s = self._lease_of(member)  # it need not be told
        member.silent_at = self._clock.monotonic() + member.patience_s
        if acting:
            member.idle_at = member.silent_at
        if member.suspended and (acting or member.suspended == SILENT):
            try:
                with self.lock:
                    self._reinstate(member)
                self._waiters.wake_all()
            except BaseException as error:
                self._mend_after(error)
                raise

    def _reinstate(self, member: Member) -> None:
        """It may be given messages again."""
        member.suspended = ""
        member.is_recalled = False
        if self._book.ordered and not member.closed:
            self._book.rebalance()

    def begin_leases(self, member: Member, deliveries: Iterable[Delivery]) -> None:
        """The client of *member* has handed them to its user: their leases run from now on. Others change nothing."""
        self._start_leases(member, deliveries)

    def begin_turns(self, member: Member) -> None:
        """
        The client of *member*, which does not say what it has begun, was heard: the leases of the oldest that wait there run from now on.

        As many as it handles at once.
        """
        if member.waiting and member.in_hand < member.concurrency:
            self._start_leases(member, None)

    def _start_leases(self, member: Member, deliveries: Iterable[Delivery] | None) -> None:
        now = self._clock.monotonic()
        try:
            with self.lock:
                known = self._book.deadline
                if deliveries is None:
                    self._settling.begin_turns(member, now + self._lease_of(member))
                else:
                    for delivery in deliveries:
                        if member.waiting.get(key_of(delivery)) is delivery and delivery._running is False:  # noqa: SLF001
                            self._settling.renew(delivery, now + self._lease_s, own_length=False)
                sooner = self._book.deadline < known
                if self._book.deadline < self._look_at:
                    self._look_again(self._book.deadline)
            if sooner:
                self.wake()  # whoever waits for the next lease to end waits too long now
        except BaseException as error:
            self._mend_after(error)
            raise

    def begin(self, delivery: Delivery) -> None:
        """A handler runs: the lease goes on as long as it does. Raises `LeaseExpired`."""
        with self.lock:
            if not is_valid(delivery):
                raise self._expired([delivery])
            member = delivery._lot.member  # noqa: SLF001
            if member.waiting.get(key_of(delivery)) is delivery:
                self._settling.renew(delivery, self._clock.monotonic() + self._lease_s, own_length=False)
            delivery._running = True  # noqa: SLF001

    def end(self, delivery: Delivery) -> bool:
        """The handler ended; returns whether the delivery is still to be finished. Raises `LeaseExpired` if it was taken away."""
        try:
            with self.lock:
                running, delivery._running = delivery._running, False  # noqa: SLF001
                if delivery._lot.member.holds(delivery):  # noqa: SLF001
                    if running:
                        # Its lease went on while it ran, whether anybody looked or not.
                        self._settling.renew(delivery, self._clock.monotonic() + self._lease_s, own_length=False)
                    return True
            if running:
                raise self._expired([delivery])
            return False
        except BaseException as error:
            self._mend_after(error)
            raise

    def extend(self, delivery: Delivery, seconds: object = None) -> None:
        """Its lease ends *seconds* from now. Raises `LeaseExpired`."""
        length = self._lease_s if seconds is None else check_seconds("seconds", seconds, 0.001, EXTEND_MAX_S)
        now = self._clock.monotonic()
        try:
            with self.lock:
                if now >= self._book.deadline:
                    self._expire(now)
                known = self._book.deadline
                valid = is_valid(delivery)
                if valid:
                    self._settling.renew(delivery, now + length, own_length=seconds is not None)
                sooner = self._book.deadline < known
                if self._book.deadline < self._look_at:
                    self._look_again(self._book.deadline)
            if self._moves.planned:
                self._move()
            if sooner:
                self.wake()  # whoever waits for the next lease to end waits too long now
            if not valid:
                raise self._expired([delivery])
        except BaseException as error:
            self._mend_after(error)
            raise

    def _expired(self, late: Sequence[Delivery]) -> LeaseExpired:
        return LeaseExpired(self.topic, late[0].partition, late[0].offset, len(late))

    # -- waiting ----------------------------------------------------------------------------------------------------

    def wait_seconds(self) -> float | None:
        """How long until time alone may make a message ready; None if only an event can."""
        earliest = min(self._book.deadline, self._book.due)
        if earliest == math.inf:
            return None
        return max(0.0, earliest - self._clock.monotonic())

    def add_waiter(self, waiter: Waiter, member: Member) -> None:
        """Wake *waiter* when there may be something to take for *member*. Look once more after adding it."""
        self._waiters.append((waiter, member))

    def remove_waiter(self, waiter: Waiter, member: Member, *, woken: bool) -> None:
        """It waits no more. If somebody woke it and it did not notice, or could not take, another one is woken in its place."""
        try:
            self._waiters.remove((waiter, member))
            if member.passing or min(self._book.deadline, self._book.due) != math.inf:
                self.wake()  # it may have been the only one who knew of that moment, or of more to look at
        except ValueError:
            if not woken or not member.can_take:
                self.wake()

    def wake(self) -> None:
        """Wake one who waits and could take something; in an ordered group all, since each has partitions of its own."""
        if not self._waiters:
            return
        if self._book.ordered:
            self._waiters.wake_all()
        else:
            self._waiters.wake_one()

    def wake_all(self) -> None:
        """Wake all who wait."""
        self._waiters.wake_all()

    # -- dead letters -----------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Carry out the moves that are planned, whoever planned them."""
        planned = self._moves.planned
        move: Move | None = None
        try:
            while planned:
                with self.lock:
                    if not planned:
                        return
                    move = planned[0]
                    del planned[0]
                    if move.cursor.generation != move.generation or move.offset not in move.cursor.moving:
                        continue  # finished, or sought, meanwhile
                try:
                    self._mover(move)
                except PenstockError as error:
                    self.move_failed(move, error)
        except BaseException:
            if move is not None:
                self._move_again(move)
            raise

    def move_failed(self, move: Move, error: PenstockError) -> None:
        """A dead letter could not be written: the message stays, and is tried again later."""
        self._journal.soon(lambda: self._tell_move_failed(move, error))
        self._move_again(move)

    def _tell_move_failed(self, move: Move, error: PenstockError) -> None:
        _log.warning(
            "cannot dead-letter offset %d of %s/%d for group %s, trying again in %g s: %s",
            move.offset, self.topic, move.cursor.partition, self.name, MOVE_AGAIN_S, error,
            extra=event(
                "dead_letter_failed", topic=self.topic, group=self.name, partition=move.cursor.partition, offset=move.offset,
                error=error.code,
            ),
        )  # fmt: skip

    def _move_again(self, move: Move) -> None:
        """Nobody sees to it any more: if it is not moved by then, it is tried again later."""
        with self.lock:
            cursor = move.cursor
            if cursor.generation == move.generation and move.offset in cursor.moving and move not in self._moves.planned:
                self._book.schedule(cursor, move.offset, self._clock.monotonic(), MOVE_AGAIN_S)
                cursor.moving.discard(move.offset)
        self.wake()

    def finished_by_move(self, move: Move) -> bytes:
        """The operation that finishes the source of a dead letter, for the frame that writes it."""
        return ops.encode_moved(move.cursor.partition, self.identity, move.generation, move.offset)

    def moved(self, move: Move) -> None:
        """A dead letter was written; that it was is counted where its operation is carried out."""
        left_out = self._dead_letter_lines.let_through("dead letter")
        if left_out is not None:
            # Not here: this is the middle of a commit.
            self._journal.soon(lambda: self._tell_moved(move, left_out))
        self.counters.expired_messages += move.expired
        self._waiters.wake_all()

    def _tell_moved(self, move: Move, left_out: int) -> None:
        _log.info(
            "offset %d of %s/%d became a dead letter of group %s after %d deliveries: %s%s",
            move.offset, self.topic, move.cursor.partition, self.name, move.failure.count, move.failure.reason or "no reason given",
            f" ({left_out} more since the last such line)" if left_out else "",
            extra=event(
                "dead_lettered", topic=self.topic, group=self.name, partition=move.cursor.partition, offset=move.offset,
                deliveries=move.failure.count, reason=move.failure.reason, left_out=left_out,
            ),
        )  # fmt: skip

    # -- transactions -----------------------------------------------------------------------------------------------

    def reserve_acks(self, deliveries: Sequence[Delivery], reserved: list[Reservation]) -> Reservation:
        """
        Take *deliveries* into a transaction: their leases do not end while it is being committed.

        The reservation is added to *reserved* before anything is changed: also if this is interrupted, whoever has it can release it.

        Raises `LeaseExpired`; nothing was changed then.
        """
        now = self._clock.monotonic()
        try:
            with self.lock:
                if now >= self._book.deadline:
                    self._expire(now)
                late = [delivery for delivery in deliveries if not is_valid(delivery)]
                if not late:
                    reservation = Reservation(self, *self._settling.reserve(deliveries))
                    reserved.append(reservation)
                    self._settling.hold(reservation.places)
            if self._moves.planned:
                self._move()
        except BaseException as error:
            self._mend_after(error)
            raise
        if late:
            raise self._expired(late)
        return reservation

    def finish_reserved(self, places: Sequence[Place]) -> None:
        """Their transaction is committed. Called by the cycle's leader, so that nobody sees its messages without its acks."""
        with self.lock:
            self._settling.finish_reserved(places)
        if self._waiters:
            self._waiters.wake_all()

    def release_acks(self, places: Sequence[Place]) -> None:
        """Their transaction was not committed: they are back with their consumer."""
        try:
            with self.lock:
                self._settling.release(places)
            self._waiters.wake_all()
        except BaseException as error:
            self._mend_after(error)
            raise

    def finish_unleased(self, partition: int, offsets: Sequence[int]) -> list[bytes]:
        """The operations that finish *offsets* though nobody leased them, for a transaction of the group's own."""
        return ops.encode_finished(partition, self.identity, self.cursors[partition].generation, sorted(offsets))

    # -- moving the cursor ------------------------------------------------------------------------------------------

    def unfinished(self, partition: int) -> tuple[int, OffsetSet, int]:
        """Of a partition: the first offset that was never leased, those below it that are not finished, and how often it was moved."""
        with self.lock:
            cursor = self.cursors[partition]
            return cursor.scan, cursor.open.copy(), cursor.generation

    def last_seen_us(self) -> int:
        """When it last had a member, or was moved by somebody who needs none, like the archive of Spark."""
        if self._book.members:
            self._seen_us = self._clock.now_us()
        return self._seen_us

    def lag(self) -> int:
        """How many messages are not finished; the caller holds the lock."""
        return sum(cursor.unfinished() for cursor in self.cursors)

    def positions(self) -> dict[int, int]:
        """The first offset of each partition that is not finished; the caller holds the lock."""
        return {cursor.partition: cursor.next_offset for cursor in self.cursors}

    def position(self, partition: int) -> int:
        """The first offset of a partition that is not finished."""
        with self.lock:
            return self.cursors[partition].next_offset

    def commit(self, partition: int, offset: int) -> None:
        """Everything below *offset* is finished; never goes back. Buffered like an ack. Raises `OffsetOutOfRange`."""
        try:
            with self.lock:
                cursor = self.cursors[partition]
                if not 0 <= offset <= cursor.log.committed_end:
                    raise OffsetOutOfRange(offset, cursor.log.log_start, cursor.log.committed_end)
                if offset <= cursor.next_offset:
                    return
                self.counters.acked += self._book.finish_below(cursor, offset)
                self._book.hand_over_if_idle(cursor)
            self._journal.wake()
            self._waiters.wake_all()
        except BaseException as error:
            self._mend_after(error)
            raise

    def seek_operations(self, targets: dict[int, int]) -> bytes:
        """The operations that move the cursor of each partition to its target."""
        with self.lock:
            return b"".join(
                [
                    ops.encode_offset(ops.SOUGHT, partition, self.identity, self.cursors[partition].generation + 1, offset)
                    for partition, offset in targets.items()
                ]
            )

    # -- interrupts -------------------------------------------------------------------------------------------------

    def _mend_after(self, error: BaseException, unhanded: Sequence[Delivery] = ()) -> None:
        """Mend the group unless *error* is one of ours: those are raised where everything is in its place."""
        if not isinstance(error, PenstockError):
            self._mend(unhanded)

    def _mend(self, unhanded: Sequence[Delivery] = ()) -> None:
        """An exception came that may come at any instruction, as Ctrl-C does: no message may be with nobody, nor a count be wrong."""
        for _ in range(2):
            try:
                with self.lock:
                    self._mending.mend(unhanded, self._clock.monotonic())
                    self._stop_listening()
                break
            except KeyboardInterrupt:
                continue  # once more; the first one goes on
        self._journal.wake()
        self._waiters.wake_all()

    # -- the journal ------------------------------------------------------------------------------------------------

    def apply(self, operations: Sequence[ops.Operation], *, of_snapshot: bool = False) -> None:
        """Carry out operations from the journal, just committed or replayed, as one: nobody sees some of them. Raises `Corrupt`."""
        with self.lock:
            for operation in operations:
                self._apply(operation)
            if not of_snapshot and any(operation.kind in _OF_USERS for operation in operations):
                # While the journal is replayed it is not known when that was: as late as can be, which is when the store is open.
                self._seen_us = 0 if self._clock is None else self._clock.now_us()

    def _apply(self, operation: ops.Operation) -> None:
        kind = operation.kind
        if kind == ops.LEFT:
            self._replay.left(ops.decode_number(operation))
            return
        if operation.partition >= len(self.cursors):
            return
        cursor = self.cursors[operation.partition]
        if kind == ops.SOUGHT:
            if operation.generation > cursor.generation:
                cursor.move_to(ops.decode_offset(operation), operation.generation)
                self._replay.moved(cursor)
                self._book.void(cursor)
                self._waiters.wake_all()
            return
        if operation.generation != cursor.generation:
            return
        if kind in (ops.FAILED, ops.FAILED_ALL):
            self._replay_failed(cursor, operation)
            return
        if kind == ops.FINISHED and operation.flags & ops.MOVED:
            # Once: what a snapshot has already, or a second replay tells again, is finished.
            moved = ops.decode_bitmap(operation.body)
            self.counters.dead_lettered += sum(offset >= cursor.scan or offset in cursor.open for offset in moved)
        self._replay.apply(cursor, operation)

    def _replay_failed(self, cursor: Cursor, operation: ops.Operation) -> None:
        self._replay.failed(cursor, operation)

    def recovered(self, ends: Sequence[int], clock: Clock, before: HandsBefore | None) -> None:
        """All is replayed. The members of before are gone: count what they were working on, and let the rest come again."""
        with self.lock:
            self._replay.end(ends, clock.monotonic(), clock.now_us(), before)

    def snapshot(self) -> bytes:
        """The group as operations that make it anew; the caller holds the lock."""
        parts = [
            ops.encode_document(
                ops.MADE,
                self.identity,
                {
                    "topic_id": self.topic_id.hex(),
                    "topic": self.topic,
                    "name": self.name,
                    "settings": self.settings.to_json(),
                    "starts": [cursor.scan for cursor in self.cursors],
                    "seen_us": self.last_seen_us(),
                    **({"dead_lettered": self.counters.dead_lettered} if self.counters.dead_lettered else {}),
                },
            )
        ]
        now, now_us = self._clock.monotonic(), self._clock.now_us()
        for cursor in self.cursors:
            parts += cursor_operations(self.identity, cursor, now, now_us)
        for member in self._book.members.values():
            parts += member_operations(self.identity, member)
        return b"".join(parts)
