"""Where mending does not help, repair sets aside what is in the way, until the store opens; nothing is deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING
from unittest import mock

import pytest

from penstock.store import checking
from penstock.volume.repair import NOT_MENDED, Repairer
from tests.verification.damages import STORE, damage
from tests.verification.judge import open_and_read
from tests.verification.stores import queue_store, small_stores

if TYPE_CHECKING:
    from random import Random

    from penstock.testing import SimulatedFileSystem

_EACH = 5


def _nothing(self: Repairer, *_: object) -> None:
    """A mend, or a resort, that does not help."""
    del self


def _damaged(rng: Random) -> list[SimulatedFileSystem]:
    """Stores that do not open, or cannot be read."""
    found: list[SimulatedFileSystem] = []
    stores = [*small_stores().values(), queue_store("killed")]
    while len(found) < _EACH:
        _, files = damage(rng.choice(stores).base, rng)
        if files.exists(f"{STORE}/store.json") and not checking.verify(STORE, files=files).is_sound:
            found.append(files)
    return found


@pytest.mark.parametrize("useless", range(len(Repairer._LAST_RESORTS)))
def test_repair_ends_in_a_store_that_opens_though_no_mend_helps(useless: int, rng: Random) -> None:
    """With the first *useless* resorts of no use either: the last one leaves a store without topics."""
    resorts = (_nothing,) * useless + Repairer._LAST_RESORTS[useless:]
    needed = 0
    for files in _damaged(rng):
        before = files.files()
        with mock.patch.object(Repairer, "_mend", _nothing), mock.patch.object(Repairer, "_LAST_RESORTS", resorts):
            planned = checking.plan(STORE, files=files)
            assert files.files() == before
            done = checking.repair(STORE, files=files)
        assert len(planned) == len(done.lost)
        needed += any(NOT_MENDED in lost.reason for lost in done.lost)
        assert checking.verify(STORE, files=files).is_sound
        settings = small_stores()["closed"].settings
        assert open_and_read(files.kill(), STORE, settings).error is None
        _assert_all_is_there(before, files.files(), done.quarantine)
    assert needed  # a thing that has the wrong shape is moved away before


def _assert_all_is_there(before: dict[str, bytes], after: dict[str, bytes], quarantine: str | None) -> None:
    """Each file as it was, in its place or in the quarantine; caches and the files of the last owner aside."""
    assert quarantine is not None
    kept = {content for path, content in after.items() if path.startswith(quarantine)}
    for path, content in before.items():
        if path.endswith((".log", ".wal", ".json", "checkpoint-0", "checkpoint-1")):
            assert after.get(path) == content or content in kept, path
