"""What `penstock serve` says to try is typed as it says, and works."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import SCRIPT
from tests.cli.serving import PATIENCE_S, serving
from tests.cli.test_serve import ANY, _tokens

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.serving import Serving

pytestmark = pytest.mark.timeout(120)


def told_to_try(server: Serving, environment: dict[str, str]) -> list[str]:
    """What each of the commands prints that the server says to try, typed as it says."""
    folder = os.path.dirname(SCRIPT)
    lines = server.said.partition("Try it")[2].partition("\n")[2].splitlines()
    printed = []
    for line in [one.strip() for one in lines if one.startswith("  ")]:
        done = subprocess.run(
            ["sh", "-c", line], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        printed.append(done.stdout)
    return printed


def test_what_it_says_to_try_works(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data"), *ANY) as server:
        published, consumed, topics = told_to_try(server, {})
    assert published == "hello/0 offset 0\n"
    assert consumed.endswith("\tworld\n")
    assert '"hello"' in topics


def test_what_it_says_to_try_works_on_unix_sockets_and_with_tokens(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    _tokens(tokens, boss={"admin": ["*"], "publish": ["*"], "consume": ["*"], "read": ["*"]})
    sockets = ("--native", f"unix:{tmp_path}/native", "--http", f"unix:{tmp_path}/http")
    with serving("--data", str(tmp_path / "data"), *sockets, "--tokens", str(tokens)) as server:
        assert server.address("http") == f"unix:{tmp_path}/http"
        published, consumed, topics = told_to_try(server, {"PENSTOCK_TOKEN": "token-of-boss"})
    assert published == "hello/0 offset 0\n"
    assert consumed.endswith("\tworld\n")
    assert '"hello"' in topics
