"""Ctrl-C, again and again, in a program that publishes, acks and commits in its main thread: its store goes on working."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.interrupts import Held

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 300.0

PROGRAM = textwrap.dedent("""
    import json, os, signal, subprocess, sys, time
    import penstock

    path, what, wanted = sys.argv[1], sys.argv[2], int(sys.argv[3])
    store = penstock.open(path)
    sync = "os" if what == "publish_os" else "always"
    store.create_topic("t", sync=sync)
    store.publish_many("t", [b"first %d" % number for number in range(20_000)])
    consumer = store.subscribe("t", "g", prefetch=1000, lease=3600)
    producer = store.producer("t", linger=0)
    returned, acked, interrupts, unknown = [], [], 0, 0
    # Another process, so that signals come at any moment, not where this one gives way.
    hitter = subprocess.Popen([sys.executable, "-c", '''
    import os, random, signal, sys, time
    pid = int(sys.argv[1])
    while os.getppid() == pid:
        time.sleep(random.choice((0.0001, 0.0005, 0.002, 0.005)))
        os.kill(pid, signal.SIGINT)
    ''', str(os.getpid())], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    armed = False

    def interrupt(*_):
        global armed, interrupts
        if armed:  # else it comes between two rounds of this program, which is nobody's business
            armed = False
            interrupts += 1
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    number, end = 0, time.monotonic() + 60
    while interrupts < wanted and time.monotonic() < end:
        try:
            armed = True
            while True:
                number += 1
                value = b"%d" % number
                if what in ("publish", "publish_os"):
                    store.publish("t", value)
                    returned.append(number)
                elif what == "publish_many":
                    store.publish_many("t", [value, b"%d" % -number])
                    returned += [number, -number]
                elif what == "ack":
                    message = consumer.get(timeout=0)
                    if message is None:
                        end = 0
                        break
                    message.ack(wait=True)
                    acked.append(message.offset)
                elif what == "transaction":
                    with store.transaction() as changes:
                        changes.publish("t", value)
                        changes.publish("other", value)
                    returned.append(number)
                elif what == "send":
                    future = producer.send(value)
                    future.result()
                    returned.append(number)
        except KeyboardInterrupt:
            pass
    armed = False
    hitter.kill()
    hitter.wait()
    store.publish("t", b"last")
    store.publish("new", b"last")
    store._volume.checkpoint()
    with store.transaction() as changes:
        changes.publish("t", b"very last")
    consumer.flush()
    returned = set(returned)
    values = [message.value for message in store.read("t")]
    there = {int(value) for value in values if value.lstrip(b"-").isdigit()}
    print(json.dumps({
        "interrupts": interrupts, "returned": len(returned), "lost": sorted(returned - there)[:5],
        "twice": len(values) - len(set(values)), "failure": store._volume.failure, "last": values[-1].decode(), "acked": len(acked),
        "again": [at for at in acked if at in store._group("t", "g").cursors[0].open or at >= store._group("t", "g").cursors[0].scan][:5],
    }), flush=True)
    store.close()
""")


@pytest.mark.parametrize("what", ["publish", "publish_os", "publish_many", "ack", "transaction", "send"])
def test_a_store_goes_on_after_ctrl_c(what: str, tmp_path: Path) -> None:
    """The same object, and what had returned is there, now and after it is opened again."""
    _hit(what, tmp_path, 40)


@pytest.mark.long
@pytest.mark.parametrize("what", ["publish", "publish_os", "publish_many", "ack", "transaction", "send"])
def test_a_store_goes_on_after_much_ctrl_c(what: str, tmp_path: Path) -> None:
    _hit(what, tmp_path, 1_000)


def _hit(what: str, tmp_path: Path, wanted: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "s"), what, str(wanted)], capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["failure"] is None
    assert told["lost"] == []
    assert told["again"] == []
    assert told["twice"] == 0
    assert told["last"] == "very last"
    assert told["interrupts"] > 0
    assert told["returned"] + told["acked"] > 0
    with penstock.open(tmp_path / "s") as store:
        assert store.read("t", start="earliest") is not None
        assert [message.value for message in store.read("new")] == [b"last"]


def test_a_signal_waits_until_it_is_let_in() -> None:
    """And the program has its own handler back."""
    before = signal.getsignal(signal.SIGINT)
    reached = []
    with pytest.raises(KeyboardInterrupt), Held():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)
        reached.append(True)
    assert reached == [True]
    assert signal.getsignal(signal.SIGINT) is before


def test_all_signals_that_came_are_handled_once_they_are_let_in() -> None:
    handled: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGTERM)}

    def handle(number: int, _: Any) -> None:
        handled.append(number)
        raise TimeoutError(number)

    try:
        for number in before:
            signal.signal(number, handle)
        with pytest.raises(TimeoutError), Held(), Held():
            os.kill(os.getpid(), signal.SIGUSR1)
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
            assert handled == []
        assert sorted(handled) == sorted([signal.SIGUSR1, signal.SIGTERM])
        assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_other_threads_hold_nothing() -> None:
    done = []

    def work() -> None:
        with Held():
            done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.getsignal(signal.SIGINT)]
