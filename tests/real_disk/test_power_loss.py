"""Power fails at a random moment, again and again, on file systems that lose what was not synced."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from tests.real_disk.loop_disk import LoopDisk, loop_disk
from tests.real_disk.processes import Child, Store, inspector, writer_command

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

STORES = 2
CYCLES = 20
"""Of one store, which is carried through all of them. On three file systems this makes 120."""


def lose_power_while_writing(disk: LoopDisk, store: Store, rng: random.Random, seed: int, **more: object) -> None:
    """Start a writer with several threads, and cut the power while it writes, or while it opens the store."""
    config = store.config(seed=seed, threads=4, seconds=60, boot_id=disk.boot_id.hex(), **more)
    with Child(writer_command(config)) as child:
        # Every sixth time in the middle of recovery.
        word, longest = ("imported", 0.04) if rng.random() < 1 / 6 else ("ready", 0.15)
        assert child.wait_for(word), child.finish()
        time.sleep(rng.uniform(0, longest))
        disk.cut_power(child.kill)


@pytest.mark.parametrize("kind", ["ext4", "ext4-nojournal", "xfs"])
def test_nothing_acknowledged_is_lost_when_power_fails(
    kind: str, folder: str, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """Each crash is followed by recovery, judgement, more appends and another recovery; then the same store goes on."""
    totals = {"cycles": 0, "operations": 0, "acknowledged": 0, "allowed losses": 0}
    with inspector(folder) as server:
        for number in range(STORES):
            with loop_disk(kind, folder) as disk:
                store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, f"history-{number}"), server)
                for cycle in range(CYCLES):
                    lose_power_while_writing(disk, store, rng, seed)
                    anomalies = store.check(power_lost=True, boot_id=disk.boot_id, close=rng.random() < 0.3)
                    assert not anomalies, f"store {number}, cycle {cycle}"
                    totals["cycles"] += 1
                history = store.judge.history.read()
                totals["operations"] += len(history.operations)
                totals["acknowledged"] += len(history.outcomes("ok"))
                totals["allowed losses"] += store.judge.lost
    record_property(f"power loss on {kind}", totals)
    print(f"power loss on {kind}: {totals}")
    # Else the cuts came too early, and this has shown nothing.
    assert totals["acknowledged"] > 5 * totals["cycles"]


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_what_a_reader_saw_after_a_kill_survives_the_power_loss_that_follows(
    kind: str, folder: str, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """
    A killed process leaves messages that were never synced; recovery shows them, so it must have synced them first.

    Nothing is appended between the reading and the loss of power: that would sync them by the way.
    """
    cycles, seen = 8, 0
    with inspector(folder) as server, loop_disk(kind, folder) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        for cycle in range(cycles):
            with Child(writer_command(store.config(seed=seed, threads=4, seconds=60, boot_id=disk.boot_id.hex()))) as child:
                assert child.wait_for("ready"), child.finish()
                time.sleep(rng.uniform(0.02, 0.15))
                child.kill()
            assert not store.look(power_lost=False, boot_id=disk.boot_id.hex()), f"after the kill of cycle {cycle}"
            disk.cut_power()
            assert not store.look(power_lost=True, boot_id=disk.boot_id.hex()), f"after the power loss of cycle {cycle}"
            seen = sum(log.end - log.start for log in store.judge.seen.values())
    record_property(f"phantom tails on {kind}", {"cycles": cycles, "messages": seen})
    print(f"phantom tails on {kind}: {cycles} cycles, {seen} messages at the end")


@pytest.mark.parametrize("interval_ms", [10, 60_000], ids=["an interval of 10 ms", "an interval of a minute"])
def test_an_interval_log_loses_no_more_than_its_interval_and_a_little(folder: str, seed: int, interval_ms: int) -> None:
    """
    What was acknowledged a second before the cut is there, with an interval of 10 ms; a loaded machine may be late, not that late.

    Unless all of it stands still: so the second has a hundred other appends in it too, half of which wait for the disk. With an interval
    of a minute such messages are lost: without it this test would not notice that nobody syncs.
    """
    meanwhile = 100
    with inspector(folder) as server, loop_disk("ext4", folder) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        # Checkpoints would sync the log too, and so would appends that wait for the disk: they would hide an interval that is not kept.
        settings = {"checkpoint_interval_ms": 60_000, "checkpoint_bytes": 64 << 20, "sync_interval_ms": interval_ms}
        config = store.config(
            seed=seed, threads=2, seconds=120, boot_id=disk.boot_id.hex(), settings=settings, chores=False, appends=["single"]
        )
        with Child(writer_command(config)) as child:
            assert child.wait_for("ready"), child.finish()
            began = time.monotonic()
            while time.monotonic() < began + 2 or (_acknowledged(store) < 2 * meanwhile and time.monotonic() < began + 60):
                time.sleep(0.05)
            disk.shut_down()
            cut_ms = time.monotonic_ns() // 1_000_000
            disk.cut_power(child.kill)
        anomalies = store.check(power_lost=True, boot_id=disk.boot_id)
        assert not anomalies
        done = [operation for operation in store.judge.history.outcomes("ok") if operation.time_ms < cut_ms]
        old = [
            operation
            for operation in sorted(done, key=lambda one: one.time_ms)[:-meanwhile]
            if operation.parts[0].log == "timed/0" and not operation.always and operation.time_ms < cut_ms - 1000
        ]
        assert old
        gone = [operation.op for operation in old if f"{operation.op}:0" in store.judge.gone]
        assert bool(gone) == (interval_ms > 1000)
    print(
        f"interval of {interval_ms} ms: {len(gone)} of {len(old)} appends that were older than a second are lost; "
        f"{store.judge.lost} messages in all"
    )


def _acknowledged(store: Store) -> int:
    with open(store.history_path, "rb") as file:
        return file.read().count(b"\nok ")


@pytest.mark.parametrize(
    ("kind", "forget"),
    [("ext4", "journal"), ("xfs", "journal"), ("ext4", "segments"), ("ext4-nojournal", "temporary files")],
)
def test_the_harness_catches_a_store_that_forgets_to_sync(
    kind: str, forget: str, folder: str, rng: random.Random, seed: int
) -> None:
    """A test that cannot fail proves nothing: with a planted bug an anomaly is found soon."""
    with inspector(folder) as server, loop_disk(kind, folder) as disk:
        store = Store.at(os.path.join(disk.path, "store"), os.path.join(folder, "history"), server)
        for cycle in range(30):
            lose_power_while_writing(disk, store, rng, seed, forget=forget)
            anomalies = store.check(power_lost=True, boot_id=disk.boot_id)
            if anomalies:
                print(f"{forget} not synced on {kind}: caught in cycle {cycle}: {anomalies[0].splitlines()[0][:200]}")
                return
    pytest.fail(f"{forget}: not synced on {kind}, and nothing was noticed")
