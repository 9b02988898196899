"""The checker of the chaos tests finds what is planted, and nothing in a good history."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.chaos.history import History, Place, make_value, parse_value

if TYPE_CHECKING:
    from collections.abc import Callable

GOOD = make_value("p", 0)
NEXT = make_value("p", 1)
POISON = make_value("p", 49)


def _history() -> History:
    """Three messages, of which the last is poison, that one group has got and finished."""
    history = History(["g"])
    for offset, value in enumerate((GOOD, NEXT, POISON)):
        place = Place(0, offset)
        history.try_publish(value)
        history.published(value, place)
        history.got("g", value, place, time.monotonic())
        history.finished("g", value, place, 1, server=0, durable=value == GOOD)
        history.read("reader", place, value)
    return history


STORED = [(Place(0, 0), GOOD), (Place(0, 1), NEXT), (Place(0, 2), POISON)]
LETTERS = [("g", POISON)]


def test_a_good_history_has_no_anomalies() -> None:
    assert _history().judge(STORED, LETTERS) == []


def test_values_tell_whose_they_are() -> None:
    assert parse_value(GOOD) == (b"p", 0)
    assert parse_value(POISON) == (b"p", 49)
    assert POISON.endswith(b"!")


def test_a_message_that_comes_again_when_its_ack_was_forgotten_by_a_crash_is_allowed() -> None:
    history = _history()
    history.server_goes()
    history.server_came()
    history.got("g", NEXT, Place(0, 1), time.monotonic())
    history.finished("g", NEXT, Place(0, 1), 1, server=2, durable=True)
    assert history.judge(STORED, LETTERS) == []


@pytest.mark.parametrize(
    ("kind", "plant", "stored", "letters"),
    [
        ("lost-write", lambda _: None, STORED[1:], LETTERS),
        ("lost-write", lambda _: None, [*STORED[:2], (Place(1, 2), POISON)], LETTERS),
        ("duplicate", lambda _: None, [*STORED, (Place(1, 0), GOOD)], LETTERS),
        ("inconsistent-offset", lambda _: None, [(Place(0, 0), NEXT), (Place(0, 1), GOOD), STORED[2]], LETTERS),
        ("inconsistent-offset", lambda history: history.got("g", b"p:7", Place(0, 0), None), STORED, LETTERS),
        ("invented", lambda history: history.got("g", b"p:50", Place(0, 3), None), [*STORED, (Place(0, 3), b"p:50")], LETTERS),
        (
            "aborted-read",
            lambda history: (history.try_publish(b"p:50"), history.was_refused(b"p:50"), history.got("g", b"p:50", Place(0, 3), None)),
            [*STORED, (Place(0, 3), b"p:50")],
            LETTERS,
        ),
        ("unseen", lambda history: history.try_publish(b"p:50"), [*STORED, (Place(0, 3), b"p:50")], LETTERS),
        ("reorder", lambda _: None, [STORED[0], STORED[2], (Place(0, 3), NEXT)], LETTERS),
        ("redelivered-after-durable-ack", lambda history: history.got("g", GOOD, Place(0, 0), time.monotonic()), STORED, LETTERS),
        (
            "redelivered-after-durable-ack",
            lambda history: history.finished("g", GOOD, Place(0, 0), 1, server=0, durable=False),
            STORED,
            LETTERS,
        ),
        ("double-lease", lambda history: history.finished("g", NEXT, Place(0, 1), 1, server=0, durable=False), STORED, LETTERS),
        (
            "delivery-count-regress",
            lambda history: history.finished("g", NEXT, Place(0, 1), 0, server=0, durable=False),
            STORED,
            LETTERS,
        ),
        ("non-monotonic-read", lambda history: history.read("reader", Place(0, 1), NEXT), STORED, LETTERS),
        ("skipped-read", lambda history: history.read("reader", Place(0, 5), b"p:51"), STORED, LETTERS),
        ("dlq-lost", lambda _: None, STORED, []),
        ("dlq-dup", lambda _: None, STORED, LETTERS * 2),
        ("dlq-stray", lambda _: None, STORED, [*LETTERS, ("g", GOOD)]),
    ],
)  # fmt: skip
def test_what_is_planted_is_found_and_named(
    kind: str,
    plant: Callable[[History], object],
    stored: list[tuple[Place, bytes]],
    letters: list[tuple[str, bytes]],
) -> None:
    history = _history()
    plant(history)
    found = history.judge(stored, letters)
    assert any(one.startswith(f"{kind}: ") for one in found), found
