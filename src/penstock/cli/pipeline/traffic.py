"""`penstock pipeline traffic`: how much goes through topics."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

import click

from penstock.cli import output, parameters
from penstock.cli.pipeline import running

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.spark.pipelines.traffic import TrafficRow


def _moment(value: str) -> dt.datetime:
    found = parameters.place(value)
    if not isinstance(found, dt.datetime):
        raise click.BadParameter(f"{value!r} is no time: use 2026-01-31T08:00Z, or 2h for 2 hours ago")
    return found


@click.command(
    epilog=parameters.examples(
        "penstock pipeline traffic data --chart traffic.svg",
        "penstock pipeline traffic data orders --window 5m --since 7d",
        "penstock pipeline traffic data --to traffic --topic traffic --chart traffic.svg",
    )
)
@parameters.target
@click.argument("topics", nargs=-1)
@click.option(
    "--window",
    type=parameters.duration,
    default="1m",
    show_default=True,
    metavar="DURATION",
    help="How long a window is: whole seconds, a day at most.",
)
@click.option("--to", "table", metavar="DIR", help="Add the new windows to the Parquet files in this folder.")
@click.option("--topic", metavar="TOPIC", help="Publish the new windows to this topic, as JSON.")
@click.option("--chart", metavar="FILE", help="Draw the windows, of the table if there is one, as SVG.")
@click.option(
    "--since",
    type=_moment,
    metavar="TIME",
    help="Without --to and --topic: from then on (2026-01-31T08:00Z, or 2h for 2 hours ago).",
)
@click.option("--until", type=_moment, metavar="TIME", help="Likewise: up to then.")
@running.spark_options
@parameters.json_output
def traffic(
    *, target: str, topics: tuple[str, ...], window: float, table: str | None, topic: str | None, chart: str | None,
    since: dt.datetime | None, until: dt.datetime | None, master: str, conf: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """
    Count what goes through TOPICS, or all: messages, bytes, how long publishing and waiting took, dead letters.

    For each topic and window of time, by when messages were appended, and delivered in topics that record it. Windows that are over are
    counted once; run again it counts those since. docs/traffic.md says what the numbers mean.
    """
    settings = running.check_spark(conf)
    from penstock.spark.pipelines.traffic import Traffic

    wanted = Traffic(
        running.source_options(target), topics, window_s=window, table=table, topic=topic, chart=chart, since=since, until=until
    )
    with running.session("traffic", master, settings) as spark, running.live("counting") as report:
        watching = running.UntilSignal(report)
        rows = wanted.run(spark, watching)
    _tell(rows, wanted.unrecorded, chart, as_json=as_json)
    watching.end()


def _tell(rows: Sequence[TrafficRow], unrecorded: Sequence[str], chart: str | None, *, as_json: bool) -> None:
    """What was counted."""
    if as_json:
        for row in rows:
            output.write_json({
                name: value.isoformat() if isinstance(value, dt.datetime) else value for name, value in dataclasses.asdict(row).items()
            })  # fmt: skip
        return
    _write(rows)
    silent = [name for name in unrecorded if any(row.topic == name for row in rows)]
    if silent:
        more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        output.say(
            "note",
            f"how long messages waited for consumers is not known of {', '.join(silent[:3])}{more}: made without --record-deliveries",
        )
    if chart is not None:
        output.say("note", f"the chart is {chart}")


def _write(rows: Sequence[TrafficRow]) -> None:
    """A line for each topic: the sums, and the worst window's latency, since percentiles cannot be added up."""
    if not rows:
        output.say("note", "no window that is over has not been counted yet")
        return
    columns = [
        "topic",
        "windows>",
        "messages>",
        "bytes>",
        "publish p50 ms>",
        "publish p99 ms>",
        "deliver p50 ms>",
        "deliver p99 ms>",
        "redelivered>",
        "dead letters>",
        "most frequent reason",
    ]
    lines = []
    for name in sorted({row.topic for row in rows}):
        own = [row for row in rows if row.topic == name]
        reasons: dict[str, int] = {}
        for row in own:
            for reason, count in row.dead_letter_reasons.items():
                reasons[reason] = reasons.get(reason, 0) + count
        again = [row.redelivered for row in own if row.redelivered is not None]
        lines.append([
            name, len(own), sum(row.messages for row in own), sum(row.bytes for row in own),
            *(_worst(own, field) for field in ("publish_ms_p50", "publish_ms_p99", "deliver_ms_p50", "deliver_ms_p99")),
            sum(again) if again else None, sum(row.dead_letters for row in own),
            max(reasons, key=lambda one: reasons[one]) if reasons else None,
        ])  # fmt: skip
    output.write_table(columns, lines)


def _worst(rows: Sequence[TrafficRow], field: str) -> str | None:
    values = [getattr(row, field) for row in rows if getattr(row, field) is not None]
    return f"{max(values):.1f}" if values else None
