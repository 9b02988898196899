"""What the commands of `penstock pipeline` share: their options, the Spark session, live progress and the summary."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.escapes import printable
from penstock.client.address import is_url, parse_address
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.progress import Progress

MASTER_DEFAULT = "local[*,4]"
"""All cores of this machine, and tasks that fail are tried four times, as on a cluster."""
_QUIET = {"spark.log.level": "ERROR", "spark.ui.enabled": "false"}


# -- options --------------------------------------------------------------------------------------------------------


def spark_options(command: parameters.Command) -> parameters.Command:
    """The options --master and --conf."""
    command = click.option(
        "--conf", multiple=True, metavar="NAME=VALUE", help="A setting of Spark; may be given several times."
    )(command)
    return click.option(
        "--master", default=MASTER_DEFAULT, show_default=True, metavar="URL", help="Where Spark runs, as for spark-submit."
    )(command)


def checkpoint(command: parameters.Command) -> parameters.Command:
    """The option --checkpoint, for pipelines that have no place of their own for how far they are."""
    return click.option(
        "--checkpoint", metavar="DIR", help="Where it keeps how far it is; with the same folder it goes on."
    )(command)  # fmt: skip


def trigger(command: parameters.Command) -> parameters.Command:
    """The options --once, --continuous and --every."""
    command = click.option(
        "--every", type=parameters.duration, default="10s", show_default=True, metavar="DURATION",
        help="With --continuous: how long to wait from one batch to the next.",
    )(command)  # fmt: skip
    return click.option(
        "--once/--continuous",
        "once",
        default=True,
        help="Do what is there now and end, the default; --continuous: go on until Ctrl-C.",
    )(command)


# -- the session ----------------------------------------------------------------------------------------------------


def source_options(target: str) -> dict[str, str]:
    """The options of the data source for TARGET: the token of the environment goes with them, since executors may not have it."""
    chosen = {"store": target}
    token = os.environ.get("PENSTOCK_TOKEN")
    if is_url(target) and token and "token" not in parse_address(target).options:
        chosen["token"] = token
    return chosen


def check_spark(conf: tuple[str, ...]) -> dict[str, str]:
    """The settings that --conf gives. Raises `UsageError`, also if PySpark is not there."""
    found: dict[str, str] = {}
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--conf {one}: write it as NAME=VALUE, such as spark.executor.memory=2g")
        found[name.strip()] = value.strip()
    try:
        import pyspark  # noqa: F401
    except ImportError:
        raise UsageError("pipelines need PySpark; install it with: pip install 'penstock[spark]'") from None
    return found


@contextlib.contextmanager
def session(name: str, master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """A Spark session for one pipeline; one that this process has already is used, and left alone. Raises `Unavailable` without a Java."""
    from pyspark.sql import SparkSession

    from penstock.spark.session import get_session

    earlier = SparkSession.getActiveSession()
    if earlier is not None:
        yield earlier
        return
    with _starting():
        spark = get_session(f"penstock {name}", master=master, settings={**_QUIET, **settings})
    interrupts.install()  # Spark takes Ctrl-C for itself when it starts
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def _starting() -> Iterator[None]:
    """Some seconds in which a person would see nothing."""
    if not output.is_watched():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status("starting Spark ..."):
        yield


# -- progress -------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def live(what: str) -> Iterator[Callable[[Progress], None]]:
    """
    A line on stderr that tells how far a pipeline is, if that is a terminal.

    What it gives is the pipeline's *report*: it also ends the pipeline when a signal has come.
    """
    if not output.is_watched():
        yield lambda _progress: interrupts.check()
        return
    from rich.console import Console

    with Console(stderr=True).status(printable(f"{what} ...")) as status:

        def report(progress: Progress) -> None:
            interrupts.check()
            status.update(printable(f"{what}: {told(progress)}"))

        yield report


def told(progress: Progress) -> str:
    """One line for people."""
    lag = "" if progress.lag is None else f", {progress.lag:,} behind"
    return (
        f"{progress.rows:,} messages in {progress.batches:,} batches{lag}; the last one {progress.rows_per_second:,.0f} rows/s "
        f"in {progress.batch_seconds:.1f} s"
    )


def summarize(summary: Mapping[str, Any], *, as_json: bool) -> None:
    """Print what was done: names with `_` are shown with spaces, and times as seconds."""
    if as_json:
        output.write_json(dict(summary))
        return
    output.write_details([
        (name.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else value) for name, value in summary.items()
    ])  # fmt: skip
