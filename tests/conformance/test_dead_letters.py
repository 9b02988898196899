"""Dead letters: where messages go that failed too often, what they say, and the way back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import ReservedName, UsageError
from tests.conformance.helpers import drain, numbered, offsets, one, position, state_of, stored, take, values

if TYPE_CHECKING:
    from penstock import Consumer, Message, Store
    from tests.conformance.backends import Backend

HEADERS = (
    "source-topic",
    "source-partition",
    "source-offset",
    "group",
    "deliveries",
    "reason",
    "first-failure",
    "last-failure",
)


def fail(consumer: Consumer, times: int, reason: str | None = None) -> None:
    """The next message, failed *times* times."""
    for _ in range(times):
        one(consumer).nack(delay=0, reason=reason)


def dead_headers(message: Message) -> dict[str, str]:
    """What a dead letter says about its death."""
    return {name.removeprefix("x-dlq-"): value.decode() for name, value in message.headers if name.startswith("x-dlq-")}


@pytest.mark.parametrize("allowed", [1, 2, 5])
def test_a_message_that_failed_as_often_as_allowed_is_moved(store: Store, allowed: int) -> None:
    """Not one failure sooner, not one delivery later."""
    store.publish_many("t", numbered(2))
    with store.subscribe("t", "g", max_deliveries=allowed, prefetch=1) as consumer:
        fail(consumer, allowed - 1)
        assert len(store.dead_letters("t")) == 0
        fail(consumer, 1)
        assert values(store.dead_letters("t").list()) == [b"0"]
        assert values(drain(consumer)) == [b"1"]
        assert position(store, "t", "g") == 2
        numbers = store.stats().topics["t"].groups["g"]
        assert (numbers.dead_lettered, numbers.lag, numbers.nacked) == (1, 0, allowed)


def test_five_deliveries_are_allowed_by_default(store: Store) -> None:
    """The fifth failure is the last."""
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        for attempt in range(1, 6):
            message = one(consumer)
            assert message.attempt == attempt
            message.nack(delay=0)
        assert consumer.get(timeout=0) is None
    assert values(store.dead_letters("t").list()) == [b"x"]


def test_a_group_may_never_give_up(store: Store) -> None:
    """`max_deliveries=0`: again and again."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=0) as consumer:
        fail(consumer, 50)
        assert one(consumer).attempt == 51
    assert len(store.dead_letters("t")) == 0


def test_expired_leases_count_like_nacks(backend: Backend) -> None:
    """A handler that dies each time condemns its message too."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10, max_deliveries=3) as consumer:
        for attempt in (1, 2, 3):
            assert one(consumer).attempt == attempt
            backend.advance(11)
        assert consumer.get(timeout=0) is None
    assert values(store.dead_letters("t").list()) == [b"x"]


def test_a_rejected_message_is_moved_at_once(store: Store) -> None:
    """Whatever the number of deliveries allowed, also where none is the limit."""
    store.publish_many("t", numbered(2))
    with store.subscribe("t", "g") as consumer, store.subscribe("t", "patient", max_deliveries=0) as patient:
        one(consumer).reject("never")
        patient.reject(one(patient), reason="never ever")
        letters = store.dead_letters("t").list()
    assert values(letters) == [b"0", b"0"]
    assert [dead_headers(letter)["reason"] for letter in letters] == ["never", "never ever"]
    assert [dead_headers(letter)["deliveries"] for letter in letters] == ["1", "1"]


def test_a_dead_letter_is_the_message_it_was(store: Store) -> None:
    """Key, value, time and headers byte for byte, its own headers behind the old ones."""
    store.create_topic("t", partitions=2)
    store.publish("t", bytes(range(256)), key=b"\0k", headers=[("a", b"1"), ("a", b"2")], timestamp=12.5, partition=1)
    store.publish("t", None, partition=1)
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        fail(consumer, 2)
    first, second = store.dead_letters("t").list()
    assert (first.value, first.key, first.timestamp_us) == (bytes(range(256)), b"\0k", 12_500_000)
    assert list(first.headers)[:2] == [("a", b"1"), ("a", b"2")]
    assert (second.value, second.key) == (None, None)
    assert first.topic == "t.dlq"


def test_a_dead_letter_says_where_it_comes_from_and_why(backend: Backend) -> None:
    """Every header, with times in ISO 8601 UTC and numbers in decimal."""
    store = backend.open()
    store.create_topic("t", partitions=3)
    store.publish_many("t", numbered(5), partition=2)
    begin = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=backend.clock.now_us())
    with store.subscribe("t", "workers", max_deliveries=2) as consumer:
        drain(consumer, 3)
        backend.advance(100)
        one(consumer).nack(delay=0, reason="first reason")
        backend.advance(50)
        message = one(consumer)
        while message.offset != 3:
            message = one(consumer)
        message.nack(reason="second reason\nwith a traceback\n")
    (letter,) = store.dead_letters("t").list()
    said = dead_headers(letter)
    assert set(said) == set(HEADERS)
    assert (said["source-topic"], said["source-partition"], said["source-offset"]) == ("t", "2", "3")
    assert (said["group"], said["deliveries"], said["reason"]) == ("workers", "2", "second reason")
    first, last = (datetime.fromisoformat(said[name]) for name in ("first-failure", "last-failure"))
    assert abs(first - (begin + timedelta(seconds=100))) < timedelta(seconds=1)
    assert abs(last - (begin + timedelta(seconds=150))) < timedelta(seconds=1)
    assert first.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("x" * 1_000, "x" * 256),
        ("é" * 1_000, "é" * 256),
        ("one\r\ntwo", "one"),
        ("\x00\x1b[31mred", None),
        ("lone \ud800 surrogate", None),
    ],
    ids=["long", "long and wide", "lines", "controls", "surrogate"],
)
def test_a_reason_is_one_short_line(store: Store, reason: str, expected: str | None) -> None:
    """The first line, 256 characters at most, whatever was given; and always text."""
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        one(consumer).reject(reason)
    (letter,) = store.dead_letters("t").list()
    said = letter.headers["x-dlq-reason"].decode()
    assert len(said) <= 256
    assert "\n" not in said
    if expected is not None:
        assert said == expected


def test_an_exception_is_a_reason(store: Store) -> None:
    """A block that fails says why."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=1) as consumer, pytest.raises(KeyError), one(consumer):
        raise KeyError("the missing thing")
    (letter,) = store.dead_letters("t").list()
    assert "the missing thing" in letter.headers["x-dlq-reason"].decode()
    assert "KeyError" in letter.headers["x-dlq-reason"].decode()


@pytest.mark.parametrize("case", ["headers", "large", "old", "key"])
def test_whatever_may_be_published_can_be_buried_and_brought_back(store: Store, case: str) -> None:
    """At every limit: as many headers, as many bytes, as old, as long a key as a message may have."""
    store.create_topic("t", max_message_bytes=200_000)
    cases: dict[str, dict[str, Any]] = {
        "headers": {"value": b"x", "headers": [(f"h{number}", b"") for number in range(1_000)]},
        "large": {"value": bytes(200_000)},
        "old": {"value": b"x", "timestamp": -62_135_596_800},
        "key": {"value": b"x", "key": bytes(65_536)},
    }
    message = cases[case]
    store.publish("t", **message)
    with store.subscribe("t", "g") as consumer:
        one(consumer).reject("r" * 10_000)
        (letter,) = store.dead_letters("t").list()
        assert (letter.value, letter.key) == (message["value"], message.get("key"))
        assert letter.headers["x-dlq-reason"] == b"r" * 256
        assert store.dead_letters("t").replay() == 1
        again = one(consumer)
        assert (again.value, again.key) == (message["value"], message.get("key"))
        assert list(again.headers) == message.get("headers", [])
        assert again.attempt == 1


def test_each_group_buries_for_itself(store: Store) -> None:
    """The same message given up by two groups is two dead letters, and one that handled it has none."""
    store.publish("t", b"x")
    for group in ("a", "b"):
        with store.subscribe("t", group, max_deliveries=1) as consumer:
            fail(consumer, 1)
    with store.subscribe("t", "c") as consumer:
        assert len(drain(consumer)) == 1
    assert sorted(dead_headers(letter)["group"] for letter in store.dead_letters("t").list()) == ["a", "b"]


def test_dead_letters_are_an_ordinary_topic(store: Store) -> None:
    """It can be read and consumed; it is listed; nobody can publish to it."""
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        fail(consumer, 3)
    assert stored(store, "t.dlq") == numbered(3)
    assert "t.dlq" in [info.name for info in store.topics()]
    with store.subscribe("t.dlq", "inspectors") as consumer:
        assert values(drain(consumer)) == numbered(3)
    with pytest.raises(ReservedName):
        store.publish("t.dlq", b"x")


def test_dead_letters_of_dead_letters_are_never_made(store: Store) -> None:
    """A message that fails there as well stays there."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        fail(consumer, 1)
    with store.subscribe("t.dlq", "g", max_deliveries=1) as consumer:
        message = one(consumer)
        try:
            message.reject("again")
        except UsageError:
            message.nack(delay=0)
        for _ in range(3):
            again = consumer.get(timeout=0)
            if again is None:
                break
            again.nack(delay=0)
    assert [info.name for info in store.topics() if info.name.endswith(".dlq.dlq")] == []
    assert values(store.dead_letters("t").list()) == [b"x"]


def test_a_topic_without_dead_letters_has_an_empty_list(store: Store) -> None:
    """And asking makes no topic."""
    store.create_topic("t")
    letters = store.dead_letters("t")
    assert letters.list() == []
    assert len(letters) == 0
    assert letters.replay() == 0
    assert letters.discard() == 0
    assert [info.name for info in store.topics()] == ["t"]


def test_dead_letters_can_be_listed_in_part(store: Store) -> None:
    """The oldest first."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    letters = store.dead_letters("t")
    assert len(letters) == 10
    assert values(letters.list(max_messages=3)) == numbered(3)
    assert values(letters.list()) == numbered(10)


def test_replay_brings_all_back(store: Store) -> None:
    """To the source topic, without the headers of their death, counted from the first attempt; the dead letters are gone."""
    store.publish("t", b"a", key=b"k", headers={"mine": b"1"}, timestamp=5)
    store.publish("t", b"b")
    with store.subscribe("t", "g", max_deliveries=2) as consumer:
        for message in take(consumer):
            message.reject("bad")
        assert store.dead_letters("t").replay() == 2
        assert len(store.dead_letters("t")) == 0
        assert store.dead_letters("t").list() == []
        got = drain(consumer)
    assert values(got) == [b"a", b"b"]
    assert [message.attempt for message in got] == [1, 1]
    assert (got[0].key, list(got[0].headers), got[0].timestamp_us) == (b"k", [("mine", b"1")], 5_000_000)
    assert list(got[1].headers) == []


def test_replay_brings_some_back(store: Store) -> None:
    """Those a filter picks, or those at some offsets; the others stay."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject("odd" if int(message.value or b"") % 2 else "even")
    letters = store.dead_letters("t")
    assert letters.replay(filter=lambda message: message.headers["x-dlq-reason"] == b"odd") == 5
    assert values(letters.list()) == [b"0", b"2", b"4", b"6", b"8"]
    assert letters.replay(offsets=[letters.list()[1].offset]) == 1
    assert values(letters.list()) == [b"0", b"4", b"6", b"8"]
    assert stored(store, "t")[10:] == [b"1", b"3", b"5", b"7", b"9", b"2"]
    assert letters.replay(offsets=[]) == 0
    assert letters.replay(filter=lambda _: False) == 0


def test_a_replayed_message_goes_where_its_key_belongs(store: Store) -> None:
    """To the partition it came from."""
    store.create_topic("t", partitions=4)
    keys = [b"key-%d" % number for number in range(20)]
    before = {key: store.publish("t", b"x", key=key).partition for key in keys}
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
        store.dead_letters("t").replay()
        after = {message.key: message.partition for message in drain(consumer)}
    assert after == before


def test_a_replayed_message_may_die_again(store: Store) -> None:
    """With a dead letter that tells of its second death."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=2) as consumer:
        fail(consumer, 2, "first death")
        store.dead_letters("t").replay()
        fail(consumer, 2, "second death")
    (letter,) = store.dead_letters("t").list()
    said = dead_headers(letter)
    assert (said["reason"], said["deliveries"], said["source-offset"]) == ("second death", "2", "1")
    assert [name for name, _ in letter.headers if name == "x-dlq-reason"] == ["x-dlq-reason"]


def test_discard_drops_all_or_some(store: Store) -> None:
    """By filter, by offset, or whatever is left; the source is not touched."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    letters = store.dead_letters("t")
    assert letters.discard(filter=lambda message: message.value in {b"3", b"4"}) == 2
    assert letters.discard(offsets=[letters.list()[0].offset]) == 1
    assert values(letters.list()) == [b"1", b"2", *numbered(5, 5)]
    assert letters.discard() == 7
    assert len(letters) == 0
    assert letters.discard() == 0
    assert stored(store, "t") == numbered(10)


def test_a_filter_that_fails_changes_nothing(store: Store) -> None:
    """Its error goes up, and every dead letter is still there."""
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    letters = store.dead_letters("t")
    before = state_of(store)
    for call in (letters.replay, letters.discard):
        with pytest.raises(ZeroDivisionError):
            call(filter=lambda message: 1 // (int(message.value or b"") - 1) > 0)
    assert state_of(store) == before
    assert values(letters.list()) == numbered(3)


def test_a_seek_may_bury_the_same_message_again(store: Store) -> None:
    """Whoever goes back over a message on purpose gives it a second life, and a second death."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        fail(consumer, 1)
        store.seek("t", "g", "earliest")
        fail(consumer, 1)
    assert values(store.dead_letters("t").list()) == [b"x", b"x"]


def test_neighbours_of_a_dead_letter_live(store: Store) -> None:
    """One message that always fails among a hundred: the others are handled, and it alone is moved."""
    store.publish_many("t", numbered(100))
    handled = []
    with store.subscribe("t", "g", max_deliveries=3, prefetch=10) as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            if message.value == b"42":
                message.nack(delay=0, reason="poison")
            else:
                message.ack()
                handled.append(message.offset)
    assert sorted(handled) == [offset for offset in range(100) if offset != 42]
    assert offsets(handled_letter for handled_letter in store.dead_letters("t").list()) == [0]
    assert dead_headers(store.dead_letters("t").list()[0])["source-offset"] == "42"


def test_a_move_and_a_finish_are_one(store: Store) -> None:
    """The message is in the source for its group, or in the dead letters; never in both, never in none."""
    store.publish_many("t", numbered(20))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for dead in range(20):
            numbers = store.stats().topics["t"].groups["g"]
            assert numbers.lag + len(store.dead_letters("t")) == 20
            assert len(store.dead_letters("t")) == dead
            one(consumer).nack()
        assert drain(consumer) == []
