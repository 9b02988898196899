"""Nothing is promised before it is durable: shown from the order of the system calls themselves."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.real_disk.call_order import CALLS, STRACE_OPTIONS, CallOrder
from tests.real_disk.processes import run_to_end, strace_command, writer_command

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def run_and_check(folder: str, *inject: str, **config: Any) -> CallOrder:
    """Run the writer under strace and go through its calls."""
    store, history, log = (os.path.join(folder, name) for name in ("store", "history", "strace"))
    command = writer_command({"path": store, "history": history, "session": 1, "threads": 0, **config})
    status, errors = run_to_end(strace_command(log, command, *STRACE_OPTIONS, *inject, calls=CALLS))
    assert (status, errors) == (0, "")
    order = CallOrder(store, history, one_thread=not config.get("threads"))
    order.check(log)
    return order


def test_no_step_of_a_single_thread_comes_before_the_sync_it_needs(
    folder: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Acknowledgements, renames, checkpoints and removals of a run with everything in it."""
    order = run_and_check(folder, seed=seed, operations=120)
    record_property("calls in order, one thread", dict(order.counts))
    print(f"one thread: {dict(order.counts)}")
    assert not order.violations
    for what in ("acknowledgements", "written ahead", "renames", "checkpoints", "removals"):
        assert order.counts[what] > 0, f"no {what} in the run: nothing is shown"


@pytest.mark.parametrize("slow", ["fsync", "fdatasync"])
def test_no_acknowledgement_leaves_before_its_sync_with_many_threads_and_a_slow_disk(
    slow: str, folder: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """With each sync delayed there is much time for a thread to run ahead; fsync is what folders are synced with."""
    inject = ("-e", f"inject={slow}:delay_enter={4000 if slow == 'fdatasync' else 8000}")
    order = run_and_check(folder, *inject, seed=seed, threads=12, seconds=4)
    record_property(f"calls in order, 12 threads, slow {slow}", dict(order.counts))
    print(f"12 threads, slow {slow}: {dict(order.counts)}")
    assert not order.violations
    assert order.counts["acknowledgements"] > 20


@pytest.mark.parametrize("forget", ["journal", "segments", "folders", "temporary files"])
def test_the_linter_catches_a_store_that_forgets_to_sync(forget: str, folder: str, seed: int) -> None:
    """With a planted bug it finds a violation."""
    order = run_and_check(folder, seed=seed, operations=30, forget=forget)
    assert order.violations
    print(f"{forget} not synced: {len(order.violations)} violations, the first: {order.violations[0]}")
