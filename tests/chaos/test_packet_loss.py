"""Producers and consumers over a network that loses one packet in ten."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from tests.chaos.arena import Arena
from tests.chaos.lossy_network import CannotLose, LossyNetwork

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

LOSSY_S = 6.0


def test_a_network_that_loses_packets_loses_and_doubles_no_messages(
    tmp_path: Path, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """And the server is killed in the middle, so that connections are made while packets get lost."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(LossyNetwork())
            network.lose()
        except CannotLose as error:
            pytest.skip(str(error))
        arena = stack.enter_context(Arena(tmp_path, seed, host=network.host, before=network.before))
        arena.begin()
        for _ in range(2):
            time.sleep(LOSSY_S / 2)
            arena.wait_for_acks(50)
            arena.kill()
            arena.check()
        # All of what is on its way is published and consumed over a network that is whole again, so that the test ends soon.
        lost = network.lost
        network.heal()
        arena.stop_producing()
        arena.drain()
        counts = {"lost_packets": lost, **arena.judge()}
    print(counts, network.how)
    record_property("packet loss", counts)
    assert counts["acked"] > 50
    assert lost > 50 or network.how == "netem"
