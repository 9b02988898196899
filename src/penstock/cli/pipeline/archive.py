"""`penstock pipeline archive`: a topic as Parquet files."""

from __future__ import annotations

import click

from penstock.cli import output, parameters
from penstock.cli.pipeline import running


@click.command(
    epilog=parameters.examples(
        "penstock pipeline archive data orders --to archive",
        "penstock pipeline archive penstock://host:7420 orders --to /mnt/archive --continuous --every 1m",
    )
)
@parameters.target
@parameters.topic
@click.option("--to", "folder", required=True, metavar="DIR", help="The folder of the archive; made if there is none.")
@click.option("--batch", "batch_rows", type=click.IntRange(min=1), default=5_000_000, show_default=True, metavar="NUMBER",
              help="Messages that are archived together at most.")  # fmt: skip
@running.trigger
@running.spark_options
@parameters.json_output
def archive(
    *, target: str, topic: str, folder: str, batch_rows: int, once: bool, every: float, master: str, conf: tuple[str, ...], as_json: bool
) -> None:  # fmt: skip
    """
    Write the messages of TOPIC to Parquet files in DIR, by topic and date, each exactly once.

    Retention waits for it. Run again it goes on where it was; docs/pipelines.md says how to read both as one table.
    """
    settings = running.check_spark(conf)
    from penstock.spark.pipelines.archive import Archive

    wanted = Archive(running.source_options(target), topic, folder, batch_rows=batch_rows)
    with running.session("archive", master, settings) as spark, running.live(f"archiving {topic}") as report:
        done = wanted.run(spark, report, every_s=None if once else every)
    if not done.held:
        output.say("note", f"{topic} has retain=always: retention does not wait for the archive")
    running.summarize(done._asdict(), as_json=as_json)
