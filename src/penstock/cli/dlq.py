"""`penstock dlq`: the dead letters of topics. Which of them are still there is known to the owner, so these commands go through it."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.escapes import escape
from penstock.cli.messages import fields, moment, write_messages
from penstock.cli.target import open_target
from penstock.errors import NotFound, PenstockError, UsageError
from penstock.groups.dead_letters import HEADER_PREFIX
from penstock.store.dead_letter_filter import DeadLetterFilter
from penstock.topics.catalog import DEAD_LETTER_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.store.dead_letter_box import DeadLetters
    from penstock.store.store import Store
    from penstock.topics.message import Message

SHORT = 40
"""How many characters of a value stand in a table."""
PART, PARTS = 1_000, 20
"""Dead letters are replayed and discarded in parts of at least so many, and in at most so many parts."""


@click.group()
def dlq() -> None:
    """
    List, show, replay and discard dead letters.

    TOPIC is the one that the messages come from, not TOPIC.dlq.

    A folder that a program has open is reached through that program, unless it does not share it (share=False). For a folder that
    `penstock serve` has open, give the server's URL as TARGET.
    """


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What a dead letter must be like."""
    for option in reversed((
        click.option("--group", metavar="NAME", help="Those that failed in this group."),
        click.option("--reason", metavar="TEXT", help="Those whose reason contains TEXT, or fits it as a pattern with * ? [."),
        click.option("--partition", type=click.IntRange(min=0), metavar="NUMBER", help="Those from this partition of TOPIC."),
        click.option("--source-start", type=click.IntRange(min=0), metavar="OFFSET", help="Those from this offset of TOPIC on."),
        click.option("--source-end", type=click.IntRange(min=0), metavar="OFFSET", help="Those from before this offset of TOPIC."),
        click.option("--since", metavar="TIME", help="Dead-lettered from then on: 2026-01-31T08:00Z, or 5m for 5 minutes ago."),
        click.option("--until", metavar="TIME", help="Dead-lettered before then."),
        click.option("--key", metavar="TEXT", help="Those with this key."),
        click.option("--header", "headers", metavar="NAME[=TEXT]", multiple=True, help="Those with this header; may be repeated."),
    )):  # fmt: skip
        command = option(command)
    return command


def _filter(
    *, group: str | None, reason: str | None, partition: int | None, source_start: int | None, source_end: int | None,
    since: str | None, until: str | None, key: str | None, headers: tuple[str, ...],
) -> DeadLetterFilter | None:  # fmt: skip
    """The filter that the options say; None if they say nothing."""
    if headers == () and all(one is None for one in (group, reason, partition, source_start, source_end, since, until, key)):
        return None
    pairs = [header.partition("=") for header in headers]
    return DeadLetterFilter(
        group=group, reason=reason, partition=partition, start=source_start, end=source_end, since=_moment("since", since),
        until=_moment("until", until), key=key, headers={name: text.encode() if equals else None for name, equals, text in pairs},
    )  # fmt: skip


def _moment(option: str, text: str | None) -> dt.datetime | None:
    found = None if text is None else parameters.place(text)
    if found is None or isinstance(found, dt.datetime):
        return found
    raise click.BadParameter(f"{text!r} is no time: use 2026-01-31T08:00Z, or 5m for 5 minutes ago", param_hint=f"--{option}")


@dlq.command("list", epilog=parameters.examples("penstock dlq list data", "penstock dlq list data orders --json"))
@parameters.target
@parameters.optional_topic
@click.option("--count", type=click.IntRange(min=1), metavar="NUMBER", help="Only the oldest ones.")
@_filter_options
@parameters.json_output
def list_letters(*, target: str, topic: str | None, count: int | None, as_json: bool, **filters: Any) -> None:
    """List the dead letters of TOPIC, oldest first; without TOPIC how many each topic has."""
    fits = _filter(**filters)
    if topic is None and (count is not None or fits is not None):
        raise UsageError("--count, and what chooses dead letters, need TOPIC")
    with open_target(target) as store:
        if topic is None:
            _count(store, as_json=as_json)
            return
        letters = _letters(store, topic).list(count, fits)
        if as_json:
            for letter in letters:
                output.write_json(fields(letter))
            return
        rows = [
            (letter.offset, _header(letter, "group"), _header(letter, "deliveries"), _header(letter, "last-failure"),
             _header(letter, "reason"), letter.key and _short(letter.key), _short(letter.value))
            for letter in letters
        ]  # fmt: skip
        output.write_table(["offset>", "group", "deliveries>", "last failure", "reason", "key", "value"], rows)


@dlq.command(
    epilog=parameters.examples("penstock dlq show data orders 3", "penstock dlq show data orders 3 --format value > order.bin")
)
@parameters.target
@parameters.topic
@click.argument("offset", type=click.IntRange(min=0))
@parameters.message_format
def show(*, target: str, topic: str, offset: int, form: str, as_json: bool) -> None:
    """Show all of one dead letter."""
    with open_target(target) as store:
        letter = next((one for one in _letters(store, topic) if one.offset == offset), None)
        if letter is None:
            raise _missing(topic, [offset])
        if as_json or form != "text":
            write_messages([letter], "json" if as_json else form)
            return
        output.write_details(
            [
                ("offset", letter.offset), ("timestamp", moment(letter.timestamp)),
                ("key", None if letter.key is None else escape(letter.key)),
                *[(name, escape(value)) for name, value in letter.headers],
                ("value", escape(letter.value)),
            ]
        )  # fmt: skip


def _choice(command: Callable[..., Any]) -> Callable[..., Any]:
    """The arguments that choose dead letters."""
    command = click.option("--all", "everything", is_flag=True, help="All of them.")(command)
    command = _filter_options(command)
    command = click.argument("offsets", metavar="[OFFSET]...", nargs=-1, type=click.IntRange(min=0))(command)
    return parameters.target(parameters.topic(command))


@dlq.command(
    epilog=parameters.examples(
        "penstock dlq replay data orders 3 4",
        "penstock dlq replay data orders --reason timeout",
        "penstock dlq replay data orders --all",
    )
)
@_choice
@parameters.json_output
def replay(*, target: str, topic: str, as_json: bool, **chosen: Any) -> None:
    """Send dead letters back to TOPIC, as new messages that every group gets, and take them out."""
    with open_target(target) as store:
        letters = _letters(store, topic)
        count = _in_parts("replaying", letters.replay, _chosen(letters, topic, **chosen))
    _tell("replayed", count, as_json=as_json)


@dlq.command(
    epilog=parameters.examples("penstock dlq discard data orders 3 --yes", "penstock dlq discard data orders --all --yes")
)
@_choice
@parameters.yes
@parameters.json_output
def discard(*, target: str, topic: str, yes: bool, as_json: bool, **chosen: Any) -> None:
    """Throw dead letters away."""
    with open_target(target) as store:
        letters = _letters(store, topic)
        offsets = _chosen(letters, topic, **chosen)
        if offsets:
            output.confirm(f"{len(offsets):,} dead letters of {topic} would be thrown away.", yes=yes)
        count = _in_parts("discarding", letters.discard, offsets)
    _tell("discarded", count, as_json=as_json)


def _in_parts(what: str, work: Callable[..., int], offsets: list[int]) -> int:
    """Do *work* for all of *offsets*, some at a time, with a bar; returns for how many it was done."""
    # Each call looks at all dead letters, so there are few calls.
    together = max(PART, -(-len(offsets) // PARTS))
    count = 0
    with output.progress(f"{what} (dead letters)", len(offsets)) as move:
        try:
            for at in range(0, len(offsets), together):
                interrupts.check()
                count += work(offsets=offsets[at : at + together])
                move(at + together)
        except (PenstockError, interrupts.Interrupted):
            if count:
                output.say("note", f"{count:,} dead letters were done before this")
            raise
    return count


def _letters(store: Store, topic: str) -> DeadLetters:
    if topic.endswith(DEAD_LETTER_SUFFIX):
        raise UsageError(f"name the topic that the messages come from: {topic.removesuffix(DEAD_LETTER_SUFFIX)}")
    return store.dead_letters(topic)


def _chosen(letters: DeadLetters, topic: str, *, offsets: tuple[int, ...], everything: bool, **filters: Any) -> list[int]:
    """The offsets of the dead letters that were chosen. Raises `NotFound` if one that was named is not there."""
    fits = _filter(**filters)
    if not (offsets or fits is not None or everything):
        raise UsageError("say which: OFFSET, --group, --reason or another option that chooses, or --all")
    if everything and (offsets or fits is not None):
        raise UsageError("--all takes no OFFSET, --group or --reason beside it")
    there = list(letters)
    missing = sorted(set(offsets) - {letter.offset for letter in there})
    if missing:
        raise _missing(topic, missing)
    return [letter.offset for letter in there if (not offsets or letter.offset in offsets) and (fits is None or fits(letter))]


def _missing(topic: str, offsets: list[int]) -> NotFound:
    named = ", ".join(map(str, offsets))
    return NotFound(f"topic {topic!r} has no dead letter at offset {named}; `penstock dlq list` shows what there is")


def _tell(what: str, count: int, *, as_json: bool) -> None:
    if as_json:
        output.write_json({what: count})
    else:
        output.write_line(f"{what} {count:,}")


def _count(store: Store, *, as_json: bool) -> None:
    names = [topic.name for topic in store.topics()]
    sources = [name for name in names if name + DEAD_LETTER_SUFFIX in names]
    rows = [(name, len(store.dead_letters(name))) for name in sources]
    if as_json:
        for name, count in rows:
            output.write_json({"topic": name, "dead_letters": count})
    else:
        output.write_table(["topic", "dead letters>"], rows)


def _header(letter: Message, name: str) -> str | None:
    value = letter.headers.get(HEADER_PREFIX + name)
    return None if value is None else value.decode("utf-8", "replace")


def _short(data: bytes | None) -> str:
    text = escape(data)
    return text if len(text) <= SHORT else text[: SHORT - 3] + "..."
