"""The disk reports an error: every waiting append is told, nothing later is acknowledged, reading goes on, reopening works."""

from __future__ import annotations

import os
import shutil
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.real_disk.loop_disk import failing_disk, loop_disk, missing_for_failing_disks
from tests.real_disk.processes import (
    CHANGING_CALLS,
    Call,
    Child,
    Inspector,
    Store,
    calls_in,
    in_parallel,
    inspector,
    writer_command,
)
from tests.real_disk.warm import Warm, warm
from tests.real_disk.writer import LOGS

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.real_disk.history import History

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

OPERATIONS = 30
SYNCS = ("fdatasync", "fsync")
OTHERS_TRIED = 60
DEVICE_FAILURES = 12


def judge_conduct(
    history: History, status: int, *, since: int = 0, noticed: bool = True, readable: bool = True, pages_lost: bool = False
) -> list[str]:
    """
    Whether the process behaved after its disk had failed; its lines of the history begin at *since*.

    With *noticed* the failure must have come to somebody's notice; *readable* says that the file system still serves reads itself;
    *pages_lost*: that it may have thrown away what it could not write, so that zeros are read there, which the store must call damage.
    """
    if status == 4:
        return []  # It could not even open the store, and said so.
    if status not in {0, 3}:
        return [f"the writer ended with {status}"]
    errors = [(line, text) for line, text in history.errors if line > since]
    allowed = (*(() if readable else ("OSError",)), *(("DamagedFile",) if pages_lost else ()))
    wrong = [text for _, text in errors if text.startswith("read ") and not any(one in text for one in allowed)]
    if noticed and not errors:
        wrong.append("nobody was told of the failure")
    # The moment from which on the store says itself that it has failed. Other errors (no room, a topic that could not be made, a
    # segment that could not be rewritten) are over when they are reported.
    failed = [line for line, text in errors if "StorageFailed" in text or "OutcomeUnknown" in text]
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


def fail_at(
    folder: str, disk: str, server: Inspector, writer: Warm, seed: int, worker: int, call: Call | None, error: str = "EIO"
) -> tuple[Store, int, str]:
    """Run the writer on a new store with an error in place of *call*; returns the store, how the writer ended, and strace's log."""
    path, history = os.path.join(disk, f"store-{worker}"), os.path.join(folder, f"history-{worker}")
    log = os.path.join(folder, f"strace-{worker}")
    shutil.rmtree(path, ignore_errors=True)
    if os.path.exists(history):
        os.unlink(history)
    store = Store.at(path, history, server)
    config = store.config(seed=seed, operations=OPERATIONS, go_on=True)
    options = [] if call is None else ["-e", f"inject={call.name}:error={error}:when={call.number}"]
    status, errors = writer.run(config, log, *options)
    assert not errors, errors
    store.judge.history.read()
    return store, status, log


@pytest.fixture(name="points")
def list_points(folder: str, seed: int) -> list[Call]:
    """The calls of an undisturbed run that change the disk."""
    with inspector(folder) as server, loop_disk("ext4", folder) as disk, warm("tests.real_disk.writer", 1) as (writer,):
        store, status, log = fail_at(folder, disk.path, server, writer, seed, 0, None)
        assert status == 0
        return calls_in(store.path, log)


def try_each(folder: str, seed: int, points: Sequence[Call], error: str = "EIO") -> tuple[list[str], Counter[str]]:
    """Let each of *points* fail in a run of its own; returns the anomalies, and how often the store took which way."""
    ways: Counter[str] = Counter()
    with (
        inspector(folder) as one,
        inspector(folder) as other,
        loop_disk("ext4", folder) as disk,
        warm("tests.real_disk.writer") as writers,
    ):
        servers = (one, other)

        def fail(worker: int, index: int) -> list[str]:
            call = points[index]
            store, status, log = fail_at(folder, disk.path, servers[worker], writers[worker], seed, worker, call, error)
            with open(log, encoding="utf-8", errors="replace") as file:
                if "(INJECTED)" not in file.read():
                    return [f"{call} did not fail"]
            ways[{0: "went on", 3: "failed and served", 4: "did not open"}.get(status, str(status))] += 1
            noticed = call.name in SYNCS
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


def test_a_failed_sync_fails_every_append_that_waits_for_it(
    folder: str, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Eight threads gather behind a slow sync of the journal, which then fails: not one of them is acknowledged."""
    told = []
    with inspector(folder) as server, loop_disk("ext4", folder) as disk:
        for number in range(2, 10):
            store = Store.at(os.path.join(disk.path, f"store-{number}"), os.path.join(folder, f"history-{number}"), server)
            config = store.config(seed=seed + number, threads=8, seconds=60, go_on=True, chores=False)
            with Child(writer_command(config)) as child:
                assert child.wait_for("ready"), child.finish()
                # Each thread counts its own calls; the first whose turn it is waits (microseconds) and fails.
                inject = f"inject=fdatasync:delay_enter=50000:error=EIO:when={number}"
                log, process = os.path.join(folder, "strace"), str(child.process.pid)
                with Child(["strace", "-f", "-qq", "-o", log, "-e", "trace=fdatasync", "-e", inject, "-p", process]) as tracer:
                    status, errors = child.finish()
                    tracer.finish()
            assert not errors, errors
            assert status == 3
            history = store.judge.history.read()
            assert not judge_conduct(history, status)
            assert not store.check(power_lost=False)
            waiting = len(history.outcomes("unknown")) + len(history.outcomes("fail"))
            told.append((len(history.outcomes("unknown")), waiting - len(LOGS) - 1))
    record_property("appends in the failed frame, and all that were told", told)
    print(f"{len(told)} syncs failed with threads behind them; (in the failed frame, all that were told): {told}")
    assert max(unknown for unknown, _ in told) > 1, "no two appends ever waited for the same sync"


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_recovery_believes_the_device_and_not_the_page_cache(
    kind: str, folder: str, seed: int, rng: random.Random, record_property: Callable[[str, object], None]
) -> None:
    """
    The device itself fails for a moment, so that pages are lost which the cache still shows, with checksums that fit.

    After recovery everything is forgotten that only the cache had, by mounting again: what recovery showed must still be there. ext4
    without a journal is left out: a folder or an inode whose write failed is clean for it, and no later sync writes it again.
    """
    reason = missing_for_failing_disks()
    if reason is not None:
        pytest.skip(reason)
    gone = 0
    with inspector(folder) as server, failing_disk(kind, folder) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        history = store.judge.history
        for cycle in range(DEVICE_FAILURES):
            since = history.lines
            with Child(writer_command(store.config(seed=seed, threads=4, seconds=20, go_on=True))) as child:
                assert child.wait_for("ready"), child.finish()
                time.sleep(rng.uniform(0.02, 0.12))
                disk.fail()
                status, errors = child.finish()
                disk.mend()
            assert not errors, errors
            history.read()
            # Some file systems shut down by themselves when their own writes fail. That is their way to be safe.
            gave_up = disk.is_read_only()
            gone += gave_up
            assert not judge_conduct(history, status, since=since, readable=not gave_up, pages_lost=True), f"cycle {cycle}"
            if gave_up:
                disk.mount_again()
            assert not store.check(power_lost=True, attempts=10), f"cycle {cycle}"
            disk.mount_again()
            assert not store.look(power_lost=False), f"cycle {cycle}, mounted again"
    totals = {
        "cycles": DEVICE_FAILURES,
        "file system gave up": gone,
        "operations": len(history.operations),
        "lost": store.judge.lost,
    }
    record_property(f"device failures on {kind}", totals)
    print(f"device failures on {kind}: {totals}")
