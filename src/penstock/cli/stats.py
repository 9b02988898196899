"""`penstock stats`: numbers of this moment, once or again and again."""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.target import open_target
from penstock.client.address import is_url
from penstock.errors import UsageError
from penstock.sharing.names import reach
from penstock.store.metrics import StoreMetrics
from penstock.store.store import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.store.metrics import Latency
    from penstock.store.read_only import ReadOnlyStore

    Tables = list[tuple[str | None, list[str], list[list[object]]]]


REACH_SECONDS = 1.0


@click.command(
    epilog=parameters.examples(
        "penstock stats data",
        "penstock stats data --watch",
        "penstock stats penstock://localhost:7420 --watch",
        "penstock stats data --json | jq '.topics | keys'",
    )
)
@parameters.target
@click.option("--watch", "-w", is_flag=True, help="Show them again and again, with rates, until Ctrl-C.")
@click.option("--interval", type=parameters.duration, default="1s", show_default=True, help="With --watch: how often.")
@click.option("--count", type=click.IntRange(min=1), metavar="NUMBER", help="With --watch: stop after so many.")
@parameters.json_output
def stats(*, target: str, watch: bool, interval: float, count: int | None, as_json: bool) -> None:
    """
    Show how many messages there are, how they come in, and what they take.

    A folder that a program has open and shares is asked through that program. Otherwise files are read, and nothing is changed: groups and
    dead letters are then as of the last checkpoint, some seconds ago if somebody has the store open, and members and times are not known.
    """
    if count is not None and not watch:
        raise UsageError("--count needs --watch")
    with _open(target) as store:
        if not watch:
            _write(look_at_all(store), {}, as_json=as_json)
            return
        view = _View(as_json=as_json)
        try:
            left = count
            while True:
                view.show(look_at_all(store))
                left = None if left is None else left - 1
                if left == 0:
                    return
                with interrupts.allowed():
                    time.sleep(max(interval, 0.01))
        finally:
            view.close()


def look(store: ReadOnlyStore) -> StoreMetrics:
    """What a server tells, or what a reader of files sees."""
    ask = getattr(store, "metrics", None)
    return StoreMetrics(store.stats()) if ask is None else ask()


def look_at_all(store: ReadOnlyStore) -> StoreMetrics:
    """The same, and of files the groups as the last checkpoint has them."""
    stored = getattr(store, "stored_metrics", None)
    return look(store) if stored is None else stored()


def _open(target: str) -> ReadOnlyStore:
    """The store, through its owner where that shares it."""
    if not is_url(target) and target != MEMORY:
        with contextlib.suppress(OSError):
            reach(target, REACH_SECONDS).close()  # somebody listens there: opening it does not make this process its owner
            return cast("ReadOnlyStore", open_target(target))
    return open_target(target, read_only=True)


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

    def show(self, numbers: StoreMetrics) -> None:
        now = time.monotonic()
        rates: dict[str, float] = {}
        for name, topic in numbers.stats.topics.items():
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


def _write(numbers: StoreMetrics, rates: dict[str, float], *, as_json: bool) -> None:
    if as_json:
        shown = as_document(numbers)
        if rates:
            shown["rates"] = {name: round(rate, 3) for name, rate in rates.items()}
        output.write_json(shown)
        return
    for title, columns, rows in _tables(numbers, rates):
        output.write_table(columns, rows, title=title)
    stats = numbers.stats
    if stats.is_full:
        free = (
            ""
            if stats.free_bytes is None
            else f": {stats.free_bytes:,} bytes are free, of which {stats.free_bytes_floor:,} are kept"
        )
        output.say("warning", f"the disk is full, and publishing is refused{free}")


def as_document(numbers: StoreMetrics) -> dict[str, Any]:
    """The numbers as --json prints them."""
    shown = asdict(numbers.stats)
    for name, topic in numbers.topics.items():
        one = shown["topics"][name]
        one |= {"dead_letters": topic.dead_letters, "dead_letter_age_s": topic.dead_letter_age_s}
        one["publish"] = _summary(topic.publish)
        for group, found in topic.groups.items():
            one["groups"][group] |= {"lag_s": found.lag_s, "deliver_to_ack": _summary(found.deliver_to_ack)}
    if numbers.topics:
        shown["fsync"] = _summary(numbers.fsync)
    return shown


def _summary(times: Latency | None) -> dict[str, float] | None:
    if times is None:
        return None
    return {"count": times.count, "p50_s": times.p50, "p95_s": times.p95, "p99_s": times.p99}


def _tables(numbers: StoreMetrics, rates: dict[str, float]) -> Tables:
    columns = ["topic", "partitions>", "messages>", "bytes>", "ever>"]
    rows: list[list[object]] = [
        [name, topic.partitions, topic.messages, topic.bytes, sum(topic.ends.values())]
        for name, topic in numbers.stats.topics.items()
    ]
    if numbers.topics:
        columns.append("dead letters>")
        rows = [[*row, numbers.topics[str(row[0])].dead_letters if row[0] in numbers.topics else None] for row in rows]
    if rates:
        columns.append("per second>")
        rows = [[*row, round(rates.get(str(row[0]), 0))] for row in rows]
    found: Tables = [(None, columns, rows)]
    groups: list[list[object]] = [
        [topic, name, one.stats.lag, f"{one.lag_s:.1f}", one.stats.in_flight, one.stats.retrying, one.stats.members]
        for topic, metrics in numbers.topics.items()
        for name, one in metrics.groups.items()
    ]
    if groups:
        names = ["topic", "group", "lag>", "lag in seconds>", "in flight>", "retrying>", "members>"]
        found.append(("groups", names, groups))
    times: list[list[object]] = [
        [what, topic, group, one.count, *[f"{seconds * 1000:.2f}" for seconds in (one.p50, one.p95, one.p99)]]
        for what, topic, group, one in taken_times(numbers)
    ]
    if times:
        found.append(("milliseconds", ["what", "topic", "group", "count>", "p50>", "p95>", "p99>"], times))
    return found


def taken_times(numbers: StoreMetrics) -> Iterator[tuple[str, str | None, str | None, Latency]]:
    """How long things took, where that was seen: what, of which topic, of which group."""
    found: list[tuple[str, str | None, str | None, Latency | None]] = [("fsync", None, None, numbers.fsync)]
    for name, topic in numbers.topics.items():
        found.append(("publish", name, None, topic.publish))
        found += [("deliver to ack", name, group, one.deliver_to_ack) for group, one in topic.groups.items()]
    return ((what, topic, group, times) for what, topic, group, times in found if times is not None and times.count)
