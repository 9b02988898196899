"""
No interface escapes the tests of fairness: each way to reach the engine, and each listener of a server, is one that they run over.

Whoever adds an interface adds its backend to `interfaces.py` and its worker to `fault_worker.py`, or one of these fails.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.server.http.operations import EVENTS, OPERATIONS
from penstock.server.http.schemas import ref
from penstock.server.serving import ServerSettings
from tests.conformance import test_fairness
from tests.conformance.fault_worker import WORKERS
from tests.conformance.interfaces import INTERFACES, LONG_INTERFACES

if TYPE_CHECKING:
    from tests.conformance.backends import Backend

ROOT = Path(__file__).parents[2]
ALL: tuple[type[Backend], ...] = (*INTERFACES, *LONG_INTERFACES)
NO_INTERFACE = {
    "Backend": "what they have in common",
    "SimulatedBackend": "the disk is another, the calls are those of a directory",
}
"""Classes that are no way to consume messages, and why."""
OF_HTTP = {"receive": "http", "stream": "stream"}
"""The operations that hand out messages, and the backend that consumes by each."""


def backends_of(source: str) -> set[str]:
    """The names of the backends that a module makes."""
    return {
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        and any(ast.unparse(base).rpartition(".")[2].endswith("Backend") for base in node.bases)
    }


def test_every_backend_of_the_tests_is_in_the_list() -> None:
    """Wherever it is made: in this folder, or in that of an interface which runs a part of the suite."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        if "Backend)" in text:
            found |= backends_of(text)
    missing = found - {one.__name__ for one in ALL} - NO_INTERFACE.keys()
    assert not missing, f"not in INTERFACES or LONG_INTERFACES of interfaces.py: {missing}"
    assert len({one.name for one in ALL}) == len(ALL)


def test_a_new_backend_would_be_found() -> None:
    assert backends_of("class Plain: ...\nclass New(backends.ServerBackend): ...\nclass Other(Backend, Generic[T]): ...") == {
        "New", "Other",
    }  # fmt: skip


def test_every_listener_of_a_server_has_a_backend() -> None:
    """The settings that are addresses are the listeners."""
    listeners = {field.name for field in fields(ServerSettings) if re.fullmatch(r"127\.0\.0\.1:\d+", str(field.default))}
    assert listeners == {one.door for one in ALL if one.door is not None}


def test_every_operation_of_http_that_hands_out_messages_has_a_backend() -> None:
    """Polling is one, an event stream another."""
    handing = {
        one.name for one in OPERATIONS
        if one.tag == "consuming"
        and any(answer == ref("Deliveries") or (isinstance(answer, tuple) and answer[0] == EVENTS) for answer in one.answers.values())
    }  # fmt: skip
    assert handing == OF_HTTP.keys()
    assert set(OF_HTTP.values()) == {one.name for one in ALL if one.door == "http"}


def test_every_interface_that_another_process_can_use_has_a_worker() -> None:
    """The tests with signals and cut connections run over all of them."""
    assert {one.interface for one in WORKERS.values()} == {one.name for one in ALL if not one.has_one_opener}


def test_every_test_of_fairness_runs_over_every_interface() -> None:
    """As pytest itself collects them, with the long ones."""
    tests = [name for name in vars(test_fairness) if name.startswith("test_")]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "", test_fairness.__file__]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    collected = {line.rpartition("::")[2] for line in done.stdout.splitlines() if "::" in line}
    assert collected == {f"{test}[{one.name}]" for test in tests for one in ALL}, done.stdout[-2_000:] + done.stderr[-2_000:]
    assert not any("test_fairness" in one.leaves_out for one in ALL)
