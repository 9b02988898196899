"""
A part of the conformance suite, for a process that is not the owner.

The calls go the way that `tests/conformance` walks for a server, whole; what differs is how it is reached, and that is seen by a few.
"""

# ruff: noqa: F401, F811 - fixtures and tests that run here because they are imported

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest

from penstock import Store
from penstock.client.store import RemoteStore
from penstock.sharing.door import SocketDoor
from penstock.sharing.folder import SharedFolder
from penstock.sharing.names import SOCKET_NAME
from tests.conformance.backends import SETTINGS, Backend, DirectoryBackend
from tests.conformance.conftest import backend, lasting, live, live_store, store
from tests.conformance.test_fifteen import (
    test_1_the_ack_of_the_first_message_survives_a_restart,
    test_7_deduplication_over_a_restart,
    test_8_a_nack_wakes_a_consumer_that_waits,
    test_8_visibility_and_nack,
    test_9_acks_out_of_order,
    test_10_the_window_bounds_what_is_in_flight,
    test_11_partitions_fan_in,
    test_14_dead_letters,
    test_15_seeking,
)
from tests.conformance.test_options import (
    test_a_dedup_key_and_options_together,
    test_several_messages_take_columns_or_one_for_all,
)
from tests.conformance.test_ordered_groups import test_partitions_move_to_those_who_come
from tests.conformance.test_transactions import (
    test_a_transaction_wakes_those_who_wait,
    test_publishing_and_acking_are_one,
)


class SharedBackend(DirectoryBackend):
    """A folder that somebody owns already; every opening is a sibling's."""

    name = "shared"
    has_one_opener = False

    def __init__(self, folder: Any, *, live: bool) -> None:
        super().__init__(folder, live=live)
        self._owners: dict[Any, Store] = {}

    def open(self, **settings: Any) -> Store:
        auto_create = settings.pop("auto_create", True)
        if self.path not in self._owners:
            self._owners[self.path] = Store.open(
                str(self.path), auto_create=False, settings=replace(SETTINGS, **settings), clock=self.clock, background=self.live,
                door=SocketDoor(),
            )  # fmt: skip
        sibling: Any = RemoteStore(SharedFolder(str(self.path), {}), auto_create=auto_create)
        self._opened.append(sibling)
        return sibling  # type: ignore[no-any-return]  # it has the same face

    def die(self) -> None:
        self._kills += 1
        copy = self.folder / f"killed-{self._kills}"
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns(SOCKET_NAME))
        self.path = copy

    def close(self) -> None:
        super().close()
        while self._owners:
            self._owners.popitem()[1].close()


@pytest.fixture
def backend_type() -> type[Backend]:
    """The one way that is looked at here."""
    return SharedBackend
