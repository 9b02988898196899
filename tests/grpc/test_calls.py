"""Every call, as a client without any library of ours makes it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.errors import PenstockError
from penstock.server.grpc.router import METHODS, PUBLIC
from penstock.server.grpc.statuses import STATUS_OF
from penstock.wire import penstock_pb2 as pb
from tests.docs.test_reference import ERRORS
from tests.grpc.helpers import numbered, refused, request_of, until
from tests.grpc.running import Running, running

if TYPE_CHECKING:
    from penstock.store.store import Store
    from penstock.wire.penstock_pb2_grpc import AdminStub, PenstockStub


def read(stub: PenstockStub, topic: str, **options: object) -> list[pb.Message]:
    return [one for page in stub.Read(pb.ReadRequest(topic=topic, **options)) for one in page.messages]  # type: ignore[arg-type]


def test_the_table_of_calls_is_that_of_the_proto() -> None:
    services = pb.DESCRIPTOR.services_by_name.values()
    assert set(METHODS) == {f"/{service.full_name}/{method.name}" for service in services for method in service.methods}
    assert not set(METHODS) & set(PUBLIC)


def test_every_enum_has_unspecified_at_zero() -> None:
    for enum in pb.DESCRIPTOR.enum_types_by_name.values():
        assert enum.values_by_number[0].name.endswith("_UNSPECIFIED")


def test_every_error_has_a_status() -> None:
    assert set(STATUS_OF) == set(ERRORS)
    assert grpc.StatusCode.OK not in STATUS_OF.values()
    assert PenstockError in STATUS_OF


# -- publishing -----------------------------------------------------------------------------------------------------


def test_everything_of_a_message_comes_back(stub: PenstockStub, topic: str) -> None:
    headers = [pb.Header(name="a", value=b"1"), pb.Header(name="a", value=b"\xff"), pb.Header(name="é", value=b"")]
    message = pb.NewMessage(value=b"\0x", key=b"k", headers=headers, timestamp_us=1_700_000_000_123_457, dedup_key=b"d")
    answer = stub.Publish(pb.PublishRequest(topic=topic, messages=[message]))
    assert [(one.partition, one.offset, one.duplicate) for one in answer.receipts] == [(0, 0, False)]
    assert stub.Publish(pb.PublishRequest(topic=topic, messages=[message])).receipts[0].duplicate
    (found,) = read(stub, topic)
    assert (found.value, found.key, found.dedup_key) == (b"\0x", b"k", b"d")
    assert list(found.headers) == headers
    assert found.timestamp_us == 1_700_000_000_123_457
    assert found.append_time_us > found.timestamp_us


def test_no_value_is_a_tombstone_and_an_empty_one_is_a_value(stub: PenstockStub, topic: str) -> None:
    stub.Publish(pb.PublishRequest(topic=topic, messages=[pb.NewMessage(key=b"k"), pb.NewMessage(value=b"")]))
    gone, empty = read(stub, topic)
    assert not gone.HasField("value")
    assert empty.HasField("value")
    assert not empty.HasField("key")


def test_messages_of_one_key_lie_in_one_partition_and_receipts_say_where(stub: PenstockStub, shared: Running) -> None:
    shared.store.create_topic("keyed", partitions=4)
    messages = [pb.NewMessage(value=value, key=b"key-%d" % (number % 5)) for number, value in enumerate(numbered(50))]
    receipts = stub.Publish(pb.PublishRequest(topic="keyed", messages=messages)).receipts
    places = {(one.partition, one.offset): one for one in read(stub, "keyed")}
    assert len({one.partition for one in receipts}) > 1
    for message, receipt in zip(messages, receipts, strict=True):
        found = places[receipt.partition, receipt.offset]
        assert (found.value, found.key) == (message.value, message.key)
    for number in range(5):
        assert len({one.partition for one in receipts[number::5]}) == 1


def test_the_partition_can_be_named(stub: PenstockStub, shared: Running) -> None:
    shared.store.create_topic("parted", partitions=3)
    receipts = stub.Publish(request_of("parted", *numbered(2), partition=2)).receipts
    assert [(one.partition, one.offset) for one in receipts] == [(2, 0), (2, 1)]
    assert [one.value for one in read(stub, "parted", partition=2)] == numbered(2)
    with refused(grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND"):
        stub.Publish(request_of("parted", b"x", partition=3))


def test_publishing_makes_a_topic(stub: PenstockStub) -> None:
    assert stub.Publish(request_of("made-by-publishing", b"x")).receipts[0].offset == 0


def test_a_large_request_is_one_batch(stub: PenstockStub, shared: Running, topic: str) -> None:
    before = shared.store.stats().commits
    assert len(stub.Publish(request_of(topic, *[b"v" * 100] * 5_000)).receipts) == 5_000
    assert shared.store.stats().commits - before <= 3
    assert shared.store.stats().topics[topic].published == 5_000


@pytest.mark.parametrize("sync", [pb.SYNC_MODE_ALWAYS, pb.SYNC_MODE_INTERVAL, pb.SYNC_MODE_OS])
def test_topics_of_every_sync_mode(stub: PenstockStub, admin: AdminStub, sync: int) -> None:
    name = f"sync-{sync}"
    made = admin.CreateTopic(pb.CreateTopicRequest(name=name, settings=pb.TopicSettings(sync=sync)))  # type: ignore[arg-type]
    assert made.settings.sync == sync
    assert stub.Publish(request_of(name, b"x")).receipts[0].offset == 0
    assert stub.Publish(request_of(name, b"y", sync=pb.SYNC_MODE_ALWAYS)).receipts[0].offset == 1


def test_a_store_in_memory() -> None:
    with running() as server:
        stub = server.stub()
        assert stub.Publish(request_of("t", *numbered(3))).receipts[2].offset == 2
        assert [one.value for one in read(stub, "t")] == numbered(3)


def test_a_stream_of_publishes_is_answered_in_order_and_goes_on_after_an_error(stub: PenstockStub, topic: str) -> None:
    def requests() -> list[pb.PublishRequest]:
        keyed = pb.PublishRequest(topic=topic, messages=[pb.NewMessage(value=b"once", dedup_key=b"once")])
        good = [request_of(topic, b"%d" % number) for number in range(300)]
        return [*good[:100], request_of("..", b"x"), keyed, *good[100:], keyed]

    answers = list(stub.PublishStream(iter(requests())))
    assert len(answers) == 303
    assert answers[100].error.code == "BAD_NAME"
    assert answers[100].error.status == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert answers[302].published.receipts[0].duplicate
    stored = [one.published.receipts[0].offset for at, one in enumerate(answers) if at not in (100, 302)]
    assert stored == list(range(301))
    assert [one.value for one in read(stub, topic)] == [*numbered(100), b"once", *[b"%d" % at for at in range(100, 300)]]


# -- consuming ------------------------------------------------------------------------------------------------------


def test_credit_bounds_what_is_pushed_and_acks_give_none(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(20)))
    stream = shared.subscribe(topic, credit=4, prefetch=1_000)
    started = stream.started()
    assert (started.partitions, started.settings.lease_ms) == (1, 30_000)
    first = stream.deliveries()
    assert [one.message.value for one in first] == numbered(4)
    assert stream.ack(*first) == 0
    assert shared.store.stats().topics[topic].groups["g"].delivered == 4
    stream.send(credit=2)
    second = stream.deliveries()
    assert [one.message.offset for one in second] == [4, 5]
    assert {one.attempt for one in second} == {1}
    # Nothing more came between: the answer is the next that does.
    assert stream.settle(drop_credit=True) == 0
    stream.end()


def test_prefetch_bounds_what_is_not_finished(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(20)))
    stream = shared.subscribe(topic, credit=1_000, prefetch=4)
    stream.started()
    first = stream.deliveries()
    assert len(first) == 4
    assert stream.settle() == 0
    stream.send(ack=[pb.Tags(first=first[0].tag, count=1)])
    assert [one.message.offset for one in stream.deliveries()] == [4]
    stream.end()


def test_credit_that_is_taken_back_pushes_nothing(shared: Running, stub: PenstockStub, topic: str) -> None:
    stream = shared.subscribe(topic, credit=10)
    stream.started()
    assert stream.settle(drop_credit=True) == 0
    stub.Publish(request_of(topic, b"x"))
    assert stream.settle() == 0
    stream.send(credit=1)
    assert [one.message.value for one in stream.deliveries()] == [b"x"]
    stream.end()


def test_acks_by_ranges_and_late_ones(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(10)))
    stream = shared.subscribe(topic, credit=10)
    stream.started()
    found = stream.deliveries()
    assert stream.settle(ack=[pb.Tags(first=found[0].tag, count=5)], durable=True) == 0
    assert stream.settle(ack=[pb.Tags(first=found[3].tag, count=7)]) == 2
    assert shared.store.stats().topics[topic].groups["g"].lag == 0
    stream.end()


def test_nacks_come_again_with_their_attempt_and_rejects_are_dead_letters(
    shared: Running, stub: PenstockStub, admin: AdminStub, topic: str
) -> None:
    stub.Publish(request_of(topic, *numbered(3)))
    stream = shared.subscribe(topic, credit=3, max_deliveries=2, backoff_ms=0)
    stream.started()
    good, again, never = stream.deliveries()
    assert stream.ack(good) == 0
    assert stream.nack(again, delay_ms=0, reason="not now") == 0
    assert stream.nack(never, reject=True, reason="nonsense") == 0
    stream.send(credit=10)
    (once_more,) = stream.deliveries()
    assert (once_more.message.value, once_more.attempt) == (b"1", 2)
    assert stream.nack(once_more, reason="again") == 0
    until(lambda: admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic)).count == 2)
    letters = admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic)).messages
    reasons = {one.value: {h.name: h.value for h in one.headers}["x-dlq-reason"] for one in letters}
    assert reasons == {b"1": b"again", b"2": b"nonsense"}
    stream.end()


def test_a_lease_can_be_extended_and_given_back(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(2)))
    stream = shared.subscribe(topic, credit=2, lease_ms=60_000)
    stream.started()
    kept, returned = stream.deliveries()
    kept_tags = [pb.Tags(first=kept.tag, count=1)]
    assert stream.settle(extend=[pb.Extend(tags=kept_tags, lease_ms=600_000)]) == 0
    assert stream.settle(give_back=[pb.Tags(first=returned.tag, count=1)], credit=10) == 0
    (again,) = stream.deliveries()
    assert (again.message.offset, again.attempt) == (1, 1)
    # Its lease ends soon, and it comes once more; the other one is still this stream's.
    assert stream.settle(extend=[pb.Extend(tags=[pb.Tags(first=again.tag, count=1)], lease_ms=10)]) == 0
    (late,) = stream.deliveries()
    assert (late.message.offset, late.attempt) == (1, 2)
    assert stream.settle(extend=[pb.Extend(tags=[pb.Tags(first=again.tag, count=1)])]) == 1
    assert stream.ack(kept) == 0
    stream.end()


def test_a_group_begins_where_it_is_told(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(5)))
    for group, place, first in (
        ("offset", pb.Place(offset=3), b"3"),
        ("earliest", pb.Place(edge=pb.EDGE_EARLIEST), b"0"),
        ("time", pb.Place(time_us=0), b"0"),
    ):
        stream = shared.subscribe(topic, group, credit=1, start=place)
        stream.started()
        assert stream.deliveries()[0].message.value == first
        stream.end()
    stream = shared.subscribe(topic, "latest", credit=1, start=pb.Place(edge=pb.EDGE_LATEST))
    stream.started()
    stub.Publish(request_of(topic, b"new"))
    assert stream.deliveries()[0].message.value == b"new"
    stream.end()


def test_an_ordered_group_goes_on_in_order(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(3)))
    stream = shared.subscribe(topic, credit=1, ordered=True, backoff_ms=0)
    assert stream.started().settings.ordered
    (first,) = stream.deliveries()
    assert stream.nack(first, delay_ms=0) == 0
    stream.send(credit=5)
    assert stream.deliveries()[0].message.offset == 0
    stream.end()


def test_a_large_backlog_comes_in_responses_of_bounded_size(store: Store) -> None:
    with running(store, push_bytes_max=10_000) as server:
        stub = server.stub()
        stub.Publish(request_of("t", *[b"v" * 900] * 100, b"w" * 50_000))
        stream = server.subscribe("t", credit=1_000, prefetch=1_000)
        stream.started()
        found: list[pb.Delivery] = []
        while len(found) < 101:
            response = stream.next()
            assert response.ByteSize() <= 11_000 or len(response.deliveries.messages) == 1
            found += response.deliveries.messages
        assert [one.message.offset for one in found] == list(range(101))
        assert {one.attempt for one in found} == {1}
        pages = list(stub.Read(pb.ReadRequest(topic="t")))
        assert len(pages) > 5
        assert [one.offset for page in pages for one in page.messages] == list(range(101))
        stream.end()


def test_two_streams_share_a_group(shared: Running, stub: PenstockStub, topic: str) -> None:
    """Each gathers five before it acks any, and says so: else it would be sent little ahead (ADR 0044)."""
    one, other = (shared.subscribe(topic, credit=5, concurrency=5) for _ in range(2))
    one.started(), other.started()
    stub.Publish(request_of(topic, *numbered(10)))
    values = []
    for stream in (one, other):
        got = 0
        while got < 5:
            found = stream.deliveries()
            got += len(found)
            values += [delivery.message.value for delivery in found]
    assert sorted(values) == numbered(10)
    one.end()
    other.end()


def test_commit_finishes_all_below(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(5)))
    shared.subscribe(topic).started()
    stub.Commit(pb.CommitRequest(topic=topic, group="g", partition=0, offset=3))
    assert shared.store.stats().topics[topic].groups["g"].positions == {0: 3}
    with refused(grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"):
        stub.Commit(pb.CommitRequest(topic=topic, group="g", partition=0, offset=6))
    with refused(grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND"):
        stub.Commit(pb.CommitRequest(topic=topic, group="none", partition=0, offset=1))
    with refused(grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND"):
        stub.Commit(pb.CommitRequest(topic=topic, group="g", partition=7, offset=1))


# -- reading --------------------------------------------------------------------------------------------------------


def test_reading_by_place_and_number(shared: Running, stub: PenstockStub) -> None:
    shared.store.create_topic("places", partitions=2)
    for partition in range(2):
        stub.Publish(request_of("places", *numbered(10), partition=partition))
    assert len(read(stub, "places")) == 20
    found = read(stub, "places", partition=1, start=pb.Place(offset=2), end=pb.Place(offset=5))
    assert [one.offset for one in found] == [2, 3, 4]
    assert [one.offset for one in read(stub, "places", max_messages=3)] == [0, 1, 2]
    assert read(stub, "places", start=pb.Place(edge=pb.EDGE_LATEST)) == []
    with refused(grpc.StatusCode.OUT_OF_RANGE, "OFFSET_OUT_OF_RANGE"):
        read(stub, "places", start=pb.Place(offset=11))


# -- administering --------------------------------------------------------------------------------------------------


def test_topics_are_made_listed_and_described(admin: AdminStub, stub: PenstockStub) -> None:
    settings = pb.TopicSettings(retain=pb.RETAIN_ALWAYS, max_message_bytes=1_000, dedup_window_ms=5_000, segment_age_ms=7)
    made = admin.CreateTopic(pb.CreateTopicRequest(name="made", partitions=3, settings=settings))
    assert admin.CreateTopic(pb.CreateTopicRequest(name="made", partitions=3, settings=settings)) == made
    assert (made.partitions, made.settings.max_message_bytes, made.settings.segment_age_ms) == (3, 1_000, 7)
    assert (made.settings.retain, made.settings.dedup_window_ms) == (pb.RETAIN_ALWAYS, 5_000)
    assert made in admin.ListTopics(pb.ListTopicsRequest()).topics
    with refused(grpc.StatusCode.ALREADY_EXISTS, "TOPIC_EXISTS"):
        admin.CreateTopic(pb.CreateTopicRequest(name="made", partitions=4))
    stub.Publish(request_of("made", b"x", partition=1))
    described = admin.GetTopic(pb.GetTopicRequest(topic="made"))
    assert (described.topic, list(described.starts), list(described.ends)) == (made, [0, 0, 0], [0, 1, 0])
    assert admin.Retain(pb.RetainRequest(topic="made")).segments == 0
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "MESSAGE_TOO_LARGE"):
        stub.Publish(request_of("made", b"x" * 1_001))


def test_every_setting_is_told_as_it_was_given(admin: AdminStub, shared: Running) -> None:
    given = pb.TopicSettings(
        sync=pb.SYNC_MODE_INTERVAL, segment_bytes=1 << 20, segment_messages=11, segment_age_ms=12, max_message_bytes=1_000,
        dedup_window_ms=13, retain=pb.RETAIN_ALWAYS, retention_age_ms=14, retention_bytes=15, priorities=True, ttl_ms=16,
        expired=pb.EXPIRED_DEAD_LETTER, compression="gzip:9", compaction=True, tombstone_grace_ms=17, retention_messages=18,
        retention_bytes_hard=19, group_expiry_ms=20, dead_letter_retention_ms=21, aging_ms=22, index_interval_bytes=128,
        coalesce_below_bytes=23, coalesce_to_bytes=64, record_deliveries=True,
    )  # fmt: skip
    assert len(given.ListFields()) == len(pb.TopicSettings.DESCRIPTOR.fields)
    assert admin.CreateTopic(pb.CreateTopicRequest(name="all-settings", settings=given)).settings == given
    settings = shared.store.topic("all-settings").settings
    assert (settings.aging_ms, settings.dead_letter_retention_ms, settings.coalesce_below_bytes) == (22, 21, 23)


def test_groups_are_listed_moved_and_deleted(admin: AdminStub, stub: PenstockStub, shared: Running, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(5)))
    stream = shared.subscribe(topic, credit=5, max_deliveries=9, reset=pb.RESET_LATEST)
    stream.started()
    held = stream.deliveries()
    (group,) = admin.ListGroups(pb.ListGroupsRequest(topic=topic)).groups
    assert (group.name, group.settings.max_deliveries, group.settings.reset) == ("g", 9, pb.RESET_LATEST)
    admin.Seek(pb.SeekRequest(topic=topic, group="g", to=pb.Place(offset=4), partition=0))
    assert stream.ack(*held) == 5
    stream.send(credit=10)
    assert [one.message.offset for one in stream.deliveries()] == [4]
    numbers = admin.GetStats(pb.GetStatsRequest(topic=topic)).topics
    assert set(numbers) == {topic}
    assert (numbers[topic].messages, numbers[topic].partitions, numbers[topic].groups["g"].members) == (5, 1, 1)
    assert numbers[topic].bytes == shared.store.stats().topics[topic].bytes > 0
    assert list(numbers[topic].groups["g"].positions) == [4]
    assert topic in admin.GetStats(pb.GetStatsRequest()).topics
    admin.DeleteGroup(pb.DeleteGroupRequest(topic=topic, group="g"))
    with refused(grpc.StatusCode.UNAVAILABLE, "CLOSED"):
        list(itertools.islice(stream.call, 5))
    with refused(grpc.StatusCode.NOT_FOUND, "GROUP_NOT_FOUND"):
        admin.DeleteGroup(pb.DeleteGroupRequest(topic=topic, group="g"))


def test_dead_letters_are_listed_replayed_and_discarded(
    admin: AdminStub, stub: PenstockStub, shared: Running, topic: str
) -> None:
    stub.Publish(request_of(topic, *numbered(4)))
    stream = shared.subscribe(topic, credit=4)
    stream.started()
    assert stream.nack(*stream.deliveries(), reject=True) == 0
    stream.end()
    until(lambda: admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic)).count == 4)
    page = admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic, max_messages=2, start=1))
    assert ([one.offset for one in page.messages], page.count) == ([1, 2], 4)
    some = pb.Offsets(offsets=[0, 3, 77])
    assert admin.ReplayDeadLetters(pb.ChooseDeadLettersRequest(topic=topic, offsets=some)).count == 2
    assert len(read(stub, topic)) == 6
    nobody = pb.ChooseDeadLettersRequest(topic=topic, offsets=pb.Offsets())
    assert admin.DiscardDeadLetters(nobody).count == 0
    assert admin.DiscardDeadLetters(pb.ChooseDeadLettersRequest(topic=topic, all=True)).count == 2
    assert admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic)).count == 0
    assert len(read(stub, topic)) == 6


def test_metrics_tell_lag_in_seconds_and_how_long_things_take(server: Running, store: Store) -> None:
    store.measure()
    stub, admin = server.stub(), server.admin()
    store.create_topic("t")
    store.create_topic("many", partitions=3)
    stub.Publish(request_of("t", *numbered(3)))
    keyed = [pb.NewMessage(value=b"x", key=b"%d" % number) for number in range(20)]
    stub.Publish(pb.PublishRequest(topic="many", messages=keyed))
    stream = server.subscribe("t", credit=3)
    stream.started()
    done, dead, held = stream.deliveries()
    assert stream.ack(done) == 0
    assert stream.nack(dead, reject=True) == 0
    until(lambda: len(store.dead_letters("t")))
    found = admin.GetMetrics(pb.GetMetricsRequest())
    topic, bounds = found.topics["t"], len(found.bounds_s)
    assert (sum(topic.publish.counts), len(topic.publish.counts)) == (1, bounds + 1)
    assert sum(found.topics["many"].publish.counts) == 1, "one publish is one observation, over however many partitions"
    assert sum(found.fsync.counts) > 0
    assert (sum(topic.groups["g"].deliver_to_ack.counts), topic.dead_letters) == (1, 1)
    assert 0 < topic.publish.sum_s < 60
    assert 0 < topic.groups["g"].lag_s < 60
    assert 0 < topic.dead_letter_age_s < 60
    assert set(admin.GetMetrics(pb.GetMetricsRequest(topic="many")).topics) == {"many"}
    store.measure(on=False)
    silent = admin.GetMetrics(pb.GetMetricsRequest(topic="t"))
    assert not silent.HasField("fsync")
    assert not silent.topics["t"].HasField("publish")
    assert stream.ack(held) == 0
    stream.end()


def test_dead_letters_are_chosen_by_a_filter(admin: AdminStub, stub: PenstockStub, shared: Running, topic: str) -> None:
    marked = pb.NewMessage(value=b"4", key=b"\xff", headers=[pb.Header(name="kind", value=b"odd")])
    stub.Publish(request_of(topic, *numbered(4)))
    stub.Publish(pb.PublishRequest(topic=topic, messages=[marked]))
    stream = shared.subscribe(topic, credit=5)
    stream.started()
    held: list[pb.Delivery] = []
    while len(held) < 5:
        held += stream.deliveries()
    assert stream.nack(*held[:2], reject=True, reason="no such user") == 0
    assert stream.nack(*held[2:], reject=True, reason="nonsense") == 0
    stream.end()
    until(lambda: admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic)).count == 5)
    letters = admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic)).messages
    first_us = min(one.append_time_us for one in letters)

    def listed(**wanted: Any) -> list[bytes]:
        chosen = pb.DeadLetterFilter(**wanted)
        return sorted(
            one.value for one in admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic, filter=chosen)).messages
        )

    assert listed() == numbered(5)
    assert listed(reason="user") == listed(reason="no*user") == numbered(2)
    assert listed(start=1, end=3) == [b"1", b"2"]
    assert listed(key=b"\xff") == listed(headers=[pb.HeaderFilter(name="kind", value=b"odd")]) == [b"4"]
    assert listed(headers=[pb.HeaderFilter(name="kind")]) == [b"4"]
    assert listed(group="g", partition=0, since_us=first_us) == numbered(5)
    assert listed(group="h") == listed(partition=1) == listed(until_us=first_us) == []
    for wrong in (
        pb.DeadLetterFilter(headers=[pb.HeaderFilter(name="a"), pb.HeaderFilter(name="a")]),
        pb.DeadLetterFilter(reason="x" * 257),
        pb.DeadLetterFilter(since_us=1 << 62),
    ):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT"):
            admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic, filter=wrong))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT"):
        admin.DiscardDeadLetters(pb.ChooseDeadLettersRequest(topic=topic, filter=pb.DeadLetterFilter()))
    some = pb.ChooseDeadLettersRequest(topic=topic, filter=pb.DeadLetterFilter(reason="user"))
    assert admin.ReplayDeadLetters(some).count == 2
    others = pb.ChooseDeadLettersRequest(topic=topic, filter=pb.DeadLetterFilter(start=2, end=4))
    assert admin.DiscardDeadLetters(others).count == 2
    assert listed() == [b"4"]
    assert len(read(stub, topic)) == 7


def test_fetching_gives_what_there_is_without_credit(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(5)))
    stream = shared.subscribe(topic)
    stream.started()

    def fetch(number: int, most: int, **wait: int) -> list[bytes]:
        stream.send(id=number, fetch=pb.Fetch(max_messages=most, **wait))
        answers = [stream.next(), stream.next()]
        (settled,) = [one.settled for one in answers if one.WhichOneof("event") == "settled"]
        (found,) = [one.deliveries for one in answers if one.WhichOneof("event") == "deliveries"]
        assert settled.id == found.id == number
        return [one.message.value for one in found.messages]

    assert fetch(1, 2, wait_ms=0) == numbered(2)
    assert fetch(2, 1_000, wait_ms=0) == numbered(5)[2:]
    assert fetch(3, 10, wait_ms=0) == []
    assert fetch(4, 10, wait_ms=30) == []
    stream.send(id=5, fetch=pb.Fetch(max_messages=1))
    assert stream.next().settled.id == 5
    # While it waits, other requests are served.
    assert stream.settle() == 0
    stub.Publish(request_of(topic, b"new"))
    assert [one.message.value for one in stream.deliveries()] == [b"new"]
    wrong: dict[str, Any]
    for wrong in ({"fetch": pb.Fetch(max_messages=0), "id": 9}, {"fetch": pb.Fetch(max_messages=1)}):
        bad = shared.subscribe(topic, "other")
        bad.started()
        bad.send(**wrong)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "BAD_ARGUMENT"):
            bad.next()
    stream.end()
