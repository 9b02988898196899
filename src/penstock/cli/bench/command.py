"""`penstock bench`: measure a disk and a store on it, or a server."""

from __future__ import annotations

import os
import platform
from typing import Any

import click

from penstock.cli import output, parameters
from penstock.cli.bench import place
from penstock.cli.bench.rows import ROWS, Load, Row
from penstock.values import MESSAGE_BYTES_MAX


def _seconds(_ctx: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not 0.01 <= value <= 600:
        raise click.BadParameter("must be 10ms to 10m")
    return value


def _bytes(_ctx: click.Context, _parameter: click.Parameter, value: int) -> int:
    if not 8 <= value <= MESSAGE_BYTES_MAX // 2:
        raise click.BadParameter(f"must be 8 to {MESSAGE_BYTES_MAX // 2}")
    return value


@click.command(
    epilog=parameters.examples(
        "penstock bench", "penstock bench /mnt/disk --bytes 1KiB", "penstock bench penstock://127.0.0.1:7420 --disk /var/lib/penstock"
    )
)  # fmt: skip
@click.argument("target", required=False, default=".")
@click.option(
    "--seconds",
    type=parameters.duration,
    callback=_seconds,
    default="1s",
    show_default=True,
    help="About how long each row takes.",
)
@click.option("--bytes", "message_bytes", type=parameters.size, callback=_bytes, default="100", show_default=True,
              help="The size of a message.")  # fmt: skip
@click.option("--rate", type=click.FloatRange(1, 100_000), metavar="NUMBER", default=200, show_default=True,
              help="Messages a second for the latency of pushes.")  # fmt: skip
@click.option("--disk", type=click.Path(exists=True, file_okay=False), metavar="DIR",
              help="For a server on this machine: a folder on its disk, to compare with.")  # fmt: skip
@parameters.json_output
def bench(*, target: str, seconds: float, message_bytes: int, rate: float, disk: str | None, as_json: bool) -> None:
    """
    Measure how quick a disk and a store on it are, or a server. Takes some seconds; TARGET is the current folder if not given.

    In a folder it makes a store of its own and removes it afterwards. On a server it uses the topic penstock-bench. Every publish
    is synced. The figures of a machine that does other work at the same time are low, and differ.
    """
    load = Load(seconds, message_bytes, rate)
    output.say("note", place.said(target))
    found: list[Row] = []
    with place.prepared(target, disk) as prepared, output.progress("measuring (rows)", len(ROWS)) as move:
        kind = None if prepared.folder is None else place.file_system_of(prepared.folder)
        for number, measure in enumerate(ROWS, 1):
            found += measure(prepared, load)
            move(number)
    if kind is not None and place.is_in_memory(kind):
        output.say("warning", f"{kind} is a file system in memory: a sync costs nothing there, and nothing is durable")
    if as_json:
        output.write_json(_facts(target, kind, load) | {"rows": [row._asdict() for row in found]})
        return
    columns = ["row", "per second>", "p50>", "p99>", "of the bare disk>"]
    output.write_table(columns, [_cells(row) for row in found])


def _facts(target: str, kind: str | None, load: Load) -> dict[str, Any]:
    return {
        "target": target.partition("?")[0], "file_system": kind, "cores": len(os.sched_getaffinity(0)), "load": os.getloadavg()[0],
        "python": platform.python_version(), "message_bytes": load.message_bytes, "seconds": load.seconds,
    }  # fmt: skip


def _cells(row: Row) -> list[object]:
    rate = None if row.per_second is None else round(row.per_second)
    return [row.name, rate, _time(row.p50_us), _time(row.p99_us), None if row.of_disk is None else f"{row.of_disk:.2f}x"]


def _time(us: float | None) -> str | None:
    if us is None:
        return None
    return f"{us:.0f} us" if us < 1000 else f"{us / 1000:.1f} ms"
