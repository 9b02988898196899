"""`penstock serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from tests.cli.conftest import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE_S = 60.0


class Serving:
    """A server process; its addresses are known once it is made."""

    def __init__(
        self, *arguments: str, environment: dict[str, str] | None = None, before: tuple[str, ...] = (), log: Path | None = None
    ) -> None:
        """
        *before*: a command that runs the one that follows it, in a namespace of its own for one.

        *log*: a file for what it logs. Without it that stays in a pipe until `stop`: only for servers that log little.
        """
        self._log = log
        with contextlib.ExitStack() as stack:
            self._start(
                arguments, environment or {}, before, subprocess.PIPE if log is None else stack.enter_context(log.open("a"))
            )

    def _start(self, arguments: tuple[str, ...], environment: dict[str, str], before: tuple[str, ...], stderr: Any) -> None:
        self.process = subprocess.Popen(
            [*before, SCRIPT, "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **environment},
        )
        self.said = ""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said += line
            if line.startswith("Ready"):
                return
        raise AssertionError(f"the server did not begin: {self.said} {self.process.communicate()[1]}")

    def address(self, name: str) -> str:
        """Where it listens."""
        found = re.search(rf"^  {name} +(\S+)$", self.said, re.MULTILINE)
        assert found is not None, self.said
        return found[1]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def stop(self) -> tuple[int, str]:
        """SIGTERM, and its exit code and what it logged."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        _, logged = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, logged if self._log is None else self._log.read_text()


@contextlib.contextmanager
def serving(
    *arguments: str, environment: dict[str, str] | None = None, before: tuple[str, ...] = ()
) -> Iterator[Serving]:  # fmt: skip
    """A server that is gone when the block ends."""
    server = Serving(*arguments, environment=environment, before=before)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()
