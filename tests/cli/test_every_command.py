"""What holds for all commands: they take a folder and a server, print JSON, and complete what a shell can complete."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from click.shell_completion import ShellComplete

import penstock
from penstock.cli.program import program
from penstock.server.running import RunningServer
from tests.cli.test_reference import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Commands

WITHOUT_JSON = {"penstock serve", "penstock completion"}
"""One prints where it listens, and then logs; the other prints a script."""
FILES_ONLY = {"penstock verify", "penstock repair"}
NO_TARGET = {"penstock serve", "penstock completion", "penstock version", "penstock demo"}
PIPELINES = {words for words in COMMANDS if words.startswith("penstock pipeline ")}
"""They start Spark: tests/spark runs them."""

CALLS: list[tuple[str, list[str], list[str]]] = [
    ("topics create", ["orders"], ["--partitions", "1"]),
    ("publish", ["orders", "one", "two", "three", "four"], []),
    ("topics list", [], []),
    ("topics describe", ["orders"], []),
    ("read", ["orders"], []),
    ("consume", ["orders"], ["--group", "billing", "--count", "3", "--reject", "--reason", "bad"]),
    ("groups list", [], []),
    ("groups describe", ["orders", "billing"], []),
    ("groups seek", ["orders", "billing"], ["--to", "latest"]),
    ("dlq list", ["orders"], []),
    ("dlq show", ["orders", "0"], []),
    ("dlq replay", ["orders", "0"], []),
    ("dlq discard", ["orders"], ["--all", "--yes"]),
    ("outbox relay", [":memory:"], ["--once"]),
    ("stats", [], []),
    ("top", [], ["--once"]),
    ("groups delete", ["orders", "billing"], ["--yes"]),
    ("topics retain", ["orders"], []),
    ("topics vacuum", ["orders"], []),
    ("compact", [], []),
    ("topics delete", ["orders"], ["--yes"]),
    ("bench", [], ["--seconds", "20ms"]),
]
"""Each command that takes TARGET: its arguments behind it, and its options."""


OF_MEMBERS = {"penstock groups members", "penstock groups evict"}
"""They need somebody who consumes: test_groups.py tries them on both."""


@pytest.fixture(params=["folder", "server"])
def target(request: pytest.FixtureRequest, path: str) -> Iterator[str]:
    """The two kinds of targets."""
    if request.param == "folder":
        yield path
        return
    with penstock.open(path) as store:
        server = RunningServer(store)
        yield server.address
        server.close()


def test_every_command_works_on_a_folder_and_on_a_server(run: Commands, target: str, tmp_path) -> None:
    """With text and with JSON; what each prints is tested elsewhere."""
    seen = {}
    for words, arguments, options in CALLS:
        # A store is not measured itself: its disk is.
        where = tmp_path if words == "bench" and "://" not in target else target
        printed = run.text(*words.split(), where, *arguments, *options, "--json")
        seen[words] = [json.loads(line) for line in printed.splitlines()]
        assert seen[words], words
    assert seen["groups delete"] == [{"topic": "orders", "group": "billing", "deleted": True}]
    assert seen["dlq replay"] == [{"replayed": 1}]
    assert seen["dlq discard"] == [{"discarded": 2}]
    assert seen["topics retain"] == [{"segments": 0, "bytes": 0}]
    assert seen["topics vacuum"] == [{"segments": 0, "messages": 0, "bytes": 0}]
    assert seen["compact"] == [{"segments": 0, "messages": 0, "tombstones": 0, "bytes": 0}]
    assert seen["topics delete"] == [{"topic": "orders", "deleted": True}]


def test_each_command_that_takes_a_target_is_tried_on_both() -> None:
    assert {f"penstock {words}" for words, _, _ in CALLS} == set(COMMANDS) - FILES_ONLY - NO_TARGET - PIPELINES - OF_MEMBERS


@pytest.mark.parametrize("words", sorted(set(COMMANDS) - WITHOUT_JSON))
def test_every_command_prints_json(words: str) -> None:
    assert any("--json" in option.opts for option in COMMANDS[words].params)


@pytest.mark.parametrize("words", sorted(FILES_ONLY))
def test_what_looks_at_files_says_so_of_a_server(run: Commands, words: str) -> None:
    assert "this command looks at files" in run.fails(2, *words.split()[1:], "penstock://127.0.0.1:1")


# -- completion -----------------------------------------------------------------------------------------------------


def completed(*words: str, incomplete: str = "") -> list[str]:
    """What a shell is offered behind *words*."""
    shell = ShellComplete(program, {}, "penstock", "_PENSTOCK_COMPLETE")
    return [item.value for item in shell.get_completions(list(words), incomplete)]


def test_a_shell_completes_commands_and_demonstrations() -> None:
    assert completed(incomplete="de") == ["demo"]
    assert completed("demo", incomplete="b") == ["broker-crash", "back-pressure"]
    assert "retain" in completed("topics")


def test_a_shell_completes_topics_and_groups(run: Commands, target: str) -> None:
    """Groups of a server only: those of a folder are its owner's to know, and TAB must not own anything."""
    run.text("publish", target, "orders", "x")
    run.text("consume", target, "orders", "--group", "billing")
    assert completed("read", target, incomplete="o") == ["orders"]
    groups = ["billing"] if "://" in target else []
    assert completed("groups", "describe", target, "orders", incomplete="b") == groups
    assert completed("consume", target, "orders", "--group", incomplete="b") == groups
    assert completed("groups", "describe", target, "orders", incomplete="x") == []


def test_a_shell_completes_places_and_settings() -> None:
    assert completed("read", "data", "orders", "--start", incomplete="e") == ["earliest"]
    assert completed("groups", "seek", "data", "orders", "g", "--to") == ["earliest", "latest"]
    assert "segment_bytes=" in completed("topics", "create", "data", "orders", "--set", incomplete="segment")


def test_a_server_that_is_away_completes_nothing() -> None:
    assert completed("groups", "describe", "penstock://127.0.0.1:1", "orders") == []
