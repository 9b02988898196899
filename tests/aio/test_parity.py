"""The twins have the same names; what is missing has its reason."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import pytest

from penstock import Consumer, Delivery, Producer, Store, Transaction, aio
from penstock import open as open_plain
from tests.aio.helpers import PATIENCE


class Twins(NamedTuple):
    """A plain class and its twin, and what they need not share."""

    plain: type
    twin: type
    missing: dict[str, str]
    """Public names that the twin does not have, and why."""
    arguments: dict[str, str]
    """``call.argument`` that the twin does not take, and why."""
    extra: dict[str, str]
    """Public names that only the twin has, and why."""


_HERE = "it waits for nothing: `sync` has it"
_SYNC = "the plain one below"
_CLOSE = "for what was opened for a task that was cancelled meanwhile: there is no task to await it"

TWINS = {
    "store": Twins(
        Store,
        aio.AsyncStore,
        missing={
            "begin_publish": "the first half of `publish`, for this twin to await the second",
            "closed": _HERE,
            "committed": _HERE,
            "dead_letters": "its own calls wait: list_dead_letters, replay_dead_letters, discard_dead_letters",
            "ends": _HERE,
            "epoch_at": "for Spark, which has `sync`",
            "forget": "for a forked child, where no loop runs",
            "has_threads": _HERE,
            "measure": _HERE,
            "offset_of_time": "for Spark, which has `sync`",
            "open": "`aio.open`",
            "path": _HERE,
            "positions": "for Spark, which has `sync`",
            "read_arrow": "whole batches, for work that has a thread of its own: `sync` has it",
            "run": "workers have threads and a loop of their own; `sync.run` blocks its thread",
            "stage": "writes files with every call: `sync` has it, in a thread",
            "stop": "the same as `run`",
            "worker": "the same as `run`; it takes async functions",
        },
        arguments={},
        extra={
            "close_now": _CLOSE,
            "discard_dead_letters": "instead of `dead_letters`",
            "list_dead_letters": "instead of `dead_letters`",
            "replay_dead_letters": "instead of `dead_letters`",
            "sync": _SYNC,
        },
    ),
    "consumer": Twins(
        Consumer,
        aio.AsyncConsumer,
        missing={
            "asks_a_server": "for workers, which run in threads or in a loop of their own",
            "closed": _HERE,
            "forget": "for a forked child, where no loop runs",
            "group": _HERE,
            "ordered": _HERE,
            "take_in_loop": "for workers; `take` is like it",
            "topic": _HERE,
        },
        arguments={},
        extra={"close_now": _CLOSE, "sync": _SYNC, "take": "for the broker, which hands deliveries on"},
    ),
    "producer": Twins(
        Producer,
        aio.AsyncProducer,
        missing={"linger": "what its maker gave"},
        arguments={"flush.timeout": "`asyncio.timeout`", "send.on_done": "`add_done_callback` of the future that it gives"},
        extra={"close_now": _CLOSE},
    ),
    "transaction": Twins(
        Transaction,
        aio.AsyncTransaction,
        missing={
            "add_batch": "for the broker, whose clients encode",
            "ended": "for the end of its block",
            "finish_unleased": "for dead letters, which are the store's own",
            "first_offsets": "the same as `add_batch`",
        },
        arguments={},
        extra={},
    ),
    "delivery": Twins(Delivery, aio.AsyncDelivery, missing={}, arguments={}, extra={}),
}
USED = {"send.on_done"}
"""What a twin that passes its arguments on gives itself."""
NAMES = pytest.mark.parametrize("name", TWINS)


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Any, Any]]:
    """One object of each class and of its twin, since some names are theirs and not their class's."""
    with open_plain("memory:") as store:
        store.publish_many("t", [b"0", b"1"])
        consumer = store.subscribe("t", "g")
        producer = store.producer("t")
        transaction = store.transaction()
        delivery = consumer.get(PATIENCE)
        assert delivery is not None
        return {
            "store": (store, aio.AsyncStore(store)),
            "consumer": (consumer, aio.AsyncConsumer(consumer)),
            "producer": (producer, aio.AsyncProducer(producer, wait_when_full=True)),
            "transaction": (transaction, aio.AsyncTransaction(transaction)),
            "delivery": (delivery, aio.AsyncDelivery(delivery)),
        }


def _public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


@NAMES
def test_every_public_name_has_its_twin(name: str, pairs: dict[str, tuple[Any, Any]]) -> None:
    """Or stands in the list above with its reason."""
    plain, twin = pairs[name]
    absent = {one for one in _public(plain) if not hasattr(twin, one)}
    assert absent == set(TWINS[name].missing)


@NAMES
def test_a_twin_has_no_names_of_its_own_without_a_reason(name: str, pairs: dict[str, tuple[Any, Any]]) -> None:
    """What a user learns of the one holds for the other."""
    plain, twin = pairs[name]
    assert {one for one in _public(twin) if not hasattr(plain, one)} == set(TWINS[name].extra)


@NAMES
def test_a_twin_takes_the_same_arguments(name: str, pairs: dict[str, tuple[Any, Any]]) -> None:
    """By the same names and with the same defaults, or it passes on what it is given."""
    plain, twin = pairs[name]
    absent = set()
    for one in sorted(_public(TWINS[name].plain) & _public(TWINS[name].twin)):
        if not inspect.isfunction(inspect.getattr_static(TWINS[name].plain, one)):
            continue
        theirs = inspect.signature(getattr(twin, one)).parameters
        passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in theirs.values())
        for argument, parameter in inspect.signature(getattr(plain, one)).parameters.items():
            if argument in theirs:
                assert theirs[argument].default == parameter.default, f"{one}({argument})"
                assert theirs[argument].kind == parameter.kind, f"{one}({argument})"
            elif not passes_on or f"{one}.{argument}" in USED:
                absent.add(f"{one}.{argument}")
    assert absent == set(TWINS[name].arguments)


@NAMES
def test_a_value_is_a_value_in_both(name: str, pairs: dict[str, tuple[Any, Any]]) -> None:
    """A property of the one is no call of the other."""
    plain, twin = pairs[name]
    for one in _public(plain) & {one for one in _public(plain) if hasattr(twin, one)}:
        is_call = inspect.isroutine(inspect.getattr_static(TWINS[name].plain, one, None))
        assert is_call == inspect.isroutine(inspect.getattr_static(TWINS[name].twin, one, None)), one


def test_what_may_wait_is_awaited() -> None:
    """These are plain in both; all else that is a call gives something to await, to enter, or to iterate over."""
    plain = {
        "store": {"topics", "topic", "groups", "members", "stats", "transaction", "close_now"},
        "consumer": {"pause", "resume", "close_now"},
        "producer": {"close_now"},
        "transaction": {"publish", "publish_many", "ack", "abort"},
        "delivery": set(),
    }
    for name, twins in TWINS.items():
        calls = {one for one in _public(twins.twin) if inspect.isfunction(inspect.getattr_static(twins.twin, one))}
        awaited = {one for one in calls if _gives_something_to_wait_for(getattr(twins.twin, one))}
        assert calls - awaited == plain[name], name


def _gives_something_to_wait_for(call: Any) -> bool:
    return (
        inspect.iscoroutinefunction(call)
        or inspect.isasyncgenfunction(call)
        or str(inspect.signature(call).return_annotation).startswith("Opening[")
    )


def test_blocks_are_blocks_in_both() -> None:
    """What is entered with ``with`` is entered with ``async with``, and what is iterated over with ``async for``."""
    for twins in TWINS.values():
        for theirs, ours in (("__enter__", "__aenter__"), ("__exit__", "__aexit__"), ("__iter__", "__aiter__")):
            assert hasattr(twins.plain, theirs) == hasattr(twins.twin, ours), (twins.twin, ours)


def test_opening_takes_the_same_arguments() -> None:
    """`aio.open` passes on what it is given."""
    ours = inspect.signature(aio.open).parameters
    for name, parameter in inspect.signature(open_plain).parameters.items():
        if name in ours:
            assert ours[name].kind == parameter.kind
            assert ours[name].default == parameter.default
    assert any(parameter.kind is parameter.VAR_KEYWORD for parameter in ours.values())
