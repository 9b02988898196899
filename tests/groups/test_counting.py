"""What counts as a failure: as many messages as a dead consumer could have been handling, and of suspects only one that was begun."""

from __future__ import annotations

import pytest

from penstock.errors import StorageFull
from tests.groups.sim import Sim, numbered, offsets, one, take


def test_withdrawn_messages_of_an_ordered_group_are_not_blamed_on_a_death() -> None:
    """What went back because a message before it failed is with nobody: the death of its consumer says nothing about it."""
    sim = Sim()
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g", ordered=True, prefetch=3)
    messages = take(consumer)
    assert offsets(messages) == [0, 1, 2]
    messages[0].nack(delay=10)
    consumer.flush()
    sim.kill()
    assert sim.failures() == {0: 1}


def test_a_withdrawn_message_is_not_dead_lettered_unhandled() -> None:
    """The same where one failure is enough."""
    sim = Sim()
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g", ordered=True, prefetch=3, max_deliveries=2)
    for attempt in (1, 2):
        messages = take(consumer)
        assert [message.attempt for message in messages] == [attempt, 1, 1]
        messages[0].nack(delay=0, reason="poison")
        consumer.flush()
        store = sim.kill()
        consumer = store.subscribe("t", "g", ordered=True, prefetch=3, max_deliveries=2)
    assert one(consumer).offset == 1
    assert [letter.value for letter in sim.store.dead_letters("t").list()] == [b"0"]


def test_a_suspect_that_was_not_begun_is_not_blamed() -> None:
    """A suspect is handed out only after a note that it is begun: without the note it cannot have killed anybody."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    one(sim.store.subscribe("t", "g"))
    sim.store.flush()
    store = sim.kill()
    assert sim.failures() == {0: 1}
    consumer = store.subscribe("t", "g")
    first = one(consumer)
    assert first.offset == 0
    first.ack(wait=True)
    sim.kill()
    assert sim.failures() == {}


def test_a_message_that_was_never_handed_out_is_not_dead_lettered() -> None:
    """However often consumers die while it lies in their prefetch behind others."""
    sim = Sim()
    sim.store.create_topic("t", partitions=2)
    sim.store.publish("t", b"waits", partition=1)
    for turn in range(4):
        sim.store.publish("t", b"%d" % turn, partition=0)
        consumer = sim.store.subscribe("t", "g", max_deliveries=3)
        first = one(consumer)
        if first.value == b"waits":
            return  # handed out first: nothing to show
        first.ack(wait=True)
        sim.kill()
    assert sim.store.dead_letters("t").list() == []
    consumer = sim.store.subscribe("t", "g")
    assert [message.value for message in take(consumer)] == [b"waits"]
    assert sim.store.dead_letters("t").list() == []


def test_what_was_leased_before_a_seek_does_not_tell_who_is_oldest_after_it() -> None:
    """The consumer was handed 0 after the seek; that 3 was leased first, before the seek, says nothing."""
    sim = Sim()
    sim.store.publish_many("t", numbered(6))
    sim.store.subscribe("t", "g").close()
    sim.store.seek("t", "g", 3)
    consumer = sim.store.subscribe("t", "g")
    assert one(consumer).offset == 3
    sim.store.seek("t", "g", 0)
    assert one(consumer).offset == 0
    sim.store.flush()
    sim.kill()
    assert sim.failures() == {0: 1}


def test_what_was_begun_before_a_seek_is_not_blamed_after_it() -> None:
    """Suspect 1 was begun, then the group was moved back: the consumer died with 0 in its hands."""
    sim = Sim()
    sim.store.publish_many("t", numbered(3))
    take(sim.store.subscribe("t", "g"))
    sim.store.flush()
    store = sim.kill()
    consumer = store.subscribe("t", "g")
    one(consumer).ack()
    assert one(consumer).offset == 1
    store.seek("t", "g", 0)
    assert one(consumer).offset == 0
    store.flush()
    sim.kill()
    assert sim.failures() == {0: 1}


def test_a_suspect_that_failed_is_none_any_more_and_the_one_that_was_begun_is_blamed() -> None:
    """It was begun once, and nacked by a living handler; now another one is begun, and that one counts."""
    sim = Sim()
    sim.store.publish_many("t", numbered(2))
    take(sim.store.subscribe("t", "g", max_deliveries=0))
    sim.store.flush()
    store = sim.kill()
    assert sim.failures() == {0: 1}
    consumer = store.subscribe("t", "g")
    first = one(consumer)
    assert first.offset == 0
    assert consumer.get(timeout=0) is None, "of suspects there is one at a time with anybody"
    first.nack(delay=100)
    assert one(consumer).offset == 1
    store.flush()
    sim.kill()
    assert sim.failures() == {0: 2, 1: 1}


def test_a_message_that_came_back_is_not_the_oldest() -> None:
    """One handler works on 2 and one on 0; 1 failed before, was leased anew with 0, and lies in the prefetch."""
    sim = Sim()
    sim.store.publish_many("t", numbered(4))
    consumer = sim.store.subscribe("t", "g", concurrency=2, max_deliveries=0)
    one(consumer).nack(delay=0)
    one(consumer).nack(delay=0)
    assert one(consumer).offset == 2
    one(consumer).ack()
    assert one(consumer).offset == 0
    sim.store.flush()
    sim.kill()
    assert sim.failures() == {0: 2, 1: 1, 2: 1}


def test_what_is_with_a_consumer_again_is_in_flight_and_not_retrying() -> None:
    """Retrying are those that failed and wait: until they are due, and until somebody takes them."""
    sim = Sim()
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g", backoff=10, max_deliveries=3)

    def counts() -> tuple[int, int]:
        found = sim.store.stats().topics["t"].groups["g"]
        return found.in_flight, found.retrying

    for message in take(consumer):
        message.nack()
    assert counts() == (0, 3)
    sim.clock.advance(20)
    assert counts() == (0, 3)
    first, second = take(consumer, 2)
    assert counts() == (2, 1)
    first.ack()
    assert counts() == (1, 1)
    second.reject("no good")
    assert counts() == (0, 1)
    sim.store.close()


@pytest.mark.parametrize("how", ["kill", "restart", "lose_power", "checkpoint and kill", "checkpoint twice and restart"])
def test_dead_lettered_counts_all_time(how: str) -> None:
    """Whatever the store survives: also a failover of a shared folder, which is the death of its owner."""
    sim = Sim()

    def bury(count: int) -> None:
        sim.store.publish_many("t", numbered(count))
        with sim.store.subscribe("t", "g") as consumer:
            for message in take(consumer):
                message.reject("no good")

    def counted() -> int:
        return sim.store.stats().topics["t"].groups["g"].dead_lettered

    bury(3)
    assert counted() == 3
    if how.startswith("checkpoint"):
        sim.checkpoint()
        bury(2)
        if "twice" in how:
            sim.checkpoint()
        expected = 5
    else:
        expected = 3
    getattr(sim, how.rpartition(" ")[2])()
    assert counted() == expected
    bury(1)
    sim.restart()
    sim.restart()
    assert counted() == expected + 1
    assert len(sim.store.dead_letters("t")) == expected + 1
    sim.store.close()


def test_messages_that_nobody_got_because_the_disk_was_full_are_not_counted_as_failed() -> None:
    sim = Sim()
    sim.store.create_topic("t")
    sim.store.publish_many("t", numbered(3))
    sim.store.subscribe("t", "g", max_deliveries=1)
    sim.kill()
    consumer = sim.store.subscribe("t", "g")
    groups = sim.store._groups
    flush = groups.flush

    def full() -> None:
        raise StorageFull("/s", None, None)

    groups.flush = full  # type: ignore[method-assign]
    with pytest.raises(StorageFull):
        consumer.get(timeout=0)
    groups.flush = flush  # type: ignore[method-assign]
    sim.clock.advance(31)
    assert {message.value for message in take(consumer)} == {b"0", b"1", b"2"}
