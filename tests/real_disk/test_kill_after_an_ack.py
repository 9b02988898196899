"""A plain `ack()` that nobody waited for is in the journal a moment later: it outlives the process, and the power."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing import FakeClock
from tests.real_disk.loop_disk import loop_disk
from tests.real_disk.processes import Child
from tests.real_disk.writer import STORE, BootFiles

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS = StoreSettings(**STORE)
COUNT = 20
UNACKED = list(range(1, COUNT, 2))


def _prepare(path: str) -> None:
    with Store.open(path, settings=SETTINGS, background=False) as store:
        store.create_topic("t")
        store.publish_many("t", [b"%d" % number for number in range(COUNT)])
        store.subscribe("t", "g").close()


def _given_again(path: str, boot_id: bytes = b"") -> list[int]:
    """What the group of a store that is opened now gets, long after any lease."""
    clock = FakeClock(now_us=4_000_000_000_000_000)
    with Store.open(path, settings=SETTINGS, files=BootFiles(boot_id), clock=clock, background=False) as store:
        assert store.stats().topics["t"].groups["g"].lag == len(UNACKED)
        given = []
        with store.subscribe("t", "g") as consumer:
            for _ in range(2 * COUNT):
                clock.advance(3_600)
                if (message := consumer.get(timeout=0)) is not None:
                    given.append(message.offset)
                    message.ack()
        return sorted(given)


def _ack_and_die(path: str, kill: object = None) -> None:
    """Acks of every second message, without waiting for them, and SIGKILL when they are in the journal."""
    with Child([sys.executable, "-m", "tests.real_disk.acking", path, str(COUNT)]) as child:
        assert child.wait_for("journaled"), child.finish()
        if callable(kill):
            kill(child.kill)
        else:
            child.kill()


def test_an_ack_that_nobody_waited_for_survives_a_kill(tmp_path: Path) -> None:
    """What was acked is not delivered again, and what was not is: after one kill, and after another one."""
    path = str(tmp_path / "store")
    _prepare(path)
    _ack_and_die(path)
    assert _given_again(path) == UNACKED
    with Store.open(path, settings=SETTINGS, background=False) as store, store.subscribe("t", "g") as consumer:
        assert consumer.get(timeout=0) is None


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_an_ack_that_nobody_waited_for_survives_a_power_loss(kind: str, folder: str) -> None:
    """One sync later, which is the commit's own: nobody asked for it."""
    with loop_disk(kind, folder) as disk:
        path = os.path.join(disk.path, "store")
        _prepare(path)
        _ack_and_die(path, disk.cut_power)
        assert _given_again(path, disk.boot_id) == UNACKED
