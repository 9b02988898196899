"""The disk reports an error: every waiting append is told, nothing later is acknowledged, reading goes on, reopening works."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.real_disk.loop_disk import loop_disk
from tests.real_disk.processes import (
    CHANGING_CALLS,
    Call,
    Inspector,
    Store,
    calls_in,
    in_parallel,
    inspector,
    run_to_end,
    strace_command,
    writer_command,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.real_disk.history import History

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OPERATIONS = 30
SYNCS = ("fdatasync", "fsync")
OTHERS_TRIED = 60


def judge_conduct(history: History, status: int, *, noticed: bool) -> list[str]:
    """Whether the process behaved after its disk had failed; with *noticed* the failure must have come to its notice."""
    if status == 4:
        return []  # It could not even open the store, and said so.
    if status not in {0, 3}:
        return [f"the writer ended with {status}"]
    wrong = [text for _, text in history.errors if text.startswith("read ")]
    if noticed and not history.errors:
        wrong.append("nobody was told of the failure")
    # The moment from which on the store says itself that it has failed. Other errors (no room, a topic that could not be made, a
    # segment that could not be rewritten) are over when they are reported.
    failed = [line for line, text in history.errors if "StorageFailed" in text or "OutcomeUnknown" in text]
    wrong += [
        f"{operation.op} was sent after the failure and acknowledged"
        for operation in history.outcomes("ok")
        if failed and operation.line > failed[0]
    ]
    if status == 3 and "closed" not in history.notes:
        wrong.append("the store did not close after the failure")
    if status == 3 and "served all" not in history.notes:
        wrong.append("the store did not serve reads after the failure")
    return wrong


def fail_at(folder: str, disk: str, server: Inspector, seed: int, worker: int, call: Call | None, *, error: str = "EIO") -> tuple[Store, int, str]:
    """Run the writer on a new store with an error in place of *call*; returns the store, how the writer ended, and strace's log."""
    path, history = os.path.join(disk, f"store-{worker}"), os.path.join(folder, f"history-{worker}")
    log = os.path.join(folder, f"strace-{worker}")
    shutil.rmtree(path, ignore_errors=True)
    if os.path.exists(history):
        os.unlink(history)
    store = Store.at(path, history, server)
    config = store.config(seed=seed, operations=OPERATIONS, go_on=True)
    options = [] if call is None else ["-e", f"inject={call.name}:error={error}:when={call.number}"]
    status, errors = run_to_end(strace_command(log, writer_command(config), "--seccomp-bpf", *options))
    assert not errors, errors
    store.judge.history.read()
    return store, status, log


@pytest.fixture(name="points")
def list_points(folder: str, seed: int) -> list[Call]:
    """The calls of an undisturbed run that change the disk."""
    with inspector(folder) as server, loop_disk("ext4", folder) as disk:
        store, status, log = fail_at(folder, disk.path, server, seed, 0, None)
        assert status == 0
        return calls_in(store.path, log)


def try_each(folder: str, seed: int, points: Sequence[Call], error: str = "EIO") -> tuple[list[str], Counter[str]]:
    """Let each of *points* fail in a run of its own; returns the anomalies, and how often the store took which way."""
    ways: Counter[str] = Counter()
    with inspector(folder) as one, inspector(folder) as other, loop_disk("ext4", folder) as disk:
        servers = (one, other)

        def fail(worker: int, index: int) -> list[str]:
            call = points[index]
            store, status, log = fail_at(folder, disk.path, servers[worker], seed, worker, call, error=error)
            with open(log, encoding="utf-8", errors="replace") as file:
                if "(INJECTED)" not in file.read():
                    return [f"{call} did not fail"]
            ways[{0: "went on", 3: "failed and served", 4: "did not open"}.get(status, str(status))] += 1
            noticed = call.name in SYNCS and not error == "ENOSPC"
            anomalies = judge_conduct(store.judge.history, status, noticed=noticed) + store.check(power_lost=False)
            return [f"{call.name}({call.text.strip()}: {anomaly}" for anomaly in anomalies]

        return in_parallel(fail, range(len(points))), ways


def test_after_any_failed_sync_nothing_is_acknowledged_and_reads_go_on(
    folder: str, seed: int, points: list[Call], record_property: Callable[[str, object], None]
) -> None:
    """Every sync of the run fails once: of the journal, of segments, of folders, of checkpoints, of topics, while opening and closing."""
    syncs = [call for call in points if call.name in SYNCS]
    anomalies, ways = try_each(folder, seed, syncs)
    record_property("failed syncs", {"points": len(syncs), **ways})
    print(f"{len(syncs)} syncs failed, each in a run of its own: {dict(ways)}")
    assert not anomalies
    for part in ("/journal/", ".log", "checkpoint-", "topic.json", "/topics/small/0>"):
        assert any(part in call.text for call in syncs), f"no sync of {part} was tried"


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_after_any_other_failed_call_nothing_acknowledged_is_lost(
    error: str, folder: str, seed: int, rng: random.Random, points: list[Call], record_property: Callable[[str, object], None]
) -> None:
    """A sample of writes, renames, removals, truncations and reservations that fail once."""
    others = [call for call in points if call.name not in SYNCS and call.name in CHANGING_CALLS]
    sample = rng.sample(others, min(OTHERS_TRIED, len(others)))
    anomalies, ways = try_each(folder, seed, sample, error)
    record_property(f"failed calls, {error}", {"points": len(sample), "of": len(others), **ways})
    print(f"{len(sample)} of {len(others)} other calls failed with {error}: {dict(ways)}")
    assert not anomalies
