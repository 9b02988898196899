"""
What is there after the store was closed, or its process killed, and opened again.

`memory:` has no answer to this, so these tests run where data lasts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import OffsetOutOfRange, StoreLocked, TopicExists
from tests.conformance.backends import Backend, skip_unless
from tests.conformance.helpers import PATIENCE, all_of, drain, numbered, offsets, one, position, stored, take, values

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from penstock import Store


@pytest.fixture(params=["reopen", "kill"])
def again(request: pytest.FixtureRequest, lasting: Backend) -> Callable[[], Store]:
    """Open the store again: after closing it in good order, or as a kill leaves it."""
    restart: Callable[[], Store] = getattr(lasting, request.param)
    return restart


# -- messages and topics --------------------------------------------------------------------------------------------


def test_messages_come_back_with_all_they_had(lasting: Backend, again: Callable[[], Store]) -> None:
    """Every field, in order, also the empty ones."""
    store = lasting.open()
    store.create_topic("t", partitions=2)
    store.publish("t", b"a", key=b"k", headers=[("h", b"1"), ("h", b"")], timestamp=7, partition=1)
    store.publish("t", None, partition=1)
    store.publish("t", b"", key=b"", partition=1)
    store.publish_many("t", numbered(100), partition=0)

    def found(store: Store) -> list[Any]:
        return [(m.partition, m.offset, m.value, m.key, list(m.headers), m.timestamp_us) for m in store.read("t")]

    before = found(store)
    assert len(before) == 103
    for _ in range(3):
        store = again()
        assert found(store) == before


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_every_mode_survives_the_end_of_the_process(lasting: Backend, again: Callable[[], Store], sync: str) -> None:
    """Weaker modes lose to power cuts, not to kills."""
    store = lasting.open()
    store.create_topic("t", sync=sync)
    for number in range(50):
        store.publish("t", b"%d" % number)
    assert stored(again(), "t") == numbered(50)


def test_offsets_go_on(lasting: Backend, again: Callable[[], Store]) -> None:
    """No offset is given twice."""
    store = lasting.open()
    for turn in range(5):
        assert [store.publish("t", b"x").offset for _ in range(3)] == [turn * 3, turn * 3 + 1, turn * 3 + 2]
        store = again()


def test_topics_come_back_with_their_settings(lasting: Backend, again: Callable[[], Store]) -> None:
    """And are still fixed."""
    store = lasting.open()
    info = store.create_topic("t", partitions=3, segment_messages=9, dedup_window=60, retain="always")
    store = again()
    assert store.topic("t") == info
    assert store.create_topic("t", partitions=3, segment_messages=9, dedup_window=60, retain="always") == info
    with pytest.raises(TopicExists):
        store.create_topic("t", partitions=4)


def test_keys_go_where_they_went_before(lasting: Backend, again: Callable[[], Store]) -> None:
    """The order of a key outlives the process."""
    store = lasting.open()
    store.create_topic("t", partitions=7)
    keys = [b"user-%d" % number for number in range(100)]
    before = [store.publish("t", b"", key=key).partition for key in keys]
    store = again()
    assert [store.publish("t", b"", key=key).partition for key in keys] == before


def test_a_store_has_one_owner(lasting: Backend) -> None:
    """The second opener is refused until the first is gone."""
    skip_unless(lasting.has_one_opener, "a server is there for many")
    store = lasting.open()
    with pytest.raises(StoreLocked):
        lasting.open()
    store.close()
    lasting.open()


# -- positions ------------------------------------------------------------------------------------------------------


def test_the_ack_of_the_first_message_survives(lasting: Backend, again: Callable[[], Store]) -> None:
    """Offset 0 is a position, not the lack of one."""
    store = lasting.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        one(consumer).ack(wait=True)
    store = again()
    assert position(store, "t", "g") == 1
    with store.subscribe("t", "g") as consumer:
        assert consumer.get(timeout=0) is None
        lasting.advance(1_000)
        assert consumer.get(timeout=0) is None


def test_acks_out_of_order_survive(lasting: Backend, again: Callable[[], Store]) -> None:
    """What is finished stays finished, what is not comes again."""
    store = lasting.open()
    store.publish_many("t", numbered(10))
    consumer = store.subscribe("t", "g")
    messages = take(consumer)
    consumer.ack([messages[index] for index in (1, 2, 5, 9)], wait=True)
    store = again()
    lasting.advance(1_000)
    assert position(store, "t", "g") == 0
    with store.subscribe("t", "g") as consumer:
        assert sorted(offsets(drain(consumer))) == [0, 3, 4, 6, 7, 8]
    assert position(again(), "t", "g") == 10


def test_closing_stores_the_acks_that_were_not_yet(lasting: Backend) -> None:
    """Buffered is not forgotten."""
    store = lasting.open()
    store.publish_many("t", numbered(20))
    consumer = store.subscribe("t", "g")
    for message in take(consumer, 15):
        message.ack()
    store = lasting.reopen()
    assert position(store, "t", "g") == 15


def test_flush_stores_acks(lasting: Backend) -> None:
    """After it a kill changes nothing."""
    store = lasting.open()
    store.publish_many("t", numbered(20))
    consumer = store.subscribe("t", "g")
    drain(consumer, 7)
    consumer.flush()
    store = lasting.kill()
    assert position(store, "t", "g") == 7
    consumer = store.subscribe("t", "g")
    lasting.advance(1_000)
    drain(consumer, 3)
    store.flush()
    assert position(lasting.kill(), "t", "g") == 10


def test_acks_that_were_not_stored_are_forgotten_whole(lasting: Backend) -> None:
    """After a kill the position is one that some of the acks produce, and what is not finished comes again."""
    store = lasting.open()
    store.publish_many("t", numbered(30))
    consumer = store.subscribe("t", "g")
    acked = drain(consumer, 10)
    consumer.flush()
    acked += drain(consumer, 10)
    store = lasting.kill()
    at = position(store, "t", "g")
    assert 10 <= at <= len(acked)
    lasting.advance(1_000)
    with store.subscribe("t", "g") as consumer:
        assert sorted(offsets(drain(consumer))) == list(range(at, 30))


def test_a_seek_is_stored_when_it_returns(lasting: Backend) -> None:
    """And voids the leases of before for good."""
    store = lasting.open()
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
    store.seek("t", "g", 4)
    store = lasting.kill()
    assert position(store, "t", "g") == 4
    with store.subscribe("t", "g") as consumer:
        got = drain(consumer)
    assert [(message.offset, message.attempt) for message in got] == [(offset, 1) for offset in range(4, 10)]


def test_a_commit_is_stored_when_it_returns(lasting: Backend) -> None:
    """Like a seek, and it does not go back after a restart either."""
    store = lasting.open()
    store.publish_many("t", numbered(10))
    consumer = store.subscribe("t", "g")
    consumer.commit(6)
    store = lasting.kill()
    assert position(store, "t", "g") == 6
    consumer = store.subscribe("t", "g")
    consumer.commit(2)
    assert position(lasting.kill(), "t", "g") == 6


def test_groups_come_back_and_deleted_ones_do_not(lasting: Backend, again: Callable[[], Store]) -> None:
    """With their settings; a group without a single ack is a group too."""
    store = lasting.open()
    store.publish_many("t", numbered(3))
    store.subscribe("t", "kept", ordered=True, max_deliveries=7).close()
    store.subscribe("t", "latest", start="latest").close()
    store.subscribe("t", "gone").close()
    store.delete_group("t", "gone")
    store = again()
    infos = {info.name: info for info in store.groups("t")}
    assert sorted(infos) == ["kept", "latest"]
    assert (infos["kept"].ordered, infos["kept"].max_deliveries) == (True, 7)
    assert (position(store, "t", "kept"), position(store, "t", "latest")) == (0, 3)
    with store.subscribe("t", "gone") as consumer:
        assert offsets(drain(consumer)) == [0, 1, 2]


def test_a_group_made_again_does_not_inherit(lasting: Backend, again: Callable[[], Store]) -> None:
    """Old acks of an old group of the same name are not the new one's."""
    store = lasting.open()
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g") as consumer:
        consumer.ack(take(consumer), wait=True)
    store.delete_group("t", "g")
    store.subscribe("t", "g").close()
    store = again()
    assert position(store, "t", "g") == 0


# -- deliveries -----------------------------------------------------------------------------------------------------


def test_what_was_in_flight_comes_again(lasting: Backend, again: Callable[[], Store]) -> None:
    """Each message once, in order, nothing lost; by the end of the old lease at the latest."""
    store = lasting.open()
    store.publish_many("t", numbered(10))
    consumer = store.subscribe("t", "g", lease=30)
    take(consumer, 4)
    store = again()
    lasting.advance(31)
    with store.subscribe("t", "g", lease=30) as consumer:
        # One at a time after a kill: each of them may be what killed the process.
        got = drain(consumer)
    assert sorted(offsets(got)) == list(range(10))


def test_a_killed_consumer_condemns_only_what_it_was_handling(lasting: Backend) -> None:
    """A hundred fetched, one at a time handled: one of them counts as failed, the oldest."""
    store = lasting.open()
    store.publish_many("t", numbered(100))
    consumer = store.subscribe("t", "g", prefetch=100, concurrency=1)
    one(consumer)
    consumer.flush()
    store = lasting.kill()
    lasting.advance(1_000)
    with store.subscribe("t", "g", prefetch=100) as consumer:
        got = drain(consumer)
    assert {message.offset: message.attempt for message in got} == {0: 2} | dict.fromkeys(range(1, 100), 1)


def test_a_message_that_kills_its_process_is_found_and_buried(lasting: Backend) -> None:
    """Among neighbours that are all fetched together; they are handled, once each, and none of them is condemned."""
    store = lasting.open()
    store.publish_many("t", [b"poison" if number == 5 else b"%d" % number for number in range(10)])
    handled: list[int] = []
    for _ in range(12):
        consumer = store.subscribe("t", "g", max_deliveries=3)
        while (message := consumer.get(timeout=0)) is not None and message.value != b"poison":
            message.ack(wait=True)
            handled.append(message.offset)
        if message is None:
            break
        store = lasting.kill()
        lasting.advance(1_000)
    assert sorted(handled) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    (letter,) = store.dead_letters("t").list()
    assert (letter.value, letter.headers["x-dlq-source-offset"], letter.headers["x-dlq-deliveries"]) == (b"poison", b"5", b"3")


def test_an_ordered_group_goes_on_in_order(lasting: Backend, again: Callable[[], Store]) -> None:
    """What was in flight comes first, then the rest, partition by partition."""
    store = lasting.open()
    store.create_topic("t", partitions=2)
    for partition in range(2):
        store.publish_many("t", numbered(10), partition=partition)
    consumer = store.subscribe("t", "g", ordered=True)
    finished = [message for message in take(consumer, 15) if message.partition == 0][:3]
    assert offsets(finished) == [0, 1, 2]
    consumer.ack(finished, wait=True)
    store = again()
    lasting.advance(60)
    with store.subscribe("t", "g") as consumer:
        got = drain(consumer)
    assert [message.offset for message in got if message.partition == 0] == list(range(3, 10))
    assert [message.offset for message in got if message.partition == 1] == list(range(10))


def test_the_count_of_attempts_survives(lasting: Backend, again: Callable[[], Store]) -> None:
    """So a poison message is buried however often somebody restarts."""
    store = lasting.open()
    store.publish("t", b"x")
    for attempt in (1, 2, 3):
        consumer = store.subscribe("t", "g", max_deliveries=4)
        message = one(consumer)
        assert message.attempt == attempt
        message.nack(delay=0, reason="again")
        consumer.close()
        store.flush()
        store = again()
    with store.subscribe("t", "g", max_deliveries=4) as consumer:
        message = one(consumer)
        assert message.attempt == 4
        message.nack()
    assert values(store.dead_letters("t").list()) == [b"x"]


def test_a_delay_survives(lasting: Backend, again: Callable[[], Store]) -> None:
    """A message that failed waits for its time, not for a restart."""
    store = lasting.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        one(consumer).nack(delay=100)
        consumer.flush()
    lasting.advance(50)
    store = again()
    with store.subscribe("t", "g") as consumer:
        assert consumer.get(timeout=0) is None
        lasting.advance(49)
        assert consumer.get(timeout=0) is None
        lasting.advance(6)
        assert one(consumer).attempt == 2


def test_a_clock_set_back_meanwhile_holds_up_nothing_for_ever(lasting: Backend) -> None:
    """An hour's delay is an hour and no ten years, whatever the wall clock says after the restart."""
    store = lasting.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g") as consumer:
        one(consumer).nack(delay=60)
    lasting.close()
    lasting.fake_clock.jump_wall(-10 * 365 * 86_400)
    store = lasting.open()
    with store.subscribe("t", "g") as consumer:
        lasting.advance(2 * 86_400)
        assert one(consumer).attempt == 2


# -- dead letters, deduplication, producers, transactions -----------------------------------------------------------


def test_dead_letters_survive_and_their_source_is_finished(lasting: Backend, again: Callable[[], Store]) -> None:
    """One copy, and the source is not delivered again; also after the second restart."""
    store = lasting.open()
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        one(consumer).nack(reason="bad")
        drain(consumer)
        consumer.flush()
    for _ in range(2):
        store = again()
        assert values(store.dead_letters("t").list()) == [b"0"]
        with store.subscribe("t", "g", max_deliveries=1) as consumer:
            lasting.advance(1_000)
            assert drain(consumer) == []


def test_replayed_and_discarded_dead_letters_stay_so(lasting: Backend) -> None:
    """Both are stored when they return."""
    store = lasting.open()
    store.publish_many("t", numbered(6))
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    letters = store.dead_letters("t")
    assert letters.replay(filter=lambda message: message.value in {b"0", b"1"}) == 2
    store = lasting.kill()
    assert values(store.dead_letters("t").list()) == numbered(4, 2)
    assert stored(store, "t") == [*numbered(6), b"0", b"1"]
    assert store.dead_letters("t").discard(filter=lambda message: message.value == b"3") == 1
    store = lasting.kill()
    assert values(store.dead_letters("t").list()) == [b"2", b"4", b"5"]
    assert len(store.dead_letters("t")) == 3


def test_deduplication_survives(lasting: Backend, again: Callable[[], Store]) -> None:
    """Same key, other payload, after the restart: the first place, the first payload, one delivery."""
    store = lasting.open()
    store.create_topic("t", partitions=3)
    first = store.publish("t", b"first", dedup_key="k")
    store = again()
    second = store.publish("t", b"second", dedup_key="k")
    assert (second.partition, second.offset, second.duplicate) == (first.partition, first.offset, True)
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == [b"first"]


def test_the_window_of_a_key_survives(lasting: Backend, again: Callable[[], Store]) -> None:
    """It is counted from the first publish, not from the restart."""
    store = lasting.open()
    store.publish("t", b"x", dedup_key="k")
    lasting.advance(119)
    store = again()
    assert store.publish("t", b"x", dedup_key="k").duplicate
    lasting.advance(2)
    assert not store.publish("t", b"x", dedup_key="k").duplicate


def test_keys_are_remembered_over_segments(lasting: Backend, again: Callable[[], Store]) -> None:
    """Sealed segments hold keys too."""
    store = lasting.open()
    store.create_topic("t", segment_messages=10)
    for number in range(95):
        store.publish("t", b"%d" % number, dedup_key=f"k{number}")
    store = again()
    for number in range(95):
        receipt = store.publish("t", b"again", dedup_key=f"k{number}")
        assert (receipt.offset, receipt.duplicate) == (number, True)
    assert store.publish("t", b"new", dedup_key="k95").offset == 95


def test_a_named_producer_goes_on_after_a_restart(lasting_live: Backend) -> None:
    """Its new messages are new; nothing is taken for a repetition of what came before."""
    store = lasting_live.open()
    for turn in range(3):
        with store.producer("t", name="loader") as producer:
            futures = [producer.send(b"same") for _ in range(4)]
        receipts = [future.result(PATIENCE) for future in futures]
        assert [(receipt.offset, receipt.duplicate) for receipt in receipts] == [(turn * 4 + at, False) for at in range(4)]
        store = lasting_live.reopen()
    assert len(stored(store, "t")) == 12


def test_a_transaction_is_there_whole(lasting: Backend, again: Callable[[], Store]) -> None:
    """What it published and what it acked, or nothing of it."""
    store = lasting.open()
    store.publish_many("in", numbered(4))
    store.create_topic("out", partitions=2)
    consumer = store.subscribe("in", "g")
    messages = take(consumer)
    with store.transaction() as t:
        t.publish("out", b"a", partition=0)
        t.publish("out", b"b", partition=1)
        t.ack(messages[0])
        t.ack(messages[1])
    with pytest.raises(RuntimeError), store.transaction() as t:
        t.publish("out", b"c", partition=0)
        t.ack(messages[2])
        raise RuntimeError
    store = again()
    assert stored(store, "out") == [b"a", b"b"]
    assert position(store, "in", "g") == 2


def test_the_floor_of_retention_survives(lasting: Backend, again: Callable[[], Store]) -> None:
    """What was dropped stays dropped, and a fresh group's acks above it stay."""
    store = lasting.open()
    store.create_topic("t", segment_messages=10, retention_age=100, retain="always")
    store.publish_many("t", numbered(10))
    for number in range(10, 35):
        store.publish("t", b"%d" % number)
    lasting.advance(1_000)
    store.publish("t", b"new")
    store.retain("t")
    first = next(iter(store.read("t"))).offset
    assert first >= 30
    with store.subscribe("t", "fresh") as consumer:
        one(consumer).ack(wait=True)
    store = again()
    with pytest.raises(OffsetOutOfRange) as caught:
        list(store.read("t", 0, start=0))
    assert caught.value.first == first
    assert position(store, "t", "fresh") == first + 1
    with store.subscribe("t", "fresh") as consumer:
        assert offsets(drain(consumer)) == list(range(first + 1, 36))


# -- again and again ------------------------------------------------------------------------------------------------


def test_nothing_is_lost_or_doubled_over_many_restarts(lasting: Backend, rng: random.Random, seed: int) -> None:
    """Publishes, acks, nacks, rejects and seeks between closings and kills, compared with a simple model."""
    print("seed", seed)
    store = lasting.open()
    store.create_topic("t", partitions=2, segment_messages=15)
    published: dict[tuple[int, int], bytes] = {}
    finished: set[tuple[int, int]] = set()
    dead: list[bytes | None] = []
    for turn in range(25):
        for _ in range(rng.randint(0, 12)):
            value = b"%d" % len(published)
            receipt = store.publish("t", value)
            assert (receipt.partition, receipt.offset) not in published
            published[receipt.partition, receipt.offset] = value
        lasting.advance(40)
        consumer = store.subscribe("t", "g", max_deliveries=0, lease=30)
        for message in take(consumer, rng.randint(0, 20)):
            place = (message.partition, message.offset)
            assert published[place] == message.value
            assert place not in finished, f"{place} came again"
            match rng.choice(["ack", "ack", "ack", "nack", "keep", "reject"]):
                case "ack":
                    message.ack()
                    finished.add(place)
                case "nack":
                    message.nack(delay=rng.choice([0, 10]))
                case "reject":
                    message.reject("model")
                    finished.add(place)
                    dead.append(message.value)
                case _:
                    pass
        consumer.flush()
        if turn % 7 == 6:
            at = rng.randint(0, sum(1 for partition, _ in published if partition == 0))
            store.seek("t", "g", at, partition=0)
            finished = {(partition, offset) for partition, offset in finished if partition == 1}
            finished |= {(0, offset) for offset in range(at)}
        store = lasting.kill() if rng.random() < 0.5 else lasting.reopen()
        assert {(m.partition, m.offset): m.value for m in store.read("t")} == published
        assert values(store.dead_letters("t").list()) == dead
    lasting.advance(10_000)
    with store.subscribe("t", "g", max_deliveries=0) as consumer:
        rest = {(message.partition, message.offset) for message in drain(consumer)}
    assert rest == set(published) - finished


def test_the_first_message_stays_acked_over_restarts_and_the_end_of_its_lease(lasting: Backend) -> None:
    """Publish offset 0, receive, ack, restart, subscribe again: nothing arrives, neither now nor after the lease."""
    store = lasting.open()
    assert store.publish("t", b"x").offset == 0
    with store.subscribe("t", "g") as consumer:
        one(consumer).ack()
    for restart in (lasting.reopen, lasting.kill):
        store = restart()
        with store.subscribe("t", "g") as consumer:
            assert consumer.get(timeout=0) is None
            lasting.advance(3_600)
            assert consumer.get(timeout=0) is None


def test_after_a_restart_exactly_the_half_of_a_thousand_comes_that_was_not_acked(lasting: Backend) -> None:
    """Receive a thousand, ack the first half, restart: exactly the other half comes, with its payloads."""
    store = lasting.open()
    store.publish_many("t", numbered(1_000))
    consumer = store.subscribe("t", "g", prefetch=1_000)
    messages = take(consumer)
    assert len(messages) == 1_000
    consumer.ack(messages[:500])
    store = lasting.reopen()
    with store.subscribe("t", "g") as consumer:
        got = drain(consumer)
    assert offsets(got) == list(range(500, 1_000))
    assert values(got) == numbered(500, 500)


def test_a_key_that_is_published_again_after_a_kill_is_the_first_message(lasting: Backend) -> None:
    """Same key, other payload, after a kill: the first place, one delivery, the first payload."""
    store = lasting.open()
    first = store.publish("t", b"first", dedup_key="k")
    store = lasting.kill()
    again = store.publish("t", b"second", dedup_key="k")
    assert (again.offset, again.duplicate) == (first.offset, True)
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == [b"first"]


def test_a_full_table_keeps_the_newest_keys_over_a_restart(lasting: Backend) -> None:
    """110,000 keys in one window: after the restart the newest 100,000 are known."""
    store = lasting.open()
    for part in range(11):
        keys = [b"%d" % number for number in range(part * 10_000, part * 10_000 + 10_000)]
        store.publish_many("t", [b""] * 10_000, dedup_keys=keys)
    store = lasting.reopen()
    for number in (109_999, 60_000, 10_002):
        receipt = store.publish("t", b"", dedup_key=b"%d" % number)
        assert (receipt.offset, receipt.duplicate) == (number, True)
    assert not store.publish("t", b"", dedup_key=b"0").duplicate


def test_positions_of_groups_with_similar_names_survive(lasting: Backend) -> None:
    """Of every group of every topic, whatever their names look like when joined."""
    store = lasting.open()
    names = [("a", "b.c"), ("a.b", "c"), ("a-b", "c"), ("a", "b-c")]
    for number, (topic, group) in enumerate(names):
        if topic not in [info.name for info in store.topics()]:
            store.publish_many(topic, numbered(10))
        with store.subscribe(topic, group) as consumer:
            drain(consumer, number + 1)
    store = lasting.reopen()
    assert [position(store, topic, group) for topic, group in names] == [1, 2, 3, 4]
    store = lasting.kill()
    assert [position(store, topic, group) for topic, group in names] == [1, 2, 3, 4]


def test_messages_of_a_named_producer_after_a_restart_are_not_taken_for_old_ones(lasting_live: Backend) -> None:
    """The sequence begins anew with a new epoch: new messages are not taken for old ones."""
    store = lasting_live.open()
    places = []
    for _ in range(4):
        with store.producer("t", name="p") as producer:
            futures = [producer.send(b"same") for _ in range(5)]
        places += [future.result(PATIENCE).offset for future in futures]
        store = lasting_live.reopen()
    assert places == list(range(20))


def test_the_next_offset_comes_from_the_log(lasting: Backend) -> None:
    """Open and close without publishing, again and again: the next offset is still the next."""
    store = lasting.open()
    store.publish_many("t", numbered(7))
    for _ in range(5):
        store = lasting.reopen()
    store = lasting.kill()
    assert store.publish("t", b"7").offset == 7


def test_the_order_after_a_restart_is_the_order_before(lasting_live: Backend) -> None:
    """Many threads publish at once: consumers before and after the restart see one order."""
    store = lasting_live.open()
    all_of(lambda name: [store.publish("t", b"%d %d" % (name, at)) for at in range(30)], range(6))
    with store.subscribe("t", "before") as consumer:
        before = values(drain(consumer))
    store = lasting_live.reopen()
    with store.subscribe("t", "after") as consumer:
        assert values(drain(consumer)) == before
    assert len(before) == 180
