"""Stages whose parts become segments: all or nothing at every operation of staging, committing, applying and recovering."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest

from penstock.files import write_fully
from penstock.format.segment import FOOTER_BYTES
from penstock.log.partition_log import PartitionLog
from penstock.log.staged_segment import StagedSegment
from penstock.testing import SimulatedFileSystem
from penstock.topics.stages import StageWriter
from tests.crash.queue_workload import PATH, Workload
from tests.crash.workload import Anomaly

if TYPE_CHECKING:
    from penstock.log.segment import Segment
    from penstock.testing import Operation

STEPS = ("publish", "stage", "leave_a_stage", "commit_stages", "commit_again", "abort_stages", "checkpoint", "restart")


class Explored:
    """What an exploration saw."""

    def __init__(self) -> None:
        self.states = self.links = 0


def _explore(seed: int, *, steps: int, states: int) -> Explored:
    """Run a workload of stages and open *states* of the disk before each of its operations."""
    rng = random.Random(seed)
    files = SimulatedFileSystem()
    workload = Workload(random.Random(seed), files)
    workload.open()
    workload.create_topics()
    explored = Explored()

    def crash(operation: Operation) -> None:
        adopts = operation.kind == "link" and operation.target.startswith(f"{PATH}/topics/")
        explored.links += adopts
        for index in range(states):
            state = files.kill() if index == 1 else files.crash(rng, keep="nothing" if index == 0 else "random")
            if rng.random() < 0.1:
                _crash_recovery(workload, state, rng)
            try:
                workload.oracle.check(state, power_lost=index != 1, reopen=adopts or rng.random() < 0.1)
            except Anomaly as anomaly:
                raise Anomaly(f"seed {seed}, before {operation}, state {index} ({state.origin}): {anomaly}") from anomaly
            explored.states += 1

    files.on_operation = crash
    try:
        workload.run(steps, STEPS)
        workload.store.close()
    finally:
        files.on_operation = None
    return explored


def _crash_recovery(workload: Workload, state: SimulatedFileSystem, rng: random.Random) -> None:
    """A recovery of this state that dies somewhere leaves a state that can be recovered."""
    crashed: list[SimulatedFileSystem] = []
    at = rng.randint(1, 60)

    def stop(operation: Operation) -> None:
        if operation.index >= at and not crashed:
            crashed.append(state.crash(rng))

    copy = state.clone()
    copy.on_operation = None
    state = copy
    state.operations = 0
    state.on_operation = stop
    workload.oracle.check(state, power_lost=True)
    state.on_operation = None
    for disk in crashed:
        workload.oracle.check(disk, power_lost=True)


def test_a_stage_is_adopted_as_a_whole_or_not_at_all(seed: int) -> None:
    """I41, I42, and issue 3's seventh point on the simulated disk: stage, commit and apply at each operation."""
    seed %= 1_000_000
    explored = [_explore(seed, steps=25, states=3)]
    links = sum(one.links for one in explored)
    print(f"seed {seed}: {sum(one.states for one in explored)} states, {links} adoptions")


@pytest.mark.long
def test_adoptions_of_a_fixed_seed() -> None:
    explored = _explore(25, steps=35, states=3)
    print(f"{explored.states} states, {explored.links} adoptions")
    assert explored.links >= 8
    assert explored.states >= 1_000


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(2))
def test_many_adoptions(seed: int, part: int) -> None:
    """The same for longer."""
    seed = 1_000_000 * (part + 1) + seed % 1_000_000
    explored: list[Explored] = []
    # Some workloads adopt little: go on until enough was seen.
    while len(explored) < 2 or sum(one.links for one in explored) < 4:
        assert len(explored) < 8, "the workloads adopt hardly anything"
        explored.append(_explore(seed + len(explored), steps=40, states=5))
    print(f"seed {seed}: {sum(one.states for one in explored)} states, {sum(one.links for one in explored)} adoptions")


# -- bugs that the exploration must find ----------------------------------------------------------------------------


def _write_without_sync(self: StagedSegment, segment: Segment) -> None:
    for position, data in self._parts:
        write_fully(self.file, data, position)
    segment.synced_position = self.data_end + FOOTER_BYTES
    self._files.link(self.path, segment.path)


def _write_in_place(self: StagedSegment, segment: Segment) -> None:
    for position, data in self._parts:
        write_fully(self.file, data, position)
    segment.sync()
    self._files.rename(self.path, segment.path)


def _plan_without_a_name(original: Any) -> Any:
    def plan(self: PartitionLog, staged: StagedSegment, now_us: int) -> int:
        first: int = original(self, staged, now_us)
        self._names_made -= 1
        return first

    return plan


def _finish_without_sync(self: StageWriter) -> str:
    with mock.patch("penstock.testing.simulated_files.SimulatedFile.sync_data"):
        return _FINISH(self)


_FINISH = StageWriter.finish
MUTANTS = {
    "the segment is not synced before the frame": (StagedSegment, "write", _write_without_sync),
    "the stage loses its file before the frame": (StagedSegment, "write", _write_in_place),
    "the segment's name is not synced before the frame": (
        PartitionLog,
        "plan_adoption",
        _plan_without_a_name(PartitionLog.plan_adoption),
    ),
    "a stage is not synced when it is finished": (StageWriter, "finish", _finish_without_sync),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_exploration_finds_planted_bugs(name: str) -> None:
    target, attribute, mutant = MUTANTS[name]
    with mock.patch.object(target, attribute, mutant), pytest.raises(Anomaly) as caught:
        for seed in (25, 12, 39, 3, 0, 18):
            _explore(seed, steps=35, states=3)
    print(caught.value)
