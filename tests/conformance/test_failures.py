"""Failed messages: how often they come again, when, and what counts as a failure."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.conformance.helpers import drain, numbered, offsets, one, stored, take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def test_an_unfinished_message_comes_again_after_its_lease_its_delay_or_its_consumer(backend: Backend) -> None:
    """Unacked: back after the lease with attempt 2. Nacked: back when its delay is over. Member gone: back at once."""
    store = backend.open()
    store.publish("t", b"x")
    consumer = store.subscribe("t", "g", lease=30)
    assert one(consumer).attempt == 1
    backend.advance(29)
    assert consumer.get(timeout=0) is None
    backend.advance(2)
    message = one(consumer)
    assert message.attempt == 2
    message.nack(delay=0)
    assert one(consumer).attempt == 3
    consumer.close()
    with store.subscribe("t", "g") as consumer:
        assert values([one(consumer)]) == [b"x"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_a_shutdown_is_no_failure(store: Store, error: type[BaseException]) -> None:
    """A healthy message that was interrupted comes again at once, uncounted, and is never buried for it."""
    store.publish("t", b"healthy")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for _ in range(5):
            message = one(consumer)
            assert message.attempt == 1
            with pytest.raises(error), message:
                raise error
        with one(consumer):
            pass
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.acked, numbers.nacked, numbers.dead_lettered) == (1, 0, 0)
    assert len(store.dead_letters("t")) == 0


@pytest.mark.parametrize("allowed", [1, 2, 3, 4])
def test_a_message_is_tried_as_often_as_was_allowed(store: Store, allowed: int) -> None:
    """Not one more."""
    store.publish("t", b"x")
    tries = 0
    with store.subscribe("t", "g", max_deliveries=allowed) as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            tries += 1
            message.nack(delay=0)
    assert tries == allowed
    assert store.dead_letters("t").list()[0].headers["x-dlq-deliveries"] == b"%d" % allowed


def test_what_one_group_does_to_a_message_no_other_sees(store: Store) -> None:
    """Attempts, reasons and headers belong to a delivery; the message is the same for all."""
    store.publish("t", b"x", headers={"h": b"1"})
    with store.subscribe("t", "a", max_deliveries=10) as a, store.subscribe("t", "b") as b:
        for _ in range(4):
            one(a).nack(delay=0, reason="a's own trouble")
        mine, theirs = one(a), one(b)
        (read,) = store.read("t")
        assert (mine.attempt, theirs.attempt) == (5, 1)
        assert list(mine.headers) == list(theirs.headers) == list(read.headers) == [("h", b"1")]


def test_a_group_without_members_fails_at_nothing(backend: Backend) -> None:
    """A group without members for a week: nothing is counted, nothing is buried unseen."""
    store = backend.open()
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g", lease=10, max_deliveries=2) as consumer:
        take(consumer)
    for _ in range(100):
        backend.advance(6_000)
    assert len(store.dead_letters("t")) == 0
    with store.subscribe("t", "g", lease=10, max_deliveries=2) as consumer:
        assert {message.attempt for message in take(consumer)} <= {1, 2}
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.dead_lettered, numbers.expired_leases) == (0, 0)


def test_attempts_are_not_forgotten(lasting: Backend) -> None:
    """Neither by leaving and coming, nor by a restart."""
    store = lasting.open()
    store.publish("t", b"x")
    expected = 1
    for restart in (None, lasting.reopen, lasting.kill):
        with store.subscribe("t", "g", max_deliveries=10) as consumer:
            message = one(consumer)
            assert message.attempt == expected
            message.nack(delay=0)
            expected += 1
            consumer.flush()
        if restart is not None:
            store = restart()


def test_a_message_that_waits_does_not_hold_up_those_behind_it(store: Store) -> None:
    """One that was nacked with a delay, and one that was published with it."""
    store.publish("t", b"later", delay=3_600)
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        one(consumer).nack(delay=3_600)
        assert offsets(drain(consumer)) == list(range(2, 11))


def test_a_message_that_was_retried_comes_back_once_after_a_restart(lasting: Backend) -> None:
    """Nacked five times, then a restart: one delivery, not six."""
    store = lasting.open()
    store.publish("t", b"x")
    for restart in (lasting.reopen, lasting.kill):
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            for _ in range(5):
                one(consumer).nack(delay=0)
            consumer.flush()
        store = restart()
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            assert offsets(take(consumer)) == [0]
    assert stored(store, "t") == [b"x"]


def test_a_failed_message_waits_before_it_comes_again(backend: Backend) -> None:
    """No hot loop: within its backoff it does not come, and its place in the log stays its own."""
    store = backend.open()
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g", backoff=10, max_deliveries=0) as consumer:
        one(consumer).nack()
        tries = 1
        drain(consumer)
        for _ in range(100):
            backend.advance(1)
            message = consumer.get(timeout=0)
            if message is not None:
                assert message.offset == 0
                tries += 1
                message.nack()
    assert 3 <= tries <= 5
