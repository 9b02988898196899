"""What the store remembers of committed transactions, and of whom it forgets them."""

from __future__ import annotations

import pytest

from penstock.errors import TransactionFenced
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
