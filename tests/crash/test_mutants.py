"""The suite has teeth: each planted bug makes it fail."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import PenstockError
from penstock.testing import SimulatedFileSystem
from tests.crash import mutants
from tests.crash.explorer import Explorer
from tests.crash.faults import FaultRun
from tests.crash.test_damage import flip_in_durable_part
from tests.crash.workload import Anomaly

if TYPE_CHECKING:
    from collections.abc import Callable


def _finds(seed: int) -> Anomaly | None:
    """The first anomaly in the crash states of a few workloads."""
    for offset in range(12):
        try:
            Explorer(seed + offset, steps=40, states=6).run()
        except Anomaly as anomaly:
            return anomaly
        except PenstockError as error:
            return Anomaly(f"the workload itself failed: {error}")
    return None


@pytest.mark.parametrize("mutant", mutants.STATE_MUTANTS, ids=lambda mutant: mutant.__name__)
def test_crash_states_find_the_planted_bug(mutant: Callable[[], Any]) -> None:
    """Each of these bugs breaks a promise in some crash state of some workload."""
    with mutant():
        found = _finds(4_000)
    assert found is not None, f"nobody noticed {mutant.__name__}"
    print(f"{mutant.__name__}: {found}")


def _fault_finds(kind: str, error: int | None, **options: Any) -> Anomaly | None:
    for seed in (1, 2, 3):
        for at in range(1, 120):
            try:
                if not FaultRun(seed, 30).run(kind, at, error, **options):
                    break
            except Anomaly as anomaly:
                return anomaly
    return None


def test_a_retried_fsync_is_found() -> None:
    """A second fsync succeeds on Linux and means nothing: the suite sees the loss."""
    with mutants.fsync_retried_after_error():
        assert _fault_finds("sync_data", errno.EIO) is not None


def test_an_ignored_short_write_is_found() -> None:
    """A write that took only a part leaves a torn batch behind an acknowledgement."""
    with mutants.short_write_ignored():
        assert _fault_finds("write", None, short=40) is not None


def test_half_a_batch_after_a_full_disk_is_found() -> None:
    """What is appended behind half a batch is cut by the next recovery."""
    with mutants.half_a_batch_stays_after_a_full_disk():
        assert _fault_finds("write", errno.ENOSPC, short=40) is not None


def test_truncating_below_the_durable_end_is_found() -> None:
    """Cutting at a bad checksum loses what was acknowledged: a flipped bit shows it."""
    with mutants.truncate_at_bad_checksum_below_the_durable_end():
        assert flip_in_durable_part(SimulatedFileSystem()) == "silent loss"
    assert flip_in_durable_part(SimulatedFileSystem()) == "reported"


@pytest.mark.long
def test_the_suite_is_silent_without_a_mutant() -> None:
    """The same search finds nothing in the product itself."""
    assert _finds(4_000) is None
