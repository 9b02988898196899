"""Producers: batches in the background, a future for each message, nothing lost without a word."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import Closed, MessageTooLarge, PenstockError, ProducerFenced, ProducerFull, TopicNotFound, UsageError
from tests.conformance.helpers import PATIENCE, Running, all_of, numbered, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock import Store
    from tests.conformance.backends import Backend

NEVER = 60.0
"""A linger that no test waits for."""


def test_a_future_gives_the_receipt(live_store: Store) -> None:
    """What `publish` would have returned."""
    with live_store.producer("t") as producer:
        receipt = producer.send(b"x", key=b"k", headers={"h": b"1"}, timestamp=5).result(PATIENCE)
    assert (receipt.topic, receipt.partition, receipt.offset, receipt.duplicate) == ("t", 0, 0, False)
    (message,) = live_store.read("t")
    assert (message.value, message.key, list(message.headers), message.timestamp_us) == (b"x", b"k", [("h", b"1")], 5_000_000)


def test_messages_keep_their_order_over_batches(live_store: Store) -> None:
    """Small batches, many of them: the order of sending is the order of offsets."""
    with live_store.producer("t", batch_messages=7, linger=0.001) as producer:
        futures = [producer.send(value) for value in numbered(500)]
    assert [future.result(PATIENCE).offset for future in futures] == list(range(500))
    assert stored(live_store, "t") == numbered(500)


def test_flush_returns_when_all_is_stored(live_store: Store) -> None:
    """Whatever the linger says."""
    with live_store.producer("t", linger=NEVER) as producer:
        futures = [producer.send(value) for value in numbered(20)]
        producer.flush(PATIENCE)
        assert all(future.done() for future in futures)
        assert stored(live_store, "t") == numbered(20)


def test_flush_waits_for_what_was_sent_before_it_and_no_longer(live_store: Store) -> None:
    """Another thread that never stops sending does not keep it for ever."""
    with live_store.producer("t", linger=0.001, max_pending=1_000) as producer:
        stop, begun = threading.Event(), threading.Event()

        def send() -> None:
            while not stop.is_set():
                producer.send(b"noise")
                begun.set()

        sending = Running(send)
        try:
            assert begun.wait(PATIENCE)
            mine = [producer.send(b"mine") for _ in range(5)]
            producer.flush(PATIENCE)
            assert all(future.done() for future in mine)
        finally:
            stop.set()
            sending.result()


def test_flush_without_messages_returns(live_store: Store) -> None:
    """At once, and as often as it is called."""
    with live_store.producer("t") as producer:
        producer.flush()
        producer.flush(0)


def test_close_flushes(live_store: Store) -> None:
    """What was sent is stored when close returns."""
    producer = live_store.producer("t", linger=NEVER)
    futures = [producer.send(value) for value in numbered(20)]
    producer.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert stored(live_store, "t") == numbered(20)


def test_closing_does_not_wait_for_the_linger(live_store: Store) -> None:
    """Neither with messages that linger nor behind some that were flushed; and the store closes with it."""
    for flush in (False, True):
        producer = live_store.producer("t", linger=60)
        producer.send(b"x")
        if flush:
            producer.flush(PATIENCE)
        Running(producer.close).result()
    live_store.producer("t", linger=60).send(b"x").result(PATIENCE)
    Running(live_store.close).result()


def test_leaving_the_block_flushes_even_after_an_error(live_store: Store) -> None:
    """The messages sent before the error were sent."""
    with pytest.raises(RuntimeError, match="mine"), live_store.producer("t", linger=NEVER) as producer:
        producer.send(b"x")
        raise RuntimeError("mine")
    assert stored(live_store, "t") == [b"x"]


def test_a_closed_producer_takes_nothing(live_store: Store) -> None:
    """A typed error; closing again is no error."""
    producer = live_store.producer("t")
    producer.close()
    producer.close()
    with pytest.raises(Closed):
        producer.send(b"x")


def test_the_linger_ends_by_itself(live_store: Store) -> None:
    """One message alone is stored without a flush and without a second one."""
    with live_store.producer("t", linger=0.01) as producer:
        assert producer.send(b"x").result(PATIENCE).offset == 0


def test_a_full_batch_goes_without_waiting(live_store: Store) -> None:
    """Ten messages where a batch has ten: nobody waits for the linger."""
    with live_store.producer("t", linger=NEVER, batch_messages=10) as producer:
        futures = [producer.send(value) for value in numbered(10)]
        assert [future.result(PATIENCE).offset for future in futures] == list(range(10))


def test_a_batch_full_of_bytes_goes_without_waiting(live_store: Store) -> None:
    """Bytes count like messages."""
    with live_store.producer("t", linger=NEVER, batch_bytes=10_000) as producer:
        futures = [producer.send(bytes(5_000)) for _ in range(2)]
        assert [future.result(PATIENCE).offset for future in futures] == [0, 1]


def test_a_message_larger_than_a_batch_is_a_batch(live_store: Store) -> None:
    """`batch_bytes` is when to send, not what may be sent."""
    with live_store.producer("t", batch_bytes=1_000) as producer:
        assert producer.send(bytes(50_000)).result(PATIENCE).offset == 0


def test_a_future_is_not_done_before_its_batch(live_store: Store) -> None:
    """Nothing is called stored that only waits."""
    with live_store.producer("t", linger=NEVER) as producer:
        future = producer.send(b"x")
        assert not future.done()
        assert list(live_store.read("t")) == []
        producer.flush(PATIENCE)
        assert future.done()
        assert future.exception() is None


def test_callbacks_are_called_once_each(live_store: Store) -> None:
    """`on_done` of the call and every `add_done_callback`, before or after the end."""
    heard: Counter[str] = Counter()
    with live_store.producer("t", linger=NEVER) as producer:
        futures = [producer.send(b"x", on_done=lambda *_: heard.update(["sent with"])) for _ in range(5)]
        for future in futures:
            future.add_done_callback(lambda _: heard.update(["added before"]))
        producer.flush(PATIENCE)
        for future in futures:
            future.result(PATIENCE)
            future.add_done_callback(lambda _: heard.update(["added after"]))
    assert heard == {"sent with": 5, "added before": 5, "added after": 5}


def test_a_callback_that_fails_costs_nobody_an_answer(live_store: Store) -> None:
    """The other messages of the batch, and the next batch, are answered."""

    def fail(*_: Any) -> None:
        raise RuntimeError("a callback's own fault")

    with live_store.producer("t", linger=NEVER) as producer:
        first = producer.send(b"a", on_done=fail)
        second = producer.send(b"b")
        producer.flush(PATIENCE)
        third = producer.send(b"c")
        producer.flush(PATIENCE)
        assert [future.result(PATIENCE).offset for future in (first, second, third)] == [0, 1, 2]


def test_a_callback_that_hangs_keeps_no_other_producer_from_closing(live_store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor from having its own callbacks called: closing waits for those, and for no others."""
    monkeypatch.setattr("penstock.store.producer.CALLBACK_SECONDS", 2 * PATIENCE)
    hangs, enough = threading.Event(), threading.Event()

    def hang(*_: Any) -> None:
        hangs.set()
        enough.wait(3 * PATIENCE)

    first, second = live_store.producer("t", linger=0), live_store.producer("t", linger=NEVER)
    heard: list[Any] = []
    try:
        first.send(b"a", on_done=hang)
        assert hangs.wait(PATIENCE)
        second.send(b"b", on_done=heard.append)
        began = time.monotonic()
        second.close()
        assert time.monotonic() - began < PATIENCE
        assert len(heard) == 1
    finally:
        enough.set()
        first.close()


def test_keys_go_where_publish_puts_them(live_store: Store) -> None:
    """One routing for both."""
    live_store.create_topic("t", partitions=6)
    keys = [b"user-%d" % number for number in range(60)]
    expected = [live_store.publish("t", b"", key=key).partition for key in keys]
    with live_store.producer("t") as producer:
        futures = [producer.send(b"", key=key) for key in keys]
        assert [future.result(PATIENCE).partition for future in futures] == expected
        assert producer.send(b"", key=keys[0], partition=5).result(PATIENCE).partition == 5


def test_messages_without_a_key_use_every_partition(live_store: Store) -> None:
    """Batch by batch, in turn."""
    live_store.create_topic("t", partitions=4)
    with live_store.producer("t", batch_messages=10, linger=NEVER) as producer:
        futures = [producer.send(b"x") for _ in range(400)]
        producer.flush(PATIENCE)
        count = Counter(future.result(PATIENCE).partition for future in futures)
    assert sorted(count) == [0, 1, 2, 3]
    assert sum(count.values()) == 400


@pytest.mark.parametrize(
    "bad", [{"value": "text"}, {"value": bytes(2_000)}, {"value": b"x", "partition": 9}, {"value": b"x", "key": 5}]
)
def test_a_bad_message_is_refused_and_harms_no_other(live_store: Store, bad: dict[str, Any]) -> None:
    """Told by the call or by its future; the ones before and after it are stored."""
    live_store.create_topic("t", max_message_bytes=1_000)
    with live_store.producer("t", linger=NEVER) as producer:
        before = producer.send(b"before")
        with pytest.raises((UsageError, TopicNotFound)):
            future = producer.send(**bad)
            producer.flush(PATIENCE)
            future.result(PATIENCE)
        after = producer.send(b"after")
        producer.flush(PATIENCE)
        assert [before.result(PATIENCE).offset, after.result(PATIENCE).offset] == [0, 1]
    assert stored(live_store, "t") == [b"before", b"after"]


def test_an_oversized_message_says_what_is_too_large(live_store: Store) -> None:
    """The same error as from `publish`."""
    live_store.create_topic("t", max_message_bytes=10)
    with live_store.producer("t") as producer, pytest.raises(MessageTooLarge):
        producer.send(bytes(11)).result(PATIENCE)


def test_a_full_producer_can_say_so(live_store: Store) -> None:
    """With `when_full="raise"` the message that finds no room is refused, and room comes back with a flush."""
    with live_store.producer("t", linger=NEVER, max_pending=5, when_full="raise") as producer:
        futures = [producer.send(value) for value in numbered(5)]
        with pytest.raises(ProducerFull):
            producer.send(b"no room")
        producer.flush(PATIENCE)
        futures.append(producer.send(b"room again"))
        producer.flush(PATIENCE)
        assert [future.result(PATIENCE).offset for future in futures] == list(range(6))
    assert stored(live_store, "t") == [*numbered(5), b"room again"]


def test_a_full_producer_makes_its_caller_wait(live_store: Store) -> None:
    """With `when_full="block"` nothing is lost and nothing is refused, however small the room."""
    with live_store.producer("t", linger=0.001, max_pending=3, when_full="block") as producer:
        futures = [producer.send(value) for value in numbered(300)]
        producer.flush(PATIENCE)
    assert [future.result(PATIENCE).offset for future in futures] == list(range(300))


def test_a_caller_that_waits_for_room_does_not_wait_for_the_linger(live_store: Store) -> None:
    """A full producer has nothing to linger for: it sends."""
    with live_store.producer("t", linger=NEVER, max_pending=3, when_full="block") as producer:
        sending = Running(lambda: [producer.send(value) for value in numbered(20)])
        futures = sending.result()
        producer.flush(PATIENCE)
    assert [future.result(PATIENCE).offset for future in futures] == list(range(20))


def test_threads_may_share_a_producer(live_store: Store) -> None:
    """Each message is stored once, each thread's in its order."""
    with live_store.producer("t", batch_messages=20) as producer:

        def send(name: int) -> list[Any]:
            return [producer.send(b"%d %d" % (name, number)) for number in range(100)]

        futures = [future for thread in all_of(send, range(6)) for future in thread]
        producer.flush(PATIENCE)
    assert sorted(future.result(PATIENCE).offset for future in futures) == list(range(600))
    seen: dict[bytes, list[int]] = {}
    for value in stored(live_store, "t"):
        name, number = (value or b"").split()
        seen.setdefault(name, []).append(int(number))
    assert all(order == list(range(100)) for order in seen.values())


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads take turns far more often than usual, so that races are lost more often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_sending_beside_closing_never_hangs(live_store: Store, restless: None) -> None:
    """Each message is stored, or refused with a typed error; when close is back no future is open, and nobody has to ask."""
    enough = threading.Event()

    def send(producer: Any, futures: list[Any], begun: threading.Event) -> None:
        with contextlib.suppress(Closed):
            while not enough.is_set():
                futures.append(producer.send(b"x"))
                begun.set()

    try:
        for _ in range(60):
            producer = live_store.producer("t", linger=0.05)
            futures: list[Any] = []
            begun = threading.Event()
            sending = [Running(send, producer, futures, begun) for _ in range(2)]
            assert begun.wait(PATIENCE)
            Running(producer.close).result()
            for one in sending:
                one.result()
            assert all(future.done() for future in futures), "a future was left behind"
            assert all(future.exception() is None or isinstance(future.exception(), PenstockError) for future in futures)
    finally:
        enough.set()


def test_a_callback_that_sends_does_not_keep_a_producer_from_closing(live_store: Store) -> None:
    """Whatever was taken is stored when close is back; what comes later is refused."""
    producer = live_store.producer("t", linger=NEVER)
    futures: list[Any] = []

    enough = threading.Event()

    def again(_: object) -> None:
        with contextlib.suppress(Closed):
            if not enough.is_set():
                futures.append(producer.send(b"again", on_done=again))

    futures.append(producer.send(b"first", on_done=again))
    closing = Running(producer.close)
    try:
        closing.result()
        assert all(future.done() for future in futures)
        assert len(stored(live_store, "t")) == len(futures)
    finally:
        enough.set()
        futures[-1].exception(PATIENCE)


def test_closing_the_store_answers_every_future(live: Backend) -> None:
    """What waited in a producer is stored or failed when the store is closed, never left open."""
    store = live.open()
    producer = store.producer("t", linger=NEVER)
    futures = [producer.send(value) for value in numbered(10)]
    store.close()
    for future in futures:
        assert future.exception(PATIENCE) is None or isinstance(future.exception(PATIENCE), PenstockError)
    kept = [future for future in futures if future.exception(PATIENCE) is None]
    if live.keeps_data:
        assert len(stored(live.reopen(), "t")) == len(kept)
    with pytest.raises(Closed):
        producer.send(b"x")


def test_a_newer_producer_of_the_same_name_fences_the_older(live_store: Store) -> None:
    """From then on the older stores nothing, and is told."""
    old = live_store.producer("t", name="loader", linger=0.001)
    assert old.send(b"old").result(PATIENCE).offset == 0
    new = live_store.producer("t", name="loader", linger=0.001)
    assert new.send(b"new").result(PATIENCE).offset == 1
    for _ in range(3):
        with pytest.raises(ProducerFenced):
            old.send(b"fenced").result(PATIENCE)
    assert new.send(b"new again").result(PATIENCE).offset == 2
    assert stored(live_store, "t") == [b"old", b"new", b"new again"]
    new.close()
    with contextlib.suppress(ProducerFenced):
        old.close()


def test_other_names_and_no_names_fence_nobody(live_store: Store) -> None:
    """Two producers without a name, and two with two names, live side by side."""
    producers = [live_store.producer("t", name=name, linger=0.001) for name in (None, None, "a", "b")]
    futures = [producer.send(b"x") for _ in range(5) for producer in producers]
    for producer in producers:
        producer.flush(PATIENCE)
    assert sorted(future.result(PATIENCE).offset for future in futures) == list(range(20))
    for producer in producers:
        producer.close()


def test_a_name_is_a_name_in_the_whole_store(live_store: Store) -> None:
    """Whoever opens it again, on whatever topic, has taken over from the one before."""
    with live_store.producer("a", name="p") as old, live_store.producer("b", name="p") as new:
        with pytest.raises(ProducerFenced):
            old.send(b"x").result(PATIENCE)
        assert new.send(b"x").result(PATIENCE).offset == 0
    assert stored(live_store, "a") == []


def test_a_producer_of_the_same_name_after_closing_goes_on(live_store: Store) -> None:
    """Its new messages are new, however alike."""
    for turn in range(5):
        with live_store.producer("t", name="p") as producer:
            futures = [producer.send(b"same") for _ in range(3)]
        receipts = [future.result(PATIENCE) for future in futures]
        assert [receipt.offset for receipt in receipts] == [turn * 3, turn * 3 + 1, turn * 3 + 2]
        assert not any(receipt.duplicate for receipt in receipts)


def test_a_producer_makes_its_topic_where_publishing_would(live: Backend) -> None:
    """And says TopicNotFound where the store forbids it."""
    store = live.open()
    with store.producer("t") as producer:
        producer.send(b"x").result(PATIENCE)
    assert stored(store, "t") == [b"x"]
    strict = live.open(auto_create=False) if not live.keeps_data else live.reopen(auto_create=False)
    with pytest.raises(TopicNotFound), strict.producer("new") as producer:
        producer.send(b"x").result(PATIENCE)
    assert "new" not in [info.name for info in strict.topics()]
