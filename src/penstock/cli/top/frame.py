"""
What is drawn: a pure function of what is known, what was chosen and how large the terminal is.

    penstock top  connected  penstock://127.0.0.1:7420                     where, and how the connection is
    in 120/s  out 119/s  lag 12  dead 0  messages 1,234  5.0 MiB  ...      all topics together
                                                                           the body: tables, one below the other,
    TOPIC   MESSAGES  ...                                                  of which a part is shown
    lines 1-20 of 64  q quit  s sort: lag  p pause  j/k scroll  ? help     keys

What does not fit is cut off, lines from below and columns by their importance. The first line stays to the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.text import Text

from penstock.cli.demo.screen import heights
from penstock.cli.escapes import printable
from penstock.cli.top import figures
from penstock.cli.top.history import TREND_LENGTH, DeadLetterRow, GroupRow, TimesRow, TopicRow
from penstock.cli.top.section import Column, Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.top.controls import Controls
    from penstock.cli.top.history import Picture

_IN_ASCII = str.maketrans("▁▂▃▄▅▆▇█…", "_.-~=+*#~")
HELP = (
    "q          quit",
    "s          sort by the next of lag, rate, bytes, name",
    "p          pause, and go on",
    "j k, arrows, space, page up and down, g G    scroll",
    "?          this help, and back",
    "",
    "IN/S, OUT/S    messages a second since the last look, published and delivered to groups",
    "TREND          IN/S of the last looks, each topic by its own greatest",
    "OLDEST         age of the oldest message that is kept, or dead letter",
    "BEHIND         age of the oldest message that a group has not finished",
    "REDELIVERED    since the server began",
    "MILLISECONDS   of the last minute; of all time until there is an earlier look",
    "-              not known",
)


@dataclass(frozen=True, slots=True)
class Link:
    """How the connection is."""

    state: str
    """``folder``, ``connected``, ``silent`` (an answer is due) or ``away``."""
    for_s: float = 0.0
    """For how long it has been silent or away."""
    reason: str = ""
    """Why it is away."""
    lost: int = 0
    """How often it was away before."""


class Frame(NamedTuple):
    """Lines to show, and what keys need to know about them."""

    lines: list[Text]
    page: int
    """Lines of the body that fit."""
    last: int
    """The greatest first line of the body that makes sense."""


def draw(
    target: str, link: Link, picture: Picture, controls: Controls, width: int, height: int, *, every_s: float, ascii_only: bool = False
) -> Frame:  # fmt: skip
    """A frame for a terminal of *width* and *height* cells."""
    sections = _sections(picture, controls.sort)
    total = len(HELP) if controls.help else _height(sections)
    head = [_where(target, link), _together(picture)] if height >= 4 else [_where(target, link)]
    if height >= 8:
        head.append(Text())
    has_keys = height >= 6
    page = max(0, height - len(head) - has_keys)
    last = max(0, total - page)
    first = min(controls.first, last)
    if controls.help:
        body = [Text(line) for line in HELP[first : first + page]]
    else:
        body = _body(sections, first, first + page, width, "…")
    lines = head + body
    if has_keys:
        lines += [Text()] * (height - 1 - len(lines))
        lines.append(_keys(controls, every_s, first, page, total))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="crop")
    return Frame([_in_ascii(line) if ascii_only else line for line in lines[:height]], page, last)


def plain(target: str, link: Link, picture: Picture, sort: str) -> list[str]:
    """The same for a pipe or a file: all lines, as wide as they need to be, without trends, which need an eye."""
    sections = [_without(one, "TREND") for one in _sections(picture, sort)]
    lines = [_where(target, link), _together(picture), Text(), *_body(sections, 0, _height(sections), None, "…")]
    return [line.plain.rstrip() for line in lines]


def _in_ascii(line: Text) -> Text:
    line.plain = line.plain.translate(_IN_ASCII).encode("ascii", "replace").decode()
    return line


# -- head and foot --------------------------------------------------------------------------------------------------


def _where(target: str, link: Link) -> Text:
    title, where = ("penstock top  ", "bold"), f"  {printable(target)}"
    if link.state == "away":
        # First what matters: the reason may be cut off.
        reason = link.reason if target in link.reason else f"{target}  {link.reason}"
        return Text.assemble((f"AWAY for {figures.age(link.for_s)}, trying again", "bold red"), f"  {printable(reason)}")
    if link.state == "silent":
        return Text.assemble((f"no answer for {figures.age(link.for_s)}", "bold yellow"), where)
    if link.state == "folder":
        return Text.assemble(title, "files only", where, ("  (groups, dead letters and times a server tells)", "dim"))
    lost = f", was away {'once' if link.lost == 1 else f'{link.lost} times'}" if link.lost else ""
    return Text.assemble(title, ("connected", "green"), lost, where)


def _together(picture: Picture) -> Text:
    def added(name: str) -> float | None:
        known = [rate for rate in (getattr(one, name) for one in picture.topics) if rate is not None]
        return sum(known) if known else None

    line = Text(f"in {figures.rate(added('in_per_s'))}/s  ")
    if picture.is_whole:
        dead = sum(one.count for one in picture.dead_letters)
        line.append(f"out {figures.rate(added('out_per_s'))}/s  lag {figures.count(sum(one.lag for one in picture.groups))}  ")
        line.append(f"dead {figures.count(dead)}", "red" if dead else "")
        line.append("  ")
    messages, stored = sum(one.messages for one in picture.topics), sum(one.bytes for one in picture.topics)
    line.append(f"messages {figures.count(messages)}  {figures.size(stored)}  topics {figures.count(len(picture.topics))}")
    if picture.is_full:
        line = Text.assemble(("the disk is full, publishing is refused", "bold red"), "  ", line)
    if picture.failure is not None:
        line = Text.assemble(("takes no more writes", "bold red"), f": {printable(picture.failure)}  ", line)
    return line


def _keys(controls: Controls, every_s: float, first: int, page: int, total: int) -> Text:
    line = Text()
    if controls.paused:
        line.append("PAUSED", "bold yellow")
        line.append("  ")
    if total > page:
        line.append(f"lines {first + 1}-{min(first + page, total)} of {total}  ")
    keys = f"q quit  s sort: {controls.sort}  p {'go on' if controls.paused else 'pause'}  j/k scroll  ? help"
    line.append(f"{keys}  every {every_s:g}s", "dim")
    return line


# -- body -----------------------------------------------------------------------------------------------------------


def _height(sections: list[Section[Any]]) -> int:
    return sum(one.height + 1 for one in sections) - 1


def _body(sections: list[Section[Any]], first: int, end: int, width: int | None, ellipsis: str) -> list[Text]:
    """Its lines from *first* up to, not with, *end*. Only those are made, however many there are."""
    lines: list[Text] = []
    top = 0
    for section in sections:
        if top and first < top <= end:
            lines.append(Text())
        lines += section.lines(first - top, end - top, width, ellipsis)
        top += section.height + 1
    return lines


def _sections(picture: Picture, sort: str) -> list[Section[Any]]:
    topics: Section[TopicRow] = Section(
        "TOPIC", sorted(picture.topics, key=_topic_order(sort)), lambda one: one.name,
        [
            Column("MESSAGES", 8, lambda one: figures.count(one.messages), 90),
            Column("BYTES", 8, lambda one: figures.size(one.bytes), 60),
            Column("IN/S", 6, lambda one: figures.rate(one.in_per_s), 80),
            Column("TREND", TREND_LENGTH, lambda one: heights(one.trend).rjust(TREND_LENGTH), 10, lambda _: "cyan"),
            Column("OUT/S", 6, lambda one: figures.rate(one.out_per_s), 70),
            Column("OLDEST", 6, lambda one: figures.age(one.oldest_s), 50),
        ],
        "no topics",
    )  # fmt: skip
    if not picture.is_whole:
        return [_without(topics, "OUT/S")]
    groups: Section[GroupRow] = Section(
        "GROUP", sorted(picture.groups, key=_group_order(sort)), lambda one: f"{one.topic}/{one.name}",
        [
            Column("LAG", 8, lambda one: figures.count(one.lag), 90, lambda one: "yellow" if one.lag else ""),
            Column("BEHIND", 6, lambda one: figures.age(one.lag_s), 80, lambda one: "yellow" if one.lag else ""),
            Column("IN FLIGHT", 9, lambda one: figures.count(one.in_flight), 60),
            Column("REDELIVERED", 11, lambda one: figures.count(one.redelivered), 40),
            Column("MEMBERS", 7, lambda one: figures.count(one.members), 70, lambda one: "red" if one.lag and not one.members else ""),
            Column("OUT/S", 6, lambda one: figures.rate(one.out_per_s), 50),
        ],
        "no groups",
    )  # fmt: skip
    dead_letters: Section[DeadLetterRow] = Section(
        "DEAD LETTERS OF", picture.dead_letters, lambda one: one.topic,
        [
            Column("COUNT", 7, lambda one: figures.count(one.count), 90, lambda _: "red"),
            Column("OLDEST", 6, lambda one: figures.age(one.oldest_s), 50),
            Column("NEWEST REASON", 16, lambda one: printable(one.reason or figures.NOTHING), 70, is_text=True),
        ],
        "none",
    )  # fmt: skip
    times: Section[TimesRow] = Section(
        "MILLISECONDS", picture.times, lambda one: one.what,
        [
            Column("COUNT", 7, lambda one: figures.count(one.times.count), 50),
            Column("P50", 6, lambda one: _quantile(one, 0.5), 80),
            Column("P95", 6, lambda one: _quantile(one, 0.95), 70),
            Column("P99", 6, lambda one: _quantile(one, 0.99), 90),
        ],
        "nothing was measured; penstock serve measures, unless it is told --no-measure",
    )  # fmt: skip
    return [topics, groups, dead_letters, times]


def _without(section: Section[Any], title: str) -> Section[Any]:
    columns = [one for one in section.columns if one.title != title]
    return Section(section.title, section.rows, section.name, columns, section.otherwise)


def _quantile(row: TimesRow, share: float) -> str:
    return figures.milliseconds(row.times.quantile(share)) if row.times.count else figures.NOTHING


def _topic_order(sort: str) -> Callable[[TopicRow], tuple[float, str]]:
    return {
        "lag": lambda one: (-one.lag, one.name),
        "rate": lambda one: (-max(one.in_per_s or 0, one.out_per_s or 0), one.name),
        "bytes": lambda one: (-one.bytes, one.name),
        "name": lambda one: (0, one.name),
    }[sort]


def _group_order(sort: str) -> Callable[[GroupRow], tuple[float, str, str]]:
    return {
        "lag": lambda one: (-one.lag, one.topic, one.name),
        "rate": lambda one: (-(one.out_per_s or 0), one.topic, one.name),
        "bytes": lambda one: (-one.topic_bytes, one.topic, one.name),
        "name": lambda one: (0, one.topic, one.name),
    }[sort]
