"""
Bad input: one clear typed error for each wrong call, and nothing changed by it.

Each case is a call on a store that holds a little of everything; the state of that store before and after must be the same.
"""

from __future__ import annotations

import contextlib
import math
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import penstock
from penstock.errors import (
    BadArgument,
    BadName,
    BadSetting,
    Closed,
    LeaseExpired,
    NotFound,
    OffsetOutOfRange,
    ReservedName,
    StageNotFound,
    StoreNotFound,
    TopicNotFound,
    UsageError,
)
from tests.conformance.helpers import numbered, one, state_of, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock import Consumer, Delivery, Producer, Store
    from tests.conformance.backends import Backend

NAN, INFINITY = math.nan, math.inf


class Nonsense:
    """What no argument can be; its text is the same in every process, as the names of tests must be."""

    def __repr__(self) -> str:
        return "<nonsense>"


HUGE = 10**100

BAD_NAMES = [
    "..", "../../etc/cron.d/x", "/etc/x", "a/../../b", "..%2f", "%2e%2e/", "%00", "a\0b", ".", "", "a\nb", "a\n",
    "a\r\nSet-Cookie: x=1", "n" * 256, "n" * 10_000, "n" * 197, "a\u202eb", "\u00e9", "e\u0301", "\u0130", "-leading", ".lock",
    "__internal", "{{7*7}}", "<img src=x onerror=alert(1)>", "'; DROP", "*", ">", ".*", "a b", " a", "a:b", "a\\b", "lone\ud800",
]  # fmt: skip
GOOD_NAMES = [
    "con",
    "TOPIC",
    "topic",
    "00000000000000000000.log",
    "0",
    "a..b",
    "topic.json",
    "LOCK",
    "positions",
    "a-_.",
    "n" * 192,
]
NO_NAMES: list[Any] = [None, 5, 1.5, b"bytes", True, ["t"], Nonsense()]


class World(NamedTuple):
    """A store with a little of everything."""

    store: Store
    consumer: Consumer
    message: Delivery
    read: Any
    """A message that was read, not delivered."""
    producer: Producer


@pytest.fixture
def world(store: Store) -> World:
    """Topic t with ten messages in two partitions, group g with one member and one message in its hand, one dead letter."""
    store.create_topic("t", partitions=2, max_message_bytes=10_000)
    store.publish_many("t", numbered(5), partition=0)
    store.publish_many("t", numbered(5), partition=1)
    consumer = store.subscribe("t", "g")
    one(consumer).reject("for the dead letters")
    return World(store, consumer, one(consumer), next(iter(store.read("t"))), store.producer("t"))


def refused(world: World, call: Callable[[], Any], *kinds: type[Exception]) -> None:
    """*call* raises one of *kinds* with a text, and changes nothing."""
    before = state_of(world.store)
    with pytest.raises(kinds or (UsageError,)) as caught:
        call()
    assert str(caught.value)
    assert len(str(caught.value)) < 1_000
    assert state_of(world.store) == before
    world.message.extend()


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BAD_NAMES, ids=[ascii(name)[:30] for name in BAD_NAMES])
def test_a_bad_name_is_refused_everywhere(world: World, name: str) -> None:
    """As a topic, a group, a producer; by whichever call."""
    store = world.store

    def transact() -> None:
        with store.transaction() as t:
            t.publish(name, b"x")

    for call in (
        lambda: store.create_topic(name),
        lambda: store.publish(name, b"x"),
        lambda: store.publish_many(name, [b"x"]),
        lambda: store.producer(name),
        lambda: store.subscribe("t", name),
        lambda: store.producer("t", name=name),
        transact,
    ):
        refused(world, call, BadName)
    for look in (
        lambda: store.topic(name),
        lambda: list(store.read(name)),
        lambda: store.subscribe(name, "g"),
        lambda: store.seek(name, "g", "earliest"),
        lambda: store.seek("t", name, "earliest"),
        lambda: store.delete_group("t", name),
        lambda: store.dead_letters(name),
        lambda: store.groups(name),
        lambda: store.retain(name),
    ):
        refused(world, look, BadName, NotFound)


@pytest.mark.parametrize("name", NO_NAMES, ids=[type(name).__name__ for name in NO_NAMES])
def test_what_is_no_text_is_no_name(world: World, name: Any) -> None:
    """A typed error, not an AttributeError from within."""
    store = world.store
    for call in (
        lambda: store.create_topic(name),
        lambda: store.publish(name, b"x"),
        lambda: store.publish_many(name, [b"x"]),
        lambda: store.producer(name),
        lambda: store.subscribe(name, "g"),
        lambda: store.subscribe("t", name),
        lambda: store.topic(name),
        lambda: list(store.read(name)),
        lambda: store.seek("t", name, "earliest"),
        lambda: store.delete_group("t", name),
        lambda: store.dead_letters(name),
    ):
        refused(world, call, UsageError, NotFound)


CALLS_WITH_A_NAME: dict[str, Callable[[Store, Any], Any]] = {
    "delete_topic": lambda store, name: store.delete_topic(name),
    "vacuum": lambda store, name: store.vacuum(name),
    "compact": lambda store, name: store.compact(name),
    "ends": lambda store, name: store.ends(name),
    "positions": lambda store, name: store.positions(["t", name]),
    "stage": lambda store, name: store.stage(name),
    "commit": lambda store, name: store.commit(name, 1, []),
    "committed": lambda store, name: store.committed(name, 1),
    "offset_of_time": lambda store, name: store.offset_of_time(name, 0, datetime.now(UTC)),
    "epoch_at": lambda store, name: store.epoch_at(name, 0, 0),
}
"""More calls; those of a kind of store that has not all of them are left out one by one."""


@pytest.mark.parametrize("call", CALLS_WITH_A_NAME)
def test_a_bad_name_is_refused_by_each_call(world: World, call: str) -> None:
    """Also what is no text; None is every topic for those that keep house."""
    for name in (*BAD_NAMES, *NO_NAMES):
        if name is not None or call not in ("vacuum", "compact"):
            kinds = (BadName, BadArgument) if call in ("positions", "stage", "commit", "committed") else (BadName, NotFound)
            refused(world, partial(CALLS_WITH_A_NAME[call], world.store, name), *kinds)


@pytest.mark.parametrize("topics", [None, 5, 1.5, True, "t", b"t", [5], [None], [b"t"], [["t"]], {"t": 1, 5: 2}], ids=ascii)
def test_what_is_no_list_of_topics_has_no_positions(world: World, topics: Any) -> None:
    """One text is none either: it was taken for a list of letters."""
    refused(world, lambda: world.store.positions(topics), BadArgument)


@pytest.mark.parametrize("number", [None, -1, 1 << 63, HUGE, 1.5, 1.0, NAN, INFINITY, "5", True, [1], Nonsense()], ids=ascii)
def test_a_bad_number_of_a_commit_is_refused(world: World, number: Any) -> None:
    """To commit, and to ask."""
    refused(world, lambda: world.store.commit("job", number, []), BadArgument)
    refused(world, lambda: world.store.committed("job", number), BadArgument)


@pytest.mark.parametrize("stages", [None, 5, NAN, True, "0" * 32, b"x", [5], [None], [["x"]], Nonsense()], ids=ascii)
def test_what_is_no_list_of_stages_is_not_committed_or_aborted(world: World, stages: Any) -> None:
    """Nor any of a list with such a thing in it."""
    refused(world, lambda: world.store.commit("job", 1, stages), BadArgument)
    refused(world, lambda: world.store.abort(stages), BadArgument)


def test_a_text_that_is_no_stage_is_not_found(world: World) -> None:
    """Whatever it is, and however long."""
    for name in BAD_NAMES:
        refused(world, partial(world.store.commit, "job", 1, [name]), StageNotFound)
        refused(world, partial(world.store.abort, [name]), StageNotFound)


@pytest.mark.parametrize("name", GOOD_NAMES, ids=[name[:30] for name in GOOD_NAMES])
def test_a_name_that_only_looks_dangerous_works(world: World, name: str) -> None:
    """Names of files, of devices, of anything: the rule is about characters."""
    store = world.store
    assert store.publish(name, b"x").offset == 0
    with store.subscribe(name, name) as consumer:
        one(consumer).ack()
    assert stored(store, name) == [b"x"]


@pytest.mark.parametrize("length", range(190, 198))
def test_a_topic_whose_dead_letters_would_have_no_name_is_told_at_once(store: Store, length: int) -> None:
    """Whatever may be made can also be buried."""
    name = "n" * length
    try:
        store.publish(name, b"x")
    except (BadName, ReservedName):
        assert store.topics() == []
        assert length > 192
        return
    with store.subscribe(name, "g") as consumer:
        one(consumer).reject("bad")
        assert consumer.get(timeout=0) is None
    assert [letter.value for letter in store.dead_letters(name).list()] == [b"x"]


def test_a_reserved_name_is_refused(world: World) -> None:
    """The dead letters of a topic are made by its groups only, whether the topic is there or not."""
    for name in ("t.dlq", "u.dlq", "t.dlq.dlq"):
        refused(world, partial(world.store.publish, name, b"x"), ReservedName)
        refused(world, partial(world.store.create_topic, name), ReservedName)


# -- what is published ----------------------------------------------------------------------------------------------

BAD_PUBLISHES: list[dict[str, Any]] = [
    {"value": "text"},
    {"value": 5},
    {"value": 1.5},
    {"value": [b"x"]},
    {"value": {}},
    {"value": Nonsense()},
    {"value": bytes(10_001)},
    {"key": 5},
    {"key": 1.5},
    {"key": [b"x"]},
    {"key": Nonsense()},
    {"key": bytes(70_000)},
    {"key": "lone\ud800"},
    {"headers": 5},
    {"headers": "text"},
    {"headers": b"bytes"},
    {"headers": {5: b""}},
    {"headers": {b"bytes": b""}},
    {"headers": {"a": "text"}},
    {"headers": {"a": None}},
    {"headers": {"a": 5}},
    {"headers": [("a",)]},
    {"headers": [("a", b"", b"")]},
    {"headers": [5]},
    {"headers": {"lone\ud800": b""}},
    {"headers": {"a": bytes(10_001)}},
    {"headers": [("a", b"")] * 1_001},
    {"partition": -1},
    {"partition": 2},
    {"partition": HUGE},
    {"partition": "0"},
    {"partition": 0.0},
    {"partition": NAN},
    {"partition": True},
    {"partition": [0]},
    {"timestamp": "now"},
    {"timestamp": NAN},
    {"timestamp": INFINITY},
    {"timestamp": -INFINITY},
    {"timestamp": 1e300},
    {"timestamp": HUGE},
    {"timestamp": datetime(2024, 1, 1)},
    {"timestamp": True},
    {"timestamp": [5]},
    {"dedup_key": ""},
    {"dedup_key": b""},
    {"dedup_key": 5},
    {"dedup_key": [b"x"]},
    {"dedup_key": "lone\ud800"},
    {"sync": "sometimes"},
    {"sync": 5},
    {"sync": True},
]


def ids(cases: list[dict[str, Any]]) -> list[str]:
    """A short text for each case."""
    return [
        f"{number}-" + ",".join(f"{name}={ascii(value)[:24]}" for name, value in case.items())
        for number, case in enumerate(cases)
    ]


@pytest.mark.parametrize("bad", BAD_PUBLISHES, ids=ids(BAD_PUBLISHES))
def test_a_bad_message_is_refused(world: World, bad: dict[str, Any]) -> None:
    """By publish, and in a transaction."""
    arguments = {"value": b"x"} | bad

    def transact() -> None:
        with world.store.transaction() as t:
            t.publish("t", b"good")
            t.publish("t", **arguments)

    refused(world, lambda: world.store.publish("t", **arguments), UsageError, TopicNotFound)
    if not {"sync", "dedup_key"} & set(bad):
        refused(world, transact, UsageError, TopicNotFound)


@pytest.mark.parametrize(
    "bad", [one for one in BAD_PUBLISHES if not {"partition", "sync"} & set(one)], ids=lambda one: ids([one])[0]
)
def test_a_bad_message_among_many_is_refused_with_all_of_them(world: World, bad: dict[str, Any]) -> None:
    """One wrong row, three right ones."""
    columns = {"key": "keys", "headers": "headers", "timestamp": "timestamps", "dedup_key": "dedup_keys"}
    rows: list[Any] = [b"x", b"x", b"x", b"x"]
    (name, value), *_ = bad.items()
    if name == "value":
        rows[2] = value
        refused(world, lambda: world.store.publish_many("t", rows))
    else:
        column: Any = [None, None, value, None] if name != "timestamp" else [1, 1, value, 1]
        refused(world, lambda: world.store.publish_many("t", rows, **{columns[name]: column}))


@pytest.mark.parametrize("bad", [5, None, "abc", b"abc", 1.5, Nonsense(), {"a": b"x"}], ids=ascii)
def test_what_is_no_list_of_values_is_refused(world: World, bad: Any) -> None:
    """Text and bytes are lists of something else."""
    refused(world, lambda: world.store.publish_many("t", bad))


@pytest.mark.parametrize("partition", [-1, 2, HUGE, "0", 0.0, True])
def test_many_for_a_bad_partition_are_refused(world: World, partition: Any) -> None:
    """Like one."""
    refused(world, lambda: world.store.publish_many("t", [b"x"], partition=partition), UsageError, TopicNotFound)


# -- topics ---------------------------------------------------------------------------------------------------------

BAD_TOPICS: list[dict[str, Any]] = [
    {"partitions": 0},
    {"partitions": -1},
    {"partitions": True},
    {"partitions": "2"},
    {"partitions": 1.5},
    {"partitions": NAN},
    {"partitions": 1 << 31},
    {"partitions": HUGE},
    {"partitions": None},
    {"sync": "sometimes"},
    {"sync": 5},
    {"segment_bytes": -1},
    {"segment_bytes": 0},
    {"segment_bytes": "1"},
    {"segment_bytes": HUGE},
    {"segment_bytes": NAN},
    {"segment_messages": -1},
    {"segment_messages": 1.5},
    {"max_message_bytes": 0},
    {"max_message_bytes": -1},
    {"max_message_bytes": 1 << 40},
    {"max_message_bytes": NAN},
    {"dedup_window": -1},
    {"dedup_window": NAN},
    {"dedup_window": INFINITY},
    {"dedup_window": "2m"},
    {"dedup_window": 1e12},
    {"retain": "never"},
    {"retain": 5},
    {"retention_age": -1},
    {"retention_age": NAN},
    {"retention_age": "7d"},
    {"retention_bytes": -1},
    {"retention_bytes": 1.5},
    {"retention_bytes": NAN},
]


@pytest.mark.parametrize("bad", BAD_TOPICS, ids=ids(BAD_TOPICS))
def test_a_topic_with_bad_settings_is_not_made(world: World, bad: dict[str, Any]) -> None:
    """The error names the setting."""
    refused(world, lambda: world.store.create_topic("new", **bad), BadSetting, BadArgument)
    with pytest.raises(UsageError, match=next(iter(bad))):
        world.store.create_topic("new", **bad)


def test_a_setting_that_is_unknown_is_refused(world: World) -> None:
    """It is a mistake, and may be a dangerous one."""
    refused(world, lambda: world.store.create_topic("new", colour="red"), UsageError, TypeError)


# -- groups ---------------------------------------------------------------------------------------------------------

BAD_SUBSCRIPTIONS: list[dict[str, Any]] = [
    {"prefetch": 0},
    {"prefetch": -1},
    {"prefetch": 1.5},
    {"prefetch": NAN},
    {"prefetch": "5"},
    {"prefetch": True},
    {"prefetch": HUGE},
    {"prefetch": None},
    {"prefetch_bytes": 0},
    {"prefetch_bytes": -1},
    {"prefetch_bytes": "5"},
    {"prefetch_bytes": HUGE},
    {"lease": 0},
    {"lease": -1},
    {"lease": NAN},
    {"lease": INFINITY},
    {"lease": 1e12},
    {"lease": "30"},
    {"lease": True},
    {"max_deliveries": -1},
    {"max_deliveries": 1.5},
    {"max_deliveries": NAN},
    {"max_deliveries": HUGE},
    {"max_deliveries": "5"},
    {"max_deliveries": True},
    {"ordered": "yes"},
    {"ordered": 1},
    {"start": "nowhere"},
    {"start": -1},
    {"start": 1.5},
    {"start": NAN},
    {"start": True},
    {"start": None},
    {"start": 6},
    {"start": HUGE},
    {"start": datetime(2024, 1, 1)},
    {"start": b"earliest"},
    {"reset": "sometimes"},
    {"reset": 5},
    {"backoff": -1},
    {"backoff": NAN},
    {"backoff": INFINITY},
    {"backoff": "1"},
    {"backoff_max": -1},
    {"backoff_max": NAN},
    {"backoff_max": 1e12},
    {"concurrency": 0},
    {"concurrency": -1},
    {"concurrency": 1.5},
    {"concurrency": "5"},
    {"concurrency": HUGE},
]


@pytest.mark.parametrize("bad", BAD_SUBSCRIPTIONS, ids=ids(BAD_SUBSCRIPTIONS))
def test_a_subscription_with_bad_arguments_makes_no_group(world: World, bad: dict[str, Any]) -> None:
    """And joins none."""
    refused(world, lambda: world.store.subscribe("t", "new", **bad), UsageError, OffsetOutOfRange)


@pytest.mark.parametrize("bad", [one for one in BAD_SUBSCRIPTIONS if "start" not in one], ids=lambda one: ids([one])[0])
def test_a_bad_subscription_leaves_a_group_as_it_is(world: World, bad: dict[str, Any]) -> None:
    """A group that exists keeps its settings and its members."""
    before = world.store.groups("t")
    refused(world, lambda: world.store.subscribe("t", "g", **bad))
    assert world.store.groups("t") == before


PLACES: list[Any] = [
    -1, -HUGE, HUGE, 1 << 63, 1 << 64, 1.0, NAN, INFINITY, "1e9", "", "Earliest", b"earliest", None, True, [0], datetime(2024, 1, 1),
    {0: -1}, {0: 6}, {0: "x"}, {0: NAN}, {"0": 1}, {2: 0}, {-1: 0}, {0: HUGE}, {True: 0},
]  # fmt: skip


@pytest.mark.parametrize("to", PLACES, ids=ascii)
def test_a_group_is_not_moved_to_a_bad_place(world: World, to: Any) -> None:
    """It stays where it was, and its leases with it."""
    refused(world, lambda: world.store.seek("t", "g", to), UsageError, NotFound)


@pytest.mark.parametrize("partition", [-1, 2, HUGE, "0", 0.0, NAN, True, [0]], ids=ascii)
def test_a_partition_that_is_none_is_refused(world: World, partition: Any) -> None:
    """By seek, commit and read alike."""
    store = world.store
    refused(world, lambda: store.seek("t", "g", 0, partition=partition), UsageError, NotFound)
    refused(world, lambda: world.consumer.commit(1, partition=partition), UsageError, NotFound)
    refused(world, lambda: list(store.read("t", partition)), UsageError, NotFound)
    refused(world, lambda: list(store.read_arrow("t", partition)), UsageError, NotFound)


@pytest.mark.parametrize("place", [one for one in PLACES if one is not None and not isinstance(one, dict)], ids=ascii)
def test_nothing_is_read_from_or_to_a_bad_place(world: World, place: Any) -> None:
    """Neither as the start nor, where it is no number, as the end."""
    store = world.store
    refused(world, lambda: list(store.read("t", 0, start=place)), UsageError, NotFound)
    refused(world, lambda: list(store.read_arrow("t", 0, start=place)), UsageError, NotFound)
    refused(world, lambda: list(store.read("t", 0, end=place)), UsageError, NotFound)


@pytest.mark.parametrize("most", [-1, 1.5, NAN, "5", True, [5]], ids=ascii)
def test_a_bad_number_of_messages_is_refused(world: World, most: Any) -> None:
    """By everything that takes one."""
    refused(world, lambda: list(world.store.read("t", max_messages=most)))
    refused(world, lambda: world.consumer.get_many(most, timeout=0))
    refused(world, lambda: world.store.dead_letters("t").list(max_messages=most))


@pytest.mark.parametrize("timeout", [-1, NAN, INFINITY, 1e300, HUGE, "5", True, [5], b"1"], ids=ascii)
def test_a_bad_timeout_is_refused(world: World, timeout: Any) -> None:
    """Before waiting."""
    refused(world, lambda: world.consumer.get(timeout=timeout))
    refused(world, lambda: world.consumer.get_many(5, timeout=timeout))
    refused(world, lambda: world.producer.flush(timeout))


@pytest.mark.parametrize("delay", [-1, NAN, INFINITY, "5", True, 1e300, HUGE, [5]], ids=ascii)
def test_a_bad_delay_is_refused_and_the_message_kept(world: World, delay: Any) -> None:
    """It is still in the consumer's hand."""
    refused(world, lambda: world.message.nack(delay=delay))
    refused(world, lambda: world.consumer.nack(world.message, delay=delay))


@pytest.mark.parametrize("seconds", [-1, NAN, INFINITY, "5", True, 1e12, HUGE, [5]], ids=ascii)
def test_a_bad_extension_is_refused_and_the_lease_kept(world: World, seconds: Any) -> None:
    """As long as it was."""
    refused(world, lambda: world.message.extend(seconds))
    refused(world, lambda: world.consumer.extend(world.message, seconds))


@pytest.mark.parametrize("offset", [-1, 6, HUGE, 1.5, NAN, "5", None, True, [1]], ids=ascii)
def test_a_bad_commit_is_refused(world: World, offset: Any) -> None:
    """The position stays."""
    refused(world, lambda: world.consumer.commit(offset, partition=0), UsageError, NotFound)


@pytest.mark.parametrize("thing", [None, 5, "x", b"x", [5], [None], Nonsense()], ids=lambda thing: ascii(thing)[:20])
def test_what_is_no_message_cannot_be_finished(world: World, thing: Any) -> None:
    """By the consumer or by a transaction."""

    def transact() -> None:
        with world.store.transaction() as t:
            t.publish("t", b"x")
            t.ack(thing)

    for call in (
        lambda: world.consumer.ack(thing),
        lambda: world.consumer.nack(thing),
        lambda: world.consumer.reject(thing),
        lambda: world.consumer.extend(thing),
        transact,
    ):
        refused(world, call)


def test_a_message_that_was_read_cannot_be_finished(world: World) -> None:
    """Nobody delivered it."""

    def transact() -> None:
        with world.store.transaction() as t:
            t.publish("t", b"x")
            t.ack(world.read)

    for call in (
        world.read.ack,
        world.read.nack,
        world.read.reject,
        world.read.extend,
        lambda: world.consumer.ack(world.read),
        lambda: world.consumer.nack([world.read]),
        lambda: world.consumer.reject(world.read),
        lambda: world.consumer.extend(world.read),
        transact,
    ):
        refused(world, call)


def test_a_bad_one_in_a_list_of_acks_changes_nothing(world: World) -> None:
    """A list that is wrong is wrong as a whole: the good ones of it are not finished either."""
    mixed: list[Any] = [world.message, 5]
    for finish in (world.consumer.ack, world.consumer.nack):
        refused(world, partial(finish, mixed))


# -- producers, dead letters ----------------------------------------------------------------------------------------

BAD_PRODUCERS: list[dict[str, Any]] = [
    {"linger": -1},
    {"linger": NAN},
    {"linger": INFINITY},
    {"linger": "x"},
    {"linger": True},
    {"batch_messages": 0},
    {"batch_messages": -1},
    {"batch_messages": 1.5},
    {"batch_messages": "5"},
    {"batch_bytes": 0},
    {"batch_bytes": -1},
    {"batch_bytes": "5"},
    {"max_pending": 0},
    {"max_pending": -1},
    {"max_pending": 1.5},
    {"when_full": "explode"},
    {"when_full": None},
    {"when_full": True},
    {"name": ""},
    {"name": 5},
    {"name": b"x"},
]


@pytest.mark.parametrize("bad", BAD_PRODUCERS, ids=ids(BAD_PRODUCERS))
def test_a_producer_with_bad_arguments_is_not_made(world: World, bad: dict[str, Any]) -> None:
    """And makes no topic."""
    refused(world, lambda: world.store.producer("t", **bad))
    refused(world, lambda: world.store.producer("new", **bad))


@pytest.mark.parametrize(
    "bad", [one for one in BAD_PUBLISHES if not {"sync", "dedup_key"} & set(one)], ids=lambda one: ids([one])[0]
)
def test_a_producer_takes_no_bad_message(world: World, bad: dict[str, Any]) -> None:
    """The call says so, since the message can never be stored."""
    refused(world, lambda: world.producer.send(**({"value": b"x"} | bad)), UsageError, TopicNotFound)
    world.producer.flush(0)


@pytest.mark.parametrize(
    "bad",
    [{"filter": 5}, {"filter": "x"}, {"offsets": 5}, {"offsets": ["0"]}, {"offsets": [NAN]}, {"offsets": [1.0]}],
    ids=ascii,
)
def test_dead_letters_are_not_chosen_by_nonsense(world: World, bad: dict[str, Any]) -> None:
    """Neither replayed nor discarded."""
    letters = world.store.dead_letters("t")
    for call in (letters.replay, letters.discard):
        refused(world, partial(call, **bad))
    assert len(letters) == 1


@pytest.mark.parametrize("offsets", [[99], [-1], [HUGE]], ids=ascii)
def test_dead_letters_that_are_not_there_are_not_chosen(world: World, offsets: list[int]) -> None:
    """None of them, or an error; the one that is there stays."""
    letters = world.store.dead_letters("t")
    before = state_of(world.store)
    for call in (letters.replay, letters.discard):
        with contextlib.suppress(UsageError, NotFound):
            assert call(offsets=offsets) == 0
    assert state_of(world.store) == before


# -- not there, not open --------------------------------------------------------------------------------------------


def test_an_unknown_topic_is_not_found_by_any_call(world: World) -> None:
    """And the error names it."""
    store = world.store
    for call in (
        lambda: store.topic("nope"),
        lambda: list(store.read("nope")),
        lambda: list(store.read_arrow("nope")),
        lambda: store.subscribe("nope", "g", create=False),
        lambda: store.seek("nope", "g", "earliest"),
        lambda: store.delete_group("nope", "g"),
        lambda: store.dead_letters("nope"),
        lambda: store.retain("nope"),
        lambda: store.delete_topic("nope"),
        lambda: store.groups("nope"),
    ):
        refused(world, call, TopicNotFound)
        with pytest.raises(TopicNotFound, match="nope"):
            call()


@pytest.mark.parametrize("call", ["vacuum", "compact", "ends", "offset_of_time", "epoch_at"])
def test_an_unknown_topic_is_not_found_by_each_call(world: World, call: str) -> None:
    """The rest of them; for `positions` it is one that is left out."""
    refused(world, lambda: CALLS_WITH_A_NAME[call](world.store, "nope"), TopicNotFound)


def test_positions_leave_out_what_is_not_there(world: World) -> None:
    """An answer for the others, at one moment."""
    found = world.store.positions(["nope", "t", "nope", "t"])
    assert list(found) == ["t"]
    assert (found["t"].starts, found["t"].ends) == ({0: 0, 1: 0}, {0: 5, 1: 5})
    assert world.store.positions([]) == world.store.positions(["nope"]) == {}


@pytest.mark.parametrize("call", [*CALLS_WITH_A_NAME, "abort", "metrics"])
def test_a_closed_store_refuses_each_call(world: World, call: str) -> None:
    """The rest of them."""
    world.store.close()
    others = {"abort": lambda: world.store.abort([]), "metrics": world.store.metrics}
    with pytest.raises(Closed):
        others.get(call, lambda: CALLS_WITH_A_NAME[call](world.store, "t"))()


def test_a_closed_store_refuses_every_call(world: World) -> None:
    """With one error; closing again is none."""
    store, consumer, message, _, producer = world
    letters = store.dead_letters("t")
    transaction = store.transaction()
    store.close()
    store.close()

    def transact() -> None:
        with store.transaction() as t:
            t.publish("t", b"x")

    for call in (
        lambda: store.create_topic("new"),
        store.topics,
        lambda: store.topic("t"),
        lambda: store.publish("t", b"x"),
        lambda: store.publish_many("t", [b"x"]),
        lambda: store.producer("t"),
        lambda: store.subscribe("t", "g"),
        lambda: list(store.read("t")),
        lambda: list(store.read_arrow("t")),
        lambda: store.seek("t", "g", "earliest"),
        store.groups,
        lambda: store.delete_group("t", "g"),
        lambda: store.dead_letters("t").list(),
        letters.list,
        letters.replay,
        letters.discard,
        store.retain,
        store.stats,
        store.flush,
        transact,
        lambda: transaction.publish("t", b"x"),
        lambda: consumer.get(timeout=0),
        lambda: consumer.get_many(5, timeout=0),
        lambda: consumer.commit(1, partition=0),
        lambda: producer.send(b"x"),
    ):
        with pytest.raises(Closed):
            call()
    for finish in (message.ack, message.nack, message.reject, message.extend):
        with pytest.raises((Closed, LeaseExpired)):
            finish()
    consumer.close()
    producer.close()


def test_a_reading_that_was_begun_ends_with_a_clear_error_or_in_peace(store: Store) -> None:
    """When the store is closed under it: Closed, or the messages it had in hand."""
    store.publish_many("t", numbered(10))
    reading = store.read("t")
    next(reading)
    store.close()
    try:
        rest = [message.value for message in reading]
    except Closed:
        return
    assert rest == numbered(len(rest), 1)


def test_a_store_that_is_not_there_is_not_found(lasting: Backend) -> None:
    """And is not made by looking for it."""
    missing = lasting.folder / "missing"
    with pytest.raises(StoreNotFound):
        penstock.open(str(missing), create=False)
    with pytest.raises(StoreNotFound):
        penstock.open(str(missing), read_only=True)
    assert not missing.exists()


@pytest.mark.parametrize(
    "bad",
    [
        {"sync_interval_ms": -1},
        {"sync_interval_ms": NAN},
        {"journal_file_bytes": "big"},
        {"free_bytes_floor": -1},
        {"frame_bytes": 1 << 50},
    ],
    ids=ascii,
)
def test_a_store_with_bad_settings_is_not_made(lasting: Backend, bad: dict[str, Any]) -> None:
    """The setting is named, and no folder is left behind."""
    path = lasting.folder / "new"
    with pytest.raises(BadSetting, match=next(iter(bad))):
        penstock.open(str(path), **bad)
    assert not path.exists()


def test_a_store_setting_that_is_unknown_is_refused(lasting: Backend) -> None:
    """Like a topic's."""
    with pytest.raises((UsageError, TypeError)):
        penstock.open(str(lasting.folder / "new"), colour="red")
    assert not (lasting.folder / "new").exists()


def test_a_path_that_is_a_file_is_an_error(lasting: Backend) -> None:
    """Not a new store, and the file stays."""
    path = lasting.folder / "file"
    path.write_bytes(b"mine")
    with pytest.raises((UsageError, NotFound, OSError)):
        penstock.open(str(path))
    assert path.read_bytes() == b"mine"


def test_names_stay_inside_the_folder(lasting: Backend) -> None:
    """Whatever was tried, nothing was written outside the store."""
    store = lasting.open()
    before = sorted(path.name for path in lasting.folder.iterdir())
    for name in BAD_NAMES:
        with pytest.raises(BadName):
            store.publish(name, b"x")
    assert sorted(path.name for path in lasting.folder.iterdir()) == before
    assert store.topics() == []
