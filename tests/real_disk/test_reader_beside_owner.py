"""A reader process beside an owner that is killed and started again, hundreds of times."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.real_disk.loop_disk import loop_disk
from tests.real_disk.processes import Child

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

RESTARTS = 220


class Owners:
    """Starts owners one after the other, and kills them."""

    def __init__(self, child: Child, path: str) -> None:
        self._child = child
        self._path = path
        self._pid = 0

    def start(self, seed: int, *, idle: bool = False) -> dict[str, int]:
        """Start the next owner; returns where the logs ended when it had opened the store."""
        answer = self._child.ask(json.dumps({"path": self._path, "seed": seed, "idle": idle}))
        assert "ends" in answer, f"the owner did not open the store: {answer} {self._child.finish()}"
        self._pid = answer["pid"]
        ends: dict[str, int] = answer["ends"]
        return ends

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self._child.forget()
        os.kill(self._pid, signal.SIGKILL)
        assert self._child.wait_for('{"ended": 9}')


def test_a_reader_never_sees_what_is_torn_wrong_or_taken_back(
    folder: str, rng: random.Random, seed: int, record_property: Callable[[str, object], None]
) -> None:
    """
    What the reader reads is what was written at that offset; its ends never go back; the next owner has all that it saw.

    The last of these is what "never uncommitted" means: an end that a reader saw is one that every later owner keeps.
    """
    began = time.monotonic()
    with loop_disk("ext4", folder) as disk:
        path = os.path.join(disk.path, "store")
        serve = [sys.executable, "-c", "from tests.real_disk.owner import serve_owners; serve_owners()"]
        read = [sys.executable, "-c", f"from tests.real_disk.owner import read_along; read_along({path!r})"]
        with Child(serve) as server, Child(read) as reader:
            owners = Owners(server, path)
            seen: dict[str, int] = {}
            for restart in range(RESTARTS):
                ends = owners.start(seed + restart)
                taken_back = {name: (end, ends[name]) for name, end in seen.items() if ends[name] < end}
                assert not taken_back, f"(seen, kept) after restart {restart}"
                if restart == 0:
                    assert reader.wait_for("ready")
                time.sleep(rng.uniform(0, 0.12))
                owners.kill()
                answer = reader.ask("ends")
                assert not answer["anomalies"], f"after restart {restart}"
                seen = answer["ends"]
            ends = owners.start(seed, idle=True)
            totals = _read_everything(reader, ends)
            owners.kill()
    totals |= {"restarts": RESTARTS, "seconds": round(time.monotonic() - began, 1)}
    record_property("reader beside owner", totals)
    print(f"reader beside owner: {totals}")
    assert totals["messages"] > 10_000
    assert sum(ends.values()) > 10_000


def _read_everything(reader: Child, ends: dict[str, int]) -> dict[str, Any]:
    """A new reader beside an owner that rests sees exactly what that owner has."""
    answer = reader.ask("reopen")
    assert not answer.pop("anomalies")
    assert answer.pop("ends") == ends
    return answer
