"""Arguments and options that several commands have, the kinds of values they take, and how a shell completes them."""

from __future__ import annotations

import datetime as dt
import re
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from penstock.cli.target import open_target
from penstock.client.address import is_url
from penstock.settings import TOPIC_SETTINGS
from penstock.values import KIB, MIB

if TYPE_CHECKING:
    from collections.abc import Callable

    Command = Callable[..., Any]

_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_BYTES = {"": 1, "B": 1, "KiB": KIB, "MiB": MIB, "GiB": 1024 * MIB}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def duration(value: str) -> float:
    """A length of time in seconds, with a unit or without."""
    seconds = seconds_of(value)
    if seconds is None:
        raise click.BadParameter(f"{value!r} is no length of time: use seconds, or 500ms, 30s, 5m, 2h, 7d")
    return seconds


def delay(value: str) -> float | dt.datetime:
    """When something is due: after a length of time, or at a time."""
    seconds = seconds_of(value)
    if seconds is not None:
        return seconds
    try:
        moment = dt.datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither a length of time, like 10m, nor a time, like 2026-01-31T08:00Z"
        ) from None
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone: add Z for UTC, or +02:00")
    return moment


def size(value: str) -> int:
    """A number of bytes, with a unit or without."""
    found = _NUMBER.fullmatch(value)
    if found is None or found[2] not in _BYTES:
        raise click.BadParameter(f"{value!r} is no size: use bytes, or 64KiB, 16MiB, 1GiB")
    return round(float(found[1]) * _BYTES[found[2]])


def place(value: str) -> int | str | dt.datetime:
    """A place in a topic, as `store.read` takes it."""
    if value in {"earliest", "latest"}:
        return value
    if value.isdecimal():
        return int(value)
    ago = seconds_of(value) if value[-1:].isalpha() else None
    try:
        moment = dt.datetime.fromisoformat(value) if ago is None else dt.datetime.now(dt.UTC) - dt.timedelta(seconds=ago)
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{value!r} is no place: use earliest, latest, an offset, a time like 2026-01-31T08:00Z, or 5m for 5 minutes ago"
        ) from None
    if moment.tzinfo is None:
        raise click.BadParameter(f"{value!r} has no time zone: add Z for UTC, or +02:00")
    return moment


def seconds_of(text: str) -> float | None:
    """The seconds of ``5m``; None if that is no length of time."""
    found = _NUMBER.fullmatch(text)
    return None if found is None or found[2] not in _SECONDS else float(found[1]) * _SECONDS[found[2]]


def _complete_target(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The topics of the target."""
    try:
        # Behind an option without its value click has not told arguments apart yet.
        with open_target(ctx.params.get("target") or ctx.args[0], read_only=True) as store:
            return [CompletionItem(topic.name) for topic in store.topics() if topic.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell must get no traceback because someone pressed TAB
        return []


def complete_group(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The groups of the topic that was named, of a server. Those of a folder only its owner knows, and TAB must not own anything."""
    try:
        target, topic = ctx.params.get("target"), ctx.params.get("topic")
        if target is None or topic is None:
            # Behind an option without its value click has not told arguments apart yet.
            target, topic, *_ = ctx.args
        if not is_url(target):
            return []
        with open_target(target) as store:
            return [CompletionItem(one.name) for one in store.groups(topic) if one.name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell must get no traceback because someone pressed TAB
        return []


def complete_place(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The places that have a name."""
    return [CompletionItem(name) for name in ("earliest", "latest") if name.startswith(incomplete)]


def complete_setting(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The settings of a topic that are numbers."""
    return [
        CompletionItem(f"{one.name}=") for one in TOPIC_SETTINGS if one.least is not None and one.name.startswith(incomplete)
    ]


def target(command: Command) -> Command:
    """The argument TARGET."""
    return click.argument("target", shell_complete=_complete_target)(command)


def topic(command: Command) -> Command:
    """The argument TOPIC."""
    return click.argument("topic", shell_complete=complete_topic)(command)


def group(command: Command) -> Command:
    """The argument GROUP."""
    return click.argument("group", shell_complete=complete_group)(command)


def optional_topic(command: Command) -> Command:
    """The argument TOPIC, where all topics are meant without it."""
    return click.argument("topic", required=False, shell_complete=complete_topic)(command)


def json_output(command: Command) -> Command:
    """The option --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")(command)


def yes(command: Command) -> Command:
    """The option --yes."""
    return click.option("--yes", "-y", is_flag=True, help="Do it without asking.")(command)


def partition(command: Command) -> Command:
    """The option --partition."""
    return click.option("--partition", type=click.IntRange(min=0), metavar="NUMBER", help="Only this partition.")(command)


def message_format(command: Command) -> Command:
    """The options --format and --json of commands that print messages."""
    command = click.option("--json", "as_json", is_flag=True, help="The same as --format json.")(command)
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "value", "escaped"]),
        default="text",
        show_default=True,
        help="text: one line for people; json: one object a line, exact; value: the bytes as they are, and a newline; "
        "escaped: the value with escapes, one line, exact.",
    )(command)


def examples(*lines: str) -> str:
    """The end of a help text, as click wants it."""
    return "\n".join(["\b", "Examples:", *[f"  {line}" for line in lines]])
