"""
Messages that are pushed to a client ahead of its user: they wait there without a lease, uncounted, and others can have them.

The clients here are the group's side of one: what they are told is noted, and they are heard when the test says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import LeaseExpired
from penstock.groups.push_window import FIRST, FIRST_ALONE
from tests.groups.sim import Sim, numbered, offsets, one, take

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.groups.delivery import Delivery

LEASE = 10.0


class Client:
    """A client somewhere else, of one consumer."""

    def __init__(self, sim: Sim, *, beats: bool = True, recalls: bool = True, **options: Any) -> None:
        self.beats = beats
        self.recalls = recalls
        self.consumer = sim.store.subscribe("t", "g", lease=LEASE, **options)
        self.group, self.member = self.consumer._group, self.consumer._member
        self.group.watch(self.member, self)
        self.asked: list[int] = []
        self.lost: list[int] = []

    def recall(self, count: int) -> None:
        self.asked.append(count)

    def revoked(self, deliveries: Sequence[Delivery]) -> None:
        self.lost += offsets(list(deliveries))

    def push(self, count: int = 100) -> list[Delivery]:
        """What is pushed to it."""
        return self.group.take(self.member, count, pushed=True)

    def beat(self, begun: Sequence[Delivery] = ()) -> None:
        """It is alive, and its user has these."""
        self.group.heard(self.member, acting=False)
        self.group.begin_leases(self.member, begun)

    def act(self) -> None:
        """It makes a call."""
        self.group.heard(self.member)
        if not self.beats:
            self.group.begin_turns(self.member)


def _sim(count: int = 10, **settings: Any) -> Sim:
    sim = Sim()
    sim.store.create_topic("t", **settings)
    sim.store.publish_many("t", numbered(count))
    return sim


def _stats(sim: Sim) -> Any:
    return sim.store.stats().topics["t"].groups["g"]


def test_what_waits_with_a_client_that_is_heard_keeps_for_ever() -> None:
    """However many leases that takes; finishing it is never too late, and nothing counts as failed."""
    sim = _sim()
    client = Client(sim)
    held = client.push()
    for _ in range(20):
        sim.clock.advance(LEASE * 0.9)
        client.beat()
        assert client.push() == []
    client.consumer.ack(held)
    assert (_stats(sim).acked, _stats(sim).expired_leases) == (10, 0)
    assert client.lost == []


def test_a_lease_runs_from_when_the_user_has_the_message() -> None:
    """Not from when it was pushed: that may be long ago."""
    sim = _sim(3)
    client = Client(sim, max_deliveries=0)
    first, second, third = client.push()
    for _ in range(5):
        sim.clock.advance(LEASE * 0.9)
        client.beat()
    client.beat([first])
    sim.clock.advance(LEASE * 0.9)
    client.beat([first])
    client.consumer.ack(first)
    client.beat([second])
    sim.clock.advance(LEASE * 0.6)
    client.beat([second])
    sim.clock.advance(LEASE * 0.6)
    client.beat([second])
    with pytest.raises(LeaseExpired):
        client.consumer.ack(second)
    assert _stats(sim).expired_leases == 1
    # It let a lease end: what waited went back, uncounted.
    assert client.lost == [1, 2]
    with pytest.raises(LeaseExpired):
        client.consumer.ack(third)
    client.act()
    assert [(found.offset, found.attempt) for found in client.push()] == [(1, 2), (2, 1)]


def test_a_silent_client_loses_what_waits_there_and_nothing_is_charged() -> None:
    """And it is given nothing more until it is heard."""
    sim = _sim()
    silent, other = Client(sim), Client(sim)
    assert len(silent.push()) == 5  # its share
    while found := other.push():
        other.consumer.ack(found)
    sim.clock.advance(LEASE * 1.01)
    found = other.push()
    assert [(one.offset, one.attempt) for one in found] == [(number, 1) for number in range(5)]
    assert silent.lost == [0, 1, 2, 3, 4]
    other.consumer.ack(found)
    sim.store.publish_many("t", numbered(3))
    assert silent.push() == []
    silent.beat()
    assert len(silent.push()) > 0
    assert _stats(sim).expired_leases == 0


def test_a_handler_keeps_its_lease_only_while_its_client_is_heard() -> None:
    """One whose process stands still does not keep its message for ever, and that was a delivery which failed."""
    sim = _sim(1)
    client = Client(sim, max_deliveries=0)
    (message,) = client.push()
    client.group.begin(message)
    for _ in range(5):
        sim.clock.advance(LEASE * 0.9)
        client.beat()
        assert client.push() == []
    sim.clock.advance(LEASE * 2.1)
    other = sim.store.subscribe("t", "g")
    assert one(other).attempt == 2


def test_who_lets_a_lease_end_and_is_only_alive_is_given_nothing_more() -> None:
    """Its handler hangs: a heartbeat does not say that it can do anything. What it does next does."""
    sim = _sim(2)
    client = Client(sim, max_deliveries=0)
    first, _ = client.push()
    client.beat([first])
    sim.clock.advance(LEASE * 1.01)
    client.beat()
    assert client.push() == []
    assert client.member.suspended
    client.beat()
    assert client.push() == []
    client.act()
    assert offsets(client.push()) == [0, 1]


def test_the_leases_of_the_oldest_run_where_the_client_does_not_say_what_it_has_begun() -> None:
    """As many as it handles at once, from when it was heard after they were pushed."""
    sim = _sim(6)
    client = Client(sim, beats=False, recalls=False, concurrency=2, max_deliveries=0)
    held = client.push()
    assert client.member.in_hand == 0
    sim.clock.advance(LEASE * 0.9)
    client.act()
    assert client.member.in_hand == 2
    client.consumer.ack(held[0])
    client.act()
    assert (client.member.in_hand, len(client.member.waiting)) == (2, 3)
    sim.clock.advance(LEASE * 1.01)
    other = sim.store.subscribe("t", "g")
    found = take(other)
    assert sorted((message.offset, message.attempt) for message in found) == [(1, 2), (2, 2), (3, 1), (4, 1), (5, 1)]


def test_an_owner_of_a_partition_that_falls_silent_loses_it_to_a_standby() -> None:
    """In order, with nothing charged; when it is heard again the standby keeps it."""
    sim = _sim(5)
    owner, standby = Client(sim, ordered=True), Client(sim, ordered=True)
    assert offsets(owner.push()) == [0, 1, 2, 3, 4]
    assert standby.push() == []
    sim.clock.advance(LEASE * 1.01)
    found = standby.push()
    assert [(one.offset, one.attempt) for one in found] == [(number, 1) for number in range(5)]
    owner.act()
    assert owner.push() == []
    standby.consumer.ack(found)
    sim.store.publish_many("t", numbered(1))
    assert owner.push() == []
    assert offsets(standby.push()) == [5]


def test_an_owner_that_nobody_can_stand_in_for_keeps_its_partition() -> None:
    """And gets its messages again when it is heard."""
    sim = _sim(3)
    owner = Client(sim, ordered=True)
    assert len(owner.push()) == 3
    sim.clock.advance(LEASE * 1.01)
    assert owner.push() == []
    owner.beat()
    assert [(one.offset, one.attempt) for one in owner.push()] == [(0, 1), (1, 1), (2, 1)]


def test_an_idle_member_gets_half_of_what_waits_with_a_busy_client() -> None:
    """The client chooses; until it has answered it is not asked again."""
    sim = _sim(9)
    busy = Client(sim)
    held = busy.push()
    assert len(held) == 9
    idle = Client(sim)
    assert idle.push() == []
    assert busy.asked == []  # most are begun within a moment
    sim.clock.advance(0.1)
    assert idle.push() == []
    assert idle.push() == []
    assert busy.asked == [5]
    busy.group.recalled(busy.member, reversed(held[4:]), spent=False)
    assert offsets(idle.push()) == [4, 5, 6, 7, 8]
    assert [message.attempt for message in held] == [1] * 9
    busy.consumer.ack(held[:4])
    assert _stats(sim).delivered == 9


def test_a_client_that_does_not_answer_keeps_no_other_from_being_asked() -> None:
    """It stands still, say, and has the most."""
    sim = _sim(12)
    still = Client(sim)
    still.push(8)
    busy = Client(sim)
    while busy.push():
        pass
    idle = Client(sim)
    sim.clock.advance(0.1)
    assert idle.push() == []
    assert (still.asked, busy.asked) == ([4], [])
    sim.clock.advance(1)
    assert idle.push() == []
    assert (still.asked, busy.asked) == ([4], [2])
    busy.beat()
    idle.beat()
    sim.clock.advance(LEASE - 0.5)
    assert offsets(idle.push()) == [*range(8)], "it was silent, and what waited there went back"


def test_a_client_that_sends_heartbeats_and_answers_nothing_loses_what_waits_there() -> None:
    """It does not read what it is sent. It is given messages again when it does something, and nothing is charged."""
    sim = _sim(6)
    deaf = Client(sim)
    held = deaf.push()
    idle = Client(sim)
    sim.clock.advance(0.1)
    assert idle.push() == []
    for _ in range(4):
        sim.clock.advance(LEASE / 3)
        deaf.beat()
        idle.beat()
    taken = idle.push()
    assert offsets(taken) == deaf.lost == [0, 1, 2, 3, 4, 5]
    idle.consumer._group.give_back_all(reversed(taken))
    deaf.beat()
    assert deaf.push() == []
    with pytest.raises(LeaseExpired):
        deaf.consumer.ack(held[0])
    deaf.act()
    assert {message.attempt for message in deaf.push()} == {1}
    assert (_stats(sim).expired_leases, _stats(sim).dead_lettered) == (0, 0)


def test_a_client_that_acts_may_answer_late() -> None:
    """What it is sent is on a long way, and it works on what has arrived."""
    sim = _sim(8)
    slow = Client(sim)
    held = slow.push()
    idle = Client(sim)
    sim.clock.advance(0.1)
    assert idle.push() == []
    for _ in range(4):
        sim.clock.advance(LEASE * 0.6)
        slow.act()
        slow.consumer.ack(held.pop(0))
        assert idle.push() == []
    assert slow.asked == [4]
    slow.group.recalled(slow.member, reversed(held[2:]), spent=False)
    assert len(idle.push()) == 2


def test_a_client_that_has_begun_all_is_not_asked_again() -> None:
    """Before it is pushed something new."""
    sim = _sim(2)
    busy = Client(sim, prefetch=2)
    held = busy.push()
    idle = Client(sim)
    sim.clock.advance(0.1)
    assert idle.push() == []
    busy.group.recalled(busy.member, [], spent=True)
    sim.clock.advance(0.1)
    assert idle.push() == []
    assert busy.asked == [1]
    busy.consumer.ack(held[0])
    sim.store.publish_many("t", numbered(1))
    assert len(busy.push()) == 1
    sim.clock.advance(0.1)
    assert idle.push() == []
    assert busy.asked == [1, 1]


def test_nothing_is_recalled_in_an_ordered_group() -> None:
    """A partition is its member's."""
    sim = _sim(6, partitions=2)
    busy, idle = Client(sim, ordered=True), Client(sim, ordered=True)
    for client in (busy, idle):
        client.push()
    idle.consumer.ack(list(idle.member.waiting.values()))
    sim.clock.advance(0.1)
    assert idle.push() == []
    assert busy.asked == []


def test_what_lies_behind_a_failure_is_taken_from_the_buffer_too() -> None:
    """In an ordered group; its client is told, so that its user never sees it before the failed one."""
    sim = _sim(4)
    client = Client(sim, ordered=True)
    held = client.push()
    client.consumer.nack(held[0], delay=1)
    assert client.lost == [1, 2, 3]
    sim.clock.advance(2)
    assert offsets(client.push()) == [0, 1, 2, 3]


def test_a_seek_takes_what_waits_and_tells_so() -> None:
    """Else the user would be handed what is void."""
    sim = _sim(4)
    client = Client(sim)
    client.push()
    sim.store.seek("t", "g", 2)
    assert client.lost == [0, 1, 2, 3]
    assert offsets(client.push()) == [2, 3]


def test_a_client_that_cannot_be_asked_back_is_pushed_little_ahead() -> None:
    """Where there are others: what it handles at once, and what it finishes in a moment."""
    sim = _sim(1_000)
    slow = Client(sim, beats=False, recalls=False, prefetch=500)
    other = sim.store.subscribe("t", "g")
    held = slow.push()
    assert len(held) == 1 + FIRST
    for _ in range(1 + FIRST):
        sim.clock.advance(1)
        slow.consumer.ack(held.pop(0))
        held += slow.push()
    for _ in range(5):
        assert len(held) == 1
        sim.clock.advance(1)
        slow.consumer.ack(held.pop(0))
        held += slow.push()
    quick = Client(sim, beats=False, recalls=False, prefetch=500)
    held, most = quick.push(), 0
    for _ in range(500):
        sim.clock.advance(0.001)
        quick.consumer.ack(held.pop(0))
        held += quick.push()
        most = max(most, len(held))
    assert 40 <= most <= 60
    other.close()


def test_a_client_that_does_not_say_how_much_it_wants_is_pushed_little_ahead_also_while_it_is_alone() -> None:
    """The next consumer may come at any moment, and cannot have what waits there."""
    sim = _sim(1_000)
    slow = Client(sim, beats=False, recalls=False, prefetch=100)
    slow.group.watch(slow.member, slow, window_always=True)
    held = slow.push()
    assert len(held) == FIRST_ALONE
    for _ in range(FIRST_ALONE):
        sim.clock.advance(0.3)
        slow.consumer.ack(held.pop(0))
        held += slow.push()
    assert len(held) == 2, "one that it works on, and what it finishes in half a second"
    while held:
        slow.consumer.ack(held.pop(0))
    quick = Client(sim, beats=False, recalls=False, prefetch=100)
    slow.consumer.close()
    quick.group.watch(quick.member, quick, window_always=True)
    held, most = quick.push(), 0
    for _ in range(300):
        sim.clock.advance(0.001)
        quick.consumer.ack(held.pop(0))
        held += quick.push()
        most = max(most, len(held))
    assert most == 100


def test_a_message_goes_to_whoever_has_least_in_flight() -> None:
    """Of those that wait, the idle one is woken and not who came first."""
    sim = _sim(3)
    busy = Client(sim)
    busy.push()
    idle = Client(sim)
    woken: list[str] = []

    class Bell:
        def __init__(self, name: str) -> None:
            self.name = name

        def release(self) -> None:
            woken.append(self.name)

    busy.group.add_waiter(Bell("busy"), busy.member)
    idle.group.add_waiter(Bell("idle"), idle.member)
    sim.store.publish_many("t", numbered(1))
    assert woken == ["idle"]


def test_a_lease_ends_by_itself() -> None:
    """Though nobody asks: what is counted is right, and the dead letter is there."""
    sim = _sim(2)
    consumer = sim.store.subscribe("t", "g", lease=LEASE, max_deliveries=1)
    one(consumer)
    assert (_stats(sim).in_flight, _stats(sim).dead_lettered) == (1, 0)
    sim.clock.advance(LEASE * 0.9)
    sim.store._groups.look_at_deadlines()
    assert _stats(sim).in_flight == 1
    sim.clock.advance(LEASE * 0.2)
    sim.store._groups.look_at_deadlines()
    assert (_stats(sim).in_flight, _stats(sim).dead_lettered, _stats(sim).expired_leases) == (0, 1, 1)
    assert len(sim.store.dead_letters("t")) == 1


def test_looking_costs_nothing_where_nothing_is_in_flight() -> None:
    """One entry for each group that has something with a consumer, however much that is, and none for others."""
    sim = _sim(1_000)
    consumer = sim.store.subscribe("t", "g", lease=LEASE, prefetch=1_000)
    held = consumer.get_many(1_000, timeout=0)
    deadlines = sim.store._groups._deadlines
    deadlines.look()
    assert len(deadlines._heap) == 1
    consumer.ack(held)
    sim.clock.advance(LEASE * 1.1)
    deadlines.look()
    assert deadlines._heap == []


def test_a_hanging_member_that_was_sent_a_message_does_not_make_it_die() -> None:
    """It is sent once; nothing more until it is heard. Also if it is the only one."""
    sim = _sim(3)
    client = Client(sim, max_deliveries=2)
    for _ in range(10):
        client.push()
        sim.clock.advance(LEASE * 1.01)
        sim.store._groups.look_at_deadlines()
    assert (_stats(sim).dead_lettered, _stats(sim).delivered, _stats(sim).in_flight) == (0, 3, 0)
