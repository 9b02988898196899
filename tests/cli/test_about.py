"""`penstock version`, `penstock completion`, and help."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib.metadata import version
from typing import TYPE_CHECKING

import click
import pytest

import penstock
from penstock.cli.program import program
from tests.cli.conftest import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Commands


def commands(group: click.Group = program, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """All commands with their words."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_the_version(run: Commands) -> None:
    found = version("penstock")
    assert run.text("version").startswith(f"penstock: {found}\n")
    assert run.json("version")[0]["penstock"] == found == penstock.__version__
    assert run.text("--version") == f"penstock {found}\n"


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_each_command_has_help(run: Commands, words: tuple[str, ...]) -> None:
    """Each says what it does; those that do something show examples."""
    text = run.text(*words, "--help")
    assert text == run.text(*words, "-h")
    assert text.startswith(f"Usage: penstock {' '.join(words)} ")
    if "COMMAND" not in text and words != ("version",):
        assert f"penstock {' '.join(words)} " in text.partition("Examples:")[2]


@pytest.mark.parametrize("words", [[], ["topics"], ["groups"], ["dlq"]])
def test_a_group_alone_shows_its_help(run: Commands, words: list[str]) -> None:
    assert run.text(*words) == run.text(*words, "--help")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_calls_the_program(run: Commands, shell: str) -> None:
    text = run.text("completion", shell)
    assert f"_PENSTOCK_COMPLETE={shell}_complete" in text
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=text, text=True, check=False).returncode == 0


def test_another_shell_is_refused(run: Commands) -> None:
    run.fails(2, "completion", "tcsh")


def completed(words: str) -> list[str]:
    """What bash is offered for the last word."""
    settings = {"_PENSTOCK_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split(" ")) - 1)}
    done = subprocess.run([SCRIPT], env=os.environ | settings, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout.split()


def test_commands_options_and_topics_are_completed(path: str) -> None:
    with penstock.open(path) as store:
        for name in ("orders", "old-orders", "mails"):
            store.create_topic(name)
        assert completed("penstock re") == ["plain,read", "plain,repair"]
        assert completed("penstock dlq d") == ["plain,discard"]
        assert completed("penstock consume --no") == ["plain,--no-ack"]
        assert completed(f"penstock read {path} o") == ["plain,old-orders", "plain,orders"]
        assert completed(f"penstock read {path}x o") == []
        assert completed("penstock read da") == ["dir,da"]
