"""The engine's answer to errors of the disk: no false acknowledgement, nothing half stored, no retried sync."""

from __future__ import annotations

import errno
import itertools

import pytest

from tests.crash.faults import FaultRun

STEPS = 50
SEEDS = 2
SEEDS_MAX = 40


def _every(kind: str, error: int | None, seed: int, *, least: int, count: int | None = 1, short: int | None = None) -> None:
    """An error at every operation of *kind*, one a run, in the workloads of so many seeds that there were *least* of them."""
    points = seeds = 0
    for one in range(seed, seed + SEEDS_MAX):
        if seeds >= SEEDS and points >= least:
            break
        for at in itertools.count(1):
            if not FaultRun(one, STEPS).run(kind, at, error, count=count, short=short):
                break
            points += 1
        seeds += 1
    print(f"{points} faults of {kind} with {error}, seeds {seed} to {seed + seeds - 1}")
    assert points >= least


@pytest.mark.parametrize("count", [1, None], ids=["once", "for-ever"])
def test_a_failed_sync_is_never_retried_and_nothing_is_acknowledged_after_it(count: int | None, seed: int) -> None:
    """I5, R2: fsync EIO at every sync: waiting publishes fail, later ones are refused, and what was acknowledged is there."""
    _every("sync_data", errno.EIO, seed % 1000, count=count, least=60)


@pytest.mark.parametrize("count", [1, None], ids=["once", "for-ever"])
def test_a_failed_sync_of_a_folder_loses_nothing_that_was_acknowledged(count: int | None, seed: int) -> None:
    """I3: a name that could not be made durable fails what depends on it."""
    _every("sync_directory", errno.EIO, seed % 1000, count=count, least=20)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=["full", "error"])
def test_a_failed_write_leaves_no_half_batch(error: int, seed: int) -> None:
    """R7: a write that failed is rolled back or stops the store; what was acknowledged is there, what was refused is not."""
    _every("write", error, seed % 1000, least=60)


def test_a_short_write_is_finished_or_rolled_back(seed: int) -> None:
    """R7: writes that take only a part, followed by a full disk, leave no half frame and no half batch."""
    _every("write", errno.ENOSPC, seed % 1000, short=40, least=60)


def test_short_writes_alone_change_nothing(seed: int) -> None:
    """R7: the kernel may take any part of a write at any time; nobody notices."""
    _every("write", None, seed % 1000, short=1, least=60)


@pytest.mark.parametrize("kind", ["create", "rename", "unlink", "truncate", "reserve"])
def test_failed_operations_on_names_and_sizes_lose_nothing(kind: str, seed: int) -> None:
    """F5: an error at every such operation, once: typed answers, and all that was acknowledged is there."""
    _every(kind, errno.EIO, seed % 1000, least=1)
