"""`penstock top`: the command."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.target import GIVE_UP_SECONDS, open_target
from penstock.cli.top.controls import SORTS, Controls
from penstock.client.address import is_url, parse_address
from penstock.clock import SystemClock
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.cli.top.history import Picture, Snapshot

_GIVE_UP_S = 1.0
"""How long a call of the live view looks for a server that went away: then it says so, and tries again."""


def _interval(_ctx: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not 0.1 <= value <= 3600:
        raise click.BadParameter("must be 100ms to 1h")
    return value


@click.command(
    epilog=parameters.examples(
        "penstock top data",
        "penstock top penstock://localhost:7420 --interval 5s --sort rate",
        "penstock top penstock://localhost:7420 --topic 'orders*' --once",
    )
)
@parameters.target
@click.option(
    "--interval", type=parameters.duration, callback=_interval, default="2s", show_default=True, help="How often it looks."
)
@click.option("--once", is_flag=True, help="One frame as plain text, without rates, which need two looks.")
@click.option("--iterations", type=click.IntRange(min=1), metavar="NUMBER", help="End after so many frames.")
@click.option("--topic", "patterns", metavar="PATTERN", multiple=True, shell_complete=parameters.complete_topic,
              help="Only topics that fit it, with * ? [; may be given more than once.")  # fmt: skip
@click.option(
    "--sort", type=click.Choice(SORTS), default=SORTS[0], show_default=True, help="What comes first: the greatest, or by name."
)
@parameters.json_output
def top(
    *, target: str, interval: float, once: bool, iterations: int | None, patterns: tuple[str, ...], sort: str, as_json: bool
) -> None:  # fmt: skip
    """
    Watch a store: what comes in and goes out, who is behind, what failed, and how long things take.

    Keys: q quits, s sorts, p pauses, j and k or arrows scroll, ? explains. In a pipe, with --json or --once, it prints one frame as
    text, or as many as --iterations says. Works beside the owner of a folder, where it shows topics only: groups, dead letters and times
    a server tells.
    """
    if once and iterations is not None:
        raise UsageError("--once is one frame: it takes no --iterations")
    from penstock.cli.top import live
    from penstock.cli.top.history import History
    from penstock.cli.top.source import PRINTED_READS_MAX, READS_MAX, Source
    from penstock.cli.top.watch import Watch

    clock, history = SystemClock(), History(patterns)
    is_live = not once and not as_json and output.is_terminal() and os.environ.get("TERM") not in {None, "", "dumb"}
    shown = parse_address(target).url if is_url(target) else target
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_target(target, read_only=True, give_up=_GIVE_UP_S if is_live else GIVE_UP_SECONDS))
        source = Source(store, clock, history.takes, READS_MAX if is_live else PRINTED_READS_MAX)
        first = source.look()
        if is_live:
            stack.pop_all()  # The watch closes it.
            watch = Watch(source, clock)
            try:
                controls = Controls(sort=sort)
                live.run(shown, watch, history, history.add(first), controls, clock, every_s=interval, looks=iterations)
            finally:
                watch.close(store.close)
            return
        for left in reversed(range(1 if iterations is None else iterations)):
            _print(shown, first, history.add(first), sort, as_json=as_json)
            output.flush()
            if left:
                with interrupts.allowed():
                    time.sleep(interval)
                first = source.look()
                if not as_json:
                    output.write_line("")


def _print(target: str, snapshot: Snapshot, picture: Picture, sort: str, *, as_json: bool) -> None:
    from penstock.cli.top.frame import Link, plain

    if as_json:
        output.write_json(_document(snapshot, picture))
        return
    for line in plain(target, Link("connected" if picture.is_whole else "folder"), picture, sort):
        output.write_line(line)


def _document(snapshot: Snapshot, picture: Picture) -> dict[str, Any]:
    """What `penstock stats --json` prints, of the topics that are shown, and what only several looks, or messages, tell."""
    from penstock.cli.stats import as_document

    document = as_document(snapshot.numbers)
    known = document["topics"]
    document["topics"] = {
        one.name: known[one.name]
        | {"in_per_s": one.in_per_s, "out_per_s": one.out_per_s, "oldest_s": one.oldest_s, "newest_reason": snapshot.reasons.get(one.name)}
        for one in sorted(picture.topics, key=lambda one: one.name)
    }  # fmt: skip
    return document
