"""Deduplication: the same key within the window is the same message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import UsageError
from tests.conformance.helpers import all_of, drain, numbered, stored, values

if TYPE_CHECKING:
    from penstock import Store
    from tests.conformance.backends import Backend


def place(receipt: Any) -> tuple[int, int, bool]:
    """Where, and whether it was there already."""
    return receipt.partition, receipt.offset, receipt.duplicate


def test_the_same_key_is_the_same_message(store: Store) -> None:
    """The second publish returns the place of the first and stores nothing."""
    assert place(store.publish("t", b"x", dedup_key="order-17")) == (0, 0, False)
    for _ in range(5):
        assert place(store.publish("t", b"x", dedup_key="order-17")) == (0, 0, True)
    assert place(store.publish("t", b"y", dedup_key="order-18")) == (0, 1, False)
    assert stored(store, "t") == [b"x", b"y"]


def test_another_payload_under_the_same_key_is_the_first_one(store: Store) -> None:
    """The key decides; what was stored stays as it was, and is delivered once."""
    store.publish("t", b"first", dedup_key="k")
    assert place(store.publish("t", b"second", key=b"other", headers={"h": b""}, dedup_key="k")) == (0, 0, True)
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == [b"first"]


def test_messages_without_a_key_are_never_duplicates(store: Store) -> None:
    """However alike."""
    assert [place(store.publish("t", b"same", key=b"same")) for _ in range(3)] == [(0, 0, False), (0, 1, False), (0, 2, False)]


def test_a_routing_key_is_no_deduplication_key(store: Store) -> None:
    """Two words for two things."""
    store.publish("t", b"x", key=b"k", dedup_key="d")
    assert place(store.publish("t", b"x", key=b"d")) == (0, 1, False)


def test_text_and_bytes_are_one_key(store: Store) -> None:
    """Text is its UTF-8."""
    store.publish("t", b"x", dedup_key="é")
    assert place(store.publish("t", b"x", dedup_key="é".encode())) == (0, 0, True)


def test_a_key_counts_in_all_partitions(store: Store) -> None:
    """A retry that would be routed elsewhere is still a retry."""
    store.create_topic("t", partitions=4)
    first = store.publish("t", b"x", dedup_key="k")
    for _ in range(8):
        assert place(store.publish("t", b"x", dedup_key="k")) == (first.partition, first.offset, True)
    assert place(store.publish("t", b"x", key=b"some key", dedup_key="k")) == (first.partition, first.offset, True)
    assert stored(store, "t") == [b"x"]


def test_a_key_counts_in_its_topic_only(store: Store) -> None:
    """The same key in two topics is two messages."""
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 0, False)
    assert place(store.publish("u", b"x", dedup_key="k")) == (0, 0, False)


def test_a_key_is_forgotten_after_the_window(backend: Backend) -> None:
    """Two minutes unless the topic says otherwise, counted from the publish that was stored."""
    store = backend.open()
    store.publish("t", b"x", dedup_key="k")
    backend.advance(119)
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 0, True)
    backend.advance(2)
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 1, False)
    backend.advance(119)
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 1, True)


def test_a_clock_that_was_set_back_does_not_keep_keys_for_ever(backend: Backend) -> None:
    """What was published a day ahead pinned all keys behind it: their messages were taken for duplicates, and lost."""
    store, clock = backend.open(), backend.fake_clock
    clock.jump_wall(86_400)
    assert place(store.publish("t", b"x", dedup_key="b")) == (0, 0, False)
    clock.jump_wall(-86_400)
    assert place(store.publish("t", b"x", dedup_key="c")) == (0, 1, False)
    backend.advance(119)
    assert place(store.publish("t", b"x", dedup_key="c")) == (0, 1, True)
    backend.advance(3_600)
    assert place(store.publish("t", b"x", dedup_key="c")) == (0, 2, False)
    assert place(store.publish("t", b"x", dedup_key="b")) == (0, 3, False), (
        "more than a window has passed, whatever the clock said"
    )
    assert store.publish("t", b"x", dedup_key="b").duplicate
    backend.advance(2 * 86_400)
    assert place(store.publish("t", b"x", dedup_key="b")) == (0, 4, False)


def test_a_clock_that_is_set_back_within_the_window_forgets_nothing(backend: Backend) -> None:
    """As NTP does: the retry of a moment ago is still a retry; and the key lives no longer than its window."""
    store, clock = backend.open(), backend.fake_clock
    store.publish("t", b"x", dedup_key="k")
    clock.jump_wall(-100)
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 0, True)
    backend.advance(119)
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 0, True)
    backend.advance(2)
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 1, False)


@pytest.mark.parametrize("seconds", [-10 * 86_400, -121, 121, 8 * 86_400])
def test_a_clock_that_jumps_by_more_than_the_window_forgets_no_key(lasting: Backend, seconds: int) -> None:
    """
    Neither while the store is open, nor over a restart; and a window later each key may be used again.

    A restart cannot tell a jump forward from time that has passed: then a key is forgotten, and a copy is better than a loss.
    """
    store, clock = lasting.open(), lasting.fake_clock
    store.create_topic("t")
    assert place(store.publish("t", b"x", dedup_key="before")) == (0, 0, False)
    clock.jump_wall(seconds)
    assert place(store.publish("t", b"x", dedup_key="before")) == (0, 0, True)
    assert [place(one) for one in store.publish_many("t", [b"x"], dedup_keys=["before"])] == [(0, 0, True)]
    if seconds > 0:
        return
    store = lasting.reopen()
    assert place(store.publish("t", b"x", dedup_key="before")) == (0, 0, True)
    assert place(store.publish("t", b"x", dedup_key="after")) == (0, 1, False)
    lasting.advance(60)
    store = lasting.reopen()
    assert place(store.publish("t", b"x", dedup_key="after")) == (0, 1, True)
    lasting.advance(121)
    assert place(store.publish("t", b"x", dedup_key="before")) == (0, 2, False)
    assert place(store.publish("t", b"x", dedup_key="after")) == (0, 3, False)


def test_a_topic_may_have_another_window(backend: Backend) -> None:
    """An hour."""
    store = backend.open()
    store.create_topic("t", dedup_window=3_600)
    store.publish("t", b"x", dedup_key="k")
    backend.advance(3_599)
    assert store.publish("t", b"x", dedup_key="k").duplicate
    backend.advance(2)
    assert not store.publish("t", b"x", dedup_key="k").duplicate


def test_duplicates_inside_one_batch_are_found(store: Store) -> None:
    """Each key is stored once, and each receipt says where."""
    receipts = store.publish_many("t", numbered(6), dedup_keys=["a", "b", "a", None, "c", "b"])
    assert [place(receipt) for receipt in receipts] == [
        (0, 0, False),
        (0, 1, False),
        (0, 0, True),
        (0, 2, False),
        (0, 3, False),
        (0, 1, True),
    ]
    assert stored(store, "t") == [b"0", b"1", b"3", b"4"]


def test_a_batch_that_is_published_again_is_stored_once(store: Store) -> None:
    """And one that is half new stores its new half, in order."""
    keys = [f"k{number}" for number in range(10)]
    store.create_topic("t", partitions=3)
    routing = [b"r%d" % (number % 5) for number in range(10)]
    first = store.publish_many("t", numbered(10), keys=routing, dedup_keys=keys)
    again = store.publish_many("t", numbered(10), keys=routing, dedup_keys=keys)
    assert [(one.partition, one.offset) for one in again] == [(one.partition, one.offset) for one in first]
    assert all(receipt.duplicate for receipt in again)
    mixed = store.publish_many("t", numbered(10, 5), partition=0, dedup_keys=[f"k{number}" for number in range(5, 15)])
    assert [receipt.duplicate for receipt in mixed] == [True] * 5 + [False] * 5
    assert [(one.partition, one.offset) for one in mixed[:5]] == [(one.partition, one.offset) for one in first[5:]]
    assert sorted(stored(store, "t"), key=lambda value: int(value or b"")) == numbered(15)


def test_a_batch_of_duplicates_only_stores_nothing(store: Store) -> None:
    """Not even an empty batch: the next offset follows."""
    store.publish_many("t", numbered(3), dedup_keys=["a", "b", "c"])
    assert [place(one) for one in store.publish_many("t", numbered(2), dedup_keys=["c", "a"])] == [(0, 2, True), (0, 0, True)]
    assert store.publish("t", b"x").offset == 3


def test_a_refused_publish_leaves_no_key_behind(store: Store) -> None:
    """Else the retry would be called a duplicate of nothing."""
    store.create_topic("t", max_message_bytes=10)
    with pytest.raises(UsageError):
        store.publish("t", bytes(11), dedup_key="k")
    with pytest.raises(UsageError):
        store.publish_many("t", [b"x", bytes(11)], dedup_keys=["k", "l"])
    assert place(store.publish("t", b"x", dedup_key="k")) == (0, 0, False)
    assert place(store.publish("t", b"x", dedup_key="l")) == (0, 1, False)


@pytest.mark.parametrize("key", ["", b""])
def test_an_empty_key_is_refused(store: Store, key: Any) -> None:
    """It is most likely a mistake, and would swallow messages."""
    store.create_topic("t")
    with pytest.raises(UsageError):
        store.publish("t", b"x", dedup_key=key)
    with pytest.raises(UsageError):
        store.publish_many("t", [b"x"], dedup_keys=[key])
    assert stored(store, "t") == []


def test_threads_that_publish_one_key_store_one_message(live_store: Store) -> None:
    """Eight at once, fifty keys: one receipt of each is new, and all name one place."""
    receipts = all_of(lambda _: [live_store.publish("t", b"x", dedup_key=f"k{number}") for number in range(50)], range(8))
    for number in range(50):
        same = [thread[number] for thread in receipts]
        assert len({(receipt.partition, receipt.offset) for receipt in same}) == 1
        assert sum(not receipt.duplicate for receipt in same) == 1
    assert len(stored(live_store, "t")) == 50


def test_batches_that_share_keys_do_not_wait_for_each_other_for_ever(live_store: Store) -> None:
    """Six threads, the same keys in six orders: no deadlock, each key once, and every receipt names the same place."""
    live_store.create_topic("t", partitions=2)
    keys = [f"k{number}" for number in range(30)]

    def publish(turn: int) -> dict[str, tuple[int, int]]:
        order = keys[turn * 5 :] + keys[: turn * 5]
        if turn % 2:
            order.reverse()
        found: dict[str, tuple[int, int]] = {}
        for at in range(0, 30, 6):
            part = order[at : at + 6]
            receipts = live_store.publish_many("t", [key.encode() for key in part], dedup_keys=part)
            found |= {key: (receipt.partition, receipt.offset) for key, receipt in zip(part, receipts, strict=True)}
        return found

    results = all_of(publish, range(6))
    assert all(result == results[0] for result in results)
    assert {(m.partition, m.offset): (m.value or b"").decode() for m in live_store.read("t")} == {
        place: key for key, place in results[0].items()
    }


def test_keys_over_the_limit_are_forgotten_oldest_first(store: Store) -> None:
    """A hundred thousand are remembered; what is evicted may be stored twice, is never lost, and is counted."""
    for part in range(11):
        store.publish_many(
            "t", [b""] * 10_000, dedup_keys=[b"%d" % number for number in range(part * 10_000, part * 10_000 + 10_000)]
        )
    assert store.stats().topics["t"].dedup_evicted == 10_000
    assert store.publish("t", b"", dedup_key=b"109999").duplicate
    assert store.publish("t", b"", dedup_key=b"10001").duplicate
    assert store.stats().topics["t"].dedup_evicted == 10_000
    assert not store.publish("t", b"", dedup_key=b"0").duplicate
    assert store.stats().topics["t"].dedup_evicted == 10_001


def test_keys_whose_window_has_ended_are_not_counted_as_evicted(backend: Backend) -> None:
    """Only what was forgotten too early is."""
    store = backend.open()
    for number in range(10):
        store.publish_many("t", [b""] * 3, dedup_keys=[f"{number} {one}" for one in range(3)])
        backend.advance(100)
    assert store.stats().topics["t"].dedup_evicted == 0
