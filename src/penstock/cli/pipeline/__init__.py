"""`penstock pipeline`: pipelines on Spark, one file a command. Spark is imported, and started, when one runs and its call is good."""

from __future__ import annotations

import click

from penstock.cli.pipeline.archive import archive
from penstock.cli.pipeline.latest import latest
from penstock.cli.pipeline.replay import replay
from penstock.cli.pipeline.run import run
from penstock.cli.pipeline.traffic import traffic


@click.group()
def pipeline() -> None:
    """
    Run pipelines on Spark over topics: archive them, keep the latest values, replay messages, count, run what a file says.

    They need the extra: pip install 'penstock[spark]'. Interrupted, killed or run twice, they go on where they were.
    """


for command in (archive, latest, replay, traffic, run):
    pipeline.add_command(command)
