"""What a person at a terminal sees: tables, colours, bars and questions."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.cli.conftest import SCRIPT

if TYPE_CHECKING:
    from pathlib import Path

ESCAPE = "\x1b["


def at_terminal_typed(line: str) -> tuple[int, str]:
    """Run a line of a shell at a terminal of its own."""
    return at_terminal("-c", line, program="/bin/sh")


def at_terminal(
    *arguments: str, program: str = SCRIPT, typed: str = "", stdin: Path | None = None, settings: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run a command at a terminal of its own; returns its exit code and all that appeared there."""
    ours, theirs = pty.openpty()
    environment = {key: value for key, value in os.environ.items() if key not in {"NO_COLOR", "FORCE_COLOR", "COLUMNS"}}
    environment |= {"TERM": "xterm-256color", "COLUMNS": "120", **(settings or {})}
    source = theirs if stdin is None else os.open(stdin, os.O_RDONLY)
    process = subprocess.Popen(
        [program, *arguments], stdin=source, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    os.write(ours, typed.encode())
    seen = b""
    try:
        while data := os.read(ours, 65_536):
            seen += data
    except OSError:
        pass  # How a terminal says that nobody is left at the other end.
    finally:
        os.close(ours)
        if stdin is not None:
            os.close(source)
    return process.wait(timeout=50), seen.decode()


@pytest.fixture
def orders(path: str) -> str:
    with penstock.open(path) as store:
        store.publish_many("orders", [b"x [bold]"] * 1234, keys=["[red]"] * 1234)
        with store.subscribe("orders", "g") as consumer:
            message = consumer.get(timeout=1)
            assert message is not None
            message.reject("[blink]reason")
    return path


def test_a_table_has_lines_and_colours(orders: str) -> None:
    code, seen = at_terminal("topics", "list", orders)
    assert code == 0
    assert "───" in seen
    assert ESCAPE in seen
    assert "1,234" in seen


@pytest.mark.parametrize("settings", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_refused(orders: str, settings: dict[str, str]) -> None:
    for command in (
        ["topics", "list", orders],
        ["read", orders, "orders", "--count", "1"],
        ["version"],
        ["read", orders, "nothing"],
    ):
        _, seen = at_terminal(*command, settings=settings)
        assert seen
        for colour in range(30, 38):
            assert f"{ESCAPE}{colour}m" not in seen
            assert f";{colour}m" not in seen


def test_brackets_are_no_markup(orders: str) -> None:
    """What users wrote is shown as they wrote it."""
    _, seen = at_terminal("dlq", "list", orders, "orders")
    assert "[blink]reason" in seen
    assert "[red]" in seen
    assert "x [bold]" in seen


def test_messages_and_errors_have_colours(orders: str) -> None:
    _, seen = at_terminal("read", orders, "orders", "--count", "1")
    assert seen.startswith(f"{ESCAPE}36m0/0{ESCAPE}0m\t{ESCAPE}2m")
    code, seen = at_terminal("read", orders, "nothing")
    assert code == 3
    assert seen.startswith(f"{ESCAPE}31m{ESCAPE}1merror:{ESCAPE}0m there is no topic 'nothing'")


def test_watching_draws_in_place(orders: str) -> None:
    code, seen = at_terminal("stats", orders, "--watch", "--interval", "10ms", "--count", "3")
    assert code == 0
    assert "per second" in seen
    assert f"{ESCAPE}1A" in seen, "the cursor goes up again"


def test_long_work_has_a_bar(orders: str, tmp_path: Path) -> None:
    _, seen = at_terminal("verify", orders)
    assert "verifying (segments)" in seen
    (tmp_path / "lines").write_bytes(b"line\n" * 3000)
    code, seen = at_terminal("publish", orders, "lines", "--batch", "1000", stdin=tmp_path / "lines")
    assert code == 0
    assert "publishing (bytes)" in seen
    assert "3,000 messages" in seen


def test_typing_messages_is_explained(path: str) -> None:
    code, seen = at_terminal("publish", path, "orders", typed="one\ntwo\n\x04")
    assert code == 0
    assert "Ctrl-D ends the input" in seen
    assert "orders/0 offset 1" in seen


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 2, 1), ("\x04", 130, 1), ("\n", 2, 1)])
def test_a_question_is_answered_by_hand(orders: str, answer: str, code: int, left: int) -> None:
    """Only a yes does it; the end of the input is no answer."""
    found, seen = at_terminal("dlq", "discard", orders, "orders", "--all", typed=answer)
    assert "1 dead letters of orders would be thrown away" in seen
    assert found == code
    with penstock.open(orders) as store:
        assert len(store.dead_letters("orders")) == left


@pytest.mark.parametrize("command", [["read"], ["consume", "--group", "new"]], ids=["read", "consume"])
def test_a_long_output_into_a_file_has_a_bar(orders: str, tmp_path: Path, command: list[str]) -> None:
    """Only there: what goes through a pipe may end at this terminal, and the bar would stand in it."""
    name, *options = command
    line = " ".join([SCRIPT, name, orders, "orders", *options, "--format", "value"])
    _, seen = at_terminal_typed(f"{line} > {tmp_path / 'out'}")
    assert "(messages)" in seen
    assert len((tmp_path / "out").read_text().splitlines()) == 1234
    _, seen = at_terminal_typed(f"{line.replace('new', 'other')} | tail -1")
    assert "(messages)" not in seen


def test_a_demonstration_moves_on_a_terminal() -> None:
    """Its picture is drawn again and again in one place, in colours, and fits an ordinary terminal."""
    code, seen = at_terminal("demo", "dead-letters", settings={"COLUMNS": "80"})
    assert code == 0
    assert seen.count("60 tasks; a cell is") > 1
    assert f"{ESCAPE}31m" in seen
    assert seen.rindex("✓") > seen.rindex("60 tasks")
    code, plain = at_terminal("demo", "dead-letters", settings={"NO_COLOR": "1"})
    assert code == 0
    assert f"{ESCAPE}31m" not in plain
