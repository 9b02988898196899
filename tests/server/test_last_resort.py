"""A stop that hangs ends all the same, and the log names what hung."""

from __future__ import annotations

import logging
import queue
import subprocess
import sys
from typing import TYPE_CHECKING

from penstock.server.last_resort import LastResort

if TYPE_CHECKING:
    import pytest

PATIENCE_S = 60.0


def test_a_stage_that_takes_too_long_ends_the_process_and_is_named(caplog: pytest.LogCaptureFixture) -> None:
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    watched = LastResort(ends.put)
    with caplog.at_level(logging.CRITICAL, "penstock.server"):
        watched.expect("closing the store", 0.01)
        assert ends.get(timeout=PATIENCE_S) == 1
    watched.done()
    (record,) = caplog.records
    assert "closing the store takes too long" in record.getMessage()
    assert record.penstock["event"] == "stop_forced"  # type: ignore[attr-defined]
    assert "MainThread" in record.penstock["threads"]  # type: ignore[attr-defined]


def test_stages_that_end_in_time_end_nothing() -> None:
    ends: queue.SimpleQueue[int] = queue.SimpleQueue()
    watched = LastResort(ends.put)
    watched.expect("one", PATIENCE_S)
    watched.expect("another", PATIENCE_S)
    watched.done()
    thread = watched._thread
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert ends.empty()


HANGS = """
import threading, time
from penstock.server.last_resort import LastResort
import logging
logging.basicConfig()
threading.Thread(target=time.sleep, args=(3600,), name="stuck").start()
LastResort().expect("ending the process", 0.2)
"""


def test_a_process_whose_threads_never_end_does() -> None:
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 1
    assert "ending the process takes too long" in done.stderr
    assert "stuck" in done.stderr
    assert "most recent call first" in done.stderr, "with what each thread is doing"
