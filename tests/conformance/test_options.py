"""What a publisher may ask for beside the message: ttl, delay, priority, compression. They come back over every way to an engine."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadArgument, TopicNotFound, UsageError
from penstock.format.compression import Codec
from tests.conformance.backends import skip_unless
from tests.conformance.helpers import take, values

if TYPE_CHECKING:
    from random import Random

    from penstock import Message, Store
    from penstock.format.batch import Batch
    from tests.conformance.backends import Backend

LATER = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
CODECS = ("gzip", "gzip:1", "gzip:9", "zstd", "lz4")
NAN, INFINITE = float("nan"), float("inf")

BAD_TTLS: list[Any] = [0, 0.0, -1, -0.001, timedelta(0), timedelta(seconds=-5), NAN, INFINITE, -INFINITE, 1e10, 10**400,
                       timedelta.max, "60", b"60", True, [60]]  # fmt: skip
BAD_DELAYS: list[Any] = [-1, -0.001, timedelta(seconds=-5), NAN, INFINITE, -INFINITE, 1e10, 10**400, timedelta.max, "5", b"5", True,
                         datetime(2031, 5, 6), [5]]  # fmt: skip
BAD_PRIORITIES: list[Any] = ["urgent", "HIGH", "", 2, 0, True, b"high"]
BAD_COMPRESSIONS: list[Any] = ["brotli", "", "gzip:0", "gzip:10", "gzip:x", "gzip:", "none:1", "lz4:1", "zstd:20", 1, True]


def since(message: Message) -> tuple[float | None, float | None]:
    """When *message*, whose publisher gave it no time, expires and is due, in seconds after it was appended."""
    return tuple(
        None if one is None else (one - message.timestamp).total_seconds() for one in (message.expires_at, message.deliver_at)
    )  # type: ignore[return-value]


def codecs(backend: Backend) -> list[int]:
    """How the values of the batches in topic t are compressed where they lie."""
    batches: list[Batch] = backend.owner()._catalog.get("t").logs[0].read(0, 1 << 30)
    return [entry.codec for batch in batches if (entry := batch.entry(1)) is not None]


# Round trips


def test_a_plain_message_never_expires_is_due_at_once_and_low(store: Store) -> None:
    store.create_topic("t")
    store.publish("t", b"plain")
    [message] = store.read("t")
    assert (message.expires_at, message.deliver_at, message.priority) == (None, None, "low")


@pytest.mark.parametrize("ttl", [0.5, 60, 1e9, timedelta(hours=1)])
def test_a_ttl_counts_from_the_appending(store: Store, ttl: float | timedelta) -> None:
    store.create_topic("t")
    store.publish("t", b"x", ttl=ttl)
    [message] = store.read("t")
    seconds = ttl.total_seconds() if isinstance(ttl, timedelta) else ttl
    assert since(message) == (seconds, None)


@pytest.mark.parametrize("delay", [0.25, 60, timedelta(days=2)])
def test_a_delay_in_seconds_counts_from_the_appending(store: Store, delay: float | timedelta) -> None:
    store.create_topic("t")
    store.publish("t", b"x", delay=delay)
    [message] = store.read("t")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    assert since(message) == (None, seconds)


def test_a_delay_that_is_a_datetime_is_that_moment(store: Store) -> None:
    store.create_topic("t")
    store.publish("t", b"x", delay=LATER)
    [message] = store.read("t")
    assert message.deliver_at == LATER


def test_a_delay_of_nothing_is_none(store: Store) -> None:
    store.create_topic("t")
    store.publish("t", b"x", delay=0)
    assert [message.deliver_at for message in store.read("t")] == [None]


def test_every_priority_comes_back(store: Store) -> None:
    store.create_topic("t", priorities=True)
    for priority in ("low", "medium", "high", None):
        store.publish("t", b"x", priority=priority)
    assert [message.priority for message in store.read("t")] == ["low", "medium", "high", "low"]


def test_several_messages_take_columns_or_one_for_all(store: Store) -> None:
    store.create_topic("t", priorities=True)
    store.publish_many("t", [b"a", b"b", b"c"], ttls=[1, None, 3], delays=[None, 5, None], priorities=["high", None, "medium"])
    store.publish_many("t", [b"d", b"e"], ttls=9, delays=timedelta(seconds=7), priorities="medium")
    found = list(store.read("t"))
    assert [since(message) for message in found] == [(1, None), (None, 5), (3, None), (9, 7), (9, 7)]
    assert [message.priority for message in found] == ["high", "low", "medium", "medium", "medium"]


def test_seconds_and_moments_in_one_call(live_store: Store) -> None:
    """A batch has one kind of them, so the seconds are counted from the publishing: a little before the appending."""
    live_store.create_topic("t")
    live_store.publish_many("t", [b"a", b"b", b"c"], delays=[500, LATER, None])
    first, second, third = live_store.read("t")
    due = since(first)[1]
    assert due is not None
    assert 400 < due <= 500
    assert (second.deliver_at, third.deliver_at) == (LATER, None)


def test_options_go_with_their_messages_to_every_partition(store: Store) -> None:
    store.create_topic("t", partitions=4, priorities=True)
    names = [b"k%d" % number for number in range(40)]
    lanes = ["low", "medium", "high", None]
    store.publish_many(
        "t", names, keys=names, ttls=[number + 1 for number in range(40)], priorities=[lanes[at % 4] for at in range(40)]
    )
    for message in store.read("t"):
        number = int((message.value or b"")[1:])
        assert since(message) == (number + 1, None)
        assert message.priority == (lanes[number % 4] or "low")


def test_a_dedup_key_and_options_together(store: Store) -> None:
    store.create_topic("t", priorities=True)
    store.publish("t", b"x", dedup_key="one", ttl=5, delay=2, priority="high")
    assert store.publish("t", b"x", dedup_key="one", ttl=50).duplicate
    store.publish_many("t", [b"y", b"x", b"z"], dedup_keys=["two", "one", None], ttls=[7, 8, 9], delays=[LATER, LATER, None])
    first, second, third = store.read("t")
    assert (since(first), first.priority) == ((5, 2), "high")
    assert (since(second)[0], second.deliver_at) == (7, LATER)
    assert since(third) == (9, None)


def test_a_producer_sends_options(live_store: Store) -> None:
    live_store.create_topic("t", priorities=True)
    with live_store.producer("t", linger=10) as producer:
        producer.send(b"a")
        producer.send(b"b", ttl=4)
        producer.send(b"c", delay=LATER, priority="high")
        with pytest.raises(BadArgument):
            producer.send(b"d", ttl=0)
    found = list(live_store.read("t"))
    assert values(found) == [b"a", b"b", b"c"]
    assert [since(message)[0] for message in found] == [None, 4, None]
    assert [message.deliver_at for message in found] == [None, None, LATER]
    assert [message.priority for message in found] == ["low", "low", "high"]


def test_a_transaction_publishes_with_options(store: Store) -> None:
    store.create_topic("t", priorities=True)
    with store.transaction() as transaction:
        transaction.publish("t", b"a", ttl=4, priority="high")
        transaction.publish_many("t", [b"b", b"c"], delays=[None, 6])
        with pytest.raises(BadArgument):
            transaction.publish("t", b"d", delay=-1)
    found = list(store.read("t"))
    assert [since(message) for message in found] == [(4, None), (None, None), (None, 6)]
    assert [message.priority for message in found] == ["high", "low", "low"]


def test_a_stage_publishes_with_options(store: Store) -> None:
    store.create_topic("t", priorities=True, compression="zstd")
    with store.stage("p") as stage:
        stage.publish("t", b"a", ttl=4, priority="high")
        stage.publish_many("t", [b"b" * 9999, b"c"], delays=[None, 6], priorities="medium")
    store.commit("p", 1, [stage.identity])
    found = list(store.read("t"))
    assert [since(message) for message in found] == [(4, None), (None, None), (None, 6)]
    assert [message.priority for message in found] == ["high", "medium", "medium"]
    assert found[1].value == b"b" * 9999


def test_a_consumer_sees_the_options(store: Store) -> None:
    store.create_topic("t", priorities=True)
    store.publish("t", b"x", ttl=1000, priority="high")
    with store.subscribe("t", "g") as consumer:
        [message] = take(consumer)
        assert (since(message)[0], message.priority) == (1000, "high")
        message.ack()


def test_arrow_has_the_options(store: Store) -> None:
    skip_unless(hasattr(store, "read_arrow"), "no Arrow here")
    store.create_topic("t", priorities=True, ttl=60)
    store.publish_many("t", [b"a", b"b"], ttls=[5, None], delays=[None, LATER], priorities=["high", None])
    appended = [message.timestamp for message in store.read("t")]
    rows = [
        row for table in store.read_arrow("t", columns=["expires_at", "deliver_at", "priority"]) for row in table.to_pylist()
    ]
    assert [row["expires_at"] for row in rows] == [appended[0] + timedelta(seconds=5), appended[1] + timedelta(seconds=60)]
    assert [row["deliver_at"] for row in rows] == [None, LATER]
    assert [row["priority"] for row in rows] == [2, 0]


# A topic's own ttl


def test_the_ttl_of_a_topic_holds_where_a_message_has_none(store: Store) -> None:
    assert store.create_topic("t", ttl=30).settings.ttl_ms == 30_000
    store.publish("t", b"by its topic")
    store.publish("t", b"by itself", ttl=500)
    assert [since(message) for message in store.read("t")] == [(30, None), (500, None)]
    with store.subscribe("t", "g") as consumer:
        assert [since(message) for message in take(consumer)] == [(30, None), (500, None)]


def test_the_settings_of_a_topic_come_back(store: Store) -> None:
    made = store.create_topic(
        "t", priorities=True, ttl=timedelta(minutes=1), expired="dead_letter", compression="gzip:9"
    ).settings
    assert (made.priorities, made.ttl_ms, made.expired, made.compression) == (True, 60_000, "dead_letter", "gzip:9")
    assert store.topic("t").settings == made
    assert store.create_topic("t", priorities=True, ttl=60, expired="dead_letter", compression="gzip:9").settings == made


def test_the_settings_of_a_topic_survive_a_restart(lasting: Backend) -> None:
    made = lasting.open().create_topic("t", priorities=True, ttl=60, expired="dead_letter", compression="gzip:9").settings
    assert lasting.reopen().topic("t").settings == made


def test_options_survive_a_restart(lasting: Backend) -> None:
    store = lasting.open()
    store.create_topic("t", priorities=True, ttl=60)
    store.publish("t", b"a", ttl=5, delay=3, priority="high")
    store.publish("t", b"b" * 5000, delay=LATER, compression="zstd")
    for again in (lasting.kill, lasting.reopen):
        first, second = again().read("t")
        assert (since(first), first.priority) == ((5, 3), "high")
        assert (since(second)[0], second.deliver_at, second.value) == (60, LATER, b"b" * 5000)


# What is refused


def is_json(value: object) -> bool:
    """Whether JSON that the server reads can say it."""
    try:
        return len(json.dumps(value, allow_nan=False)) < 30
    except (TypeError, ValueError):
        return False


def check_refused(store: Store, error: type[UsageError], **options: Any) -> None:
    """A message with *options*, or several with the same, is refused, and nothing is stored."""
    with pytest.raises(error):
        store.publish("t", b"x", **options)
    many = {
        {"ttl": "ttls", "delay": "delays", "priority": "priorities"}.get(name, name): value for name, value in options.items()
    }
    with pytest.raises(error):
        store.publish_many("t", [b"x", b"y"], **many)


@pytest.mark.parametrize(
    ("option", "bad", "error"),
    [("ttl", BAD_TTLS, BadArgument), ("delay", BAD_DELAYS, BadArgument), ("priority", BAD_PRIORITIES, BadArgument),
     ("compression", BAD_COMPRESSIONS, UsageError)],
    ids=lambda one: one if isinstance(one, str) else "",
)  # fmt: skip
def test_bad_values_are_refused_and_change_nothing(
    backend: Backend, option: str, bad: list[Any], error: type[UsageError]
) -> None:
    store = backend.open()
    store.create_topic("t", priorities=True)
    for value in bad if backend.name != "http" else filter(is_json, bad):
        check_refused(store, error, **{option: value})
    assert list(store.read("t")) == []


def test_columns_of_another_length_are_refused(store: Store) -> None:
    store.create_topic("t", priorities=True)
    bad: list[dict[str, Any]] = [{"ttls": [1]}, {"delays": [1, 2, 3]}, {"priorities": ["high"]}, {"ttls": []}]
    for options in bad:
        with pytest.raises(BadArgument):
            store.publish_many("t", [b"x", b"y"], **options)
    assert list(store.read("t")) == []


@pytest.mark.parametrize("priority", ["low", "high"])
def test_a_topic_without_priorities_refuses_them(store: Store, priority: str) -> None:
    store.create_topic("t")
    check_refused(store, BadArgument, priority=priority)
    with store.transaction() as transaction, pytest.raises(BadArgument):
        transaction.publish("t", b"x", priority=priority)
    assert list(store.read("t")) == []


def test_a_refused_message_makes_no_topic(store: Store) -> None:
    for options in ({"ttl": 0}, {"delay": -1}, {"priority": "high"}, {"compression": "brotli"}):
        with pytest.raises(UsageError):
            store.publish("new", b"x", **options)
    with pytest.raises(TopicNotFound):
        store.topic("new")


@pytest.mark.parametrize(
    "settings",
    [{"ttl": 0}, {"ttl": -1}, {"ttl": NAN}, {"ttl": 1e10}, {"priorities": "yes"}, {"expired": "keep"},
     {"compression": "brotli"}, {"compression": "gzip:11"}],
    ids=str,
)  # fmt: skip
def test_bad_settings_make_no_topic(store: Store, settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        store.create_topic("t", **settings)
    with pytest.raises(TopicNotFound):
        store.topic("t")


# Compression


@pytest.mark.parametrize("codec", CODECS)
def test_a_compressed_topic_gives_back_what_it_was_given(backend: Backend, codec: str, rng: Random) -> None:
    """One byte, nothing, a tombstone, noise, a kibibyte more or less, a mebibyte: one at a time and together."""
    store = backend.open()
    store.create_topic("t", compression=codec)
    given = [b"x", b"", None, rng.randbytes(4000), b"a" * 1023, b"a" * 1024, b"abc" * 100_000, rng.randbytes(500) * 2000]
    for value in given:
        store.publish("t", value)
    store.publish_many("t", given, keys=[b"k" * 2000] * len(given), headers=[{"h": b"v" * 3000}] * len(given))
    found = list(store.read("t"))
    assert values(found) == given + given
    assert [message.key for message in found[len(given) :]] == [b"k" * 2000] * len(given)
    assert [message.headers["h"] for message in found[len(given) :]] == [b"v" * 3000] * len(given)
    number = Codec[codec.partition(":")[0].upper()]
    plain = Codec.NONE
    assert codecs(backend) == [plain, plain, plain, plain, plain, number, number, number, number]


@pytest.mark.parametrize("codec", CODECS)
def test_a_publish_may_compress_by_itself(backend: Backend, codec: str) -> None:
    store = backend.open()
    store.create_topic("t")
    store.publish("t", b"a" * 5000, compression=codec)
    store.publish_many("t", [b"a" * 600, b"b" * 600], compression=codec)
    store.publish("t", b"a" * 5000)
    store.publish("t", b"c" * 5000, compression=codec, dedup_key="d")
    assert values(store.read("t")) == [b"a" * 5000, b"a" * 600, b"b" * 600, b"a" * 5000, b"c" * 5000]
    number = Codec[codec.partition(":")[0].upper()]
    assert codecs(backend) == [number, number, Codec.NONE, number]


def test_a_publish_may_be_spared_the_compression_of_its_topic(backend: Backend) -> None:
    store = backend.open()
    store.create_topic("t", compression="zstd")
    store.publish("t", b"a" * 5000, compression="none")
    store.publish("t", b"a" * 5000)
    assert codecs(backend) == [Codec.NONE, Codec.ZSTD]


def test_a_message_is_as_large_as_it_is_uncompressed(store: Store) -> None:
    """What a topic allows does not depend on what compresses well."""
    store.create_topic("t", compression="zstd", max_message_bytes=10_000)
    store.publish("t", bytes(10_000))
    with pytest.raises(UsageError):
        store.publish("t", bytes(10_001))
    with pytest.raises(UsageError):
        store.publish_many("t", [bytes(10_000)] * 1000)
    assert len(list(store.read("t"))) == 1


@pytest.mark.parametrize("codec", ["gzip", "zstd", "lz4"])
def test_dead_letters_of_a_compressed_topic_are_byte_equal(store: Store, codec: str) -> None:
    store.create_topic("t", compression=codec)
    store.publish_many("t", [b"a" * 5000, b"b" * 70_000], keys=[b"k" * 2000, None])
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject("no")
    assert values(store.dead_letters("t").list()) == [b"a" * 5000, b"b" * 70_000]
    assert store.dead_letters("t").replay() == 2
    assert values(store.read("t"))[2:] == [b"a" * 5000, b"b" * 70_000]


@pytest.mark.parametrize("codec", ["gzip:9", "zstd"])
def test_sealed_segments_of_a_compressed_topic_are_merged_and_stay_compressed(backend: Backend, codec: str) -> None:
    """Small batches are stored as they are; when their segment is sealed they become a large one, and that is worth compressing."""
    skip_unless(backend.keeps_data, "only a disk is worth it")
    store = backend.open()
    store.create_topic("t", compression=codec, segment_bytes=10_000, priorities=True, sync="os")
    given = [b"message number %d" % number + b"!" * 80 for number in range(200)]
    for number, value in enumerate(given):
        store.publish("t", value, ttl=number + 1, **({"delay": 9, "priority": "high"} if number % 5 == 0 else {}))  # type: ignore[arg-type]
    owner = backend.owner()
    owner._volume.checkpoint()
    owner._volume.checkpoint()
    assert owner._volume.coalesce() > 0
    assert Codec[codec.partition(":")[0].upper()] in codecs(backend)
    found = list(store.read("t"))
    assert values(found) == given
    assert [since(message)[0] for message in found] == [number + 1 for number in range(200)]
    assert [since(message)[1] for message in found] == [9 if number % 5 == 0 else None for number in range(200)]
    assert [message.priority for message in found] == ["high" if number % 5 == 0 else "low" for number in range(200)]
