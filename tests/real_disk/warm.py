"""
Programs that are loaded once and run often: each run is a fork of a loaded interpreter that stops before its first step.

strace is attached to the stopped process. So what it counts begins with the program's own first call, and not with some thousand calls
by which the interpreter finds its modules, each of which would cost two stops: a run takes a fifth of the time.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from tests.real_disk.processes import ENVIRONMENT, ROOT, Child, strace_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class Warm:
    """A loaded interpreter that runs one of the programs of these tests, again and again. One for each thread."""

    def __init__(self, module: str) -> None:
        command = [sys.executable, "-c", f"from tests.real_disk.warm import serve; serve({module!r})"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdin=pipe, stdout=pipe, text=True)

    def run(self, config: dict[str, Any], log: str, *options: str, calls: Sequence[str] | None = None) -> tuple[int, str]:
        """Run the program under strace, which writes to *log*; returns how it ended, and what it and strace wrote to their error output."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        errors = log + ".errors"
        self._process.stdin.write(json.dumps({"config": config, "errors": errors}) + "\n")
        self._process.stdin.flush()
        pid = int(self._process.stdout.readline())
        more = {} if calls is None else {"calls": calls}
        said = trace(pid, strace_command(log, ["-p", str(pid)], *options, **more))
        status = int(self._process.stdout.readline())
        with open(errors, encoding="utf-8", errors="replace") as file:
            return status, said + file.read()

    def close(self) -> None:
        """End the interpreter."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


@contextlib.contextmanager
def warm(module: str, count: int = 2) -> Iterator[list[Warm]]:
    """So many loaded interpreters."""
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(count):
            one = Warm(module)
            stack.callback(one.close)
            made.append(one)
        yield made


def trace(pid: int, command: Sequence[str]) -> str:
    """Let the stopped process go under strace, to its end; returns what strace wrote to its error output."""
    try:
        _wait_until(lambda: "State:\tT" in _status_of(pid))
        with Child(command) as strace:
            # From then on it is strace that lets it go, whenever the signal comes.
            _wait_until(lambda: "TracerPid:\t0" not in _status_of(pid))
            os.kill(pid, signal.SIGCONT)
            return strace.finish()[1]
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        raise


def _status_of(pid: int) -> str:
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return file.read()


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def serve(module: str) -> None:
    """Run the program for each line of the input: say the child's process id, wait for it, and say how it ended."""
    run = importlib.import_module(module).run
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(request["errors"])
            try:
                run(request["config"])
            finally:
                sys.stderr.flush()
                os._exit(1)  # only if it raised: a program ends itself
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(errors: str) -> None:
    """In the child: its outputs are its own, and it stops until strace is there."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), 2)
    os.kill(os.getpid(), signal.SIGSTOP)
