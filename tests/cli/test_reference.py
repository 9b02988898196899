"""docs/reference/cli.md says what the commands say, leaves none of them out, and what it shows happens."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import click
import pytest

from penstock.cli import failures
from penstock.cli.program import program
from penstock.server import serving
from tests.cli.conftest import SCRIPT
from tests.docs.pages import ROOT, blocks, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (ROOT / "docs" / "reference" / "cli.md").read_text()


def commands(group: click.Group = program, path: str = "penstock") -> Iterator[tuple[str, click.Command]]:
    """All commands that do something, with their words."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


COMMANDS = dict(commands())


def sections() -> dict[str, str]:
    """The text about each command, by its words."""
    parts = re.split(r"^### (penstock [a-z ]+)$", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def takes(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    return option.metavar or option.type.name.upper()


def row_of(option: click.Option) -> list[str]:
    names = ", ".join(f"`{name}`" for name in option.opts)
    default = "required" if option.required else f"`{option.default}`" if option.show_default else ""
    return [names, takes(option), default, (option.help or "").partition("  [")[0]]


def test_every_command_has_its_section_in_the_order_of_the_help() -> None:
    assert list(sections()) == list(COMMANDS)


@pytest.mark.parametrize("words", COMMANDS)
def test_every_option_is_documented_and_none_is_unknown(words: str) -> None:
    """Its names, what it takes, its default and its meaning are those of the help."""
    options = [parameter for parameter in COMMANDS[words].params if isinstance(parameter, click.Option)]
    assert rows(sections()[words], "option") == [row_of(option) for option in options]


@pytest.mark.parametrize("words", COMMANDS)
def test_the_arguments_are_those_of_the_command(words: str) -> None:
    command = COMMANDS[words]
    # With the program's own settings: click keeps with a command what it finds in the first context.
    pieces = command.collect_usage_pieces(click.Context(command, info_name=words, **program.context_settings))
    assert blocks(sections()[words], "text") == [f"{' '.join([words, *pieces])}\n"]


@pytest.mark.parametrize("words", COMMANDS)
def test_each_command_says_there_what_its_help_says(words: str) -> None:
    """At least its first sentence."""
    first = (COMMANDS[words].help or "").strip().split("\n")[0]
    assert first in " ".join(sections()[words].split())


def test_the_exit_codes_are_on_the_page() -> None:
    codes = {int(row[0]) for row in rows(PAGE, "code")}
    assert codes == {0, failures.EXIT_FAILED, *[code for _, code in failures.EXIT_CODES], 130, 143, failures.EXIT_BROKEN_PIPE}
    named = {row[2]: int(row[0]) for row in rows(PAGE, "code") if row[2]}
    assert named == {f"`{kind.__name__}`": code for kind, code in failures.EXIT_CODES}


def test_the_tour_happens_as_it_is_shown(tmp_path) -> None:
    """Each command line is typed in an empty folder, and prints what the page says."""
    folder = os.path.dirname(SCRIPT)
    settings = os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"}
    seen = 0
    for block in blocks(PAGE, "console"):
        for part in block.removeprefix("$ ").split("\n$ "):
            line, _, expected = part.partition("\n")
            done = subprocess.run(["sh", "-c", line], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False)
            assert (done.stdout + done.stderr).strip() == expected.strip(), line
            seen += 1
    assert seen >= 8


@pytest.mark.parametrize("words", COMMANDS)
def test_addresses_in_help_have_the_port_that_a_server_has_by_default(words: str) -> None:
    """An example that is copied works against a server that was started without options."""
    ports = {"penstock://": serving.NATIVE_DEFAULT, "--native ": serving.NATIVE_DEFAULT, "--grpc ": serving.GRPC_DEFAULT}
    ports |= {"http://": serving.HTTP_DEFAULT, "--http ": serving.HTTP_DEFAULT}
    command = COMMANDS[words]
    text = command.get_help(click.Context(command, info_name=words, **program.context_settings))
    for before, port in re.findall(r"(\S+://|--\w+ )[\w.\[\]-]+:(\d{2,5})\b", text):
        assert ports[before].endswith(f":{port}"), f"{before}...:{port}"
    assert not re.search(r":74(?!2[012]\b)\d\d\b", text)
