"""A server raises its limit of open files, says where it is little, and leaves the store its own."""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.server import descriptors
from penstock.server.descriptors import Connections
from penstock.server.serving import GRPC_SHARE
from tests.cli.serving import serving
from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("limit", [64, 256, 1_024, 4_096, 20_000, 1_000_000])
def test_connections_leave_the_store_what_its_logs_may_have(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    monkeypatch.setattr(descriptors, "descriptors_max", lambda: limit)
    room = Connections()
    assert 10 <= room.most < limit
    if limit >= 1_024:
        assert limit - room.most >= min(2_048, limit // 4) + 128
    assert (room.advice is None) == (limit >= 4_096)


@pytest.mark.parametrize(("limit", "connections", "grpc"), [(20_000, 11_832, 3_944), (1_024, 288, 96)])
def test_all_listeners_together_have_what_is_documented(
    monkeypatch: pytest.MonkeyPatch, limit: int, connections: int, grpc: int
) -> None:
    monkeypatch.setattr(descriptors, "descriptors_max", lambda: limit)
    room = Connections()
    assert (room.set_aside(GRPC_SHARE), room.most) == (grpc, connections)
    page = (ROOT / "docs" / "operations.md").read_text()
    assert limit != 20_000 or f"{grpc:,} and {connections:,} of 20,000" in page
    assert f"{grpc + connections:,} of {limit:,}" in page


def test_no_more_are_taken_than_there_is_room_for() -> None:
    room = Connections(2)
    assert [room.take(), room.take(), room.take()] == [True, True, False]
    room.give_back()
    assert room.take()


def test_the_limit_is_raised_as_far_as_it_may() -> None:
    code = (
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200));"
        "from penstock.server.descriptors import raise_limit; raise_limit();"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "(200, 200)\n"


def test_a_server_with_few_descriptors_says_so_and_serves(tmp_path: Path) -> None:
    low = ("bash", "-c", 'ulimit -n 400; exec "$0" "$@"')
    with serving("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--no-http", before=low) as server:
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard == 400
        code, logged = server.stop()
    assert code == 0
    assert re.search(r"room for \d+ connections only: the limit of open files is 400", logged)
