"""Starting the programs of these tests: the writer, with or without strace around it, and the server that reads stores."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import select
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from tests.real_disk.checker import Judge, StoreContent
from tests.real_disk.history import History

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Hashes must not differ from run to run, else sets have another order and system calls come in another one.
ENVIRONMENT = {**os.environ, "PYTHONHASHSEED": "0", "PATH": os.environ.get("PATH", "") + ":/usr/sbin:/sbin"}

CHANGING_CALLS = (
    "pwrite64", "pwritev", "pwritev2", "fdatasync", "fsync", "rename", "renameat", "renameat2", "unlink", "unlinkat", "rmdir",
    "ftruncate", "fallocate", "mkdir", "mkdirat",
)  # fmt: skip
"""The system calls that change a disk, besides opening a file that is not there yet."""


def writer_command(config: dict[str, Any]) -> list[str]:
    """The command that runs the writer; the real interpreter, since strace must not trace a shell around it."""
    return [sys.executable, "-m", "tests.real_disk.writer", json.dumps(config)]


class Child:
    """A program that was started, tells by words on its output how far it is, and is never left behind."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, stdin=pipe, stdout=pipe, stderr=pipe)
        self._said = b""

    def wait_for(self, word: str, timeout: float = 60) -> bool:
        """Wait until it said *word*, at the end of a line; False if it ended before."""
        deadline = time.monotonic() + timeout
        assert self.process.stdout is not None
        while word.encode() + b"\n" not in self._said:
            ready, _, _ = select.select([self.process.stdout], [], [], max(deadline - time.monotonic(), 0))
            if not ready:
                raise TimeoutError(f"{word!r} was not said within {timeout} s, only {self._said!r}")
            data = os.read(self.process.stdout.fileno(), 65536)
            if not data:
                return False
            self._said += data
        return True

    def forget(self) -> None:
        """Do not look at what it has said so far."""
        self._said = b""

    def ask(self, command: str, timeout: float = 120) -> dict[str, Any]:
        """Give it a command and return its answer, a line of JSON."""
        assert self.process.stdin is not None
        self.forget()
        self.process.stdin.write(command.encode() + b"\n")
        self.process.stdin.flush()
        if not self.wait_for("}", timeout):
            raise RuntimeError(f"{command!r} ended it: {self.finish()}")
        answer: dict[str, Any] = json.loads(self._said)
        return answer

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGKILL)
        self.finish()

    def finish(self, timeout: float = 120) -> tuple[int, str]:
        """Wait for its end; returns its exit code and what it wrote to its error output."""
        try:
            _, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        return self.process.returncode, errors.decode(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


def run_to_end(command: Sequence[str], timeout: float = 120) -> tuple[int, str]:
    """Run a program to its end, however it ends."""
    with Child(command) as child:
        return child.finish(timeout)


# -- strace ---------------------------------------------------------------------------------------------------------


def strace_command(
    log: str, command: Sequence[str], *options: str, calls: Sequence[str] = (*CHANGING_CALLS, "openat")
) -> list[str]:
    """*command* under strace, which writes the calls that change the disk to *log*; a call that this machine lacks is no error."""
    trace = "trace=" + ",".join("?" + call for call in calls)
    return ["strace", "-f", "-qq", "-y", "-o", log, "-e", trace, "-e", "signal=none", *options, *command]


def kill_at(call: Call) -> tuple[str, str]:
    """
    The options that kill a program when it begins *call*, which is then not carried out.

    Not together with --seccomp-bpf: with that strace 6.1 injects errors but no signals, and says nothing. And `when` counts the
    calls of one name in one thread, not those of a set.
    """
    return "-e", f"inject={call.name}:signal=SIGKILL:when={call.number}"


class Call(NamedTuple):
    """One system call as strace saw it. Calls of the same name in one thread are numbered from 1."""

    thread: int
    name: str
    number: int
    text: str

    @property
    def changes(self) -> bool:
        """Whether it can change the disk."""
        return self.name != "openat" or "O_CREAT" in self.text


_CALL = re.compile(r"^(\d+) +(\w+)\((.*)$")


def parse_calls(log: str) -> list[Call]:
    """The calls that began, in order."""
    calls = []
    numbers: dict[tuple[int, str], int] = {}
    with open(log, encoding="utf-8", errors="replace") as file:
        for line in file:
            match = _CALL.match(line)
            if match is None:
                continue
            thread, name = int(match[1]), match[2]
            number = numbers[thread, name] = numbers.get((thread, name), 0) + 1
            calls.append(Call(thread, name, number, match[3]))
    return calls


def calls_in(folder: str, log: str) -> list[Call]:
    """Those of the calls in *log* that change something below *folder*."""
    return [call for call in parse_calls(log) if call.changes and folder in call.text]


# -- reading stores -------------------------------------------------------------------------------------------------


class Inspector:
    """The server that opens and reads stores in children of its own; see checker.py."""

    def __init__(self, folder: str) -> None:
        self._answer = os.path.join(folder, f"answer-{id(self):x}")
        # Not with -m: pickled answers must name the module by its own name.
        command = [sys.executable, "-c", "from tests.real_disk.checker import serve; serve()"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )  # fmt: skip

    def inspect(self, **request: Any) -> StoreContent | str:
        """Open the store, which recovers it, and read it; a text says why that failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({**request, "answer": self._answer}) + "\n")
        self._process.stdin.flush()
        status = self._process.stdout.readline()
        if status != "0\n":
            return f"the process that opened the store ended with status {status!r}"
        with open(self._answer, "rb") as file:
            answer: StoreContent | str = pickle.load(file)
        return answer

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._answer)


@contextlib.contextmanager
def inspector(folder: str) -> Iterator[Inspector]:
    """An inspector that keeps its answers in *folder*."""
    one = Inspector(folder)
    try:
        yield one
    finally:
        one.close()


@dataclass
class Store:
    """A store under test: where it is, its history, its judge, and whose turn it is."""

    path: str
    history_path: str
    judge: Judge
    inspector: Inspector
    session: int = 0
    checks: int = 0

    @classmethod
    def at(cls, path: str, history_path: str, server: Inspector) -> Store:
        """A store that is not there yet."""
        return cls(path, history_path, Judge(History(history_path)), server)

    def config(self, **more: Any) -> dict[str, Any]:
        """What a writer needs to know; each gets a session of its own, so that no two write the same values."""
        self.session += 1
        return {"path": self.path, "history": self.history_path, "session": self.session, **more}

    def look(self, *, power_lost: bool, attempts: int = 1, **request: Any) -> list[str]:
        """
        Recover, read and judge, and die without closing.

        With more *attempts* opening may fail with EIO so often: an error that nobody was told of yet comes with the next sync of
        that file, whoever asks for it.
        """
        # What the history says now is what counts: opening the store may add to it.
        self.judge.history.read()
        content = self.inspector.inspect(**self.config(**request))
        while isinstance(content, str) and content.startswith("OSError: [Errno 5]") and attempts > 1:
            attempts -= 1
            content = self.inspector.inspect(**self.config(**request))
        return self.judge.judge(content, power_lost=power_lost)

    def check(self, *, power_lost: bool, boot_id: bytes = b"", close: bool = False, attempts: int = 1) -> list[str]:
        """
        Recover and judge; then append, die, recover and judge once more: the second recovery must find the same and what was added.

        With *close* the second one closes the store in order, else it dies as well.
        """
        common: dict[str, Any] = {"boot_id": boot_id.hex()}
        anomalies = self.look(power_lost=power_lost, attempts=attempts, append=True, **common)
        again = self.look(power_lost=False, close=close, **common)
        self.checks += 1
        return anomalies + [f"second recovery: {anomaly}" for anomaly in again]


# -- both cores ------------------------------------------------------------------------------------------------------


def in_parallel(work: Callable[[int, int], list[str]], points: Sequence[int], workers: int = 2) -> list[str]:
    """Do *work*(worker, point) for all points, with one worker a core; returns the anomalies, and stops after the first few."""
    remaining = iter(points)
    anomalies: list[str] = []
    lock = threading.Lock()

    def run(worker: int) -> None:
        while True:
            with lock:
                point = next(remaining, None)
                if point is None or len(anomalies) > 20:
                    return
            found = [f"point {point}: {anomaly}" for anomaly in work(worker, point)]
            with lock:
                anomalies.extend(found)

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(run, worker) for worker in range(workers)]:
            future.result()
    return anomalies
