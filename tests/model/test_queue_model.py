"""The queue against dicts: hypothesis chooses what its users do, and when the process dies or the power goes."""

from __future__ import annotations

import random
import traceback
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.conftest import run_seed
from tests.model.queue_machine import (
    KEYS,
    LANES,
    ORDERED,
    PARTITIONS,
    SHARED,
    WISHES,
    LanesMachine,
    MortalMachine,
    QueueMachine,
)

if TYPE_CHECKING:
    from collections.abc import Callable

TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = settings(max_examples=160, stateful_step_count=50, deadline=None)
TestLanesModel = LanesMachine.TestCase
TestLanesModel.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)


def _seeded(machine: type[RuleBasedStateMachine], number: int) -> Any:
    """The same machine with a seed of its own: hypothesis has one for the whole run, with which all would live the same histories."""
    return hypothesis.seed(f"{run_seed()} {number}")(type(f"Long{machine.__name__}{number}", (machine,), {}))


def _long(number: int) -> Any:
    """A quarter of 2,000 histories: four test processes may share them."""
    case = pytest.mark.timeout(900)(pytest.mark.long(_seeded(QueueMachine, number).TestCase))
    case.settings = settings(max_examples=500, stateful_step_count=50, deadline=None)
    return case


TestQueueModelLong1, TestQueueModelLong2, TestQueueModelLong3, TestQueueModelLong4 = map(_long, range(1, 5))


def test_the_quarters_are_not_four_times_the_same() -> None:
    """Each lives other histories; and the same ones when the run is repeated with its seed."""

    def histories(number: int) -> list[int]:
        lived: list[int] = []

        class Machine(RuleBasedStateMachine):
            @rule(value=st.integers())
            def note(self, value: int) -> None:
                lived.append(value)

        run_state_machine_as_test(_seeded(Machine, number), settings=settings(max_examples=10, database=None))
        return lived

    one, two, three, four = map(histories, range(1, 5))
    assert len({str(one), str(two), str(three), str(four)}) == 4
    assert histories(1) == one


# -- the same with weights ----------------------------------------------------------------------------------------------
# Hypothesis shrinks well, and reaches deep states seldom: most of its histories have no messages, or no consumers. These have.

Step = tuple[str, dict[str, Any]]

HOWS = [
    "ack",
    "ack",
    "ack",
    "ack and wait",
    "nack",
    "nack now",
    "nack now",
    "nack for 5 s",
    "reject",
    "extend",
    "extend by 60 s",
]
WEIGHTS = {
    "publish": 5, "publish_wishes": 6, "publish_once": 3, "get": 14, "handle": 8, "finish": 10, "finish_late": 4, "ack_all": 2,
    "commit": 1, "seek": 1, "change_consumers": 3, "transaction": 3, "stage": 2, "commit_stages": 3,
    "take_out_dead_letters": 1, "send": 3, "advance": 6,
    "make_durable": 4, "end": 3,
}  # fmt: skip


def _random_arguments(rng: random.Random, name: str) -> dict[str, Callable[[], Any]]:
    """How each argument of a rule is chosen."""
    hows = {
        "finish_late": HOWS,
        "make_durable": ["flush", "checkpoint", "checkpoint and merge"],
        "end": ["kill", "kill", "lose power", "restart"],
        "send": ["send", "send", "send", "send again", "leave one out", "open", "send as the old one"],
        "commit_stages": ["commit", "commit", "skip and commit", "repeat", "fenced", "abort"],
    }
    return {
        "partition": lambda: rng.randrange(PARTITIONS),
        "name": lambda: rng.choice([SHARED, ORDERED]),
        "pick": lambda: rng.randrange(8),
        "other": lambda: rng.randrange(8),
        "count": lambda: rng.randint(1, 4),
        "wishes": lambda: rng.choices(WISHES, k=rng.randint(1, 4)),
        "lanes": lambda: rng.choices(LANES, k=4),
        "keys": lambda: rng.choices(KEYS, k=rng.randint(1, 3)),
        "hows": lambda: rng.choices(HOWS, k=rng.randint(1, 4)),
        "how": lambda: rng.choice(hows[name]),
        "wait": lambda: rng.random() < 0.5,
        "drop": lambda: rng.random() < 0.2,
        "finish": lambda: rng.random() < 0.8,
        "replay": lambda: rng.random() < 0.5,
        "back": lambda: rng.choice([0, 1, 2, 3, 4, None if name == "commit" else 5]),
        "place": lambda: rng.randrange(3),
        "what": lambda: rng.choice(["subscribe", "subscribe", "close", "pause or resume"]),
        "seconds": lambda: rng.choice([0.1, 1, 3, 11, 61]),
        "seed": lambda: rng.randrange(1 << 16),
    }


def _random_history(rng: random.Random, length: int) -> list[Step]:
    weights = {**WEIGHTS, "end": rng.choice([1, 3, 6])}
    history: list[Step] = [("start", {"messages": rng.randint(0, 3)})]
    for name in rng.choices(list(weights), list(weights.values()), k=length):
        chosen = _random_arguments(rng, name)
        arguments = getattr(QueueMachine, name).hypothesis_stateful_rule.arguments
        history.append((name, {argument: chosen[argument]() for argument in arguments}))
    return history


def _run(history: list[Step], kind: type[QueueMachine] = QueueMachine) -> BaseException | None:
    """Live through *history* to its end; returns what went wrong."""
    machine = kind()
    try:
        for name, arguments in history:
            if name != "take_out_dead_letters" or machine.box:
                getattr(machine, name)(**arguments)
                machine.groups_equal_their_models()
                machine.logs_end_where_their_models_do()
        machine._drain()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return error
    return None


def _shrink(history: list[Step], error: BaseException, kind: type[QueueMachine], tries: int = 1_500) -> list[Step]:
    """The same failure with as few steps as can be found quickly."""

    def where(found: BaseException | None) -> tuple[type, str] | None:
        return None if found is None else (type(found), traceback.extract_tb(found.__traceback__)[-1].name)

    wanted = where(error)
    size = len(history) // 2
    while size:
        at = 1
        while at < len(history) and tries > 0:
            shorter = history[:at] + history[at + size :]
            tries -= 1
            if where(_run(shorter, kind)) == wanted:
                history = shorter
            else:
                at += size
        size //= 2
    return history


def _check_histories(seed: int, count: int, length: int, kind: type[QueueMachine] = QueueMachine) -> None:
    for number in range(count):
        history = _random_history(random.Random(f"{seed} {kind.__name__} {number}"), length)
        error = _run(history, kind)
        if error is not None:
            shorter = _shrink(history, error, kind)
            print("\n".join(f"    {step}" for step in shorter))
            raise _run(shorter, kind) or error


DELAYED_AND_FAILED: list[Step] = [
    ("start", {"messages": 2}),
    ("publish_wishes", {"partition": 1, "wishes": [{}, {}, {"delay": "at 12 s"}], "lanes": ["medium", "low", "low", "low"]}),
    ("publish_wishes", {"partition": 0, "wishes": [{}, {}, {}], "lanes": ["medium", "medium", "high", "low"]}),
    ("commit", {"name": "shared", "pick": 6, "partition": 1, "back": 1}),
    ("advance", {"seconds": 11}),
    (
        "publish_wishes",
        {
            "partition": 1,
            "wishes": [{}, {"delay": 7, "ttl": 3}, {"delay": 3, "ttl": 15}, {"delay": 1}],
            "lanes": ["low", "low", "high", "medium"],
        },
    ),
    ("handle", {"name": "shared", "pick": 5, "hows": ["nack now", "extend", "ack"]}),
    ("advance", {"seconds": 3}),
    ("end", {"how": "restart", "seed": 6594}),
    ("get", {"name": "shared", "pick": 1, "count": 3}),
    ("finish", {"pick": 2, "hows": ["nack now", "reject", "ack", "ack"]}),
    ("handle", {"name": "shared", "pick": 3, "hows": ["reject", "ack and wait", "nack"]}),
    ("advance", {"seconds": 3}),
    ("handle", {"name": "shared", "pick": 3, "hows": ["reject", "nack", "ack", "nack"]}),
    ("publish_once", {"keys": ["b"], "partition": 1}),
    ("end", {"how": "kill", "seed": 26626}),
    (
        "publish_wishes",
        {"partition": 0, "wishes": [{}, {"delay": 30}, {"delay": 1}, {"ttl": 15}], "lanes": ["high", "low", "low", "medium"]},
    ),
    ("get", {"name": "shared", "pick": 1, "count": 3}),
    (
        "publish_wishes",
        {
            "partition": 1,
            "wishes": [{"delay": 30}, {"delay": 7}, {"delay": 7, "ttl": 3}, {"ttl": 2}],
            "lanes": ["high", "medium", "medium", "high"],
        },
    ),
    (
        "publish_wishes",
        {
            "partition": 0,
            "wishes": [{"delay": "at 12 s"}, {"ttl": 15}, {"delay": 30}],
            "lanes": ["medium", "high", "medium", "high"],
        },
    ),
]
"""What was delayed, failed, and was found after a kill, was served as if it had waited since it was published."""


def test_what_was_delayed_and_failed_does_not_count_as_waiting_since_it_was_published() -> None:
    assert _run(DELAYED_AND_FAILED, LanesMachine) is None


def test_random_histories(seed: int) -> None:
    """
    I15-I32 but for I26 over histories that do much of everything; the steps of a failure are printed.

    I26, a dead letter that cannot be written: `tests/topics/test_refusals.py` and `tests/conformance/test_disk_failures.py`. I31 is
    here for the gate of sequences; what producers make of it is in `tests/conformance/test_producers.py`.
    """
    _check_histories(seed, 80, 120)


def test_random_histories_by_lanes(seed: int) -> None:
    """The same with priorities."""
    _check_histories(seed, 40, 120, LanesMachine)


def test_what_moved_to_one_who_held_many_is_suspect() -> None:
    """Found by the random histories: the journal knew the lease of the first consumer only, which had ended."""
    history: list[Step] = [
        ("start", {"messages": 1}),
        ("publish", {"partition": 1, "count": 2}),
        ("get", {"name": ORDERED, "pick": 0, "count": 4}),
        ("publish", {"partition": 0, "count": 2}),
        ("change_consumers", {"name": ORDERED, "pick": 3, "what": "subscribe"}),
        ("advance", {"seconds": 61}),
        ("get", {"name": ORDERED, "pick": 5, "count": 2}),
        ("end", {"how": "kill", "seed": 3021}),
    ]
    error = _run(history)
    assert error is None, error


@pytest.mark.long
@pytest.mark.parametrize(("kind", "count"), [(QueueMachine, 150), (LanesMachine, 100), (MortalMachine, 50)])
def test_many_random_histories(seed: int, kind: type[QueueMachine], count: int) -> None:
    """The same, more."""
    _check_histories(seed + 1, count, 120, kind)
