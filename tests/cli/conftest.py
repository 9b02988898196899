"""How the tests run commands: inside this process where that is enough, else the installed script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from penstock.cli.program import program

if TYPE_CHECKING:
    from click.testing import Result

SCRIPT = str(Path(sys.executable).with_name("penstock"))


class Commands:
    """Runs commands as the script would, and keeps nothing between them."""

    def __init__(self) -> None:
        self._runner = CliRunner()

    def __call__(self, *arguments: object, stdin: bytes | str = b"") -> Result:
        """Run one, however it ends; an exception that it does not turn into an exit code is a bug."""
        result = self._runner.invoke(program, [str(one) for one in arguments], input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    def text(self, *arguments: object, stdin: bytes | str = b"") -> str:
        """Run one that must succeed; returns what it printed."""
        result = self(*arguments, stdin=stdin)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def json(self, *arguments: object, stdin: bytes | str = b"") -> list[Any]:
        """Run one that must succeed with --json; returns its objects."""
        return [json.loads(line) for line in self.text(*arguments, "--json", stdin=stdin).splitlines()]

    def fails(self, code: int, *arguments: object, stdin: bytes | str = b"") -> str:
        """Run one that must fail with this exit code and say so in one line on stderr; returns the line."""
        result = self(*arguments, stdin=stdin)
        assert result.exit_code == code, result.output
        lines = [line for line in result.stderr.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1
        assert lines[0].startswith("error: ")
        assert lines[0].endswith("]")
        return lines[0]


@pytest.fixture
def run() -> Commands:
    """Runs commands."""
    return Commands()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a store may be made."""
    return str(tmp_path / "data")
