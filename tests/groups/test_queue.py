"""The simple queue over a group: how much it hands out."""

from __future__ import annotations

from penstock.client.queue import Queue
from tests.groups.sim import SOON_S


def test_a_queue_gives_out_more_than_eight_mebibytes_before_the_first_task_is_done() -> None:
    with Queue("memory:") as queue:
        for _ in range(12):
            queue.put(bytes(1_000_000))
        assert len([queue.get(timeout=SOON_S) for _ in range(12)]) == 12
