"""`penstock compact`: keep the latest message of each key, now."""

from __future__ import annotations

import click

from penstock.cli import output, parameters
from penstock.cli.target import open_target


@click.command(epilog=parameters.examples("penstock compact data", "penstock compact penstock://localhost:7420 prices --json"))
@parameters.target
@parameters.optional_topic
@parameters.json_output
def compact(*, target: str, topic: str | None, as_json: bool) -> None:
    """
    Keep the latest message of each key of TOPIC, or of all topics with compaction; it is done in the background too.

    Messages without a key stay, and so do tombstones for their grace. Offsets do not change.
    """
    with open_target(target) as store:
        removed = store.compact(topic)
    if as_json:
        output.write_json(removed._asdict())
    else:
        output.write_line(
            f"removed {removed.messages:,} messages, {removed.tombstones:,} of them tombstones, {removed.bytes:,} bytes; "
            f"{removed.segments:,} segments rewritten"
        )
