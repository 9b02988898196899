"""`penstock stats`: numbers of this moment, once or again and again."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.target import open_target
from penstock.errors import UsageError

if TYPE_CHECKING:
    from penstock.store.stats import StoreStats

    Tables = list[tuple[str | None, list[str], list[list[object]]]]


@click.command(
    epilog=parameters.examples(
        "penstock stats data", "penstock stats data --watch", "penstock stats data --json | jq '.topics | keys'"
    )
)
@parameters.target
@click.option("--watch", "-w", is_flag=True, help="Show them again and again, with rates, until Ctrl-C.")
@click.option("--interval", type=parameters.duration, default="1s", show_default=True, help="With --watch: how often.")
@click.option("--count", type=click.IntRange(min=1), metavar="NUMBER", help="With --watch: stop after so many.")
@parameters.json_output
def stats(*, target: str, watch: bool, interval: float, count: int | None, as_json: bool) -> None:
    """
    Show how many messages there are, and how they come in.

    Works beside the owner of the store. Groups are known to the owner only: see `penstock groups list`.
    """
    if count is not None and not watch:
        raise UsageError("--count needs --watch")
    with open_target(target, read_only=True) as store:
        if not watch:
            _write(store.stats(), {}, as_json=as_json)
            return
        view = _View(as_json=as_json)
        try:
            left = count
            while True:
                view.show(store.stats())
                left = None if left is None else left - 1
                if left == 0:
                    return
                with interrupts.allowed():
                    time.sleep(max(interval, 0.01))
        finally:
            view.close()


class _View:
    """Shows numbers one after the other: in one place on a terminal, else below each other."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._before: dict[str, tuple[float, int]] = {}
        self._live: Any = None
        if output.is_terminal() and not as_json:
            from rich.live import Live

            self._live = Live(auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._live.start()

    def show(self, numbers: StoreStats) -> None:
        now = time.monotonic()
        rates: dict[str, float] = {}
        for name, topic in numbers.topics.items():
            end = sum(topic.ends.values())
            if name in self._before:
                then, was = self._before[name]
                rates[name] = (end - was) / max(now - then, 1e-9)
            self._before[name] = now, end
        if self._live is None:
            _write(numbers, rates, as_json=self._as_json)
            output.flush()
            return
        from rich.console import Group

        shown = [
            output.rich_table(columns, [[output.shown(cell) for cell in row] for row in rows], title=title)
            for title, columns, rows in _tables(numbers, rates)
        ]
        self._live.update(Group(*shown), refresh=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()


def _write(numbers: StoreStats, rates: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        output.write_json(
            asdict(numbers) | ({"rates": {name: round(rate, 3) for name, rate in rates.items()}} if rates else {})
        )
        return
    for title, columns, rows in _tables(numbers, rates):
        output.write_table(columns, rows, title=title)


def _tables(numbers: StoreStats, rates: dict[str, float]) -> Tables:
    columns = ["topic", "partitions>", "messages>", "ever>"]
    rows: list[list[object]] = [
        [name, topic.partitions, topic.messages, sum(topic.ends.values())] for name, topic in numbers.topics.items()
    ]
    if rates:
        columns.append("per second>")
        rows = [[*row, round(rates.get(str(row[0]), 0))] for row in rows]
    found: Tables = [(None, columns, rows)]
    groups: list[list[object]] = [
        [topic, name, group.lag, group.in_flight, group.retrying, group.members]
        for topic, one in numbers.topics.items()
        for name, group in one.groups.items()
    ]
    if groups:
        found.append(("groups", ["topic", "group", "lag>", "in flight>", "retrying>", "members>"], groups))
    return found
