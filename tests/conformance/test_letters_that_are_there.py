"""One truth about dead letters: a group over X.dlq gets those that are there, and finishing one takes it out of the box."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.helpers import drain, offsets, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

DAY_S = 86_400.0


def bury(store: Store, *bodies: bytes, topic: str = "t") -> None:
    """Make dead letters of them."""
    for body in bodies:
        store.publish(topic, body)
    with store.subscribe(topic, "failing") as consumer:
        for message in take(consumer):
            message.reject("no good")


def agreed(store: Store, *bodies: bytes, group: str | None = "mourners") -> bool:
    """Whether everything that tells of dead letters tells of these."""
    letters = store.dead_letters("t")
    assert values(letters.list()) == [*bodies]
    assert len(letters) == len(bodies)
    if group is not None:
        assert store.stats().topics["t.dlq"].groups[group].lag == len(bodies)
    return True


def test_an_ack_takes_the_letter_out(store: Store) -> None:
    bury(store, b"a", b"b", b"c")
    with store.subscribe("t.dlq", "mourners") as mourners:
        assert agreed(store, b"a", b"b", b"c")
        first, second, _ = take(mourners)
        second.ack()
        assert agreed(store, b"a", b"c")
        mourners.ack([first])
        assert agreed(store, b"c")
    assert agreed(store, b"c")


def test_a_nack_keeps_the_letter(backend: Backend) -> None:
    """It comes again later, as often as it takes, and is there all the while."""
    store = backend.open()
    bury(store, b"a")
    with store.subscribe("t.dlq", "mourners", backoff=1, max_deliveries=1) as mourners:
        for attempt in (1, 2, 3):
            [letter] = take(mourners)
            assert letter.attempt == attempt
            letter.nack(reason="not yet")
            assert agreed(store, b"a")
            backend.advance(600)
        take(mourners)[0].reject("never")
        assert agreed(store, b"a")


@pytest.mark.parametrize("way", ["replay", "discard"])
def test_what_was_taken_out_is_not_delivered(store: Store, way: str) -> None:
    """Neither to a group that had not come to it, nor to one that had failed at it, nor to a new one."""
    bury(store, b"a", b"b", b"c", b"d")
    with store.subscribe("t.dlq", "mourners", backoff=0) as mourners:
        [first] = take(mourners, 1)
        letters = store.dead_letters("t")
        assert getattr(letters, way)(offsets=[0, 2]) == 2
        assert agreed(store, b"b", b"d")
        first.nack()
        assert values(take(mourners)) == [b"b", b"d"]
    with store.subscribe("t.dlq", "others") as others:
        assert values(drain(others)) == [b"b", b"d"]


def test_what_expired_is_not_delivered(backend: Backend) -> None:
    store = backend.open()
    store.create_topic("t", dead_letter_retention=DAY_S)
    bury(store, b"old")
    with store.subscribe("t.dlq", "mourners") as mourners:
        backend.advance(2 * DAY_S)
        bury(store, b"new")
        store.retain("t.dlq")
        assert agreed(store, b"new")
        assert values(take(mourners)) == [b"new"]


def test_an_ack_of_what_was_taken_out_meanwhile_changes_nothing(store: Store) -> None:
    bury(store, b"a")
    with store.subscribe("t.dlq", "mourners") as mourners:
        [letter] = take(mourners)
        assert store.dead_letters("t").replay() == 1
        letter.ack()
        assert agreed(store)
    with store.subscribe("t", "again") as again:
        assert values(drain(again)) == [b"a", b"a"]


def test_a_letter_stays_until_every_group_has_finished_it(store: Store) -> None:
    """No group loses a letter by what another one does."""
    bury(store, b"a", b"b")
    with store.subscribe("t.dlq", "alerts") as alerts, store.subscribe("t.dlq", "repair") as repair:
        assert values(drain(alerts)) == [b"a", b"b"]
        assert agreed(store, b"a", b"b", group="repair")
        assert store.stats().topics["t.dlq"].groups["alerts"].lag == 0
        first, second = take(repair)
        first.ack()
        assert agreed(store, b"b", group="repair")
        second.ack()
        assert agreed(store, group="repair")


def test_a_group_that_begins_at_the_end_takes_nothing_out(store: Store) -> None:
    """To subscribe, or to move a group, is to finish nothing."""
    bury(store, b"a", b"b")
    with store.subscribe("t.dlq", "late", start="latest") as late:
        assert take(late) == []
        assert agreed(store, b"a", b"b", group=None)
        store.seek("t.dlq", "late", "earliest")
        assert values(drain(late)) == [b"a", b"b"]
    assert agreed(store, group="late")


def test_a_group_that_goes_back_gets_what_is_there(store: Store) -> None:
    bury(store, b"a", b"b", b"c")
    with store.subscribe("t.dlq", "mourners") as mourners:
        take(mourners, 1)[0].ack()
        store.seek("t.dlq", "mourners", "earliest")
        assert offsets(take(mourners)) == [1, 2]


def test_a_commit_takes_out_all_before_it(store: Store) -> None:
    bury(store, b"a", b"b", b"c")
    with store.subscribe("t.dlq", "mourners") as mourners:
        if not hasattr(mourners, "commit"):
            pytest.skip("no commit")
        mourners.commit(2, 0)
        assert agreed(store, b"c")


def test_a_letter_is_mended_and_sent_back_in_one_transaction(store: Store) -> None:
    """All or nothing: an aborted one keeps it."""
    bury(store, b"a", b"b")
    with store.subscribe("t.dlq", "mourners") as mourners:
        first, second = take(mourners)
        transaction = store.transaction()
        transaction.publish("t", b"mended")
        transaction.ack(first)
        transaction.abort()
        assert agreed(store, b"a", b"b")
        with store.transaction() as transaction:
            transaction.publish("t", b"mended")
            transaction.ack(second)
        assert agreed(store, b"a")


def test_acks_and_what_was_taken_out_survive(lasting: Backend) -> None:
    """The death of the process, and a restart; nothing that is gone comes back."""
    store = lasting.open()
    bury(store, b"a", b"b", b"c", b"d")
    with store.subscribe("t.dlq", "mourners") as mourners:
        take(mourners, 1)[0].ack()
        store.dead_letters("t").discard(offsets=[2])
        mourners.flush()
        store = lasting.kill()
        assert agreed(store, b"b", b"d")
    store = lasting.reopen()
    assert agreed(store, b"b", b"d")
    with store.subscribe("t.dlq", "mourners") as mourners:
        assert values(drain(mourners)) == [b"b", b"d"]
    store = lasting.reopen()
    assert agreed(store)


def test_reading_is_history(store: Store) -> None:
    """`read` needs no group, and shows letters that are gone too, as long as the log keeps them."""
    bury(store, b"a", b"b")
    store.dead_letters("t").discard()
    assert values(store.read("t.dlq")) == [b"a", b"b"]
