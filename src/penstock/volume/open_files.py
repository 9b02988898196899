"""
The files that the logs of a store have open: those not used for longest are closed before there are too many.

Theory of operation
-------------------
Whatever opens a file asks for it through `BoundedFiles`, which counts. When there may be too many it looks how many the logs really have,
and closes those of the logs that were not used for longest, down to three quarters. What is not durable is synced first: the kernel
reports a failed sync to the descriptor that wrote, and to no other one. This is per file, never per message, and costs nothing as long as
there are few.

If such a sync fails, the store takes no more writes, as after any failed sync (`on_failed_sync`). The call that wanted the file fails too
if it is a write; a read goes on.

It happens in whatever thread opens a file, which may hold locks, so it waits for none of them: a log whose lock is taken, or that a
commit cycle of another thread may be writing to, keeps its active file this time. The leader of a cycle needs no lock for what cycles
alone write. Where the system refuses a descriptor all the same (other parts of the process have them), more are closed, and it is
tried again.

Besides, the maintenance thread closes what is durable now and then (`bound`), so that it need not be done when a file is wanted.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, TypeVar

from penstock import threads as threading
from penstock.files import descriptors_max, is_out_of_descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from penstock.files import File, FileSystem, SharedMap
    from penstock.log.partition_log import PartitionLog

    _Opened = TypeVar("_Opened")

_EVERY_TURNS = 5
_TRIES = 3
DESCRIPTORS_MAX = 2_048
"""What the files of logs may have together, and a quarter of what the process may have."""


class OpenFiles:
    """
    Which logs have files open.

    Attributes:
        descriptors_max: how many descriptors they may have together.
        leader: the thread that leads a commit cycle, or that recovers the store, by its number; 0 if there is none.
        hold: holds commit cycles back without waiting, and says whether it does.
        on_failed_sync: stops the store. Until it is set, as during recovery, every caller gets the error.
    """

    def __init__(self) -> None:
        self.descriptors_max = max(16, min(DESCRIPTORS_MAX, descriptors_max() // 4))
        self.leader = 0
        self.hold: Callable[[], AbstractContextManager[bool]] = lambda: contextlib.nullcontext(False)
        self.on_failed_sync: Callable[[OSError], None] | None = None
        self._logs: dict[PartitionLog, None] = {}
        self._count = 0
        """How many there may be: those that were counted last, and all that were opened since."""
        self._making_room = threading.Lock()
        self._last_uses: dict[PartitionLog, tuple[tuple[int, int], int]] = {}
        """By what a use was known at the last look, and since which look it has been the same."""
        self._looks = 0
        self._turn = 0

    def __len__(self) -> int:
        return len(self._logs)

    def add(self, log: PartitionLog, /) -> None:
        """It has files open, or will have."""
        self._logs[log] = None

    def discard(self, log: PartitionLog, /) -> None:
        """It has none."""
        self._logs.pop(log, None)

    # -- when a file is opened --------------------------------------------------------------------------------------

    def expect(self, *, write: bool) -> None:
        """One more is about to be opened, and maybe mapped. Raises `OSError`: a file that had to go could not be synced."""
        self._count += 1
        if self._count > self.descriptors_max:
            self._make_room(self.descriptors_max, self.descriptors_max * 3 // 4, write=write)

    def relieve(self, *, write: bool) -> bool:
        """The system refuses more: close many; whether any was. Raises what `expect` raises."""
        few = self.descriptors_max // 4
        return self._make_room(few, few, write=write) > 0

    def _make_room(self, most: int, down_to: int, *, write: bool) -> int:
        """Close files of logs, if they have more than *most* descriptors, until they have *down_to*; returns how many were closed."""
        failure: OSError | None = None
        # The one lock that is waited for: who has it waits for none.
        with self._making_room:
            logs = list(self._logs)
            total = sum([log.descriptors for log in logs])
            self._count = total
            if total <= most:
                return 0
            closed = 0
            with self._hold_cycles() as held:
                for log in self._oldest_first(logs):
                    before = log.descriptors
                    try:
                        _let_go(log, held=held)
                    except OSError as error:  # what could not be synced stays open
                        failure = error
                    closed += before - log.descriptors
                    if failure is not None or total - closed <= down_to:
                        break
            # Where they cannot be closed now it is tried again soon, and not for each.
            self._count = min(total - closed, self.descriptors_max * 7 // 8)
        if failure is not None:
            if self.on_failed_sync is not None:
                self.on_failed_sync(failure)
            if write or self.on_failed_sync is None:
                raise failure
        return closed

    @contextlib.contextmanager
    def _hold_cycles(self) -> Iterator[bool]:
        if self.leader == threading.get_ident():
            yield True
            return
        with self.hold() as held:
            yield held

    def _oldest_first(self, logs: list[PartitionLog]) -> list[PartitionLog]:
        """By when they were last seen to be used."""
        self._looks += 1
        last_uses = {}
        for log in logs:
            uses, look = self._last_uses.get(log, (None, 0))
            last_uses[log] = (uses, look) if uses == log.uses else (log.uses, self._looks)
        self._last_uses = last_uses
        return sorted(logs, key=lambda log: last_uses[log][1])

    # -- in the background ------------------------------------------------------------------------------------------

    def bound(self, hold: Callable[[], AbstractContextManager[None]]) -> bool:
        """
        Close the files of logs not used for longest, if there are too many open. One thread calls it.

        *hold* keeps commit cycles away, and raises if the store is of no more use. False: what is open is not durable, and can be
        closed after a checkpoint.
        """
        self._turn += 1
        if self._turn % _EVERY_TURNS and len(self._logs) <= self.descriptors_max:
            return True
        logs = self._oldest_first(list(self._logs))
        total = sum([log.descriptors for log in logs])
        if total <= self.descriptors_max:
            return True
        for log in logs:
            before = log.descriptors
            # One by one, so that nobody who publishes waits for all of them.
            with hold(), log.lock:
                log.let_go()
            total -= before - log.descriptors
            if total <= self.descriptors_max * 3 // 4:
                return True
        return False


def _let_go(log: PartitionLog, *, held: bool) -> None:
    """Close what may be closed; *held* says that no cycle of another thread runs. Raises `OSError`: a sync failed."""
    if log.always:
        log.close_files(active=held)
    elif log.lock.acquire(blocking=False):
        try:
            log.close_files(active=True)
        finally:
            log.lock.release()
    else:
        log.close_files(active=False)


class BoundedFiles:
    """The file system of a store, which makes room for each file before it is opened. All else it leaves as it is."""

    def __init__(self, files: FileSystem, open_files: OpenFiles) -> None:
        self._files = files
        self._open_files = open_files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, path: str, *, write: bool = False) -> File:
        """See `FileSystem.open`."""
        self._open_files.expect(write=write)
        return self._try(lambda: self._files.open(path, write=write), write=write)

    def create(self, path: str) -> File:
        """See `FileSystem.create`."""
        self._open_files.expect(write=True)
        return self._try(lambda: self._files.create(path), write=True)

    def sync_directory(self, path: str) -> None:
        """See `FileSystem.sync_directory`: a folder is opened for it. One that could not be opened was not synced."""
        self._try(lambda: self._files.sync_directory(path), write=True)

    def list_directory(self, path: str) -> list[str]:
        """See `FileSystem.list_directory`."""
        return self._try(lambda: self._files.list_directory(path), write=False)

    def map_shared(self, path: str, length: int, *, write: bool) -> SharedMap:
        """See `FileSystem.map_shared`."""
        return self._try(lambda: self._files.map_shared(path, length, write=write), write=write)

    def _try(self, opening: Callable[[], _Opened], *, write: bool) -> _Opened:
        for _ in range(_TRIES):
            try:
                return opening()
            except OSError as error:
                if not is_out_of_descriptors(error) or not self._open_files.relieve(write=write):
                    raise
        return opening()
