"""What the store remembers of committed transactions, and of whom it forgets them."""

from __future__ import annotations

import pytest

from penstock.errors import ProducerFenced, TransactionFenced
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.topics.producers import EXPIRY_US, ONCE_PREFIX
from tests.conformance.backends import SETTINGS


def open_store(files: SimulatedFileSystem, clock: FakeClock) -> Store:
    return Store.open("/store", settings=SETTINGS, files=files, clock=clock, background=False)


def test_producers_of_one_transaction_are_forgotten() -> None:
    """After a week; the others never are, since a query may come back after a month."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_store(files, clock)
    store.commit(f"{ONCE_PREFIX}a", 0, [])
    store.commit("query", 3, [])
    for days in (6, 2):
        clock.advance(days * 86_400)
        store.close()
        store = open_store(files, clock)
        assert (store.committed(f"{ONCE_PREFIX}a", 0) is not None) == (days == 6)
    assert store.committed("query", 3) is not None
    assert EXPIRY_US == 7 * 86_400 * 1_000_000
    store.close()


def test_an_answer_says_whether_somebody_went_on() -> None:
    """A repeated number is answered as before, and the newest number tells that it is an old one."""
    store = open_store(SimulatedFileSystem(), FakeClock())
    assert store.commit("query", 0, []).newest == 0
    assert store.commit("query", 1, []).newest == 1
    again = store.commit("query", 0, [])
    assert (again.duplicate, again.newest) == (True, 1)
    for number in range(2, 40):
        store.commit("query", number, [])
    with pytest.raises(TransactionFenced) as told:
        store.commit("query", 0, [])
    assert told.value.newest == 39
    store.close()


@pytest.mark.parametrize("crash", [False, True], ids=["closed", "crashed"])
def test_a_fence_stands_while_the_newer_producer_publishes_and_a_week_longer(crash: bool) -> None:
    """Counted from the last publish, not from its opening; also in partitions that it never wrote to, and after a crash."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = open_store(files, clock)
    store.create_topic("t", partitions=2)
    old, new = store.producer("t", name="p"), store.producer("t", name="p")
    identity, incarnation = old._outlet._identity  # type: ignore[attr-defined]
    for _ in range(4):
        clock.advance(2 * 86_400)
        new.send(b"x", partition=0)
        new.flush()
    store.publish("t", b"the next frame", partition=0)
    if crash:
        files = files.kill()
    else:
        store.close()
    store = open_store(files, clock)
    clock.advance(6 * 86_400)
    store._volume.checkpoint()
    with pytest.raises(ProducerFenced):
        store._producers.check(identity, incarnation)
    clock.advance(2 * 86_400)
    store._volume.checkpoint()
    store._producers.check(identity, incarnation)
    store.close()


def test_that_a_producer_published_does_not_undo_the_opening_of_a_newer_one() -> None:
    """Though it is told later, since it rides along with a frame after that."""
    clock = FakeClock()
    store = open_store(SimulatedFileSystem(), clock)
    store.create_topic("t")
    producers = store._producers
    identity, first = producers.open("p", store._catalog.get("t").logs)
    clock.advance(2 * 3600)
    producers.check(identity, first)
    told = producers.take_pending(1 << 20)
    assert told
    assert not producers.pending
    _, second = producers.open("p", store._catalog.get("t").logs)
    producers.replay(told)
    with pytest.raises(ProducerFenced):
        producers.check(identity, first)
    producers.check(identity, second)
    store.close()
