"""
A tool that knows nothing of us reads the description, and tries what it allows and what it does not.

Streams are left out: they do not end by themselves, and have tests of their own.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.server.auth import TokenAuth
from tests.server.running import running, write_tokens

if TYPE_CHECKING:
    from pathlib import Path

LIMIT_S = 900
pytestmark = pytest.mark.timeout(LIMIT_S + 60)
CONFIG = """
# How long things take on a shared machine, and what the tool finds hard to draw, says nothing about the server.
suppress-health-check = ["all"]
request-timeout = 60

[checks]
# A topic may have been created with a limit of one byte; and the server with one of a few topics.
positive_data_acceptance.expected-statuses = ["2xx", 401, 403, 404, 409, 413, 431, 503]
# What is too long for a request line is not looked at.
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 406, 409, 413, 415, 422, 428, 429, 431, "5xx"]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503]

[[operations]]
include-operation-id = "publish"
# It has a header of its own, and so the tool believes that all other headers are to be refused.
checks.negative_data_rejection.enabled = false
# The topic may have been created without priorities.
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409, 413, 503]

[[operations]]
include-operation-id = "compact"
# The topic may have been created without compaction.
checks.positive_data_acceptance.expected-statuses = ["2xx", 400, 401, 403, 404, 409, 413, 503]
"""


def explore(folder: Path, seed: int, *options: str, tokens: bool) -> str:
    auth = TokenAuth(write_tokens(folder / "tokens", {"a": {"admin": ["*"]}})) if tokens else None
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    with running(auth=auth, wait_max_s=0.01, topics_max=50, groups_max=20) as server:
        server.store.sync.create_topic("orders", partitions=2)
        server.store.sync.publish_many("orders", [b"a", b"\xff", b"c"])
        command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "run", f"{server.url}/openapi.json",
                   "--exclude-operation-id", "stream", "--seed", str(seed), "--no-color", *options]  # fmt: skip
        if tokens:
            command += ["-H", "Authorization: Bearer a-token"]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=folder,
            env={**os.environ, "HYPOTHESIS_PROFILE": ""},
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout


def cases(output: str) -> int:
    found = re.search(r"([0-9,]+) generated", output)
    assert found, output
    return int(found[1].replace(",", ""))


def test_a_few_hundred_requests_are_answered_as_described(tmp_path: Path, seed: int) -> None:
    output = explore(tmp_path, seed, "--phases", "fuzzing,stateful", "--max-examples", "4", tokens=True)
    assert cases(output) > 100


@pytest.mark.long
@pytest.mark.parametrize("tokens", [False, True])
def test_thousands_of_requests_are_answered_as_described(tmp_path: Path, seed: int, tokens: bool) -> None:
    output = explore(tmp_path, seed, "--phases", "coverage,fuzzing,stateful", "--max-examples", "15", tokens=tokens)
    assert cases(output) > 1000
