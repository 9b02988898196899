"""The event of the engine: like that of `threading`, and a signal that raises in the middle of it leaves nothing locked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

from penstock.threads import Event


def test_an_event_lets_everyone_go_on_who_waits_and_who_comes_later() -> None:
    event = Event()
    assert not event.is_set()
    assert not event.wait(0)
    assert not event.wait(0.01)
    woken: list[bool] = []
    threads = [threading.Thread(target=lambda: woken.append(event.wait(60))) for _ in range(5)]
    for thread in threads:
        thread.start()
    event.set()
    for thread in threads:
        thread.join(60)
    assert woken == [True] * 5
    assert event.wait(0)
    assert event._waiters == []


def test_an_event_that_is_cleared_is_waited_for_again() -> None:
    event = Event()
    event.set()
    event.clear()
    assert not event.wait(0)
    thread = threading.Thread(target=event.set)
    thread.start()
    assert event.wait(60)
    thread.join()


def test_no_wake_is_lost_between_two_threads() -> None:
    """Two that wake each other in turn, ten thousand times."""
    ping, pong = Event(), Event()
    rounds = 10_000

    def answer() -> None:
        for _ in range(rounds):
            assert ping.wait(60)
            ping.clear()
            pong.set()

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(rounds):
        ping.set()
        assert pong.wait(60)
        pong.clear()
    thread.join(60)
    assert not thread.is_alive()


PROGRAM = textwrap.dedent("""
    import os, signal, subprocess, sys, threading, time
    from penstock.threads import Event

    event, stop = Event(), False
    woken = [0]

    def wait():
        while not stop:
            if event.wait(30):
                woken[0] += 1
            event.clear()

    armed = False
    interrupts = 0

    def interrupt(*_):
        global armed, interrupts
        if armed:
            armed = False
            interrupts += 1
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    thread = threading.Thread(target=wait)
    thread.start()
    hitter = subprocess.Popen([sys.executable, "-c", '''
    import os, signal, sys, time
    pid = int(sys.argv[1])
    while os.getppid() == pid:
        time.sleep(0.0002)
        os.kill(pid, signal.SIGINT)
    ''', str(os.getpid())], preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    end = time.monotonic() + 30
    while interrupts < 1_000 and time.monotonic() < end:
        try:
            armed = True
            while True:
                event.set()
                event.wait(0)
        except KeyboardInterrupt:
            pass
    armed = False
    hitter.kill()
    hitter.wait()
    stop = True
    before = woken[0]
    event.set()
    thread.join(20)
    print(interrupts > 0, before > 0, thread.is_alive())
""")


def test_ctrl_c_leaves_no_event_locked() -> None:
    """An event of `threading` fails this: the other thread waits for a lock that nobody holds any more."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


def test_ctrl_c_ends_a_wait() -> None:
    event = Event()
    timer = threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    timer.start()
    try:
        event.wait(100)
    except KeyboardInterrupt:
        pass
    else:
        raise AssertionError("it went on")
    assert time.monotonic() - began < 60
    event.set()
    assert event.wait(0)
