"""`penstock read`: the messages of a topic, without a group, beside a live owner too."""

from __future__ import annotations

import time
from itertools import islice
from typing import TYPE_CHECKING

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.messages import write_messages
from penstock.cli.target import open_target
from penstock.errors import UsageError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator

    from penstock.store.read_only import ReadOnlyStore
    from penstock.topics.message import Message

    Place = int | str | dt.datetime

TOGETHER = 500
FOLLOW_SECONDS = 0.2
"""How often a reader looks for more: it shares no lock with the owner, so nobody wakes it."""


@click.command(
    epilog=parameters.examples(
        "penstock read data orders",
        "penstock read data orders --partition 0 --start 100 --count 10",
        "penstock read data orders --start 2026-01-31T08:00Z --end 2026-01-31T09:00Z --json",
        "penstock read data orders --start 5m --follow",
    )
)
@parameters.target
@parameters.topic
@parameters.partition
@click.option("--start", type=parameters.place, shell_complete=parameters.complete_place, default="earliest", show_default=True,
              help="earliest, latest, an offset, a time (2026-01-31T08:00Z: when it was appended), or 5m for 5 minutes ago.")  # fmt: skip
@click.option("--end", type=parameters.place, help="Where to stop, likewise; that message is not printed.")
@click.option("--count", type=click.IntRange(min=1), metavar="NUMBER", help="Stop after so many messages.")
@click.option("--follow", "-f", is_flag=True, help="Wait for more messages until Ctrl-C.")
@parameters.message_format
def read(
    *, target: str, topic: str, partition: int | None, start: Place, end: Place | None, count: int | None, follow: bool, form: str,
    as_json: bool,
) -> None:  # fmt: skip
    """
    Print the messages of TOPIC, one partition after the other.

    It changes nothing, takes no lock, and works beside the owner of the store.
    """
    if follow and end is not None:
        raise UsageError("--follow has no --end")
    with open_target(target, read_only=True) as store:
        if follow:
            messages = _follow(store, topic, partition, start)
        else:
            messages = _groups_of(store.read(topic, partition, start=start, end=end, max_messages=count))
        shows = not follow and output.goes_to_file() and output.is_watched()
        total = _count(store, topic, partition, count) if shows and start == "earliest" and end is None else count
        left = count
        seen = 0
        with output.progress("reading (messages)", total, wanted=shows) as move:
            for part in messages:
                chosen = part if left is None else part[:left]
                write_messages(chosen, "json" if as_json else form)
                if follow or output.is_terminal():
                    output.flush()
                interrupts.check()
                seen += len(chosen)
                move(seen)
                if left is not None:
                    left -= len(chosen)
                    if left == 0:
                        return


def _count(store: ReadOnlyStore, topic: str, partition: int | None, most: int | None) -> int:
    """About how many messages there are to read."""
    numbers = store.stats().topics[topic]
    there = sum(end - numbers.starts[number] for number, end in numbers.ends.items() if partition in (None, number))
    return there if most is None else min(there, most)


def _groups_of(messages: Iterator[Message]) -> Iterator[list[Message]]:
    while part := list(islice(messages, TOGETHER)):
        yield part


def _follow(store: ReadOnlyStore, topic: str, partition: int | None, start: Place) -> Iterator[list[Message]]:
    """The messages there are, then those that come."""
    ends = store.ends(topic)
    places: dict[int, Place] = {number: start for number in ends if partition is None or number == partition}
    if not places:
        store.read(topic, partition)  # It says that there is no such partition.
    while True:
        for number, place in places.items():
            end = ends[number]
            if place != end:
                yield from _groups_of(store.read(topic, number, start=place, end=end))
                places[number] = end
        with interrupts.allowed():
            time.sleep(FOLLOW_SECONDS)
        ends = store.ends(topic)
