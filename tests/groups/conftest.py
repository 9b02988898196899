"""Stores for the tests of groups."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.store.store import Store
from tests.groups.sim import SOON_S, Sim

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def sim() -> Sim:
    """A simulated store with a topic t."""
    sim = Sim()
    sim.store.create_topic("t")
    return sim


@pytest.fixture
def memory() -> Iterator[Store]:
    """An empty store in memory, with its threads."""
    store = Store.open("memory:")
    yield store
    closer = threading.Thread(target=store.close, daemon=True)
    closer.start()
    closer.join(SOON_S)


@pytest.fixture
def store() -> Iterator[Store]:
    """A store in memory with a topic t, with its threads."""
    with Store.open("memory:") as store:
        store.create_topic("t")
        yield store
