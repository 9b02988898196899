"""Features that meet, by hand: what `test_pairs.py` found, and what its stories do not tell."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import LeaseExpired
from tests.conformance.helpers import drain, group_stats, moment, numbered, offsets, one, position, stored, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

LOW, MEDIUM, HIGH = "low", "medium", "high"


# -- what the pairs found ---------------------------------------------------------------------------------------------


def test_lanes_and_due_times_are_known_after_a_restart_though_the_first_messages_are_gone(lasting: Backend) -> None:
    """What a group had seen and retention took is passed over, and the rest is still as urgent as it was, and not early."""
    store = lasting.open()
    store.create_topic("t", priorities=True, segment_messages=4, retention_bytes=1, retention_bytes_hard=1)
    store.publish("t", b"0", priority=HIGH)
    for value in numbered(8, 1):
        store.publish("t", value)
    store.publish("t", b"9", priority=HIGH, delay=60)
    store.publish("t", b"10", priority=MEDIUM)
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer, 1)) == [b"0"]  # now the group has seen them all
    store.flush()
    assert store.retain("t").segments == 2
    store = lasting.reopen()
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == [b"10", b"8"]
        lasting.advance(60)
        assert values(drain(consumer)) == [b"9"]
    assert group_stats(store).lag == 0


@pytest.mark.parametrize(("topic", "message"), [({"ttl": 600}, {}), ({}, {"ttl": 600}), ({}, {"delay": 5})], ids=str)
def test_what_compaction_took_in_front_of_messages_that_expire_or_wait_is_not_left_unfinished(
    backend: Backend, store: Store, topic: dict[str, Any], message: dict[str, Any]
) -> None:
    """A group that is moved back over the hole ends up with nothing to do, and holds nothing back."""
    store.create_topic("t", compaction=True, segment_messages=2, **topic)
    for value in numbered(10):
        store.publish("t", value, key=b"k", **message)
    for value in numbered(3, 10):
        store.publish("t", value, **message)
    with store.subscribe("t", "g", start="latest") as consumer:
        store.compact("t")
        left = offsets(store.read("t"))
        assert left[0] >= 8
        store.seek("t", "g", to=0)
        got = drain(consumer)
        backend.advance(5)
        assert offsets(got + drain(consumer)) == left
    assert (group_stats(store).lag, position(store, "t", "g")) == (0, 13)


# -- transactions -------------------------------------------------------------------------------------------------------


def test_a_transaction_publishes_messages_that_expire_wait_and_are_urgent(backend: Backend, store: Store) -> None:
    """As a publish does; what they ask for counts from the commit."""
    store.create_topic("t", priorities=True)
    with store.subscribe("t", "g") as consumer:
        with store.transaction() as t:
            t.publish("t", b"low")
            t.publish("t", b"high", priority=HIGH)
            t.publish_many("t", [b"later", b"short"], delays=[10, None], ttls=[None, 5], priorities=[HIGH, MEDIUM])
            backend.advance(100)  # nothing is stored yet, so nothing expires
        assert values(drain(consumer)) == [b"high", b"short", b"low"]
        with store.transaction() as t:
            t.publish("t", b"short", ttl=5, priority=MEDIUM)
        backend.advance(9)
        assert consumer.get(timeout=0) is None
        backend.advance(1)
        assert values(drain(consumer)) == [b"later"]


def test_an_ack_in_a_transaction_finishes_what_was_delayed_urgent_or_failed_before(backend: Backend, store: Store) -> None:
    """And one that was dropped leaves it with its consumer."""
    store.create_topic("t", priorities=True)
    store.create_topic("out", priorities=True)
    store.publish_many("t", numbered(3), delays=[10, None, None], priorities=[HIGH, LOW, MEDIUM])
    with store.subscribe("t", "g", backoff=2) as consumer:
        one(consumer).nack()
        backend.advance(10)
        for message in take(consumer):
            with pytest.raises(RuntimeError), store.transaction() as t:
                t.ack(message)
                raise RuntimeError("dropped")
            with store.transaction() as t:
                t.ack(message)
                t.publish("out", message.value, priority=message.priority)
        assert stored(store, "out") == [b"0", b"2", b"1"]
        with store.subscribe("out", "g") as results:
            assert values(drain(results)) == [b"0", b"2", b"1"]
    assert group_stats(store).lag == 0


# -- deduplication ------------------------------------------------------------------------------------------------------


def test_a_duplicate_of_a_delayed_message_is_not_delivered_and_does_not_hurry_it(backend: Backend, store: Store) -> None:
    """The first receipt comes back, whatever the second says about delay, ttl and priority."""
    store.create_topic("t", dedup_window=600, priorities=True)
    with store.subscribe("t", "g") as consumer:
        store.publish("t", b"x", dedup_key="one", delay=60)
        for asked in ({}, {"delay": 5}, {"ttl": 1}, {"priority": HIGH}):
            again = store.publish("t", b"x", dedup_key="one", **asked)
            assert (again.offset, again.duplicate) == (0, True)
        backend.advance(59)
        assert consumer.get(timeout=0) is None
        backend.advance(1)
        assert [(message.value, message.priority) for message in drain(consumer)] == [(b"x", LOW)]
        backend.advance(600)
        assert consumer.get(timeout=0) is None


def test_the_key_of_an_expired_or_dead_message_is_still_remembered(backend: Backend, store: Store) -> None:
    """Its message was stored, and that is what counts."""
    store.create_topic("t", dedup_window=600)
    store.publish("t", b"short", dedup_key="one", ttl=5)
    store.publish("t", b"bad", dedup_key="two")
    with store.subscribe("t", "g") as consumer:
        backend.advance(6)
        one(consumer).reject()
        assert [store.publish("t", b"again", dedup_key=key).duplicate for key in ("one", "two")] == [True, True]
        assert consumer.get(timeout=0) is None


# -- ordered groups -----------------------------------------------------------------------------------------------------


def test_in_an_ordered_group_a_delayed_message_takes_its_turn_when_it_is_due(backend: Backend, store: Store) -> None:
    """Later ones overtake it; one that failed and waits again does hold up what lies behind it."""
    store.create_topic("t")
    with store.subscribe("t", "g", ordered=True, prefetch=1, backoff=2) as consumer:
        store.publish_many("t", numbered(4), delays=[10, None, 5, None])
        first = one(consumer)
        assert first.offset == 1
        first.ack()
        backend.advance(5)
        failed = one(consumer)
        assert failed.offset == 2
        failed.nack(delay=30)
        backend.advance(10)
        assert consumer.get(timeout=0) is None, "0 is due, and 3 is ready: both wait for the one that failed"
        backend.advance(21)
        assert offsets(drain(consumer)) == [2, 0, 3]


def test_in_an_ordered_group_what_expires_does_not_block(backend: Backend, store: Store) -> None:
    """Neither one that nobody got, nor one that failed and waits."""
    store.create_topic("t")
    store.publish_many("t", numbered(4), ttls=[5, 20, None, None])
    with store.subscribe("t", "g", ordered=True) as consumer:
        backend.advance(6)
        failed = one(consumer)
        assert failed.offset == 1
        failed.nack(delay=30)
        backend.advance(32)
        assert offsets(drain(consumer)) == [2, 3]
    assert group_stats(store).lag == 0


# -- seek ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("priorities", [False, True])
def test_a_seek_back_over_delayed_messages_keeps_the_delay_of_those_that_are_not_due(
    backend: Backend, store: Store, priorities: bool
) -> None:
    """What is due by now comes at once, in its lane; what expired meanwhile does not."""
    store.create_topic("t", priorities=priorities)
    lanes = {"priorities": [LOW, LOW, HIGH, LOW]} if priorities else {}
    with store.subscribe("t", "g") as consumer:
        store.publish_many("t", numbered(4), delays=[5, 100, None, None], ttls=[None, None, None, 20], **lanes)  # type: ignore[arg-type]
        assert offsets(drain(consumer)) == [2, 3]
        backend.advance(30)
        assert offsets(drain(consumer)) == [0]
        store.seek("t", "g", to="earliest")
        assert offsets(drain(consumer)) == ([2, 0] if priorities else [0, 2])
        backend.advance(70)
        assert offsets(drain(consumer)) == [1]
    assert group_stats(store).lag == 0


def test_a_seek_forgets_what_waited_in_lanes_and_leaves_nothing_behind(backend: Backend, store: Store) -> None:
    """Leases of before are void, and a seek to the end skips what is delayed, for good."""
    store.create_topic("t", priorities=True)
    with store.subscribe("t", "g") as consumer:
        store.publish_many("t", numbered(6), priorities=[LOW, HIGH, MEDIUM] * 2, delays=[None] * 5 + [10])
        held = one(consumer)
        store.seek("t", "g", to=4)
        with pytest.raises(LeaseExpired):
            held.ack(wait=True)
        assert offsets(drain(consumer)) == [4]
        store.seek("t", "g", to="latest")
        backend.advance(20)
        assert consumer.get(timeout=0) is None
        store.publish("t", b"new")
        assert values(drain(consumer)) == [b"new"]
    assert group_stats(store).lag == 0


# -- compaction ---------------------------------------------------------------------------------------------------------


def test_compaction_takes_messages_that_are_leased_delayed_or_failed_where_groups_are_not_asked(
    backend: Backend, store: Store
) -> None:
    """`retain="always"`: a handler may finish what it has; nothing of what went comes again, and nothing is left unfinished."""
    store.create_topic("t", compaction=True, retain="always", segment_messages=2)
    store.publish("t", b"leased", key=b"a")
    store.publish("t", b"failed", key=b"b")
    store.publish("t", b"delayed", key=b"c", delay=10)
    store.publish("t", b"dying", key=b"d")
    with store.subscribe("t", "g", max_deliveries=1, lease=3_600) as consumer:
        leased, failed, dying = take(consumer)
        for key in (b"a", b"b", b"c", b"d"):
            store.publish("t", b"latest", key=key)
        for _ in range(2):
            store.publish("t", b"seal")
        assert store.compact("t").messages == 4
        leased.ack(wait=True)
        dying.reject("no")
        failed.nack(delay=5)
        backend.advance(20)
        assert values(drain(consumer)) == [b"latest"] * 4 + [b"seal"] * 2
        assert sorted(values(store.dead_letters("t").list())) == [b"dying", b"failed"]  # type: ignore[type-var]
    assert group_stats(store).lag == 0


def test_compaction_keeps_what_is_leased_delayed_or_failed_where_groups_are_asked(backend: Backend, store: Store) -> None:
    """`retain="until_acked"`: and takes it as soon as it is finished."""
    store.create_topic("t", compaction=True, segment_messages=2, priorities=True)
    store.publish("t", b"leased", key=b"a")
    store.publish("t", b"failed", key=b"b")
    store.publish("t", b"delayed", key=b"c", delay=30, priority=HIGH)
    store.publish("t", b"expires", key=b"d", ttl=5, delay=20)
    with store.subscribe("t", "g", lease=3_600) as consumer:
        leased, failed = take(consumer)
        for key in (b"a", b"b", b"c", b"d"):
            store.publish("t", b"latest", key=key)
        for _ in range(2):
            store.publish("t", b"seal")
        failed.nack(delay=10)
        assert values(drain(consumer)) == [b"latest"] * 4 + [b"seal"] * 2
        store.flush()
        assert store.compact("t").messages == 0
        leased.ack()
        backend.advance(11)
        assert values(drain(consumer)) == [b"failed"]
        store.flush()
        assert store.compact("t").messages == 2
        backend.advance(20)
        assert values(drain(consumer)) == [b"delayed"]
        store.flush()
        assert store.compact("t").messages == 2
    assert group_stats(store).lag == 0


def test_dead_letters_outlive_the_compaction_of_their_message(store: Store) -> None:
    """Sent back, a letter is the latest message of its key."""
    store.create_topic("t", compaction=True, segment_messages=2, compression="gzip")
    store.publish("t", b"old" * 1_000, key=b"k")
    with store.subscribe("t", "g") as consumer:
        one(consumer).reject()
        for value in numbered(4):
            store.publish("t", value, key=b"k")
        drain(consumer)
        store.flush()
        assert store.compact("t").messages >= 3
        assert values(store.dead_letters("t").list()) == [b"old" * 1_000]
        store.dead_letters("t").replay()
        assert values(drain(consumer)) == [b"old" * 1_000]
        store.publish_many("t", [b".", b"."])
        drain(consumer)
        store.flush()
        store.compact("t")
    assert [message.value for message in store.read("t") if message.key] == [b"old" * 1_000]


def test_a_message_that_is_due_at_a_moment_waits_for_it_over_vacuum_and_retention(lasting: Backend) -> None:
    """They take all that is finished around it; it keeps its lane, and comes after a restart."""
    store = lasting.open()
    store.create_topic("t", priorities=True, segment_messages=4, retention_age=100)
    store.publish_many("t", numbered(4), delays=[None, moment(lasting) + timedelta(days=1), None, None], priorities=HIGH)
    store.publish_many("t", numbered(8, 4))
    with store.subscribe("t", "g") as consumer:
        assert len(drain(consumer)) == 11
    lasting.advance(500)
    store.flush()
    assert store.retain("t").segments == 0
    assert store.vacuum("t").messages == 11
    store = lasting.kill()
    lasting.advance(86_400 - 500)
    store.publish("t", b"new")
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == [b"1", b"new"]
    store.flush()
    assert store.retain("t").segments > 0
