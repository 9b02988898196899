"""
What stands in for `threading` while a program is interleaved. Each operation is a switch point.

They are used by one thread at a time, so plain attributes are enough. After a run, or in a thread that is none of it, they work as long as
nobody would have to wait.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penstock.testing.interleaving.scheduler import Interleaving, SimulatedThread

_scheduler: Interleaving | None = None


def install(scheduler: Interleaving | None) -> None:
    """Work for *scheduler* from now on."""
    global _scheduler  # noqa: PLW0603 - as `threading` itself, there is one
    _scheduler = scheduler


def _switch() -> None:
    if _scheduler is not None:
        _scheduler.switch()


def _block(resource: object, deadline_us: int | None) -> bool:
    if _scheduler is None:
        raise RuntimeError(f"{resource!r} is held by a thread of a run that is over")
    return _scheduler.block(resource, deadline_us)


def _deadline(timeout: float | None) -> int | None:
    return None if _scheduler is None else _scheduler.deadline(timeout)


def _wake_all(resource: object) -> None:
    if _scheduler is not None:
        _scheduler.wake_all(resource)


def _me() -> SimulatedThread | None:
    return None if _scheduler is None else _scheduler.me()


class Lock:
    """`threading.Lock`."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as the real one
        """Take it."""
        _switch()
        if self._held:
            if not blocking or timeout == 0:
                return False
            deadline_us = _deadline(timeout)
            while self._held:
                if not _block(self, deadline_us) and self._held:
                    return False
        self._held = True
        return True

    def release(self) -> None:
        """Let go of it; whoever waits may run."""
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        _wake_all(self)
        _switch()

    def locked(self) -> bool:
        """Whether somebody has it."""
        _switch()
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class RLock:
    """`threading.RLock`."""

    __slots__ = ("_count", "_owner")

    def __init__(self) -> None:
        self._owner: object | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as the real one
        """Take it, once more if this thread has it."""
        _switch()
        me = _me() or threading.current_thread()
        if self._owner is not me:
            if self._owner is not None and (not blocking or timeout == 0):
                return False
            deadline_us = _deadline(timeout)
            while self._owner is not None:
                if not _block(self, deadline_us) and self._owner is not None:
                    return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        """Let go of it once."""
        if self._owner is not (_me() or threading.current_thread()):
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            _wake_all(self)
        _switch()

    def release_all(self) -> int:
        """Let go of it, however often this thread has it: for a condition that waits."""
        count, self._count, self._owner = self._count, 0, None
        _wake_all(self)
        return count

    def acquire_again(self, count: int) -> None:
        """Take back what `release_all` gave."""
        self.acquire()
        self._count = count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | RLock | None = None) -> None:
        self._lock = RLock() if lock is None else lock
        self._waiting: list[_Place] = []
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until it is notified."""
        place = _Place()
        self._waiting.append(place)
        lock = self._lock
        count = 0
        if isinstance(lock, RLock):
            count = lock.release_all()
        else:
            lock.release()
        try:
            deadline_us = _deadline(timeout)
            while not place.notified:
                if not _block(place, deadline_us) and not place.notified:
                    break
        finally:
            if place in self._waiting:
                self._waiting.remove(place)
            if isinstance(lock, RLock):
                lock.acquire_again(count)
            else:
                lock.acquire()
        return place.notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until *predicate* is true."""
        deadline_us = _deadline(timeout)
        while not (result := predicate()):
            left = None
            if deadline_us is not None:
                assert _scheduler is not None
                left = (deadline_us - _scheduler.time_us) / 1e6
                if left <= 0:
                    break
            self.wait(left)
        return result

    def notify(self, count: int = 1) -> None:
        """Wake some."""
        for place in self._waiting[:count]:
            self._waiting.remove(place)
            place.notified = True
            _wake_all(place)
        _switch()

    def notify_all(self) -> None:
        """Wake all."""
        self.notify(len(self._waiting))

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


class _Place:
    """One wait of a condition."""

    __slots__ = ("notified",)

    def __init__(self) -> None:
        self.notified = False


class Event:
    """`threading.Event`."""

    __slots__ = ("_set",)

    def __init__(self) -> None:
        self._set = False

    def is_set(self) -> bool:
        """Whether it is set."""
        _switch()
        return self._set

    def set(self) -> None:
        """Wake all who wait."""
        self._set = True
        _wake_all(self)
        _switch()

    def clear(self) -> None:
        """Let them wait again."""
        self._set = False
        _switch()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        _switch()
        if not self._set and timeout is not None and timeout <= 0:
            return False
        if not self._set:
            deadline_us = _deadline(timeout)
            # Once woken it is over, also where it was cleared meanwhile.
            return _block(self, deadline_us) or self._set
        return True


class Thread:
    """`threading.Thread`: a real one that runs when it is its turn."""

    def __init__(
        self,
        group: None = None,  # noqa: ARG002 - as the real one
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target = target
        self._args = tuple(args)
        self._kwargs = dict(kwargs or {})
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self.real = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._one: SimulatedThread | None = None
        self._scheduler: Interleaving | None = None

    @property
    def ident(self) -> int | None:
        """The real thread's."""
        return self.real.ident

    def start(self) -> None:
        """It may run from now on."""
        if _scheduler is None:
            raise RuntimeError("a simulated thread can only be started in a run")
        self.start_first(_scheduler)
        _switch()

    def start_first(self, scheduler: Interleaving) -> Self:
        """The same, and go on at once: for the program's own thread."""
        self._scheduler = scheduler
        self._one = scheduler.add(self)
        self.real.start()
        return self

    def run(self) -> None:
        """What it does."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _run(self) -> None:
        scheduler, one = self._scheduler, self._one
        assert scheduler is not None
        assert one is not None
        error: BaseException | None = None
        try:
            scheduler.begin(one)
            self.run()
        except BaseException as raised:  # noqa: BLE001 - it is told by the run, whatever it is
            error = raised
        scheduler.finish(one, error)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        _switch()
        if self._one is None:
            raise RuntimeError("cannot join thread before it is started")
        deadline_us = _deadline(timeout)
        while self._one.alive:
            if not _block(self._one, deadline_us):
                return

    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        _switch()
        return self._one is not None and self._one.alive

    def __repr__(self) -> str:
        return f"<Thread {self.name}>"


def current_thread() -> Any:
    """The thread that asks."""
    me = _me()
    return threading.current_thread() if me is None else me.thread


def main_thread() -> Any:
    """The real main thread: no simulated one is it, so none is asked to handle signals."""
    return threading.main_thread()
