"""Consumers that wait: what wakes them, and whoever knows of the next moment leaves it to somebody else when it goes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import StorageFull
from penstock.groups.group import MOVE_AGAIN_S, Group
from penstock.store.store import Store
from tests.aio.helpers import until, waiting
from tests.groups.sim import SOON_S, Sim, in_thread, numbered, one

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock import Consumer
    from penstock.groups.dead_letters import Move


class Sleeper:
    """A consumer that waits: when it is woken it looks, finds nothing, and knows by then how long it may sleep."""

    def __init__(self, sim: Sim, consumer: Consumer) -> None:
        self.group = sim.group()
        self.member = consumer._member
        self.clock = sim.clock
        self.is_woken = False
        self._until = float("inf")
        self._look()

    def _look(self) -> None:
        """As `Consumer.get` does before it sleeps."""
        self.group.add_waiter(self, self.member)
        assert not self.group.take(self.member, 1)
        seconds = self.group.wait_seconds()
        self._until = float("inf") if seconds is None else self.clock.monotonic() + seconds

    def release(self) -> None:
        """It is woken."""
        self.is_woken = True

    @property
    def until(self) -> float:
        """When it looks again, if nobody wakes it."""
        while self.is_woken:
            self.is_woken = False
            self.group.remove_waiter(self, self.member, woken=True)
            self._look()
        return self._until

    def leave(self) -> None:
        """Its time is over."""
        self.group.remove_waiter(self, self.member, woken=False)


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t")
    return sim


def test_who_leaves_tells_another_when_a_delayed_message_is_due(sim: Sim) -> None:
    first, second = (Sleeper(sim, sim.store.subscribe("t", "g")) for _ in range(2))
    sim.store.publish("t", b"later", delay=20)
    assert {first.until, second.until} == {sim.clock.monotonic() + 20, float("inf")}, "a commit wakes one of them"
    knows, other = (first, second) if first.until < second.until else (second, first)
    knows.leave()
    assert other.until == sim.clock.monotonic() + 20


def test_a_lease_that_is_made_shorter_ends_sooner_for_those_who_wait(sim: Sim) -> None:
    sim.store.publish("t", b"held")
    message = one(sim.store.subscribe("t", "g", lease=30))
    sleeper = Sleeper(sim, sim.store.subscribe("t", "g"))
    message.extend(1)
    assert sleeper.until == sim.clock.monotonic() + 1
    message.extend(60)
    assert not sleeper.is_woken, "a longer one is no news"


def test_who_waits_hears_of_a_dead_letter_that_is_to_be_tried_again(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was being written when the consumer went to sleep, and then there was no room for it."""
    sim.store.publish("t", b"bad")
    message = one(sim.store.subscribe("t", "g", lease=3_600))
    sleeper = Sleeper(sim, sim.store.subscribe("t", "g"))
    moves: list[Move] = []
    monkeypatch.setattr(sim.group(), "_mover", moves.append)
    message.reject("no good")
    assert sleeper.until > sim.clock.monotonic() + 2 * MOVE_AGAIN_S
    sim.group().move_failed(moves[0], StorageFull("/s", None, None))
    assert sleeper.until <= sim.clock.monotonic() + 1.1 * MOVE_AGAIN_S


def test_consumers_that_wait_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Being woken in vain is no reason to wake the next one: they would go on for ever."""
    store = Store.open("memory:")
    store.create_topic("t")
    consumers = [store.subscribe("t", "g") for _ in range(4)]

    def consume(consumer: Consumer) -> None:
        for message in consumer:
            message.ack()

    looks = [0]
    take_now = Group.take

    def counted(*arguments: Any) -> Any:
        looks[0] += 1
        return take_now(*arguments)

    monkeypatch.setattr(Group, "take", counted)
    threads = [threading.Thread(target=consume, args=(consumer,), daemon=True) for consumer in consumers]
    for thread in threads:
        thread.start()
    store.publish("t", b"x")
    at_rest, end = False, time.monotonic() + 60
    while not at_rest and time.monotonic() < end:
        before = looks[0]
        time.sleep(0.5)
        at_rest = looks[0] == before > len(threads) and store.stats().topics["t"].groups["g"].lag == 0
    store.close()
    for thread in threads:
        thread.join(60)
    assert at_rest, "somebody looks again and again, and there is nothing"


Asleep = Callable[[int], None]


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> Asleep:
    """Returns once so many threads have looked for messages in vain: only a wake brings them back now."""
    threads: set[int] = set()
    changed = threading.Condition()
    wait_seconds = Group.wait_seconds

    def last_step_before_sleeping(group: Group) -> float | None:
        with changed:
            threads.add(threading.get_ident())
            changed.notify_all()
        return wait_seconds(group)

    def wait_for(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: len(threads) >= count, SOON_S)

    monkeypatch.setattr(Group, "wait_seconds", last_step_before_sleeping)
    return wait_for


def test_the_owner_of_a_partition_is_woken_though_another_member_waits_too(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t", partitions=2)
    first = memory.subscribe("t", "g", ordered=True)
    second = memory.subscribe("t", "g", ordered=True)
    mine = memory._group("t", "g").cursors[0].member is first._member
    owner, other = (first, second) if mine else (second, first)
    thread, found = in_thread(owner.get)
    asleep(1)
    in_thread(other.get)
    asleep(2)
    memory.publish("t", b"x", partition=0)
    thread.join(SOON_S)
    assert [message.value for message in found if message] == [b"x"]


def test_a_paused_consumer_that_waits_does_not_swallow_the_wake_of_another(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t")
    idle = memory.subscribe("t", "g")
    paused = memory.subscribe("t", "g")
    paused.pause()
    thread, found = in_thread(idle.get)
    asleep(1)
    in_thread(paused.get)
    asleep(2)
    memory.publish("t", b"x")
    thread.join(SOON_S)
    assert [message.value for message in found if message] == [b"x"]


def test_a_consumer_with_a_full_prefetch_does_not_swallow_the_wake_of_an_idle_one(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t")
    busy = memory.subscribe("t", "g", prefetch=1)
    memory.publish("t", b"0")
    assert busy.get(timeout=1) is not None
    idle = memory.subscribe("t", "g")
    thread, found = in_thread(idle.get)
    asleep(1)
    in_thread(busy.get)
    asleep(2)
    memory.publish("t", b"1")
    thread.join(SOON_S)
    assert [message.value for message in found if message] == [b"1"]


def test_a_task_that_is_cancelled_as_it_is_woken_hands_the_wake_on() -> None:
    from penstock import aio

    async def main() -> bytes | None:
        async with aio.open("memory:") as store:
            await store.create_topic("t")
            consumer = await store.subscribe("t", "g")
            cancelled = asyncio.create_task(consumer.get())
            assert await until(lambda: waiting(store) == 1)
            patient = asyncio.create_task(consumer.get())
            assert await until(lambda: waiting(store) == 2)
            store.sync.publish("t", b"x")  # schedules the event of the first who came
            asyncio.get_running_loop().call_soon(cancelled.cancel)
            done, _ = await asyncio.wait([patient], timeout=SOON_S)
            value = patient.result().value if done and patient.result() else None  # type: ignore[union-attr]
            patient.cancel()
            return value

    assert asyncio.run(main()) == b"x"


def test_acking_messages_of_two_consumers_at_once_wakes_both(memory: Store, asleep: Asleep) -> None:
    memory.create_topic("t")
    memory.publish_many("t", numbered(4))
    first = memory.subscribe("t", "g", prefetch=1)
    second = memory.subscribe("t", "g", prefetch=1)
    a, b = first.get(timeout=1), second.get(timeout=1)
    assert a is not None
    assert b is not None
    thread, found = in_thread(first.get)
    asleep(1)
    second.ack([a, b])
    thread.join(SOON_S)
    assert [message is not None for message in found] == [True]


def test_two_groups_that_begin_to_listen_at_the_same_time_both_listen() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    log = sim.store._volume.log("t")

    others: list[threading.Thread] = []

    class Slow(list):
        """A list during whose copying another thread gets its turn."""

        def __iter__(self) -> Iterator[Any]:
            log._listeners = list.copy(self)
            others.append(in_thread(lambda: sim.store.subscribe("t", "b"))[0])
            others[0].join(0.5)
            return super().__iter__()

    log._listeners = Slow()
    sim.store.subscribe("t", "a")
    if not others:
        sim.store.subscribe("t", "b")
    for thread in others:
        thread.join(SOON_S)
    assert len(log._listeners) == 2
