"""Small claims that pages make in passing are true: defaults in prose, commands and options, calls, metrics, headers, extras."""

from __future__ import annotations

import inspect
import re
import shlex
import tomllib
from typing import TYPE_CHECKING

import click
import pytest

import penstock
from penstock import errors, values
from penstock.cli.program import program
from penstock.server.http import administering, publishing, schemas
from penstock.settings import GROUP_SETTINGS, STORE_SETTINGS, TOPIC_SETTINGS
from penstock.topics.deduplication import KEYS_MAX
from penstock.topics.publication import DEDUP_KEY_BYTES_MAX
from penstock.values import KIB, MIB
from penstock.volume.topic_files import PARTITIONS_MAX
from tests.docs.pages import PAGES, ROOT, SOURCE, blocks, name_of, prose, rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# Decisions and the changelog tell of their day.
TODAY = [page for page in PAGES if page.parent.name != "adr" and page.name != "CHANGELOG.md"]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


# -- defaults -------------------------------------------------------------------------------------------------------------

_IN_MS = {"ms": 1, "s": 1_000, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}
_IN_BYTES = {"KiB": KIB, "MiB": MIB}
_DEFAULT = re.compile(r"`(\w+)=?` \((\d[\d,]*)(?: (ms|s|seconds|minutes|hours|days|KiB|MiB)\b)?[^)`|]*\)")


def _defaults() -> dict[str, set[object]]:
    """What may stand behind the name of a setting: in its own unit, and of a time in seconds where the name has no unit."""
    found: dict[str, set[object]] = {}
    for setting in (*STORE_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS):
        found.setdefault(setting.name, set()).add(setting.default)
        if setting.name.endswith("_ms"):
            found.setdefault(setting.name.removesuffix("_ms"), set()).add(setting.default)
    for call in (penstock.Store.subscribe, penstock.Store.producer):
        for parameter in inspect.signature(call).parameters.values():
            if type(parameter.default) is int:
                found.setdefault(parameter.name, set()).add(parameter.default)
    return found


def _told(page: Path) -> Iterator[tuple[str, int]]:
    defaults = _defaults()
    for name, number, unit in _DEFAULT.findall(prose(page.read_text())):
        if name in defaults:
            value = int(number.replace(",", ""))
            is_time = name.endswith("_ms") or f"{name}_ms" in defaults
            yield name, value * (_IN_MS[unit or ("ms" if name.endswith("_ms") else "s")] if is_time else _IN_BYTES.get(unit, 1))


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_a_default_in_brackets_behind_a_setting_is_its_default(page: Path) -> None:
    """As in "`lease` (30 s)": pages say it where it is needed, and the code may change."""
    defaults = _defaults()
    assert [(name, value) for name, value in _told(page) if value not in defaults[name]] == []


def test_defaults_are_told_in_prose() -> None:
    """Else the test above would compare nothing."""
    assert len({name for page in TODAY for name, _ in _told(page)}) >= 10


def test_the_limits_that_are_no_settings_are_those_of_the_code() -> None:
    """The page of settings lists what else bounds a message."""
    limits = dict(rows((ROOT / "docs" / "reference" / "settings.md").read_text(), "what"))
    assert limits["a key, the name of a header"] == f"{values.KEY_BYTES_MAX // KIB} KiB each"
    assert values.KEY_BYTES_MAX == values.HEADER_NAME_BYTES_MAX
    assert limits["headers of a message"] == f"{values.HEADERS_MAX:,}"
    assert limits["a `dedup_key`"].startswith(f"{DEDUP_KEY_BYTES_MAX // KIB} KiB; {KEYS_MAX:,} are")
    assert limits["a batch"] == f"{values.BATCH_MESSAGES_MAX:,} messages"
    assert limits["partitions of a topic"] == f"{PARTITIONS_MAX:,}"
    assert str(errors.BadName("topic", "")).partition(" of A-Z")[0].endswith("1 to 196")
    assert values.is_name("a" * 196)
    assert not values.is_name("a" * 197)


def test_the_fixed_limits_of_http_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "reference" / "http.md").read_text()
    told = page.partition("These limits are fixed:")[2].partition("\n\n")[0]
    assert [int(number.replace(",", "")) for number in re.findall(r"\b1?\d[\d,]*00\b", told)] == [
        schemas.PUBLISH_MESSAGES_MAX, schemas.RECEIVE_MAX, schemas.RECEIPTS_MAX, publishing.READ_MAX, 100, administering.PARTITIONS_MAX,
    ]  # fmt: skip


# -- commands -------------------------------------------------------------------------------------------------------------


def _commands(page: Path) -> Iterator[str]:
    """What a page shows to type into a shell, one command each."""
    text = page.read_text()
    shown = [
        line.removeprefix("$ ") for kind in ("sh", "console") for block in blocks(text, kind) for line in block.splitlines()
    ]
    shown += re.findall(r"`(penstock [a-z][^`\n]*)`", prose(text))
    for line in shown:
        for part in re.split(r" \| | > ", line):
            if re.match(r"penstock [a-z]", part):
                yield part.partition("  #")[0]


def _unknown(line: str) -> list[str]:
    """The words of a command that `penstock` does not know: the command itself, or its options."""
    words = [word for word in shlex.split(line.replace("...", ""))[1:] if word]
    command: click.Command = program
    while words and isinstance(command, click.Group):
        found = command.commands.get(words[0])
        if found is None:
            return [words[0]]
        command = found
        del words[0]
    options = {name for option in command.params for name in (*option.opts, *option.secondary_opts)} | {"--help"}
    return [word for word in words if re.match(r"-\D", word) and word.partition("=")[0] not in options]


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_commands_that_a_page_shows_exist_with_their_options(page: Path) -> None:
    assert [line for line in _commands(page) if _unknown(line)] == []


def test_a_command_that_is_not_there_is_noticed() -> None:
    """And pages show commands."""
    assert _unknown("penstock frobnicate data") == ["frobnicate"]
    assert _unknown("penstock read data orders --backwards") == ["--backwards"]
    assert len({line for page in TODAY for line in _commands(page)}) >= 30


# -- names ----------------------------------------------------------------------------------------------------------------

FACES = {
    "store": penstock.Store, "consumer": penstock.Consumer, "producer": penstock.Producer, "message": penstock.Delivery,
    "queue": penstock.Queue, "transaction": penstock.Transaction, "dead": penstock.DeadLetters,
}  # fmt: skip

OTHER_THINGS = {"store.json", "store.sync"} | {f"consumer.{name}" for name in ("batches", "run", "stop", "skipped", "expired")}
"""A file, a store for asyncio, a database's consumer."""
TABLES = {"penstock_position", "penstock_schema", "penstock_outbox"}
"""Of databases; no metrics."""


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_calls_that_a_page_names_exist(page: Path) -> None:
    """`store.seek` in backquotes is a call of a store, and `penstock.errors.X` a name of the package."""
    code = " ".join(re.findall(r"`([^`\n]+)`", prose(page.read_text())))
    called = re.findall(rf"(?<![\w./])({'|'.join(FACES)})\.([a-z_]+)(?![\w/.])", code)
    missing = {f"{face}.{name}" for face, name in called if not hasattr(FACES[face], name)}
    assert missing <= OTHER_THINGS


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_metrics_that_a_page_names_are_served(page: Path) -> None:
    """The table of metrics is kept equal to what is served by another test; here are the others who name some."""
    table = {row[0].strip("`") for row in rows((ROOT / "docs" / "reference" / "metrics.md").read_text(), "metric")}
    named = set(re.findall(r"\bpenstock_(?!pb2)[a-z_]+", page.read_text()))
    assert {name for name in named - TABLES if re.sub(r"_(count|sum|bucket)$", "", name) not in table} == set()


def test_the_headers_of_dead_letters_are_those_that_are_written() -> None:
    """docs/delivery.md lists them all, and no page names another one."""
    with penstock.open("memory:") as store:
        store.publish("orders", b"x", ttl=60)
        with store.subscribe("orders", group="billing") as consumer:
            message = consumer.get(timeout=1)
            assert message is not None
            message.reject("no such lamp")
            consumer.flush()
        (letter,) = store.dead_letters("orders").list()
        written = set(letter.headers.names())
    told = {page: set(re.findall(r"\bx-dlq-[a-z-]*[a-z]", page.read_text())) for page in TODAY}
    assert told[ROOT / "docs" / "delivery.md"] == written
    assert set().union(*told.values()) == written


def test_words_of_the_glossary_are_in_order_and_there_once() -> None:
    words = [row[0].strip("*").lower() for row in rows((ROOT / "docs" / "glossary.md").read_text(), "word")]
    assert words == sorted(set(words))


def test_the_map_in_the_readme_has_every_folder_and_module() -> None:
    """Of the package, one level deep."""
    found = blocks((ROOT / "README.md").read_text(), "")
    (drawn,) = [block for block in found if block.startswith("src/penstock/")]
    package = drawn.partition("\ntests/")[0]
    there = {
        path.name + "/" * path.is_dir()
        for path in SOURCE.iterdir()
        if path.suffix in ("", ".py") and not path.name.startswith("__p")
    }
    assert {name for name in there if name not in package} == set()
    assert {name for name in re.findall(r"\b\w+\.py\b", package) if name not in there} == set()


# -- installing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", TODAY, ids=name_of)
def test_a_page_installs_from_the_repository_and_with_extras_that_exist(page: Path) -> None:
    """On PyPI another project has the name: whoever follows a page must not get that."""
    text = page.read_text()
    assert not re.findall(r"pip install ['\"]?penstock", text)
    for extras in re.findall(r"pip install '\.\[([a-z,]+)\]'", text):
        assert set(extras.split(",")) <= set(EXTRAS)


def test_the_readme_names_every_extra() -> None:
    """But for those of developers."""
    text = (ROOT / "README.md").read_text().partition("The extras: ")[2].partition("Penstock is")[0]
    assert set(re.findall(r"`(\w+)`", text)) == set(EXTRAS) - {"dev", "bench"}


def test_extras_that_an_error_names_exist() -> None:
    """As in "pip install 'penstock[grpc]'": where Penstock is installed already, pip adds the extra to it."""
    named = {
        extra
        for path in SOURCE.rglob("*.py")
        for found in re.findall(r"penstock\[([a-z,]+)\]", path.read_text())
        for extra in found.split(",")
    }
    assert len(named) >= 5
    assert named <= set(EXTRAS)


# -- form -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_table_has_its_heading_and_as_many_cells_in_each_row(page: Path) -> None:
    """An empty line in a table, or a bar in a cell, leaves rows that are no table on the page."""
    wrong = []
    for table in re.findall(r"(?:^\|.*\n)+", prose(page.read_text()), re.MULTILINE):
        lines = [re.sub(r"\\\|", "", line) for line in table.splitlines()]
        if len(lines) < 2 or not re.fullmatch(r"\|( ?:?-+:? ?\|)+", lines[1]) or len({line.count("|") for line in lines}) > 1:
            wrong.append(lines[0])
    assert wrong == []
