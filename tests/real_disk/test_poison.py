"""
A message that kills whoever handles it becomes a dead letter, and none of those that were prefetched with it.

The store knows what a dead process had in its hands, so it takes as many deaths as the message has deliveries, and no more.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.real_disk.processes import Child

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.long, pytest.mark.timeout(200)]

MAX_DELIVERIES = 3
SERVER = [sys.executable, "-c", "from tests.real_disk.poisoned import serve; serve()"]


class Case(NamedTuple):
    """How the poison comes."""

    messages: int = 100
    poison: int = 50
    groups: tuple[str, ...] = ("one",)
    deadly: tuple[str, ...] = ("one",)
    """The groups whose handlers die of it."""
    how: str = "get"
    """How messages are taken: get, iteration, worker, or get_many."""
    concurrency: int = 1
    ordered: bool = False
    seconds: float = 0.0
    """How long a healthy message takes."""
    deadly_seconds: float = 0.0
    """How long the poison takes until it kills."""


CASES = {
    "alone": Case(messages=1, poison=0),
    "first of twenty": Case(messages=20, poison=0),
    "in the middle of a hundred": Case(),
    "in the middle, slowly": Case(seconds=0.001, deadly_seconds=0.05),
    "last of a hundred": Case(poison=99),
    "the 150th of two hundred": Case(messages=200, poison=149),
    "first, by iteration": Case(messages=200, poison=0, how="iteration"),
    "the 150th, by iteration": Case(messages=200, poison=149, how="iteration"),
    "first, by a worker": Case(messages=200, poison=0, how="worker"),
    "the 150th, by a worker": Case(messages=200, poison=149, how="worker"),
    "in the middle of batches": Case(how="get_many"),
    "two groups, deadly in one": Case(groups=("one", "two")),
    "two groups, deadly in both": Case(groups=("one", "two"), deadly=("one", "two")),
    "two groups, the other one slow": Case(messages=20, poison=3, groups=("one", "two"), seconds=0.03),
    "four workers": Case(how="worker", concurrency=4),
    "four slow workers": Case(messages=40, poison=20, how="worker", concurrency=4, seconds=0.03, deadly_seconds=0.01),
    "four slow workers, two groups": Case(
        messages=20, poison=10, groups=("one", "two"), how="worker", concurrency=4, seconds=0.03
    ),
    "ordered": Case(ordered=True),
    "ordered, slowly": Case(ordered=True, seconds=0.001, deadly_seconds=0.05),
    "ordered, two groups": Case(ordered=True, groups=("one", "two")),
}


def die_of_it(folder: str, case: Case) -> tuple[int, dict[str, Any]]:
    """Start processes until one survives; returns how many did not, and what the last one left. Gives up in the end."""
    deaths = 0
    with Child(SERVER) as server:
        while True:
            request = {
                **case._asdict(), "path": os.path.join(folder, "store"), "max_deliveries": MAX_DELIVERIES,
                "publish": 0 if deaths else case.messages,
            }  # fmt: skip
            answer = server.ask(json.dumps(request))
            if answer["status"] == 0:
                return deaths, answer["said"]
            assert answer["status"] == 9, answer
            deaths += 1
            if deaths > 3 * MAX_DELIVERIES * len(case.deadly):
                pytest.fail(f"{deaths} processes were killed, and there is no end to it")


@pytest.mark.parametrize("name", CASES)
def test_a_poison_message_is_found_out(name: str, folder: str, record_property: Callable[[str, object], None]) -> None:
    case = CASES[name]
    deaths, left = die_of_it(folder, case)
    record_property(f"poison {name}", deaths)
    print(f"{name}: {deaths} deaths; {left}")
    assert left["lag"] == dict.fromkeys(case.groups, 0)
    reason = "the consumer's process died"
    assert sorted(left["dead"]) == sorted([group, case.poison, MAX_DELIVERIES, reason] for group in case.deadly)
    most = MAX_DELIVERIES * len(case.deadly)
    if case.how == "get_many":
        # It held more than it said that it handles at once. Then the journal tells, which does not know of the last milliseconds: the first
        # death may leave no trace, and the next may be put down to a neighbour whose ack was not durable yet.
        most += 2
    assert MAX_DELIVERIES <= deaths <= most
