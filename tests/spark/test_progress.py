"""How far a pipeline is: rows a second, messages behind, the time of a batch, and the line that shows them. Needs no Spark."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli import interrupts
from penstock.cli.interrupts import Interrupted
from penstock.cli.pipeline import running
from penstock.spark.offsets import START, Offsets
from penstock.spark.pipelines.declared.run import _Followed, _together
from penstock.spark.pipelines.progress import Progress, lag_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def offsets(**topics: dict[int, int]) -> str:
    """As Spark tells them."""
    return json.dumps(Offsets(1, dict.fromkeys(topics, "id"), topics).to_json())


def batch(number: int, rows: int, millis: int, *sources: tuple[str | None, str | None]) -> Any:
    """What Spark tells of one."""
    told = [SimpleNamespace(endOffset=end, latestOffset=latest) for end, latest in sources]
    return SimpleNamespace(batchId=number, numInputRows=rows, batchDuration=millis, sources=told)


class Query:
    """One of Spark's that has told this so far."""

    def __init__(self) -> None:
        self.recentProgress: list[Any] = []
        self.ended = False

    def awaitTermination(self, seconds: float) -> bool:
        assert seconds >= 0
        return self.ended


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The handlers of the program, for one test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(interrupts, "_state", interrupts._State())
    interrupts.install()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_batch_is_told_by_its_rows_a_second_its_time_and_what_waits() -> None:
    """The last batch counts, and the rows of all; one that took no time is no error."""
    progress = Progress().after(1_000, 0.5, 300).after(200, 0.4, None)
    assert progress == Progress(batches=2, rows=1_200, rows_per_second=500.0, lag=None, batch_seconds=0.4)
    assert Progress().after(3, 0.0, 0).rows_per_second > 0


def test_the_lag_is_what_lies_between_two_offsets_in_all_partitions() -> None:
    """Also of topics and partitions that are new; what was made again, and is shorter now, is not behind."""
    end, latest = offsets(a={0: 10, 1: 5}), offsets(a={0: 25, 1: 5, 2: 3}, b={0: 2})
    assert lag_of(end, latest) == 15 + 3 + 2
    assert lag_of(end, end) == 0
    assert lag_of(latest, end) == 0


@pytest.mark.parametrize(
    "other", [None, "", "no json", "[]", "7", json.dumps(START), '{"logOffset": 4}', '{"a": {"0": 9}}', '{"_epoch": 1, "_ids": []}']
)  # fmt: skip
def test_the_lag_of_a_source_that_is_not_ours_is_none(other: str | None) -> None:
    """And none is known of a query that has not begun."""
    ours = offsets(a={0: 10})
    assert lag_of(other, ours) == 0
    assert lag_of(ours, other) == 0


def test_a_query_is_followed_batch_by_batch() -> None:
    """Each counts once, however often it is looked at; those without rows do not count, and all sources are behind together."""
    query: Any = Query()
    followed = _Followed(query)
    assert not followed.wait(0.1)
    assert followed.progress == Progress()
    query.recentProgress.append(batch(0, 0, 900, (offsets(a={0: 0}), offsets(a={0: 90}))))
    query.recentProgress.append(
        batch(1, 60, 1_500, (offsets(a={0: 60}), offsets(a={0: 90})), (offsets(b={0: 1}), offsets(b={0: 8})))
    )
    for _ in range(2):
        followed.wait(0.1)
        assert followed.progress == Progress(batches=1, rows=60, rows_per_second=40.0, lag=37, batch_seconds=1.5)
    query.recentProgress.append(batch(2, 30, 100, (offsets(a={0: 90}), offsets(a={0: 90})), ('{"logOffset": 4}', None)))
    query.ended = True
    assert followed.wait(0.1)
    assert followed.progress == Progress(batches=2, rows=90, rows_per_second=300.0, lag=0, batch_seconds=0.1)


def test_several_sinks_are_told_as_one() -> None:
    """What they do adds up; of their times the longest counts."""
    both = _together([Progress(2, 90, 300.0, 7, 0.1), Progress(1, 60, 40.0, None, 1.5)])
    assert both == Progress(batches=3, rows=150, rows_per_second=340.0, lag=7, batch_seconds=1.5)


def test_people_are_told_in_one_line() -> None:
    """Without what is not known."""
    known = Progress(batches=1_200, rows=3_456_789, rows_per_second=98_765.4, lag=1_000, batch_seconds=2.34)
    assert running.told(known) == "3,456,789 messages in 1,200 batches, 1,000 behind; the last one 98,765 rows/s in 2.3 s"
    assert running.told(Progress(batches=1, rows=2)) == "2 messages in 1 batches; the last one 0 rows/s in 0.0 s"


class Terminal(io.StringIO):
    """One that a person looks at."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("signals")
def test_a_terminal_shows_rows_a_second_lag_and_batch_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On stderr."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    with running.live("orders") as report:
        report(Progress(batches=3, rows=1_500, rows_per_second=1_250.0, lag=20, batch_seconds=0.4))
    assert "orders: 1,500 messages in 3 batches, 20 behind; the last one 1,250 rows/s in 0.4 s" in stderr.getvalue()


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("watched", [False, True])
def test_a_signal_ends_a_pipeline_with_its_summary_or_at_once(monkeypatch: pytest.MonkeyPatch, watched: bool) -> None:
    """A pipe is told nothing."""
    stderr = Terminal() if watched else io.StringIO()
    monkeypatch.setattr(sys, "stderr", stderr)
    with running.live("orders") as report:
        until = running.UntilSignal(report)
        assert until(Progress()) is False
        until.end()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Interrupted):
            report(Progress())
        assert until(Progress()) is True
        assert until(Progress()) is True
        with pytest.raises(Interrupted) as raised:
            until.end()
    assert raised.value.number == signal.SIGINT
    assert bool(stderr.getvalue()) == watched
