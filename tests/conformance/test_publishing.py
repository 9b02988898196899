"""Publishing: what goes in comes out, where it goes, and what one call promises."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BatchTooLarge, MessageTooLarge, PenstockError, TopicNotFound, UsageError
from tests.conformance.helpers import all_of, numbered, state_of, stored, values

if TYPE_CHECKING:
    import random

    from penstock import Message, Store
    from tests.conformance.backends import Backend

WEIRD = [
    b"",
    b"\0",
    b"\0" * 1000,
    bytes(range(256)),
    b"PNSTKSEG" * 20,
    b"\r\n\r\nHTTP/1.1 200 OK\r\n",
    b"cos\nsystem\n(S'touch pwned'\ntR.",
    "é\u202e\U0001f600".encode(),
]


def only(store: Store, topic: str = "t") -> Message:
    """The one message of a topic."""
    (message,) = store.read(topic)
    return message


# -- what comes out -------------------------------------------------------------------------------------------------


def test_a_receipt_says_where_the_message_is(store: Store) -> None:
    """Topic, partition, offset; and that it is new."""
    store.create_topic("t", partitions=3)
    receipt = store.publish("t", b"x", partition=2)
    assert (receipt.topic, receipt.partition, receipt.offset, receipt.duplicate) == ("t", 2, 0, False)
    message = only(store)
    assert (message.topic, message.partition, message.offset, message.value) == ("t", 2, 0, b"x")


def test_offsets_are_dense_from_zero(store: Store) -> None:
    """Each publish takes the next."""
    assert [store.publish("t", b"x").offset for _ in range(50)] == list(range(50))
    assert [message.offset for message in store.read("t")] == list(range(50))


def test_messages_come_back_in_the_order_of_their_publishing(store: Store) -> None:
    """Singles and batches mixed."""
    expected: list[bytes] = []
    for number in range(20):
        store.publish("t", b"single %d" % number)
        store.publish_many("t", [b"many %d %d" % (number, part) for part in range(number % 4 + 1)])
        expected.append(b"single %d" % number)
        expected += [b"many %d %d" % (number, part) for part in range(number % 4 + 1)]
    assert stored(store, "t") == expected


@pytest.mark.parametrize("value", WEIRD, ids=range(len(WEIRD)))
def test_any_bytes_come_back_as_they_are(store: Store, value: bytes) -> None:
    """As value, as key, as a header's value; by reading and by delivery."""
    store.publish("t", value, key=value, headers={"h": value})
    with store.subscribe("t", "g") as consumer:
        delivered = consumer.get(timeout=0)
    assert delivered is not None
    for message in (only(store), delivered):
        assert message.value == value
        assert message.key == value
        assert list(message.headers) == [("h", value)]
        assert type(message.value) is bytes


def test_random_messages_come_back_as_they_are(store: Store, rng: random.Random, seed: int) -> None:
    """Many sizes, with and without key and headers, in batches of many sizes."""
    print("seed", seed)
    expected: list[tuple[Any, ...]] = []
    for _ in range(30):
        count = rng.randint(1, 30)
        batch = [rng.randbytes(rng.choice([0, 1, 7, 100, 3000])) for _ in range(count)]
        keys = [rng.choice([None, b"", rng.randbytes(8)]) for _ in range(count)]
        headers = [rng.choice([None, [("a", rng.randbytes(3)), ("a", b"")]]) for _ in range(count)]
        store.publish_many("t", batch, keys=keys, headers=headers)
        expected += zip(batch, keys, [one or [] for one in headers], strict=True)
    assert [(one.value, one.key, list(one.headers)) for one in store.read("t")] == expected


def test_an_empty_value_is_not_a_tombstone(store: Store) -> None:
    """None and b"" are two things, and stay two."""
    store.publish("t", None, key=b"k")
    store.publish("t", b"", key=b"k")
    assert stored(store, "t") == [None, b""]


def test_an_empty_key_is_not_a_missing_one(store: Store) -> None:
    """None and b"" again."""
    store.publish("t", b"x", key=None)
    store.publish("t", b"x", key=b"")
    assert [message.key for message in store.read("t")] == [None, b""]


def test_a_key_may_be_text(store: Store) -> None:
    """It is stored as UTF-8 and goes where its bytes go."""
    store.create_topic("t", partitions=8)
    places = [
        (store.publish("t", b"x", key=text).partition, store.publish("t", b"x", key=text.encode()).partition)
        for text in ("user-1", "é", "\U0001f600", "")
    ]
    assert all(first == second for first, second in places)
    assert {message.key for message in store.read("t")} == {b"user-1", "é".encode(), "\U0001f600".encode(), b""}


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview], ids=lambda kind: kind.__name__)
def test_anything_like_bytes_is_taken(store: Store, kind: Any) -> None:
    """And comes back as bytes."""
    store.publish("t", kind(b"value"), key=kind(b"key"), headers={"h": kind(b"header")})
    message = only(store)
    assert (message.value, message.key, message.headers["h"]) == (b"value", b"key", b"header")


def test_a_message_does_not_change_with_the_buffer_it_came_from(store: Store) -> None:
    """The publisher may use the buffer again as soon as the call is back."""
    buffer: Any = bytearray(b"before")
    store.publish("t", buffer)
    buffer[:] = b"after!"
    assert stored(store, "t") == [b"before"]


def test_headers_keep_their_order_and_their_repeats(store: Store) -> None:
    """A list of pairs, read back as pairs, by name, and all of a name."""
    pairs = [("b", b"1"), ("a", b"2"), ("b", b"3"), ("é", b"")]
    store.publish("t", b"x", headers=pairs)
    headers = only(store).headers
    assert list(headers) == pairs
    assert headers.get_all("b") == [b"1", b"3"]
    assert headers["a"] == b"2"
    assert headers["é"] == b""
    assert headers.get("nope") is None
    assert list(headers.get_all("nope")) == []
    with pytest.raises(KeyError):
        headers["nope"]


def test_headers_may_be_a_dict(store: Store) -> None:
    """In its order."""
    store.publish("t", b"x", headers={"z": b"1", "a": b"2"})
    assert list(only(store).headers) == [("z", b"1"), ("a", b"2")]


def test_a_message_without_headers_has_empty_ones(store: Store) -> None:
    """Not None: they can be asked like any."""
    store.publish("t", b"x")
    headers = only(store).headers
    assert list(headers) == []
    assert headers.get("a") is None


def test_a_message_without_a_time_has_that_of_its_publishing(backend: Backend) -> None:
    """By the store's clock, in UTC."""
    store = backend.open()
    store.publish("t", b"x")
    backend.advance(1.5)
    store.publish("t", b"y")
    first, second = store.read("t")
    assert second.timestamp_us - first.timestamp_us == 1_500_000
    assert second.timestamp_us == backend.clock.now_us()
    assert second.timestamp == datetime.fromtimestamp(second.timestamp_us / 1e6, UTC)
    assert second.timestamp.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("given", "expected_us"),
    [
        (0, 0),
        (1_700_000_000, 1_700_000_000_000_000),
        (1_600_000_000.25, 1_600_000_000_250_000),
        (datetime(2024, 2, 29, 12, 0, 0, 123_456, UTC), 1_709_208_000_123_456),
        (datetime(2024, 2, 29, 13, 0, 0, 123_456, timezone(timedelta(hours=1))), 1_709_208_000_123_456),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
    ],
    ids=str,
)
def test_a_message_may_bring_its_time(store: Store, given: Any, expected_us: int) -> None:
    """Seconds since 1970, or a datetime that knows its zone; to the microsecond."""
    store.publish("t", b"x", timestamp=given)
    message = only(store)
    assert message.timestamp_us == expected_us
    assert message.timestamp == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=expected_us)


@pytest.mark.parametrize(
    "seconds", [-1, -0.5, -62_135_596_800, -62_135_596_801, 253_402_300_799, 253_402_300_800, 4e11, -4e11, 4.6e12, 1e15]
)
def test_a_time_that_is_taken_can_be_read(store: Store, seconds: float) -> None:
    """Before 1970, or as far away as a datetime can be; what lies further is refused and not found out by the reader."""
    try:
        store.publish("t", b"x", timestamp=seconds)
    except UsageError:
        assert store.topics() == [] or stored(store, "t") == []
        assert not -62_135_596_800 <= seconds <= 253_402_300_799
        return
    with store.subscribe("t", "g") as consumer:
        delivered = consumer.get(timeout=0)
    assert delivered is not None
    for message in (only(store), delivered):
        assert message.timestamp_us == round(seconds * 1_000_000)
        assert message.timestamp == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


# -- where it goes --------------------------------------------------------------------------------------------------


def test_one_key_goes_to_one_partition(store: Store) -> None:
    """Whichever way it is published, and whatever else is published in between."""
    store.create_topic("t", partitions=5)
    places: dict[bytes, set[int]] = defaultdict(set)
    for turn in range(4):
        for number in range(40):
            key = b"user-%d" % number
            places[key].add(store.publish("t", b"x", key=key).partition)
            store.publish("t", b"no key")
        keys = [b"user-%d" % number for number in range(turn, 40)]
        for key, receipt in zip(keys, store.publish_many("t", [b"x"] * len(keys), keys=keys), strict=True):
            places[key].add(receipt.partition)
    assert all(len(where) == 1 for where in places.values())


def test_keys_spread_over_all_partitions(store: Store) -> None:
    """A thousand keys on eight partitions: none is empty, none has a third."""
    store.create_topic("t", partitions=8)
    keys = [b"user-%d" % number for number in range(1000)]
    count = Counter(receipt.partition for receipt in store.publish_many("t", [b""] * 1000, keys=keys))
    assert sorted(count) == list(range(8))
    assert max(count.values()) < 333


def test_messages_without_a_key_go_round(store: Store) -> None:
    """One at a time they share the partitions evenly, each topic by itself."""
    store.create_topic("t", partitions=4)
    store.create_topic("other", partitions=4)
    count: Counter[int] = Counter()
    for _ in range(100):
        count[store.publish("t", b"x").partition] += 1
        store.publish("other", b"x")
    assert sorted(count) == [0, 1, 2, 3]
    assert max(count.values()) - min(count.values()) <= 1


def test_the_partition_that_is_asked_for_wins_over_the_key(store: Store) -> None:
    """Explicit beats clever."""
    store.create_topic("t", partitions=4)
    assert [store.publish("t", b"x", key=b"k", partition=number).partition for number in range(4)] == [0, 1, 2, 3]
    assert {receipt.partition for receipt in store.publish_many("t", [b"x"] * 3, keys=[b"a", b"b", b"c"], partition=2)} == {2}


@pytest.mark.parametrize("partition", [4, 1_000_000, 1 << 63])
def test_a_partition_that_is_not_there_is_an_error(store: Store, partition: int) -> None:
    """And nothing is stored in another one."""
    store.create_topic("t", partitions=4)
    for publish in (
        lambda: store.publish("t", b"x", partition=partition),
        lambda: store.publish_many("t", [b"x"], partition=partition),
    ):
        with pytest.raises((TopicNotFound, UsageError)):
            publish()
    assert stored(store, "t") == []


# -- many at once ---------------------------------------------------------------------------------------------------


def test_receipts_are_a_sequence(store: Store) -> None:
    """Length, index, slice, iteration; one for each value, in the order given."""
    store.publish("t", b"before")
    receipts = store.publish_many("t", numbered(10))
    assert len(receipts) == 10
    assert [receipt.offset for receipt in receipts] == list(range(1, 11))
    assert receipts[0].offset == 1
    assert receipts[-1].offset == 10
    assert [receipt.offset for receipt in receipts[2:4]] == [3, 4]
    assert all((receipt.topic, receipt.partition, receipt.duplicate) == ("t", 0, False) for receipt in receipts)
    with pytest.raises(IndexError):
        receipts[10]


def test_receipts_of_many_partitions_match_their_values(store: Store) -> None:
    """The n-th receipt is the place of the n-th value."""
    store.create_topic("t", partitions=4)
    keys = [b"k%d" % (number % 17) for number in range(200)]
    receipts = store.publish_many("t", numbered(200), keys=keys)
    where = {(one.partition, one.offset): one.value for one in store.read("t")}
    assert [where[receipt.partition, receipt.offset] for receipt in receipts] == numbered(200)
    for partition in range(4):
        mine = [int(value or b"") for value in stored(store, "t", partition)]
        assert mine == sorted(mine)


def test_many_without_keys_stay_together(store: Store) -> None:
    """One call without keys is one batch in one partition."""
    store.create_topic("t", partitions=4)
    for _ in range(8):
        receipts = store.publish_many("t", numbered(25))
        assert len({receipt.partition for receipt in receipts}) == 1
        first = receipts[0].offset
        assert [receipt.offset for receipt in receipts] == list(range(first, first + 25))


def test_many_bring_their_times_and_headers(store: Store) -> None:
    """Column by column, with None where a message has none."""
    store.publish_many(
        "t", [b"a", None, b"c"], keys=["k", None, b""], headers=[{"h": b"1"}, None, [("h", b"2")]], timestamps=[1, 2.5, 3]
    )
    assert [(one.value, one.key, list(one.headers), one.timestamp_us) for one in store.read("t")] == [
        (b"a", b"k", [("h", b"1")], 1_000_000),
        (None, None, [], 2_500_000),
        (b"c", b"", [("h", b"2")], 3_000_000),
    ]


def test_many_of_nothing_store_nothing(store: Store) -> None:
    """An empty list is a list."""
    store.create_topic("t")
    assert list(store.publish_many("t", [])) == []
    assert stored(store, "t") == []


@pytest.mark.parametrize(
    "columns",
    [{"keys": [b"a"]}, {"headers": [None] * 4}, {"timestamps": [1, 2]}, {"dedup_keys": ["a", "b"]}],
    ids=lambda columns: next(iter(columns)),
)
def test_columns_of_another_length_are_refused(store: Store, columns: dict[str, Any]) -> None:
    """Three values with one key: an error, and nothing stored."""
    store.create_topic("t")
    with pytest.raises(UsageError):
        store.publish_many("t", [b"a", b"b", b"c"], **columns)
    assert stored(store, "t") == []


@pytest.mark.parametrize("bad", ["text", 5, b"x" * 2_000, object()], ids=["text", "number", "too large", "object"])
@pytest.mark.parametrize("place", [0, 5, 9])
def test_one_bad_message_refuses_them_all(store: Store, bad: Any, place: int) -> None:
    """All of a batch or none of it, in every partition."""
    store.create_topic("t", partitions=3, max_message_bytes=1_000)
    batch: list[Any] = list(numbered(10))
    batch[place] = bad
    before = state_of(store)
    with pytest.raises(UsageError):
        store.publish_many("t", batch, keys=numbered(10))
    assert state_of(store) == before
    assert store.publish("t", b"next", partition=0).offset == 0


def test_a_batch_may_not_have_more_messages_than_the_limit(store: Store) -> None:
    """100,000 pass, one more is told to come in parts."""
    assert len(store.publish_many("t", [b""] * 100_000)) == 100_000
    with pytest.raises(BatchTooLarge):
        store.publish_many("t", [b""] * 100_001)
    assert store.stats().topics["t"].messages == 100_000


def test_a_batch_may_not_have_more_bytes_than_the_limit(store: Store) -> None:
    """8 MiB: nine messages of 1,000,000 bytes are too many."""
    store.create_topic("t")
    with pytest.raises(BatchTooLarge):
        store.publish_many("t", [bytes(1_000_000)] * 9)
    assert stored(store, "t") == []


# -- limits of one message ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "key", "headers"),
    [
        (bytes(100), None, None),
        (bytes(90), bytes(10), None),
        (bytes(90), None, {"abcde": b"12345"}),
        (bytes(80), bytes(10), [("abcd", b"1"), ("abcd", b"2")]),
    ],
    ids=["value", "key", "header", "all"],
)
def test_the_limit_of_a_message_counts_value_key_and_headers(
    store: Store, value: bytes, key: bytes | None, headers: Any
) -> None:
    """Exactly the limit passes, one byte more does not."""
    store.create_topic("t", max_message_bytes=100)
    assert store.publish("t", value, key=key, headers=headers).offset == 0
    with pytest.raises(MessageTooLarge) as caught:
        store.publish("t", value + b"!", key=key, headers=headers)
    assert (caught.value.size, caught.value.limit) == (101, 100)
    assert len(stored(store, "t")) == 1


def test_a_message_may_have_one_mebibyte_by_default(store: Store) -> None:
    """And not one byte more."""
    assert store.publish("t", bytes(1024 * 1024)).offset == 0
    with pytest.raises(MessageTooLarge):
        store.publish("t", bytes(1024 * 1024 + 1))
    assert store.publish("t", b"after").offset == 1


def test_a_topic_may_take_larger_messages(store: Store) -> None:
    """Ten mebibytes in one message, read back whole."""
    store.create_topic("t", max_message_bytes=10 * 1024 * 1024)
    value = bytes(range(256)) * (40 * 1024)
    store.publish("t", value)
    assert stored(store, "t") == [value]


def test_a_message_may_have_a_thousand_headers(store: Store) -> None:
    """The thousand-and-first is refused."""
    headers = [(f"h{number}", b"") for number in range(1_001)]
    store.publish("t", b"x", headers=headers[:1_000])
    with pytest.raises(UsageError):
        store.publish("t", b"x", headers=headers)
    assert list(only(store).headers) == headers[:1_000]


def test_a_key_may_have_64_kibibytes(store: Store) -> None:
    """Like the name of a header."""
    store.publish("t", b"x", key=bytes(64 * 1024))
    with pytest.raises(MessageTooLarge):
        store.publish("t", b"x", key=bytes(64 * 1024 + 1))
    with pytest.raises(MessageTooLarge):
        store.publish("t", b"x", headers={"h" * (64 * 1024 + 1): b""})
    assert len(stored(store, "t")) == 1


# -- one call, many callers -----------------------------------------------------------------------------------------


def test_a_publish_may_be_stricter_than_its_topic(store: Store) -> None:
    """Offsets go on as if nothing were special."""
    store.create_topic("t", sync="os")
    assert [store.publish("t", b"x", sync=sync).offset for sync in (None, "always", "os", "interval")] == [0, 1, 2, 3]
    assert store.publish_many("t", [b"x"], sync="always")[0].offset == 4


def test_a_publish_does_not_know_other_sync_modes(store: Store) -> None:
    """A typed error, and nothing stored."""
    store.create_topic("t")
    with pytest.raises(UsageError):
        store.publish("t", b"x", sync="sometimes")
    assert stored(store, "t") == []


def test_threads_get_dense_offsets_and_keep_their_own_order(live_store: Store) -> None:
    """Eight threads, singles and batches, two partitions: no offset twice, none missing, no thread's messages reordered."""
    live_store.create_topic("t", partitions=2)

    def publish(name: int) -> list[tuple[int, int]]:
        places = []
        for number in range(0, 60, 3):
            receipt = live_store.publish("t", b"%d %d" % (name, number), partition=name % 2)
            many = live_store.publish_many(
                "t", [b"%d %d" % (name, number + 1), b"%d %d" % (name, number + 2)], partition=name % 2
            )
            places += [(one.partition, one.offset) for one in (receipt, *many)]
        return places

    places = [place for thread in all_of(publish, range(8)) for place in thread]
    assert sorted(places) == [(partition, offset) for partition in range(2) for offset in range(240)]
    seen: dict[bytes, list[int]] = defaultdict(list)
    for value in stored(live_store, "t"):
        name, number = (value or b"").split()
        seen[name].append(int(number))
    assert len(seen) == 8
    assert all(order == list(range(60)) for order in seen.values())


def test_a_refused_publish_leaves_no_hole(store: Store) -> None:
    """Offsets stay dense although some calls in between were wrong."""
    store.create_topic("t", max_message_bytes=10)
    for number in range(10):
        assert store.publish("t", b"%d" % number).offset == number
        with pytest.raises(PenstockError):
            store.publish("t", bytes(11))
    assert values(store.read("t")) == numbered(10)
