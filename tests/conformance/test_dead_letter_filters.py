"""Choosing dead letters, on any store, and how long they are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock import DeadLetterFilter
from penstock.errors import BadArgument
from tests.conformance.helpers import take, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def bury(store: Store, group: str, reason: str, *messages: tuple[bytes, str, dict[str, bytes], int]) -> None:
    """Publish and dead-letter (value, key, headers, partition)."""
    for value, key, headers, partition in messages:
        store.publish("t", value, key=key, headers=headers, partition=partition)
    with store.subscribe("t", group, start="earliest") as consumer:
        for message in take(consumer, 100):
            if message.value in {one[0] for one in messages}:
                message.reject(reason)
            else:
                message.ack()
    store.flush()


@pytest.fixture
def buried(backend: Backend) -> Store:
    """Four dead letters: a and b of one group, then, an hour later, c and d of another."""
    store = backend.open()
    store.create_topic("t", partitions=2)
    bury(store, "g", "timeout of 3 s", (b"a", "k1", {"source": b"web"}, 0), (b"b", "k2", {}, 1))
    backend.advance(3600)
    bury(store, "h", "no such account", (b"c", "k1", {"source": b"shop", "x": b""}, 0), (b"d", "k2", {}, 0))
    return store


CASES: list[tuple[dict[str, Any], list[bytes]]] = [
    ({}, [b"a", b"b", b"c", b"d"]),
    ({"reason": "timeout"}, [b"a", b"b"]),
    ({"reason": "timeout*"}, [b"a", b"b"]),
    ({"reason": "*account"}, [b"c", b"d"]),
    ({"reason": "timeou?"}, []),
    ({"reason": "Timeout*"}, []),
    ({"group": "h"}, [b"c", b"d"]),
    ({"group": "other"}, []),
    ({"partition": 1}, [b"b"]),
    ({"partition": 0, "start": 1}, [b"c", b"d"]),
    ({"partition": 0, "start": 1, "end": 2}, [b"c"]),
    ({"end": 1}, [b"a", b"b"]),
    ({"key": "k1"}, [b"a", b"c"]),
    ({"key": b"k1", "group": "h"}, [b"c"]),
    ({"headers": {"source": b"web"}}, [b"a"]),
    ({"headers": {"source": None}}, [b"a", b"c"]),
    ({"headers": {"source": b"shop", "x": None}}, [b"c"]),
]


def chosen(letters: Any) -> list[Any]:
    """Their values, sorted: groups bury in an order of their own."""
    return sorted(values(letters))


def test_a_filter_takes_what_fits_all_of_it(buried: Store) -> None:
    letters = buried.dead_letters("t")
    for given, expected in CASES:
        assert chosen(letters.list(filter=DeadLetterFilter(**given))) == expected, given


def test_a_filter_by_time_is_half_open(backend: Backend, buried: Store) -> None:
    letters = buried.dead_letters("t")
    times = {letter.value: EPOCH + timedelta(microseconds=letter.append_time_us) for letter in letters.list()}
    late = DeadLetterFilter(since=times[b"c"])
    early = DeadLetterFilter(until=times[b"c"])
    assert chosen(letters.list(filter=late)) == [b"c", b"d"]
    assert chosen(letters.list(filter=early)) == [b"a", b"b"]
    assert len(letters.list(1, late)) == 1


def test_replay_and_discard_take_what_fits_and_leave_the_rest(buried: Store) -> None:
    letters = buried.dead_letters("t")
    assert letters.replay(DeadLetterFilter(reason="timeout", key="k1")) == 1
    assert chosen(letters.list()) == [b"b", b"c", b"d"]
    assert letters.discard(DeadLetterFilter(group="h")) == 2
    assert values(letters.list()) == [b"b"]
    assert chosen(list(buried.read("t"))) == [b"a", b"a", b"b", b"c", b"d"]


@pytest.mark.parametrize(
    "given",
    [{"reason": 3}, {"group": b"g"}, {"partition": -1}, {"start": "x"}, {"since": datetime(2026, 1, 1)}, {"headers": ["a"]},
     {"headers": {"a": "text"}}, {"key": 7}],
)  # fmt: skip
def test_a_filter_that_means_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        DeadLetterFilter(**given)


@pytest.mark.parametrize(("kept", "left"), [(None, 2), (3600 * 24, 0), (0, 4)])
def test_dead_letters_are_discarded_when_they_are_old(backend: Backend, kept: int | None, left: int) -> None:
    """After 30 days unless the topic says otherwise; 0 is never."""
    store = backend.open()
    extra: dict[str, Any] = {} if kept is None else {"dead_letter_retention": kept}
    store.create_topic("t", partitions=2, **extra)
    bury(store, "g", "old", (b"a", "k", {}, 0), (b"b", "k", {}, 0))
    backend.advance(29 * 86_400)
    bury(store, "h", "newer", (b"c", "k", {}, 0), (b"d", "k", {}, 0))
    store.retain()
    letters = store.dead_letters("t")
    assert len(letters) == (2 if kept else 4)
    backend.advance(2 * 86_400)
    store.retain()
    assert len(letters) == left
    assert len(letters.list()) == left
    if backend.keeps_data:
        store.flush()
        assert len(backend.reopen().dead_letters("t")) == left
