"""Transactions, two-phase commits, dead letters, seeks and deduplication keep their promises in every state a crash may leave."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.crash.explorer import crash, crash_recovery
from tests.crash.queue_workload import PATH, SETTINGS, Workload
from tests.crash.workload import Anomaly

if TYPE_CHECKING:
    from penstock.testing import Operation

STEPS = (
    "publish_large", "publish_to_many", "publish_once", "take", "ack", "ack_and_wait", "nack", "reject", "transaction", "stage",
    "leave_a_stage", "commit_stages", "commit_again", "abort_stages", "seek", "commit_position", "replay_dead_letters", "checkpoint",
    "restart",
)  # fmt: skip


class Explorer:
    """
    Runs a workload once and crashes it everywhere, as `explorer.Explorer` does one floor below.

    Every state is opened and compared; in every twentieth more is done with it: a second crash, repeated commits, keys, and all that
    is not finished is delivered.
    """

    def __init__(self, seed: int, *, steps: int, states: int, limit: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.steps = steps
        self.states = states
        self.limit = limit
        self.checked = self.in_recovery = 0
        self.files = SimulatedFileSystem()
        self.workload = Workload(random.Random(seed), self.files)

    def run(self) -> None:
        """Explore. Raises `Anomaly` with the seed and the operation at which it was found."""
        self.workload.open()
        self.workload.create_topics()
        self.files.on_operation = self._at_operation
        try:
            self.workload.run(self.steps)
            self.workload.store.close()
        finally:
            self.files.on_operation = None

    def _at_operation(self, operation: Operation) -> None:
        for index in range(self.states):
            if self.checked >= self.limit:
                return
            try:
                state = crash(self.files, self.rng, index)
                if self.rng.random() < 0.1:
                    state, crashed = crash_recovery(state, self.rng, 50, self._recover)
                    self.in_recovery += crashed
                self.workload.oracle.check(state, power_lost=index != 1, reopen=self.rng.random() < 0.05)
            except Anomaly as anomaly:
                flight = str(self.workload.oracle.flight)[:500]
                raise Anomaly(
                    f"seed {self.seed}, before {operation}, state {index}: {anomaly}; under way: {flight}"
                ) from anomaly
            self.checked += 1

    def _recover(self, state: SimulatedFileSystem) -> None:
        clock = FakeClock(now_us=self.workload.clock.now_us(), monotonic=self.workload.clock.monotonic())
        Store.open(PATH, settings=SETTINGS, files=state, clock=clock, background=False)


def _explore(seed: int, states: int) -> dict[str, int]:
    checked = in_recovery = drained = 0
    done: dict[str, int] = {}
    first = seed
    while checked < states:
        explorer = Explorer(seed, steps=70, states=3, limit=states - checked)
        explorer.run()
        checked += explorer.checked
        in_recovery += explorer.in_recovery
        drained += explorer.workload.oracle.drained
        for name, count in explorer.workload.steps_done.items():
            done[name] = done.get(name, 0) + count
        seed += 1
    print(f"{checked} crash states, {in_recovery} in recovery, {drained} drained, seeds {first} to {seed - 1}, steps {done}")
    assert drained > states // 50
    return done


def test_every_change_is_there_as_a_whole_or_not_at_all(seed: int) -> None:
    """I16, I17, I23, I24, I27, I29-I31, I41, I42."""
    _explore(seed % 1_000_000, 2_500)


@pytest.mark.long
def test_crash_states_of_a_fixed_seed() -> None:
    """The same for workloads that are the same in every run, and that are known to do everything."""
    done = _explore(78_000_000, 2_500)
    for step in STEPS:
        assert done.get(step, 0) > 0, f"the workload never did {step}"


def test_a_store_may_die_while_it_is_made(rng: random.Random) -> None:
    """At every operation of making a store, a topic, a group, a dead letter and a stage; then it goes on, and the power goes."""
    files = SimulatedFileSystem()
    states: list[SimulatedFileSystem] = []

    def crash_here(_: Operation) -> None:
        states.extend([files.kill(), files.crash(rng, keep="nothing"), files.crash(rng), files.crash(rng, keep="everything")])

    files.on_operation = crash_here
    _live(files, 0)
    files.on_operation = None
    assert len(states) > 200
    for state in states:
        done = _live(state, 1)
        store = Store.open(PATH, settings=SETTINGS, files=state.crash(rng, keep="nothing"), clock=FakeClock(), background=False)
        assert b"1" in [message.value for message in store.read("t")], state.origin
        assert b"1" in [letter.value for letter in store.dead_letters("t").list()], state.origin
        assert store.groups("t")[0].name == "g"
        assert store.commit("job", 1, [done]).messages == 1


def _live(files: SimulatedFileSystem, number: int) -> str:
    """All that makes folders and files, once; what is there already is used."""
    store = Store.open(PATH, settings=SETTINGS, files=files, clock=FakeClock(), background=False)
    store.create_topic("t", partitions=2)
    store.publish("t", b"%d" % number, partition=0)
    consumer = store.subscribe("t", "g")
    while (message := consumer.get(timeout=0)) is not None:
        message.reject("no")
    with store.stage("job") as stage:
        stage.publish("t", b"staged")
    store._volume.checkpoint()
    return stage.identity


@pytest.mark.long
def test_many_crash_states(seed: int) -> None:
    """The same, more."""
    _explore(seed % 1_000_000 + 1_000_000, 5_000)
