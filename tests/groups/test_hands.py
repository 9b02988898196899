"""
What consumers have in their hands when their process dies is known to the next one, to the message.

So a message that kills is a dead letter after as many deaths as it has deliveries, and nobody else is blamed.
"""

from __future__ import annotations

import errno
import random
from typing import TYPE_CHECKING, Any

import pytest

from penstock.groups.hands import GROW_RECORDS, WORDS_MAX, Hands, HandsBefore
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.groups.sim import PATH, SETTINGS, Sim, numbered, one, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock import Consumer

MAX_DELIVERIES = 3


def _left(sim: Sim) -> HandsBefore:
    """What the next owner would find if the process died now."""
    volume = sim.store._volume
    found = HandsBefore.read(sim.files.kill(), PATH, volume.store_id, volume.owner_generation)
    assert found is not None
    return found


def _by_get(consumer: Consumer) -> Any:
    # Twice: in an ordered group nothing comes while the message before it is being dead-lettered.
    return consumer.get(timeout=0) or consumer.get(timeout=0)


def _by_get_many_of_one(consumer: Consumer) -> Any:
    found = consumer.get_many(1, timeout=0) or consumer.get_many(1, timeout=0)
    return found[0] if found else None


WAYS: dict[str, Callable[[Consumer], Any]] = {"get": _by_get, "get_many(1)": _by_get_many_of_one}


def _die_of(sim: Sim, poison: int, take_one: Callable[[Consumer], Any], **options: Any) -> int:
    """Handle everything, one after the other, and die of one message whenever it comes; returns how often."""
    deaths = 0
    while deaths < 3 * MAX_DELIVERIES:
        consumer = sim.store.subscribe("t", "g", max_deliveries=MAX_DELIVERIES, backoff=0, **options)
        while (message := take_one(consumer)) is not None:
            if message.value == b"%d" % poison:
                break
            # Buffered: if the process dies now, the journal does not know of it.
            message.ack()
        else:
            return deaths
        sim.kill()
        deaths += 1
        counted = sim.failures()
        assert counted == {poison: deaths}, "it counts, and no neighbour does"
        assert set(sim.group().cursors[0].suspects) == {poison}, "there is no doubt"
    return deaths


# -- the death of a process ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ordered", [False, True], ids=["shared", "ordered"])
@pytest.mark.parametrize("poison", [0, 149])
def test_a_poison_message_is_a_dead_letter_after_exactly_its_deliveries(way: str, poison: int, *, ordered: bool) -> None:
    """The first and the 150th, in the second prefetch; nothing is flushed, so that no lease and no ack before it is durable."""
    sim = Sim()
    sim.store.publish_many("t", numbered(200))
    assert _die_of(sim, poison, WAYS[way], ordered=ordered) == MAX_DELIVERIES
    letters = sim.store.dead_letters("t").list()
    assert [letter.value for letter in letters] == [b"%d" % poison]
    assert letters[0].headers["x-dlq-deliveries"] == b"%d" % MAX_DELIVERIES
    assert sim.store.stats().topics["t"].groups["g"].lag == 0


def test_nothing_is_blamed_for_a_death_with_empty_hands() -> None:
    """It leased a hundred, and had acked what it was handed: whatever killed it, it was none of them."""
    sim = Sim()
    sim.store.publish_many("t", numbered(100))
    consumer = sim.store.subscribe("t", "g")
    one(consumer).ack()
    sim.store.flush()
    sim.kill()
    assert sim.failures() == {}
    assert not sim.group().cursors[0].suspects
    assert len(take(sim.store.subscribe("t", "g"))) == 99, "all at once"


def test_a_consumer_that_left_is_not_blamed_though_that_was_not_noted_yet() -> None:
    sim = Sim()
    sim.store.publish_many("t", numbered(10))
    consumer = sim.store.subscribe("t", "g")
    one(consumer)
    sim.store.flush()
    sim.group().leave(consumer._member)
    sim.kill()
    assert sim.failures() == {}


def test_each_of_several_that_were_in_hand_counts_once_and_comes_alone() -> None:
    """It could have been any of the four; the others that were prefetched could not."""
    sim = Sim()
    sim.store.publish_many("t", numbered(20))
    assert len(take(sim.store.subscribe("t", "g", concurrency=4, max_deliveries=MAX_DELIVERIES), 4)) == 4
    sim.kill()
    assert sim.failures() == {0: 1, 1: 1, 2: 1, 3: 1}
    assert set(sim.group().cursors[0].suspects) == {0, 1, 2, 3}
    # With one of them come others, of which none can be to blame twice.
    found = take(sim.store.subscribe("t", "g", concurrency=4), 4)
    assert [message.offset for message in found if message.offset < 4] == [0]
    sim.kill()
    assert sim.failures() == {0: 2, 1: 1, 2: 1, 3: 1}


def test_two_groups_with_one_message_each_in_hand_leave_two_suspects() -> None:
    sim = Sim()
    sim.store.publish_many("t", numbered(5))
    for group in ("g", "h"):
        one(sim.store.subscribe("t", group, max_deliveries=MAX_DELIVERIES))
    sim.kill()
    for group in ("g", "h"):
        assert sim.failures(name=group) == {0: 1}
        assert set(sim.group(name=group).cursors[0].suspects) == {0}


def test_a_consumer_that_holds_more_than_it_said_is_judged_by_the_journal() -> None:
    """A batch of `get_many`: the oldest counts, and all that it had leased become suspects."""
    sim = Sim()
    sim.store.publish_many("t", numbered(10))
    consumer = sim.store.subscribe("t", "g", max_deliveries=MAX_DELIVERIES)
    batch = consumer.get_many(5, timeout=0)
    assert [hand.many for hand in _left(sim).members.values()] == [True]
    sim.store.flush()
    consumer.ack(batch[:2], wait=True)
    sim.kill()
    assert sim.failures() == {2: 1}
    assert set(sim.group().cursors[0].suspects) == set(range(2, 10))


def test_what_is_settled_in_any_way_is_in_nobodys_hands() -> None:
    sim = Sim()
    sim.store.publish_many("t", numbered(30))
    consumer = sim.store.subscribe("t", "g", lease=10, concurrency=10, max_deliveries=0)
    message = one(consumer)
    message.ack()
    one(consumer).nack(delay=100)
    one(consumer).reject()
    with one(consumer):
        assert len(_left(sim).members) == 1
        assert sum(len(hand.places) for hand in _left(sim).members.values()) == 1
    with sim.store.transaction() as transaction:
        transaction.ack(one(consumer))
    consumer._group.give_back(one(consumer))
    one(consumer)
    sim.clock.advance(11)  # its lease ends
    consumer.pause()
    assert consumer.get(timeout=0) is None
    consumer.resume()
    held = one(consumer)
    consumer.commit(held)
    one(consumer)
    sim.store.seek("t", "g", "latest")
    ((_, hand),) = _left(sim).members.items()
    assert hand == ([], False)
    assert not consumer._member.hand.named


def test_a_lease_that_goes_on_stays_in_hand() -> None:
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    consumer = sim.store.subscribe("t", "g", lease=10)
    message = one(consumer)
    message.extend(100)
    message.extend()
    ((_, hand),) = _left(sim).members.items()
    assert hand.places == [(0, 0)]


def test_a_death_is_counted_once_wherever_the_next_process_dies_while_it_opens_the_store() -> None:
    """At each operation of opening: before the checkpoint that has the count the file still tells, and after it nobody listens."""
    sim = Sim()
    sim.store.publish_many("t", numbered(5))
    one(sim.store.subscribe("t", "g", max_deliveries=MAX_DELIVERIES))
    files = sim.files.kill()
    states: list[SimulatedFileSystem] = []
    files.on_operation = lambda _: states.append(files.kill())
    store = Store.open(PATH, settings=SETTINGS, files=files, clock=FakeClock(), background=False)
    files.on_operation = None
    states.append(files.kill())
    assert store._group("t", "g").cursors[0].failures.get(0) is not None
    assert len(states) > 10
    for state in states:
        sim.files = state
        sim.store = sim._open()
        assert sim.failures() == {0: 1}, state.origin


def test_a_death_after_an_orderly_end_counts_nothing() -> None:
    sim = Sim()
    sim.store.publish_many("t", numbered(5))
    one(sim.store.subscribe("t", "g"))
    sim.restart()
    sim.kill()
    assert sim.failures() == {}


# -- power loss -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["nothing", "random", "everything"])
def test_power_loss_loses_nothing_and_condemns_nobody_who_was_not_in_hand(keep: str, seed: int) -> None:
    """The file of hands is of another boot then, whatever it holds. Each time another message is in hand."""
    sim = Sim()
    sim.store.publish_many("t", numbered(40))
    seen: set[bytes] = set()
    for turn in range(10):
        consumer = sim.store.subscribe("t", "g", max_deliveries=2, backoff=0)
        for _ in range(3):
            message = one(consumer)
            seen.add(bytes(message.value or b""))
            consumer.ack(message, wait=True)
        one(consumer)
        sim.lose_power(seed + turn, keep)
        assert _of_this_boot(sim)
    consumer = sim.store.subscribe("t", "g", max_deliveries=0)
    while (left := consumer.get(timeout=0)) is not None:
        seen.add(bytes(left.value or b""))
        left.ack()
    assert seen == set(numbered(40))
    assert sim.store.dead_letters("t").list() == []


def _of_this_boot(sim: Sim) -> bool:
    """The new owner's file is empty."""
    return _left(sim).members == {}


# -- the file -----------------------------------------------------------------------------------------------------------------------------


def test_a_file_of_another_owner_boot_or_store_tells_nothing() -> None:
    files = SimulatedFileSystem()
    files.make_directory("/x")
    assert HandsBefore.read(files, "/x", bytes(16), 7) is None
    hands = Hands(files, "/x", bytes(16), 7)
    hands.claim(1, 2, 1).pick_up(5 << 14 | 3)
    assert HandsBefore.read(files, "/x", bytes(16), 7) == ({(1, 2): ([(3, 5)], False)}, True)
    assert HandsBefore.read(files, "/x", bytes(16), 8) is None
    assert HandsBefore.read(files, "/x", bytes([1]) * 16, 7) is None
    crashed = files.crash(random.Random(0), keep="everything")
    assert HandsBefore.read(crashed, "/x", bytes(16), 7) is None


def test_the_file_grows_with_the_members_and_their_records_are_used_again() -> None:
    files = SimulatedFileSystem()
    files.make_directory("/x")
    hands = Hands(files, "/x", bytes(16), 1)
    held = [hands.claim(1, member, 12) for member in range(1, GROW_RECORDS)]
    for number, hand in enumerate(held):
        for offset in range(12):
            hand.pick_up(offset << 14 | number)
    found = HandsBefore.read(files, "/x", bytes(16), 1)
    assert found is not None
    assert found.complete
    assert {member: sorted(hand.places) for (_, member), hand in found.members.items()} == {
        number + 1: [(number, offset) for offset in range(12)] for number in range(len(held))
    }
    for hand in held:
        hands.release(hand)
        hand.put_down(0)  # too late: it changes nothing
    size = files.open("/x/hands").size()
    hands.claim(1, 1_000, 12)
    found = HandsBefore.read(files, "/x", bytes(16), 1)
    assert found == ({(1, 1_000): ([], False)}, True)
    assert files.open("/x/hands").size() == size


def test_a_member_has_a_limited_number_of_words() -> None:
    files = SimulatedFileSystem()
    files.make_directory("/x")
    hand = Hands(files, "/x", bytes(16), 1).claim(1, 1, 10_000)
    for offset in range(WORDS_MAX + 1):
        hand.pick_up(offset << 14)
    found = HandsBefore.read(files, "/x", bytes(16), 1)
    assert found is not None
    assert len(found.members[1, 1].places) == WORDS_MAX
    assert found.members[1, 1].many


def test_a_forked_child_does_not_put_down_what_its_parent_holds() -> None:
    """Both have the same memory mapped."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    consumer = sim.store.subscribe("t", "g")
    message = one(consumer)
    consumer.forget()  # as after a fork, in the child
    message.ack()
    ((_, hand),) = _left(sim).members.items()
    assert hand.places == [(0, 0)]


def test_where_the_file_cannot_be_mapped_the_journal_tells(caplog: pytest.LogCaptureFixture) -> None:
    """As on file systems that have no shared maps: the first of what was leased counts, and all of it is suspect."""
    sim = Sim()
    map_shared = SimulatedFileSystem.map_shared

    def refuse(self: SimulatedFileSystem, path: str, length: int, *, write: bool) -> Any:
        if path.endswith("/hands"):
            raise OSError(errno.ENODEV, "no maps here", path)
        return map_shared(self, path, length, write=write)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedFileSystem, "map_shared", refuse)
        sim.restart()
        assert "cannot be mapped" in caplog.text
        sim.store.publish_many("t", numbered(5))
        one(sim.store.subscribe("t", "g", max_deliveries=MAX_DELIVERIES))
        sim.store.flush()
        sim.kill()
        assert sim.failures() == {0: 1}
        assert set(sim.group().cursors[0].suspects) == set(range(5))
