"""Topics that are made while the process dies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.groups.sim import Sim

if TYPE_CHECKING:
    from penstock.testing import Operation, SimulatedFileSystem


def test_a_topic_that_was_being_made_when_the_process_was_killed_survives_the_next_power_loss() -> None:
    """I10, R4. Its folder has its name and nobody synced that; the next process finds it, uses it, and then the power goes."""
    sim = Sim()
    killed: list[SimulatedFileSystem] = []

    def kill(operation: Operation) -> None:
        if operation.kind == "sync_directory" and operation.path == "/s/topics":
            killed.append(sim.files.kill())

    sim.files.on_operation = kill
    sim.store.create_topic("t")
    assert killed
    for sim.files in killed:
        sim.store = sim._open()
        if "t" in [topic.name for topic in sim.store.topics()]:
            sim.store.publish("t", b"x")
            sim.lose_power()
            assert [message.value for message in sim.store.read("t")] == [b"x"]
