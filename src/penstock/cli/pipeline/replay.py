"""`penstock pipeline replay`: publish messages again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from penstock.cli import output, parameters
from penstock.cli.pipeline import running

if TYPE_CHECKING:
    import datetime as dt

    Place = int | str | dt.datetime


@click.command(
    epilog=parameters.examples(
        "penstock pipeline replay data orders --to orders-again --where \"text like '%book%'\"",
        "penstock pipeline replay data orders --to orders --dead-letters --discard --where \"header['x-dlq-reason'] like '%timeout%'\"",
        "penstock pipeline replay data orders --to load-test --archive archive --start 7d --rate 1000 --checkpoint run-1",
    )
)
@parameters.target
@parameters.topic
@click.option("--to", required=True, metavar="TOPIC", help="The topic that they are published to; made if it is not there.")
@click.option("--archive", metavar="DIR", help="Where `pipeline archive` writes to: older messages come from there.")
@click.option(
    "--dead-letters", is_flag=True, help="Replay the dead letters of TOPIC that are there, without the headers they were given."
)
@click.option("--discard", is_flag=True, help="With --dead-letters: throw away what was replayed.")
@click.option(
    "--where", metavar="SQL", help="Only messages for which this is true; it may use the columns, text and header['name']."
)
@click.option("--start", type=parameters.place, shell_complete=parameters.complete_place, default="earliest", show_default=True,
              metavar="PLACE", help="From where: an offset of each partition, or a time: that of the messages.")  # fmt: skip
@click.option("--end", type=parameters.place, shell_complete=parameters.complete_place, default="latest", show_default=True,
              metavar="PLACE", help="Up to where, likewise; that message is not replayed.")  # fmt: skip
@click.option("--rate", type=float, metavar="NUMBER", help="Messages a second, in parts; needs --checkpoint. Else all at once.")
@click.option("--run", "run_id", metavar="NAME", help="A name for the run: what was published under it is not published again.")
@running.checkpoint
@running.spark_options
@parameters.json_output
def replay(
    *, target: str, topic: str, to: str, archive: str | None, dead_letters: bool, discard: bool, where: str | None, start: Place,
    end: Place, rate: float | None, run_id: str | None, checkpoint: str | None, master: str, conf: tuple[str, ...], as_json: bool,
) -> None:  # fmt: skip
    """
    Publish messages of TOPIC again, to another topic or the same: from the log, its archive or its dead letters.

    Key, value, headers and time stay as they are. Run again with the same checkpoint it goes on; nothing comes twice.
    """
    settings = running.check_spark(conf)
    from penstock.spark.pipelines.replay import Replay

    wanted = Replay(
        running.source_options(target), topic, to, archive=archive, dead_letters=dead_letters, where=where, start=start, end=end,
        rate=rate, checkpoint=checkpoint, run=run_id, discard=discard,
    )  # fmt: skip
    with running.session("replay", master, settings) as spark, running.live(f"replaying {topic}") as report:
        until = running.UntilSignal(report)
        done = wanted.run(spark, until)
    if done.repeated and checkpoint is None:
        kept = ", and no dead letter thrown away" if discard else ""
        output.say(
            "note",
            f"run {done.run} was published before, {done.messages} messages: nothing was published now{kept}, whatever was asked for; "
            "give another selection another name",
        )
    running.summarize(done._asdict(), as_json=as_json)
    until.end()
