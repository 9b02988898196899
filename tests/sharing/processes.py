"""Processes that share a folder: programs in a line or two, and who owns it now."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from penstock.files import lock_owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

PATIENCE_S = 60.0
SETTINGS: dict[str, Any] = {
    "journal_file_bytes": 1024 * 1024, "frame_bytes": 256 * 1024, "reference_bytes": 64 * 1024, "free_bytes_floor": 0, "reserve_bytes": 0
}  # fmt: skip
"""Small files, as in the conformance suite."""
_BEGINNING = f"""
import os, sys, time
import penstock
from penstock.errors import *
path = sys.argv[1]
SETTINGS = {SETTINGS!r}
def open(**more):
    return penstock.open(path, **{{**SETTINGS, **more}})
def say(*words):
    print(*words, flush=True)
def told():
    return sys.stdin.readline().strip()
"""


def owner_of(path: Path) -> int | None:
    """The process that owns the store."""
    owner = lock_owner(str(path / "LOCK"))
    return None if owner is None else owner.get("pid")


def eventually(condition: Callable[[], bool], what: str = "it did not come true") -> None:
    """Wait for what another process does."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


class Program:
    """A Python program on a store, that is told lines and says lines."""

    def __init__(self, path: Path, text: str, **options: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BEGINNING + text, str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Its number."""
        return self.process.pid

    def hear(self) -> str:
        """The next line it says; empty when it has ended."""
        assert self.process.stdout is not None
        line: str = self.process.stdout.readline()
        return line.strip()

    def tell(self, line: str = "go") -> None:
        """Give it a line."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        """Wait until it ends by itself; its exit code."""
        self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode


@contextlib.contextmanager
def program(path: Path, text: str, **options: Any) -> Iterator[Program]:
    """A program that is gone when the block ends."""
    made = Program(path, text, **options)
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.communicate()


def end_helper(path: Path) -> None:
    """Let the helper of a store end now, if it has one: it would wait a while for others."""
    owner = owner_of(path)
    if owner is not None and owner != os.getpid():
        with contextlib.suppress(ProcessLookupError):
            os.kill(owner, signal.SIGTERM)
        eventually(lambda: owner_of(path) != owner, f"process {owner} does not let go of {path}")
