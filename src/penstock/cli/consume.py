"""`penstock consume`: take messages of a group, print them, and finish them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.messages import write_messages
from penstock.cli.target import open_target
from penstock.errors import LeaseExpired, TopicNotFound, UsageError

if TYPE_CHECKING:
    import datetime as dt

    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer
    from penstock.store.store import Store

TOGETHER = 100
"""How many messages are printed, flushed and finished at once."""
LOOK_DEFAULT = 100
SLICE_SECONDS = 0.2
"""A wait is cut into these, so that a signal is seen soon without breaking into the engine."""


@click.command(
    epilog=parameters.examples(
        "penstock consume data orders --group billing",
        "penstock consume data orders --group billing --follow --json | jq .value",
        "penstock consume data orders --group billing --follow --create",
        "penstock consume data orders --group billing --count 1 --timeout 10 --format value > order.bin",
        "penstock consume data orders --group billing --no-ack       # look, and take nothing",
        "penstock consume data orders --group billing --nack --reason 'no such address' --count 1",
    )
)
@parameters.target
@parameters.topic
@click.option("--group", required=True, metavar="NAME", shell_complete=parameters.complete_group,
              help="The group; it is made if it is not there.")  # fmt: skip
@click.option("--count", type=click.IntRange(1, 1_000_000), metavar="NUMBER", help="Stop after so many messages.")
@click.option(
    "--timeout", type=parameters.duration, help="Stop when no message came for so long. Without it: when none is ready."
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more messages until Ctrl-C.")
@click.option("--ack", "finish", flag_value="ack", default="ack", help="Finish each message once it is printed.  [default]")
@click.option(
    "--no-ack", "finish", flag_value="none", help=f"Give them back uncounted at the end; {LOOK_DEFAULT} at most, or --count."
)
@click.option("--nack", "finish", flag_value="nack", help="They failed: they come again later, or become dead letters.")
@click.option("--reject", "finish", flag_value="reject", help="They can never be handled: dead letters at once.")
@click.option("--delay", type=parameters.duration, help="With --nack: when they come again.")
@click.option("--reason", metavar="TEXT", help="With --nack or --reject: why; it goes into the dead letter.")
@click.option(
    "--ordered", is_flag=True, help="Make the group an ordered one: each partition in order, with one consumer at a time."
)
@click.option("--start", type=parameters.place, shell_complete=parameters.complete_place, default="earliest", show_default=True,
              help="Where a new group begins: earliest, latest, an offset, a time, or 5m for 5 minutes ago.")  # fmt: skip
@click.option("--create", is_flag=True, help="Make the store and the topic if they are not there.")
@parameters.message_format
def consume(
    *, target: str, topic: str, group: str, count: int | None, timeout: float | None, follow: bool, finish: str, delay: float | None,
    reason: str | None, ordered: bool, start: int | str | dt.datetime, create: bool, form: str, as_json: bool,
) -> None:  # fmt: skip
    """
    Take messages of TOPIC for a group, print them and ack them.

    A message is acked when its output is flushed. What was not acked when the command ends, by Ctrl-C too, goes back to
    the group at once and is not counted as failed.

    With --follow or --timeout it waits for a topic that is not there, and gets all that is published to it.
    """
    if finish == "none":
        if follow:
            raise UsageError("--no-ack only looks at what is there, so it cannot --follow; use read --follow")
        count = count or LOOK_DEFAULT
    if delay is not None and finish != "nack":
        raise UsageError("--delay needs --nack")
    if reason is not None and finish not in ("nack", "reject"):
        raise UsageError("--reason needs --nack or --reject")
    prefetch = count if finish == "none" and count else min(count or TOGETHER, TOGETHER)
    wait_s = None if follow else timeout or 0.0
    with (
        open_target(target, create=create) as store,
        _subscribe(store, topic, group, wait_s, prefetch=prefetch, ordered=ordered or None, start=start) as consumer,
    ):
        left = count
        seen = 0
        with output.progress("consuming (messages)", count, wanted=not follow and output.goes_to_file()) as move:
            while left is None or left > 0:
                messages = _take(consumer, min(left or TOGETHER, TOGETHER), wait_s)
                if not messages:
                    break
                write_messages(messages, "json" if as_json else form)
                output.flush()
                _finish(consumer, messages, finish, delay, reason)
                seen += len(messages)
                move(seen)
                if left is not None:
                    left -= len(messages)
                if finish == "none":
                    # No lease may end while this waits: that would count as a failure.
                    wait_s = 0.0
                interrupts.check()


def _subscribe(store: Store, topic: str, group: str, wait_s: float | None, **options: Any) -> Consumer:
    """A consumer; where the topic is not there and may not be made, it is waited for (None: until a signal). Raises `TopicNotFound`."""
    end = None if wait_s is None else time.monotonic() + wait_s
    told = False
    while True:
        try:
            return store.subscribe(topic, group, **options)
        except TopicNotFound:
            if end is not None and time.monotonic() >= end:
                raise
        if not told:
            output.say("note", f"there is no topic {topic!r} yet; waiting for it (--create makes it)")
            told = True
        # All that comes to it comes after this command began.
        options["start"] = "earliest"
        interrupts.check()
        time.sleep(SLICE_SECONDS if end is None else max(0.0, min(SLICE_SECONDS, end - time.monotonic())))


def _take(consumer: Consumer, count: int, wait_s: float | None) -> list[Delivery]:
    """The next messages; none if none came in time (None: wait until a signal)."""
    end = None if wait_s is None else time.monotonic() + wait_s
    while True:
        interrupts.check()
        left = SLICE_SECONDS if end is None else max(0.0, min(end - time.monotonic(), SLICE_SECONDS))
        messages = consumer.get_many(count, timeout=left)
        if messages or (end is not None and time.monotonic() >= end):
            return messages


def _finish(consumer: Consumer, messages: list[Delivery], how: str, delay: float | None, reason: str | None) -> None:
    try:
        if how == "ack":
            consumer.ack(messages)
        elif how == "nack":
            consumer.nack(messages, delay=delay, reason=reason)
        elif how == "reject":
            for message in messages:
                consumer.reject(message, reason)
    except LeaseExpired as error:
        # Whoever reads the output took longer than the lease; others may have the message by now.
        output.say("warning", f"{error}; it may come again")
