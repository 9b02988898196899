"""Ctrl-C at every line of what a consumer does: no message is with nobody afterwards, no lock is held, and what is counted is true."""

from __future__ import annotations

import linecache
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

import pytest

from penstock.errors import PenstockError
from penstock.groups.delivery import PARTITION_BITS
from penstock.store.worker import Worker
from tests.groups.sim import Sim, one, take

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from types import FrameType

    from penstock import Consumer

COUNT = 6
PLACES = ("/penstock/groups/", "/penstock/store/consumer.py", "/penstock/store/transaction.py", "/penstock/store/store.py")


class Interrupt:
    """
    Raises KeyboardInterrupt before the line with a number, of all that are run in the engine's parts that know of groups.

    Not at the end of a `with` nor at a `try`, where a trace function can raise, but the interpreter lets no signal in.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.seen = 0
        self.where = ""

    def __enter__(self) -> Self:
        sys.settrace(self._calls)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _calls(self, frame: FrameType, kind: str, argument: object) -> Any:
        return self._lines if any(place in frame.f_code.co_filename for place in PLACES) else None

    def _lines(self, frame: FrameType, kind: str, argument: object) -> Any:
        if kind == "line":
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            if not line.startswith(("with ", "try:", "except ", "finally:")):
                if self.seen == self.at:
                    self.seen += 1
                    self.where = f"{frame.f_code.co_qualname}: {line}"
                    sys.settrace(None)
                    raise KeyboardInterrupt
                self.seen += 1
        return self._lines


def _filled(
    *, ordered: bool = False, group: dict[str, Any] | None = None, publish: dict[str, Any] | None = None, **topic: Any
) -> Sim:
    sim = Sim()
    sim.store.create_topic("t", **topic)
    for number in range(COUNT):
        sim.store.publish("t", b"%d" % number, **(publish or {}))
    sim.store.subscribe("t", "g", ordered=ordered, backoff=1.0, **(group or {})).close()
    return sim


def _consumer(sim: Sim, **options: Any) -> Consumer:
    return sim.store.subscribe("t", "g", prefetch=100, **options)


# -- what is interrupted --------------------------------------------------------------------------------------------


def take_fresh() -> tuple[Sim, Callable[[], object]]:
    """Lease and hand out what nobody had."""
    sim = _filled()
    consumer = _consumer(sim)
    return sim, lambda: consumer.get_many(4, timeout=0)


def take_returned() -> tuple[Sim, Callable[[], object]]:
    """Lease what came back, and what was leased and not handed out."""
    sim = _filled()
    consumer = _consumer(sim)
    consumer.nack(consumer.get_many(3, timeout=0), delay=1)
    sim.clock.advance(2.0)
    return sim, lambda: [consumer.get(timeout=0) for _ in range(4)]


def take_expired() -> tuple[Sim, Callable[[], object]]:
    """Leases have ended."""
    sim = _filled()
    consumer = _consumer(sim)
    take(consumer, 2)
    consumer.extend(one(consumer), 5.0)
    sim.clock.advance(60.0)
    return sim, lambda: consumer.get_many(10, timeout=0)


def take_delayed() -> tuple[Sim, Callable[[], object]]:
    """Put aside what is not due, and lease what is."""
    sim = _filled(publish={"delay": 5.0})
    sim.store.publish("t", b"now")
    consumer = _consumer(sim)

    def work() -> None:
        take(consumer)
        sim.clock.advance(10.0)
        take(consumer)

    return sim, work


def take_by_lanes() -> tuple[Sim, Callable[[], object]]:
    """The most urgent first, some of it delayed."""
    sim = _filled(priorities=True, publish={"delay": 5.0, "priority": "high"})
    for number in range(4):
        sim.store.publish("t", b"%d" % number, priority=("low", "high")[number % 2])
    consumer = _consumer(sim)

    def work() -> None:
        take(consumer, 2)
        sim.clock.advance(10.0)
        take(consumer)

    return sim, work


def take_mortal() -> tuple[Sim, Callable[[], object]]:
    """What has expired becomes a dead letter."""
    sim = _filled(expired="dead_letter", publish={"ttl": 5.0})
    sim.store.publish("t", b"lives")
    sim.clock.advance(10.0)
    consumer = _consumer(sim)
    return sim, lambda: take(consumer)


def steal() -> tuple[Sim, Callable[[], object]]:
    """One has leased all, and another one is idle."""
    sim = _filled()
    first, second = _consumer(sim), _consumer(sim)
    one(first)
    return sim, lambda: [second.get(timeout=0), first.get(timeout=0)]


def ack() -> tuple[Sim, Callable[[], object]]:
    """One, several, and with a wait."""
    sim = _filled()
    consumer = _consumer(sim)
    messages = take(consumer)

    def work() -> None:
        messages[0].ack()
        consumer.ack(messages[1:4])
        messages[4].ack(wait=True)

    return sim, work


def nack() -> tuple[Sim, Callable[[], object]]:
    """Now, later, and again."""
    sim = _filled()
    consumer = _consumer(sim)
    messages = take(consumer)

    def work() -> None:
        messages[0].nack(delay=0)
        consumer.nack(messages[1:3], delay=5)
        messages[3].nack()

    return sim, work


def dead_letter() -> tuple[Sim, Callable[[], object]]:
    """Rejected, failed for the last time, and condemned before."""
    sim = _filled(group={"max_deliveries": 1})
    consumer = _consumer(sim)
    messages = take(consumer)
    messages[5].reject()  # so that there is a topic for them

    def work() -> None:
        messages[0].reject("bad")
        consumer.nack(messages[1:3])

    return sim, work


def ordered_failures() -> tuple[Sim, Callable[[], object]]:
    """What lies behind a failed one goes back."""
    sim = _filled(ordered=True, group={"max_deliveries": 2})
    consumer = _consumer(sim)
    messages = take(consumer)

    def work() -> None:
        messages[0].ack()
        messages[1].nack(delay=0)
        one(consumer).reject()
        take(consumer)

    return sim, work


def rebalance() -> tuple[Sim, Callable[[], object]]:
    """Consumers of an ordered group come and go."""
    sim = _filled(ordered=True, partitions=3)
    first = _consumer(sim)
    take(first, 2)

    def work() -> None:
        second = _consumer(sim)
        take(second, 1)
        first.close()
        take(second, 1)
        second.close()

    return sim, work


def leases() -> tuple[Sim, Callable[[], object]]:
    """Blocks, extensions, and messages that are given back."""
    sim = _filled()
    consumer = _consumer(sim)
    messages = take(consumer)

    def work() -> None:
        messages[0].extend(5)
        messages[0].extend()
        with messages[1]:
            pass
        try:
            with messages[2]:
                raise ValueError
        except ValueError:
            pass
        sim.group().give_back(messages[3])
        consumer.commit(1)
        consumer.close()

    return sim, work


def transaction() -> tuple[Sim, Callable[[], object]]:
    """Acks of two groups, a message, and one that cannot be committed."""
    sim = _filled()
    sim.store.create_topic("u")
    other = sim.store.subscribe("t", "h", prefetch=100)
    mine, theirs = take(_consumer(sim)), take(other)

    def work() -> None:
        with sim.store.transaction() as changes:
            changes.publish("u", b"x")
            changes.ack(mine[0])
            changes.ack(theirs[0])
            changes.ack(theirs[1])
        mine[1].ack()
        again = sim.store.transaction()
        again.ack(mine[2])
        again.ack(mine[1])
        with pytest.raises(PenstockError):
            again.commit()

    return sim, work


SCENES = [
    take_fresh, take_returned, take_expired, take_delayed, take_by_lanes, take_mortal, steal, ack, nack, dead_letter, ordered_failures,
    rebalance, leases, transaction,
]  # fmt: skip


# -- what must hold -------------------------------------------------------------------------------------------------


def _check(sim: Sim) -> None:
    """Everything is in one place."""
    store = sim.store
    locks = {
        "making": store._groups._make_lock, "suspects": store._groups._suspect_lock, "cycle": store._volume._committer._cycle_lock,
        **{group.name: group.lock for group in store._groups.all()},
    }  # fmt: skip
    assert [name for name, lock in locks.items() if lock.locked()] == []
    for group in store._groups.all():
        planned = [(move.cursor, move.offset) for move in group._moves.planned]
        for cursor in group.cursors:
            places = [*cursor.ready, *cursor.schedule.offsets, *cursor.moving]
            assert all((cursor, offset) in planned for offset in cursor.moving)
            all_delays = [cursor.delays] if cursor.lanes is None else [*cursor.lanes.delays]
            for delays in all_delays:
                places += [block.base + near for block in delays._blocks for near in block.offsets]
                assert sum(len(block.dues) for block in delays._blocks) - delays._front == len(delays)
            if cursor.lanes is not None:
                for waiting in (*cursor.lanes._waiting, *cursor.lanes._lately, *cursor.lanes._late_once):
                    places += waiting
            for member in group.members:
                assert member.buffered == sum(len(lot) for lot in member.lots)
                for lot in member.lots:
                    places += [lot.offset(at) for at in range(lot.index, lot.stop) if lot.cursor is cursor]
                held = [*member.handed.values(), *member.extended.values()]
                places += [delivery.offset for delivery in held if delivery._lot.cursor is cursor]
                assert member.held_bytes == sum(one._lot.each for one in held) + sum(len(lot) * lot.each for lot in member.lots)
                assert not any(delivery._running for delivery in held), "nobody handles it, and its lease goes on"
                assert {*member.hand.named} <= {one.offset << PARTITION_BITS | one.partition for one in held}
            assert sorted(places) == sorted(cursor.open)
        assert not group._book.committing


def _drain(sim: Sim) -> None:
    """Everything is finished within the next minutes, by whoever is there."""
    names = [group.name for group in sim.store._groups.all() if group.topic == "t"]
    for _ in range(6):
        for name in names:
            consumers = [each for each in sim.store._consumers if each.group == name and not each.closed]
            for consumer in consumers or [sim.store.subscribe("t", name, prefetch=100)]:
                for message in take(consumer):
                    message.ack()
        sim.clock.advance(20.0)
    stats = sim.store.stats().topics["t"]
    assert {name: stats.groups[name].lag for name in names} == dict.fromkeys(names, 0)


def _unfinished(sim: Sim) -> set[tuple[str, int, int]]:
    found: set[tuple[str, int, int]] = set()
    for group in sim.store._groups.all():
        for cursor in group.cursors:
            found |= {
                (group.name, cursor.partition, at)
                for at in range(cursor.log.committed_end)
                if at >= cursor.scan or at in cursor.open
            }
    return found


def _kill(sim: Sim) -> None:
    """After a crash nothing is finished that was not."""
    for consumer in [each for each in sim.store._consumers if not each.closed]:
        take(consumer, 1)  # a lease behind what was interrupted must not finish it
    sim.store._groups.flush()  # a dead letter that was on its way is there then
    before = _unfinished(sim)
    sim.kill()
    assert before <= _unfinished(sim)


def _interrupt(scene: Callable[[], Any], first: int, step: int) -> None:
    at, poisoned = first, 0
    while True:
        sim, work = scene()
        with Interrupt(at) as interrupt:
            try:
                work()
            except KeyboardInterrupt:
                pass
            else:
                break
        try:
            if sim.store._volume._committer.failure is not None:
                poisoned += 1
            else:
                _check(sim)
                (_drain if at % 3 else _kill)(sim)
        except BaseException as error:
            raise AssertionError(f"interrupted at {at}, {interrupt.where}") from error
        at += step
    assert at > 100
    assert poisoned * step < at // 2


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_an_interrupt_leaves_no_message_with_nobody(scene: Callable[[], Any], rng: random.Random) -> None:
    """At some lines; the store goes on, unless it was in the middle of a commit, which stops it by design."""
    _interrupt(scene, rng.randrange(41), 41)


@pytest.mark.long
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_an_interrupt_at_any_line_leaves_no_message_with_nobody(scene: Callable[[], Any], rng: random.Random) -> None:
    """Every fifth line, others in each run."""
    _interrupt(scene, rng.randrange(5), 5)


def test_a_dead_letter_that_is_interrupted_is_moved_by_the_next_one_who_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several: the one that was being written comes again in a while, the others at once."""
    sim, work = dead_letter()
    group = sim.group()
    mover, calls = group._mover, []

    def interrupted(move: Any) -> None:
        calls.append(move.offset)
        if len(calls) == 2:
            raise KeyboardInterrupt
        mover(move)

    monkeypatch.setattr(group, "_mover", interrupted)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert calls == [0, 1]
    consumer = next(iter(sim.store._consumers))
    consumer.get(timeout=0)
    assert calls == [0, 1, 2]
    sim.clock.advance(10.0)
    consumer.get(timeout=0)
    assert calls == [0, 1, 2, 1]
    assert [letter.value for letter in sim.store.dead_letters("t").list()] == [b"5", b"0", b"2", b"1"]


def test_what_is_raised_in_a_workers_thread_between_two_messages_costs_it_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message that it had taken comes again at once, and the thread goes on."""
    sim = _filled()
    handled: list[bytes] = []
    done = threading.Event()

    def handle(message: Any) -> None:
        handled.append(message.value)
        if len(handled) == COUNT:
            done.set()

    worker = Worker(handle, lambda: _consumer(sim), topic="t", concurrency=1, batch=None, linger=0.0)
    begin, calls = worker._begin, []

    def interrupted(messages: list[Any]) -> list[Any]:
        begun = begin(messages)
        calls.append(messages)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return begun

    monkeypatch.setattr(worker, "_begin", interrupted)
    worker.start()
    assert done.wait(30)
    worker.stop()
    assert worker.join(30)
    assert sorted(handled) == [b"%d" % number for number in range(COUNT)]
