"""The judge finds what it is there to find: each anomaly is planted once, and named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.real_disk.checker import Judge, LogContent, Run, StoreContent
from tests.real_disk.history import Head, History, HistoryWriter, parse_value, value_of
from tests.real_disk.loop_disk import MemoryFileSystem, refuse_memory

if TYPE_CHECKING:
    import pathlib

pytestmark = pytest.mark.long

HISTORY = """\
session 1
topic a
topic w
invoke 1.0.1 always a/0:1:20
ok 1.0.1 100 0
invoke 1.0.2 always a/0:3:20
ok 1.0.2 101 1
invoke 1.0.3 always a/0:1:20
fail 1.0.3 StorageFull
invoke 1.0.4 always a/0:2:20 a/1:2:20
ok 1.0.4 103 4 0
invoke 1.0.5 weak w/0:1:20
ok 1.0.5 104 0
synced w/0 1
invoke 1.0.6 weak w/0:1:20
ok 1.0.6 105 1
invoke 1.0.7 always a/0:1:20 a/1:1:20
"""
A0 = [Run(0, "1.0.1", 0, 1, 0, 1), Run(1, "1.0.2", 0, 3, 0, 3), Run(4, "1.0.4", 0, 2, 0, 2)]
A1 = [Run(0, "1.0.4", 1, 2, 0, 2)]
W0 = [Run(0, "1.0.5", 0, 1, 0, 1), Run(1, "1.0.6", 0, 1, 0, 1)]


def content(a0: list[Run] = A0, a1: list[Run] = A1, w0: list[Run] = W0, start: int = 0) -> StoreContent:
    """A store with these runs in its three logs."""
    logs = {
        name: LogContent(first, runs[-1].offset + runs[-1].length if runs else first, runs)
        for name, runs, first in (("a/0", a0, start), ("a/1", a1, 0), ("w/0", w0, 0))
    }
    return StoreContent(logs, {"a", "w"}, [])


@pytest.fixture(name="judge")
def make_judge(tmp_path: pathlib.Path) -> Judge:
    """A judge of the history above."""
    path = tmp_path / "history"
    path.write_text(HISTORY)
    return Judge(History(str(path)).read())


def kinds(anomalies: list[str]) -> set[str]:
    """What kinds of anomalies these are."""
    return {anomaly.partition(" ")[0].rstrip(":") for anomaly in anomalies}


def test_a_store_with_all_that_was_acknowledged_is_clean(judge: Judge) -> None:
    """The operation without an answer may be there whole, or not at all."""
    assert judge.judge(content(), power_lost=False) == []
    assert judge.judge(content(), power_lost=True) == []


def test_an_operation_without_an_answer_may_be_there(judge: Judge) -> None:
    """Its outcome was unknown, and now it is known."""
    unanswered = content([*A0, Run(6, "1.0.7", 0, 1, 0, 1)], [*A1, Run(2, "1.0.7", 1, 1, 0, 1)])
    assert judge.judge(unanswered, power_lost=False) == []


def test_what_a_weaker_log_may_lose_is_no_anomaly(judge: Judge) -> None:
    """Power loss takes what was not synced, and only that."""
    assert judge.judge(content(w0=W0[:1]), power_lost=True) == []
    assert judge.lost == 1


@pytest.mark.parametrize(
    ("found", "power_lost", "expected"),
    [
        (content(A0[:2], []), True, {"lost-write"}),
        (content(w0=W0[:1]), False, {"lost-write"}),
        (content(w0=[]), True, {"lost-write"}),
        (content(a0=A0[1:], start=1), False, {"lost-write"}),
        (content([A0[0], Run(1, "1.0.4", 0, 2, 0, 2), Run(3, "1.0.2", 0, 3, 0, 3)]), False, {"inconsistent-offset", "reorder"}),
        (content([*A0, Run(6, "1.0.1", 0, 1, 0, 1)]), False, {"duplicate", "inconsistent-offset", "reorder"}),
        (
            content([A0[0], Run(1, "1.0.2", 0, 3, 0, 2), Run(3, "1.0.4", 0, 2, 0, 2)]),
            False,
            {"torn-batch", "inconsistent-offset"},
        ),
        (content([*A0, Run(6, "1.0.7", 0, 1, 0, 1)]), False, {"torn-change"}),
        (content([*A0, Run(6, "7.7.7", 0, 1, 0, 1)]), False, {"phantom"}),
        (content([*A0, Run(6, "1.0.3", 0, 1, 0, 1)]), False, {"aborted-read", "reorder"}),
        (content()._replace(topics={"a"}), False, {"lost-topic"}),
        ("MissingData: gone", False, {"broken"}),
    ],
)
def test_each_anomaly_is_named(judge: Judge, found: StoreContent | str, power_lost: bool, expected: set[str]) -> None:
    """Planted alone, found alone, with what follows from it."""
    assert kinds(judge.judge(found, power_lost=power_lost)) == expected


def test_what_was_seen_once_must_stay_even_in_a_weaker_log(judge: Judge) -> None:
    """Recovery made it durable before it showed it."""
    assert judge.judge(content(), power_lost=False) == []
    assert kinds(judge.judge(content(w0=W0[:1]), power_lost=True)) == {"lost-write"}


def test_what_was_gone_once_may_not_come_back(judge: Judge) -> None:
    """A message that one recovery did not have is not there for the next one."""
    assert judge.judge(content(w0=W0[:1]), power_lost=True) == []
    assert kinds(judge.judge(content(), power_lost=False)) == {"resurrected"}


def test_a_value_tells_every_wrong_byte() -> None:
    """Whatever byte is flipped, it is not taken for the value of some message, or at least not of this one."""
    value = value_of("3.1.22", 1, 4, 100, 64)
    assert parse_value(value) == Head("3.1.22", 1, 4, 100)
    for position in range(len(value)):
        flipped = bytearray(value)
        flipped[position] ^= 1
        assert parse_value(bytes(flipped)) is None, position


def test_a_history_is_read_on_where_it_ended(tmp_path: pathlib.Path) -> None:
    """Half a line at the end waits for the rest."""
    path = str(tmp_path / "history")
    writer = HistoryWriter(path)
    writer.line("invoke", "1.0.1", "always", "a/0:1:20")
    history = History(path).read()
    assert len(history.outcomes("pending")) == 1
    writer.ok("1.0.1", [7])
    assert [operation.parts[0].offset for operation in history.read().outcomes("ok")] == [7]


def test_memory_is_no_disk() -> None:
    """Rule R13: what is tested on tmpfs is not tested."""
    with pytest.raises(MemoryFileSystem):
        refuse_memory("/dev/shm")
