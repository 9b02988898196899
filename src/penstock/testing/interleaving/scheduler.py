"""The scheduler: whose turn it is, who is blocked, and what time it is."""

from __future__ import annotations

import _thread
import contextlib
import gc
import random
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any

from penstock import threads
from penstock.testing.interleaving import primitives
from penstock.testing.interleaving.strategies import TIME, Priorities, RandomWalk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from penstock.clock import Clock
    from penstock.testing.interleaving.strategies import Strategy

_TOLD_CHOICES = 60
_NAMES = ("Condition", "Event", "Lock", "RLock", "Thread", "current_thread", "main_thread", "monotonic")
_REAL_SECONDS = 120.0
"""How long a step may take by the real clock: a thread that never comes to a switch point is told, not waited for."""
_SLOW_US = 1_000_000
"""How slow threads that can run may be: a deadline that is further away does not come before one of them has run."""


class ScheduleFailure(AssertionError):
    """A program failed under a schedule; the text says which, and how to run it again."""


class Deadlock(ScheduleFailure):
    """Everybody waits for somebody."""


class Livelock(ScheduleFailure):
    """It goes on and on."""


class Replayed(ScheduleFailure):
    """The program did not do again what it did before: its run depends on something besides the schedule."""


class Ended(BaseException):
    """Raised in threads that are left when a run is over."""


class SimulatedThread:
    """One thread as the scheduler sees it."""

    __slots__ = ("alive", "blocked_on", "deadline_us", "go", "number", "thread", "timed_out")

    def __init__(self, number: int, thread: Any) -> None:
        self.number = number
        self.thread = thread
        self.go = _thread.allocate_lock()
        self.go.acquire()
        self.alive = True
        self.blocked_on: object | None = None
        self.deadline_us: int | None = None
        self.timed_out = False


class SimulatedClock:
    """Both clocks of `penstock.clock.Clock`; they move when the scheduler says so."""

    __slots__ = ("_scheduler", "_start_us")

    def __init__(self, scheduler: Interleaving, start_us: int) -> None:
        self._scheduler = scheduler
        self._start_us = start_us

    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970 UTC."""
        return self._start_us + self._scheduler.time_us

    def monotonic(self) -> float:
        """Seconds since the run began, and a thousand."""
        return 1000.0 + self._scheduler.time_us / 1e6


class Interleaving:
    """
    One run of a program under one schedule.

    Attributes:
        clock: the clock for the program.
        schedule: the choices so far: the number of a thread (0 is the program's own), or -1 where time passed.
        steps: switch points so far.
        left: the names of the threads that were still there when the program had returned.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        lines: Sequence[str] = (),
        strategy: Strategy | None = None,
        schedule: Sequence[int] | None = None,
        steps_max: int = 200_000,
        seconds_max: float = 3600.0,
        expected_steps: int = 5_000,
    ) -> None:
        """
        *lines* are parts of the paths of files in which each line is a switch point.

        Without a *strategy* the *seed* chooses one. With a *schedule* exactly that is run again. After *steps_max* steps, or *seconds_max*
        seconds of the run's own time, the program is taken for one that never ends: threads that only wake up now and then hide a deadlock.
        """
        self.seed = seed
        rng = random.Random(seed)
        if strategy is None:
            strategy = RandomWalk(rng) if seed % 3 == 0 else Priorities(rng, expected_steps, bursts=seed % 3 == 1)
        self._strategy = strategy
        self._replay = None if schedule is None else list(schedule)
        self._steps_max = steps_max
        self._seconds_max = seconds_max
        self._lines = tuple(lines)
        self._traced: dict[str, bool] = {}
        self.schedule: list[int] = []
        self.steps = 0
        self.time_us = 0
        self.clock: Clock = SimulatedClock(self, 1_700_000_000_000_000)
        self.left: list[str] = []
        self._threads: list[SimulatedThread] = []
        self._by_ident: dict[int, SimulatedThread] = {}
        self._current: SimulatedThread | None = None
        self._failure: BaseException | None = None
        self._over = False
        self._done = threading.Event()

    # -- a run ------------------------------------------------------------------------------------------------------

    def run(self, program: Callable[[], object]) -> None:
        """
        Run *program*, and the threads that it starts, until it returns; what is left of them is ended then.

        Raises `ScheduleFailure`, which names the seed; its cause is what a thread raised.
        """
        collecting = gc.isenabled()
        gc.disable()  # what a collection runs, it runs at a moment that no seed decides
        try:
            with self._installed():
                main = primitives.Thread(target=program, name="program")
                main.start_first(self)
                self._hand_over(None)
                while not self._done.wait(_REAL_SECONDS):
                    before = self.steps
                    if self._done.wait(_REAL_SECONDS):
                        break
                    if self.steps == before:
                        self._failure = self._failure or self._told(ScheduleFailure, "a thread does not come to a switch point")
                        break
                self._end_all()
        finally:
            if collecting:
                gc.enable()
        if self._failure is not None:
            raise self._failure

    @contextlib.contextmanager
    def _installed(self) -> Iterator[None]:
        saved = {name: getattr(threads, name) for name in _NAMES}
        try:
            for name in _NAMES[:-1]:
                setattr(threads, name, getattr(primitives, name))
            threads.monotonic = self.clock.monotonic
            primitives.install(self)
            yield
        finally:
            primitives.install(None)
            for name, value in saved.items():
                setattr(threads, name, value)

    def _end_all(self) -> None:
        """Let each thread that is left run into `Ended`, one after the other."""
        self._over = True
        for one in list(self._threads):
            if one.alive:
                self._current = one
                one.go.release()
                one.thread.real.join(_REAL_SECONDS)

    def fail(self, failure: BaseException) -> None:
        """The run is over: *failure* is what it found."""
        if self._failure is None:
            self._failure = failure
        self._over = True
        self._done.set()

    def _told(self, kind: type[ScheduleFailure], text: str) -> ScheduleFailure:
        last = " ".join(map(str, self.schedule[-_TOLD_CHOICES:]))
        blocked = "\n".join(
            f"  {one.number} {one.thread.name}: {'blocked on ' + repr(one.blocked_on) if one.blocked_on is not None else 'can run'}"
            for one in self._threads
            if one.alive
        )
        where = f"seed {self.seed}, {self._strategy!r}, step {self.steps}; the last choices: {last}"
        return kind(f"{text}\n{where}\nthreads:\n{blocked}{self._stacks()}")

    def _stacks(self) -> str:
        frames = sys._current_frames()  # noqa: SLF001 - there is no other way
        text = ""
        for one in self._threads:
            frame = frames.get(one.thread.ident or 0)
            if one.alive and frame is not None:
                hidden = ("/testing/interleaving/", threading.__file__)
                stack = [line for line in traceback.extract_stack(frame) if not any(part in line.filename for part in hidden)]
                text += f"\n-- {one.thread.name}\n" + "".join(traceback.format_list(stack[-6:]))
        return text

    # -- called by threads ------------------------------------------------------------------------------------------

    def me(self) -> SimulatedThread | None:
        """The calling thread, if it is one of this run."""
        return self._by_ident.get(_thread.get_ident())

    def add(self, thread: Any) -> SimulatedThread:
        """A thread was started: it can run from now on."""
        one = SimulatedThread(len(self._threads), thread)
        self._threads.append(one)
        return one

    def begin(self, one: SimulatedThread) -> None:
        """The first thing that a new thread does: wait for its turn."""
        self._by_ident[_thread.get_ident()] = one
        one.go.acquire()
        if self._over:
            raise Ended
        if self._lines:
            sys.settrace(self._trace_calls)

    def finish(self, one: SimulatedThread, error: BaseException | None) -> None:
        """The last thing that it does."""
        sys.settrace(None)
        one.alive = False
        self._by_ident.pop(_thread.get_ident(), None)
        if self._over:
            return
        if error is not None:
            failure = self._told(ScheduleFailure, f"thread {one.thread.name} raised {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.fail(failure)
            return
        if one.number == 0:
            self.left = [other.thread.name for other in self._threads if other.alive]
            self._over = True
            self._done.set()
            return
        self.wake_all(one)
        self._hand_over(one)

    def switch(self) -> None:
        """A switch point."""
        me = self.me()
        if me is None:
            return
        if self._over:
            raise Ended
        self._hand_over(me)

    def block(self, resource: object, deadline_us: int | None) -> bool:
        """Wait until `wake` is called for *resource*; False if the deadline came first. Outside of a run it may not wait."""
        me = self.me()
        if me is None:
            raise RuntimeError(f"{resource!r} is held by a thread of a run that is over")
        if self._over:
            raise Ended
        me.blocked_on = resource
        me.deadline_us = deadline_us
        me.timed_out = False
        self._hand_over(me)
        return not me.timed_out

    def wake_all(self, resource: object) -> None:
        """Those who wait for *resource* can run again."""
        for one in self._threads:
            if one.blocked_on is resource:
                one.blocked_on = None
                one.deadline_us = None

    def wake(self, one: SimulatedThread) -> None:
        """The same for one of them."""
        one.blocked_on = None
        one.deadline_us = None

    def deadline(self, timeout: float | None) -> int | None:
        """When a wait of *timeout* seconds is over; None: never."""
        return None if timeout is None or timeout < 0 else self.time_us + max(1, round(timeout * 1e6))

    def _hand_over(self, me: SimulatedThread | None) -> None:
        """Give the turn to whoever is next, and, unless that is *me*, or *me* is at its end, wait for the next turn."""
        self.steps += 1
        self.time_us += 1
        try:
            following = self._next(me)
        except ScheduleFailure as failure:
            self.fail(failure)
            if me is not None and me.alive:
                raise Ended from None
            return
        if following is me:
            return
        self._current = following
        following.go.release()
        if me is not None and me.alive:
            me.go.acquire()
            if self._over:
                raise Ended

    def _next(self, me: SimulatedThread | None) -> SimulatedThread:
        if self.steps > self._steps_max:
            raise self._told(Livelock, f"no end after {self._steps_max} steps")
        if self.time_us > self._seconds_max * 1e6:
            raise self._told(Livelock, f"no end after {self._seconds_max} seconds of its own time")
        self._expire()
        while True:
            ready = [one.number for one in self._threads if one.alive and one.blocked_on is None]
            deadlines = [one.deadline_us for one in self._threads if one.alive and one.deadline_us is not None]
            if not ready:
                if not deadlines:
                    raise self._told(Deadlock, "everybody waits for somebody")
                self.time_us = max(self.time_us, min(deadlines))
                self._expire()
                continue
            timed = bool(deadlines) and min(deadlines) <= self.time_us + _SLOW_US
            choice = self._choose(-2 if me is None else me.number, ready, timed=timed)
            self.schedule.append(choice)
            if choice != TIME:
                return self._threads[choice]
            self.time_us = max(self.time_us, min(deadlines))
            self._expire()

    def _choose(self, running: int, ready: list[int], *, timed: bool) -> int:
        if self._replay is None:
            return self._strategy.choose(self.steps, running, ready, timed)
        at = len(self.schedule)
        if at >= len(self._replay):
            raise self._told(Replayed, "the schedule is at its end, and the program is not")
        choice = self._replay[at]
        if choice not in ready and not (choice == TIME and timed):
            raise self._told(Replayed, f"choice {at} of the schedule, {choice}, is not among those that can run: {ready}")
        return choice

    def _expire(self) -> None:
        for one in self._threads:
            if one.deadline_us is not None and one.deadline_us <= self.time_us:
                one.timed_out = True
                one.blocked_on = None
                one.deadline_us = None

    # -- lines ------------------------------------------------------------------------------------------------------

    def _trace_calls(self, frame: FrameType, kind: str, argument: object) -> Any:  # noqa: ARG002
        path = frame.f_code.co_filename
        wanted = self._traced.get(path)
        if wanted is None:
            wanted = self._traced[path] = any(part in path for part in self._lines)
        return self._trace_lines if wanted else None

    def _trace_lines(self, frame: FrameType, kind: str, argument: object) -> Any:  # noqa: ARG002
        if kind == "line" and not self._over:
            self.switch()
        return self._trace_lines
