"""The judge of queue tests finds what it is there to find: each anomaly is made up once, and named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real_disk.queue_checker import KINDS, DeadLetter, Final, Log, QueueChecker, Rules

RULES = Rules(
    groups=("jobs/shared", "jobs/ordered"),
    ordered=frozenset({"jobs/ordered"}),
    lease_ms={"jobs/shared": 500},
    max_deliveries={"jobs/shared": 3},
)
SHARED, ORDERED = "jobs/shared", "jobs/ordered"

# Three messages; the second is dead-lettered by the one group and retried by the other, the third is moved on in a transaction.
PUBLISHED: list[list[Any]] = [
    ["session", 1],
    ["send", "p.0", "jobs", "a", "a"],
    ["sent", "p.0", 0, 0, False],
    ["send", "p.1", "jobs", "b", "b"],
    ["crashed", "kill"],
    ["session", 2],
    ["send", "p.1", "jobs", "b", "b"],
    ["sent", "p.1", 0, 1, True],
    ["send", "p.2", "jobs", "too large", None],
    ["refused", "p.2"],
    ["send", "p.3", "jobs", "c", None],
    ["sent", "p.3", 0, 2, False],
]
HANDLED_SHARED: list[list[Any]] = [
    ["got", "m.0", SHARED, 0, 0, 1, "a", 0, 1],
    ["ack", "m.0", False],
    ["done", "m.0"],
    ["got", "m.1", SHARED, 0, 1, 1, "b", 2, 3],
    ["nack", "m.1"],
    ["done", "m.1"],
    ["flush", 1],
    ["flushed", 1],
    ["got", "m.2", SHARED, 0, 1, 2, "b", 4, 5],
    ["reject", "m.2"],
    ["done", "m.2"],
    ["got", "m.3", SHARED, 0, 2, 1, "c", 6, 7],
    ["transaction", "t.1", ["m.3"], [["results", "c0"], ["results", "c1"]]],
    ["committed", "t.1", [[0, 0], [0, 1]]],
]
HANDLED_ORDERED: list[list[Any]] = [
    ["got", "o.0", ORDERED, 0, 0, 1, "a", 0, 1],
    ["ack", "o.0", True],
    ["done", "o.0"],
    ["got", "o.1", ORDERED, 0, 1, 1, "b", 2, 3],
    ["nack", "o.1"],
    ["done", "o.1"],
    ["got", "o.2", ORDERED, 0, 1, 2, "b", 4, 5],
    ["ack", "o.2", False],
    ["done", "o.2"],
    ["got", "o.3", ORDERED, 0, 2, 1, "c", 6, 7],
    ["ack", "o.3", False],
    ["crashed", "kill"],
    ["session", 3],
    ["got", "q.3", ORDERED, 0, 2, 1, "c", 8, 9],
    ["ack", "q.3", True],
    ["done", "q.3"],
]
GOOD = PUBLISHED + HANDLED_SHARED + HANDLED_ORDERED
LETTER = DeadLetter("jobs", "shared", 0, 1, "b", 2, "no")


def final(
    jobs: list[str] | None = None,
    results: list[str] | None = None,
    dead: list[DeadLetter] | None = None,
    positions: tuple[int, int] = (3, 3),
    start: int = 0,
) -> Final:
    """What is left when all went well, but for what is given."""
    return Final(
        logs={
            ("jobs", 0): Log(start, ["a", "b", "c"][start:] if jobs is None else jobs),
            ("results", 0): Log(0, ["c0", "c1"] if results is None else results),
        },
        dead=[LETTER] if dead is None else dead,
        positions={(SHARED, 0): positions[0], (ORDERED, 0): positions[1]},
    )


def without(events: list[list[Any]], *left_out: list[Any]) -> list[list[Any]]:
    assert all(event in events for event in left_out)
    return [event for event in events if event not in left_out]


def judge(events: list[list[Any]], found: Final) -> dict[str, int]:
    checker = QueueChecker(RULES)
    for event in events:
        checker.take(event)
    told = checker.judge(found)
    assert bool(told) == bool(checker.found)
    return dict(checker.found)


def test_a_history_without_anomalies() -> None:
    """Nothing is found where nothing is; also when retention took what everybody has finished."""
    assert judge(GOOD, final()) == {}
    assert judge(GOOD, final(start=2)) == {}


def test_an_ack_that_was_not_durable_may_be_forgotten_by_a_crash_and_only_by_a_crash() -> None:
    assert judge([*GOOD, ["got", "q.4", SHARED, 0, 0, 1, "a", 20, 21], ["ack", "q.4", True], ["done", "q.4"]], final()) == {
        "redelivered-after-durable-ack": 1  # the flush covered it
    }
    lazy = without(GOOD, ["flush", 1], ["flushed", 1])
    again: list[list[Any]] = [["got", "q.4", SHARED, 0, 0, 1, "a", 20, 21], ["ack", "q.4", True], ["done", "q.4"]]
    assert judge([*lazy, *again], final()) == {}
    same_session = [*PUBLISHED, *HANDLED_SHARED[:3], ["got", "m.9", SHARED, 0, 0, 1, "a", 2, 3]]
    assert "redelivered-after-ack" in judge(same_session, final())


def test_readings_without_anomalies() -> None:
    """From the beginning, from within, twice, up to an end that grows; over a hole, and behind what retention took."""
    readings: list[list[Any]] = [
        ["read", "jobs", 0, 0, [[0, "a"], [1, "b"]]],
        ["read", "jobs", 0, 0, [[0, "a"], [1, "b"], [2, "c"]]],
        ["read", "jobs", 0, 2, [[2, "c"]]],
        ["read", "jobs", 0, 3, []],
        ["begins", "jobs", 0, 2, 40],
        ["read", "jobs", 0, 0, [[2, "c"]]],
        ["begins", "jobs", 0, 2, 40],
    ]
    assert judge([*GOOD, *readings], final(start=2)) == {}
    assert judge([*GOOD, ["read", "results", 0, 0, [[0, "c0"], [1, "c1"]]]], final()) == {}


ANOMALIES: list[tuple[str, list[list[Any]], Final]] = [
    ("non-monotonic-read", [*GOOD, ["read", "jobs", 0, 0, [[0, "a"], [2, "c"], [1, "b"]]]], final()),
    ("non-monotonic-read", [*GOOD, ["read", "jobs", 0, 0, [[0, "a"], [0, "a"]]]], final()),
    ("non-monotonic-read", [*GOOD, ["read", "jobs", 0, 1, [[0, "a"], [1, "b"]]]], final()),
    ("skipped-read", [*GOOD, ["read", "jobs", 0, 0, [[0, "a"], [2, "c"]]]], final()),
    ("skipped-read", [*GOOD, ["read", "jobs", 0, 0, [[1, "b"]]]], final()),
    ("skipped-read", [["session", 0], ["read", "jobs", 0, 0, [[1, "b"]]], *GOOD], final()),
    ("resurrected", [*GOOD, ["begins", "jobs", 0, 2, 40], ["read", "jobs", 0, 0, [[1, "b"], [2, "c"]]]], final(start=2)),
    ("resurrected", [*GOOD, ["begins", "jobs", 0, 2, 40], ["begins", "jobs", 0, 1, 41]], final(start=2)),
    ("resurrected", [*GOOD, ["begins", "jobs", 0, 2, 40], ["got", "q.9", SHARED, 0, 1, 3, "b", 50, 51]], final(start=2)),
    ("resurrected", [*GOOD, ["begins", "jobs", 0, 2, 40]], final(start=1)),
    ("lost-write", GOOD, final(jobs=["a", "b"], positions=(2, 2))),
    ("inconsistent-offset", GOOD, final(jobs=["a", "b", "x"])),
    ("phantom", [*GOOD], final(results=["c0", "c1", "nobody's"])),
    ("duplicate", [*GOOD], final(jobs=["a", "b", "c", "c"])),
    ("aborted-read", GOOD, final(jobs=["a", "b", "c", "too large"])),
    ("dedup-miss", GOOD, final(jobs=["a", "b", "c", "b"])),
    ("dedup-miss", [*GOOD, ["send", "p.0", "jobs", "a", "a"], ["sent", "p.0", 0, 3, False]], final(jobs=["a", "b", "c", "a"])),
    ("dedup-false-drop", [*GOOD, ["send", "p.4", "jobs", "d", "d"], ["sent", "p.4", 0, 1, True]], final()),
    ("reorder", [*GOOD, ["send", "p.-1", "jobs", "z", None], ["sent", "p.-1", 0, 3, False]], final(jobs=["a", "b", "c", "z"])),
    ("reorder", [*PUBLISHED, *HANDLED_SHARED, HANDLED_ORDERED[3], *HANDLED_ORDERED[:3]], final()),
    ("reorder", [*PUBLISHED, *HANDLED_SHARED, *HANDLED_ORDERED[9:], *HANDLED_ORDERED[:9]], final()),
    ("unseen", [*PUBLISHED, *HANDLED_SHARED[3:], *HANDLED_ORDERED], final()),
    ("unseen", without(GOOD, ["ack", "m.0", False], ["done", "m.0"]), final()),
    ("stuck", GOOD, final(positions=(3, 1))),
    ("redelivered-after-durable-ack", [*GOOD, ["got", "q.5", ORDERED, 0, 0, 1, "a", 30, 31]], final()),
    ("redelivered-after-durable-ack", [*GOOD, ["got", "q.5", SHARED, 0, 2, 1, "c", 30, 31]], final()),
    ("double-lease", [*GOOD[:13], ["got", "n.0", SHARED, 0, 0, 2, "a", 100, 400], *GOOD[13:]], final()),
    ("double-lease", [*GOOD[:15], ["ack", "m.0", False], ["done", "m.0"], *GOOD[15:]], final()),
    ("delivery-count", [*PUBLISHED, *HANDLED_SHARED[:8], ["got", "m.2", SHARED, 0, 1, 1, "b", 4, 5]], final()),
    ("delivery-count", [*GOOD[:12], ["got", "m.0", SHARED, 0, 0, 7, "a", 0, 1], *GOOD[13:]], final()),
    ("dlq-lost", GOOD, final(dead=[])),
    ("dlq-dup", GOOD, final(dead=[LETTER, LETTER])),
    ("dlq-dup", GOOD, final(dead=[LETTER, DeadLetter("jobs", "ordered", 0, 0, "a", 5, "the consumer's process died")])),
    ("dlq-wrong", GOOD, final(dead=[LETTER._replace(value="x")])),
    ("dlq-wrong", without(GOOD, *HANDLED_SHARED[:3]), final(dead=[LETTER, LETTER._replace(offset=0, value="a")])),
    ("lost-write", GOOD, final(results=["c0"])),
    ("partial-transaction", without(GOOD, HANDLED_SHARED[-1]), final(results=["c0"])),
    ("partial-transaction", without(GOOD, HANDLED_SHARED[-1]), final(results=[])),
    ("partial-transaction", [*without(GOOD, HANDLED_SHARED[-1]), ["got", "q.5", SHARED, 0, 2, 1, "c", 30, 31]], final()),
    (
        "partial-transaction",
        [
            *without(GOOD, HANDLED_SHARED[-1]),
            ["got", "q.5", SHARED, 0, 2, 1, "c", 30, 31],
            ["transaction", "t.2", ["q.5"], [["results", "c2"]]],
            ["committed", "t.2", [[0, 2]]],
        ],
        final(results=["c0", "c1", "c2"]),
    ),
    ("aborted-read", [*without(GOOD, HANDLED_SHARED[-1]), ["refused", "t.1"]], final()),
    ("broken", [*GOOD, ["stopped", "producer", "AssertionError"]], final()),
]


@pytest.mark.parametrize(
    ("kind", "events", "found"), ANOMALIES, ids=[f"{number}-{anomaly[0]}" for number, anomaly in enumerate(ANOMALIES)]
)
def test_each_anomaly_is_named(kind: str, events: list[list[Any]], found: Final) -> None:
    assert kind in judge(events, found)


def test_every_anomaly_was_tried() -> None:
    tried = {kind for kind, _, _ in ANOMALIES} | {"redelivered-after-ack"}
    assert tried == set(KINDS)
