"""The simulated threads: what they find, and that they find it again."""

from __future__ import annotations

import contextlib
import threading

import pytest

from penstock import threads
from penstock.testing import SimulatedFileSystem
from penstock.testing.interleaving import Deadlock, Interleaving, Livelock, Replayed, ScheduleFailure, switching_files

SEEDS = range(60)


def start(*works: object) -> list[threads.Thread]:
    """Threads that do *works*."""
    started = [threads.Thread(target=work) for work in works]  # type: ignore[arg-type]
    for thread in started:
        thread.start()
    return started


def finish(*works: object) -> None:
    """Do *works* at once."""
    for thread in start(*works):
        thread.join()


def test_two_locks_in_two_orders_are_a_deadlock_under_some_schedules_only() -> None:
    def program() -> None:
        one, other = threads.Lock(), threads.Lock()

        def forth() -> None:
            with one, other:
                pass

        def back() -> None:
            with other, one:
                pass

        finish(forth, back)

    found = {}
    for seed in SEEDS:
        try:
            Interleaving(seed).run(program)
        except Deadlock as deadlock:
            found[seed] = str(deadlock)
    assert 0 < len(found) < len(SEEDS)
    assert all(f"seed {seed}" in text and "blocked on" in text for seed, text in found.items())


def test_a_lost_update_is_seen_only_between_lines() -> None:
    """No primitive separates the read from the write."""
    totals = set()

    def program() -> None:
        total = [0]

        def add() -> None:
            seen = total[0]
            seen += 1
            total[0] = seen

        finish(add, add)
        totals.add(total[0])

    for seed in SEEDS:
        Interleaving(seed).run(program)
    assert totals == {2}
    for seed in SEEDS:
        Interleaving(seed, lines=["test_interleaving.py"]).run(program)
    assert totals == {1, 2}


def test_a_schedule_is_run_again_choice_by_choice() -> None:
    orders: list[list[int]] = []

    def program() -> None:
        order: list[int] = []
        orders.append(order)
        lock = threads.Lock()

        def note(number: int) -> None:
            for _ in range(5):
                with lock:
                    order.append(number)

        finish(*(lambda number=number: note(number) for number in range(3)))

    first = Interleaving(6)
    first.run(program)
    Interleaving(6).run(program)
    Interleaving(0, schedule=first.schedule).run(program)
    assert orders[0] == orders[1] == orders[2]
    other = Interleaving(9)
    other.run(program)
    assert orders[3] != orders[0]
    with pytest.raises(Replayed):
        Interleaving(0, schedule=first.schedule[:20]).run(program)


def test_time_passes_when_all_wait_and_never_back() -> None:
    run = Interleaving(0)
    seen: list[float] = []

    def program() -> None:
        begun = threads.monotonic()
        assert not threads.Event().wait(1800)
        lock = threads.Lock()
        assert lock.acquire()
        assert not lock.acquire(timeout=60)
        assert not lock.acquire(blocking=False)
        condition = threads.Condition()
        with condition:
            assert not condition.wait(30)
            assert not condition.wait_for(lambda: False, 30)
        seen.append(threads.monotonic() - begun)

    run.run(program)
    assert 1800 + 60 + 30 + 30 <= seen[0] < 1800 + 60 + 30 + 30 + 1


def test_a_program_that_never_ends_is_told() -> None:
    def spin() -> None:
        event = threads.Event()
        while not event.is_set():
            pass

    def tick() -> None:
        while True:
            threads.Event().wait(1)

    with pytest.raises(Livelock, match="steps"):
        Interleaving(0, steps_max=1000).run(spin)
    with pytest.raises(Livelock, match="seconds of its own time"):
        Interleaving(0, seconds_max=60).run(tick)


def test_what_a_thread_raises_is_told_with_its_cause() -> None:
    def fail() -> None:
        raise KeyError("gone")

    def program() -> None:
        start(fail)[0].join()

    with pytest.raises(ScheduleFailure, match="seed 4") as failure:
        Interleaving(4).run(program)
    assert isinstance(failure.value.__cause__, KeyError)


def test_threads_that_are_left_are_named_and_ended() -> None:
    run = Interleaving(0)
    before = threading.active_count()
    ended = []

    def sleep() -> None:
        try:
            threads.Event().wait()
        finally:
            ended.append(True)

    def program() -> None:
        threads.Thread(target=sleep, name="sleeper").start()
        threads.Event().wait(1)

    run.run(program)
    assert run.left == ["sleeper"]
    assert ended == [True]
    assert threading.active_count() == before


@pytest.mark.parametrize("seed", SEEDS)
def test_the_primitives_do_what_real_ones_do(seed: int) -> None:
    """Some of everything, also with real threads."""
    results: list[list[object]] = []

    def program() -> None:
        result: list[object] = []
        results.append(result)
        lock, condition, ready = threads.RLock(), threads.Condition(), threads.Event()
        items: list[int] = []

        def put() -> None:
            ready.wait()
            for number in range(5):
                with condition:
                    items.append(number)
                    condition.notify()

        def get() -> None:
            ready.set()
            for _ in range(5):
                with condition:
                    condition.wait_for(lambda: items)
                    result.append(items.pop(0))

        finish(put, get)
        with lock, lock:
            result.append(lock.acquire(blocking=False))
            lock.release()
        with contextlib.suppress(RuntimeError):
            threads.Lock().release()
        result.append(threads.current_thread() is threads.current_thread())

    program()
    Interleaving(seed).run(program)
    assert results[0] == results[1] == [0, 1, 2, 3, 4, True, True]


def test_a_call_of_the_file_system_is_a_switch_point() -> None:
    run = Interleaving(0)

    def program() -> None:
        files = switching_files(SimulatedFileSystem(), run)
        before = run.steps
        file = files.create("/x")
        file.pwrite(b"x", 0)
        file.sync_data()
        assert run.steps == before + 3

    run.run(program)


def test_the_engine_has_its_real_threads_back_after_a_run() -> None:
    with pytest.raises(ScheduleFailure):
        Interleaving(0).run(lambda: 1 / 0)
    assert threads.Lock is threading.Lock
    assert threads.Thread is threading.Thread


def test_the_engine_takes_its_threads_where_they_can_be_replaced() -> None:
    """Whatever goes around `penstock.threads` is invisible to the simulation."""
    from tests.docs.pages import ROOT

    around = []
    for part in ("log", "journal", "volume", "topics", "groups", "store"):
        for path in (ROOT / "src" / "penstock" / part).rglob("*.py"):
            lines = path.read_text().splitlines()
            around += [
                str(path)
                for line in lines
                if line == "import threading" or line.startswith(("from threading ", "import _thread"))
            ]
    assert around == []
