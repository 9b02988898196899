"""`penstock pipeline run`: a pipeline that a file declares."""

from __future__ import annotations

import time

import click
from click.core import ParameterSource

from penstock.cli import output, parameters
from penstock.cli.pipeline import running
from penstock.errors import BadPipeline, UsageError


@click.command(
    epilog=parameters.examples(
        "penstock pipeline run orders.toml --check",
        "penstock pipeline run orders.toml",
        "penstock pipeline run orders.toml --master 'local[2]' --json",
    )
)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--check", is_flag=True, help="Only say whether the file is right; Spark is not started.")
@running.spark_options
@parameters.json_output
@click.pass_context
def run(context: click.Context, *, file: str, check: bool, master: str, conf: tuple[str, ...], as_json: bool) -> None:
    """
    Run the pipeline that FILE declares: sources, steps in SQL or Python, sinks.

    The file is checked before Spark is started, and everything that is wrong is told with its line. What it may hold says
    docs/reference/pipeline-file.md. Topics and Parquet get each row once. --master and --conf count more than what the file says.
    """
    started = time.monotonic()
    settings = running.check_spark(conf)
    from penstock.spark.pipelines.declared.run import DeclaredPipeline

    try:
        declared = DeclaredPipeline(file)
    except BadPipeline as error:
        problems = str(error).splitlines()
        if len(problems) == 1:
            raise
        for problem in problems:
            output.say("note", problem)
        raise UsageError(f"{file} has {len(problems)} problems; nothing was started") from None
    plan = declared.plan
    if check:
        running.summarize(
            {"pipeline": plan.name, "sources": len(plan.sources), "steps": len(plan.steps), "sinks": len(plan.sinks)},
            as_json=as_json,
        )
        return
    declared.look()
    chosen = (
        master if plan.master is None or context.get_parameter_source("master") is not ParameterSource.DEFAULT else plan.master
    )
    with running.session(plan.name, chosen, {**plan.settings, **settings}) as spark, running.live(plan.name) as report:
        until = running.UntilSignal(report)
        done = declared.run(spark, until)
    for name, progress in done.items():
        running.summarize({"sink": name, "batches": progress.batches, "rows_read": progress.rows}, as_json=as_json)
    if not as_json:
        output.say("note", f"done in {time.monotonic() - started:.1f} s")
    until.end()
