"""`penstock pipeline latest`: the latest value of each key as a table."""

from __future__ import annotations

import click

from penstock.cli import parameters
from penstock.cli.pipeline import running


@click.command(
    epilog=parameters.examples(
        "penstock pipeline latest data users --to users-table",
        "penstock pipeline latest data users --to users-table --archive archive --continuous --every 1m",
    )
)
@parameters.target
@parameters.topic
@click.option("--to", "folder", required=True, metavar="DIR", help="The folder of the table; made if there is none.")
@click.option("--archive", metavar="DIR", help="Where `pipeline archive` writes to: older messages come from there.")
@click.option("--buckets", type=click.IntRange(1, 10_000), default=16, show_default=True, metavar="NUMBER",
              help="Parts of the table, of which a batch rewrites those that it touches; fixed when the table is made.")  # fmt: skip
@click.option("--batch", "batch_rows", type=click.IntRange(min=1), default=5_000_000, show_default=True, metavar="NUMBER",
              help="Messages that are taken in together at most.")  # fmt: skip
@running.trigger
@running.spark_options
@parameters.json_output
def latest(
    *, target: str, topic: str, folder: str, archive: str | None, buckets: int, batch_rows: int, once: bool, every: float, master: str,
    conf: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """
    Keep a table of the latest value of each key of TOPIC in DIR/current, as Parquet; tombstones remove keys.

    Run again it takes in what is new. Each version replaces the one before at once.
    """
    settings = running.check_spark(conf)
    from penstock.spark.pipelines.latest import Latest

    wanted = Latest(running.source_options(target), topic, folder, archive=archive, buckets=buckets, batch_rows=batch_rows)
    with running.session("latest", master, settings) as spark, running.live(f"the latest of {topic}") as report:
        until = running.UntilSignal(report)
        done = wanted.run(spark, until, every_s=None if once else every)
    running.summarize(done._asdict(), as_json=as_json)
    until.end()
