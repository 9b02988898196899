"""Every failure is one line on stderr with a code that never changes, and an exit code by what can be done about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import errors
from penstock.cli import failures, target
from tests.docs.test_reference import ERRORS, example

if TYPE_CHECKING:
    from penstock.errors import PenstockError
    from tests.cli.conftest import Commands

EVERY = [
    ["publish", "TARGET", "orders", "x"], ["consume", "TARGET", "orders", "--group", "g"], ["read", "TARGET", "orders"],
    ["topics", "list", "TARGET"], ["topics", "create", "TARGET", "orders"], ["topics", "describe", "TARGET", "orders"],
    ["groups", "list", "TARGET"], ["groups", "describe", "TARGET", "orders", "g"], ["groups", "delete", "TARGET", "orders", "g"],
    ["groups", "seek", "TARGET", "orders", "g", "--to", "latest"], ["dlq", "list", "TARGET"], ["dlq", "show", "TARGET", "orders", "0"],
    ["dlq", "replay", "TARGET", "orders", "--all"], ["dlq", "discard", "TARGET", "orders", "--all"], ["stats", "TARGET"],
    ["verify", "TARGET"], ["repair", "TARGET"],
]  # fmt: skip


def at(command: list[str], target: str) -> list[str]:
    return [target if word == "TARGET" else word for word in command]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_has_an_exit_code_and_a_line(
    error: type[PenstockError], run: Commands, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the engine raises: no traceback, the error's code, and the exit code of its branch of the tree."""

    def fail(*_: object, **__: object) -> None:
        raise example(error)

    monkeypatch.setattr(target, "open_store", fail)
    branches = {errors.UsageError: 2, errors.NotFound: 3, errors.Unavailable: 4, errors.Corrupt: 5}
    expected = next((code for branch, code in branches.items() if issubclass(error, branch)), 1)
    assert run.fails(expected, "stats", path).endswith(f" [{error.code}]")


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_a_server_that_is_not_there(command: list[str], run: Commands) -> None:
    """Told at once; and commands that look at files want a folder."""
    on_files = command[0] in ("verify", "repair")
    line = run.fails(2 if on_files else 4, *at(command, "penstock://127.0.0.1:1"))
    assert ("is a server" if on_files else "cannot be reached") in line


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_a_store_in_memory_is_refused(command: list[str], run: Commands) -> None:
    """Nothing would be left of it when the command ends."""
    assert "in memory" in run.fails(2, *at(command, "memory:"))


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_a_target_that_cannot_be_a_folder(command: list[str], run: Commands, tmp_path) -> None:
    (tmp_path / "file").write_text("text")
    line = run(*at(command, str(tmp_path / "file"))).stderr
    assert line.startswith("error: ")
    assert "file" in line
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize("command", ["publish", "read", "stats", "verify", "repair", "topics list"])
def test_a_file_of_the_user_is_not_called_damaged(run: Commands, tmp_path, command: str) -> None:
    """It is none of ours: nobody is told to remove or to repair it."""
    (tmp_path / "file").write_text("text")
    rest = {"publish": ["orders", "x"], "read": ["orders"]}.get(command, [])
    line = run.fails(2, *command.split(), tmp_path / "file", *rest)
    assert "this is a file, or lies in one; a store is a folder; nothing was changed [BAD_ARGUMENT]" in line
    assert (tmp_path / "file").read_text() == "text"


@pytest.mark.parametrize(
    ("arguments", "about"),
    [(["nothing"], "penstock --help"), (["read"], "penstock read --help"), (["read", "a", "b", "c"], "penstock read --help"),
     (["topics", "drop"], "penstock topics --help"), (["publish", "a", "b", "--nothing"], "penstock publish --help")],
)  # fmt: skip
def test_wrong_use_points_to_the_help(run: Commands, arguments: list[str], about: str) -> None:
    assert f"(see `{about}`) [USAGE_ERROR]" in run.fails(2, *arguments)


def test_an_error_stays_one_line_whatever_it_holds(run: Commands, tmp_path) -> None:
    """A path may hold newlines and escape sequences; a terminal gets none of them."""
    line = run.fails(3, "read", f"{tmp_path}/a\n\x1b[2Jb", "orders")
    assert r"/a\n\x1b[2Jb" in line


def test_a_bug_is_not_hidden(run: Commands, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only errors that are known become one line."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(target, "open_store", fail)
    with pytest.raises(ZeroDivisionError):
        run("stats", path)


def test_damage_is_told_with_exit_code_5(run: Commands, path: str) -> None:
    with penstock.open(path) as store:
        store.publish("orders", b"x" * 100)
    with open(f"{path}/topics/orders/0/00000000000000000000.log", "r+b") as file:
        file.seek(500)
        file.write(b"damage")
    line = run.fails(5, "read", path, "orders")
    assert "DAMAGED_FILE" in line
    assert "repair" in line


def test_the_codes_are_those_of_the_tree() -> None:
    assert failures.exit_code(errors.StoreLocked("data", 1, "host")) == 4
    assert failures.exit_code(errors.StorageFailed("data", "why")) == failures.EXIT_FAILED
