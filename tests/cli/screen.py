"""A program at a terminal of its own, of a chosen size: what it draws, keys that are pressed, and the terminal's state behind it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 60.0
ENTERED, LEFT = b"\x1b[?1049h", b"\x1b[?1049l"
_END = b"\0the end\0"
_FRAME = re.compile(r"\x1b\[\?2026h(.*?)\x1b\[\?2026l", re.DOTALL)
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Screen:
    """A context manager; the program is gone behind it."""

    def __init__(self, *command: str, width: int = 80, height: int = 24, settings: dict[str, str] | None = None) -> None:
        self._ours, self._theirs = pty.openpty()
        self.resize(width, height)
        self.before = termios.tcgetattr(self._theirs)
        self.seen = b""
        self._passed = 0
        dropped = {"NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"}
        environment = {key: value for key, value in os.environ.items() if key not in dropped}
        # A shell that leads its session opens it, so that it controls the process: Ctrl-C and a new size reach it.
        name = os.ttyname(self._theirs)
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", f'exec "$@" <{name} >{name} 2>&1', "sh", *command], stdin=subprocess.DEVNULL, start_new_session=True,
            env=environment | {"TERM": "xterm-256color", "PYTHONUTF8": "1", **(settings or {})},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("4H", height, width, 0, 0))

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def frames(self) -> list[list[str]]:
        """All that were drawn whole, as text."""
        parts = _FRAME.findall(self.seen.decode(errors="replace"))
        return [[line.rstrip() for line in _CONTROL.sub("", part).split("\r\n")] for part in parts]

    def wait_for(self, what: Callable[[list[str]], Any]) -> list[str]:
        """The first frame of which *what* is true, behind the one that was returned last."""
        end = time.monotonic() + PATIENCE_S
        while True:
            for at, frame in enumerate(self.frames()[self._passed :]):
                if what(frame):
                    self._passed += at + 1
                    return frame
            assert time.monotonic() < end, f"not seen: {self.frames()[-3:]} {self.seen[-2000:]!r}"
            self._read()

    def wait(self) -> int:
        """The exit code; all that was drawn until then is in `seen`."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, "it does not end"
            self._read()
        while self._read():
            pass
        # The kernel may still have some of it: it comes in order, so this comes behind it.
        os.write(self._theirs, _END)
        while not self.seen.endswith(_END):
            assert time.monotonic() < end, f"what it drew does not end: {self.seen[-2000:]!r}"
            self._read()
        self.seen = self.seen.removesuffix(_END)
        return self.process.returncode

    def _read(self) -> bool:
        ready, _, _ = select.select([self._ours], [], [], 0.05)
        if ready:
            self.seen += os.read(self._ours, 65_536)
        return bool(ready)

    @property
    def state(self) -> list[Any]:
        """The terminal's own settings: they must be as `before` when the program has ended."""
        return termios.tcgetattr(self._theirs)
