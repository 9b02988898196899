"""What is wrong is refused, told by its code, and changes nothing."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.errors import BadSetting
from penstock.server.grpc.settings import GRPC_SETTINGS, GrpcSettings
from penstock.wire import penstock_pb2 as pb
from tests.grpc.helpers import numbered, refused, request_of, until
from tests.grpc.running import PATIENCE, Running, Subscribed, running

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.wire.penstock_pb2_grpc import AdminStub, PenstockStub

INVALID = grpc.StatusCode.INVALID_ARGUMENT
BAD_NAMES = ["", "..", "../x", "/etc/x", "a/b", ".hidden", "-x", "a b", "a\nb", "a\0b", "é", "x" * 197, "\u202ex", "{{7*7}}"]
FAR = (1 << 63) - 1


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_are_refused_everywhere(stub: PenstockStub, admin: AdminStub, shared: Running, topic: str, name: str) -> None:
    place = pb.Place(edge=pb.EDGE_EARLIEST)
    calls: list[Callable[[], Any]] = [
        lambda: stub.Publish(request_of(name, b"x")),
        lambda: list(stub.Read(pb.ReadRequest(topic=name))),
        lambda: stub.Commit(pb.CommitRequest(topic=name, group="g")),
        lambda: stub.Commit(pb.CommitRequest(topic=topic, group=name)),
        lambda: shared.subscribe(name).next(),
        lambda: shared.subscribe(topic, name).next(),
        lambda: admin.CreateTopic(pb.CreateTopicRequest(name=name)),
        lambda: admin.GetTopic(pb.GetTopicRequest(topic=name)),
        lambda: admin.Retain(pb.RetainRequest(topic=name)),
        lambda: admin.ListGroups(pb.ListGroupsRequest(topic=name)),
        lambda: admin.DeleteGroup(pb.DeleteGroupRequest(topic=topic, group=name)),
        lambda: admin.Seek(pb.SeekRequest(topic=topic, group=name, to=place)),
        lambda: admin.GetStats(pb.GetStatsRequest(topic=name)),
        lambda: admin.GetMetrics(pb.GetMetricsRequest(topic=name)),
        lambda: admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=name)),
        lambda: admin.ReplayDeadLetters(pb.ChooseDeadLettersRequest(topic=name, all=True)),
    ]
    before = [info.name for info in shared.store.topics()]
    for call in calls:
        with refused(INVALID, "BAD_NAME"):
            call()
    assert [info.name for info in shared.store.topics()] == before


def test_dead_letters_are_written_by_penstock_only(stub: PenstockStub, admin: AdminStub) -> None:
    with refused(INVALID, "RESERVED_NAME"):
        stub.Publish(request_of("t.dlq", b"x"))
    with refused(INVALID, "RESERVED_NAME"):
        admin.CreateTopic(pb.CreateTopicRequest(name="t.dlq"))


@pytest.mark.parametrize("number", [0, 99, -1])
def test_an_enum_that_says_nothing_is_refused(
    stub: PenstockStub, admin: AdminStub, shared: Running, topic: str, number: int
) -> None:
    """UNSPECIFIED at 0, and values that there are not: an empty message never means something."""
    wrong: Any = number
    calls: list[Callable[[], Any]] = [
        lambda: stub.Publish(request_of(topic, b"x", sync=wrong)),
        lambda: stub.Publish(request_of("not-made", b"x", sync=wrong)),
        lambda: admin.CreateTopic(pb.CreateTopicRequest(name="not-made", settings=pb.TopicSettings(sync=wrong))),
        lambda: admin.CreateTopic(pb.CreateTopicRequest(name="not-made", settings=pb.TopicSettings(retain=wrong))),
        lambda: list(stub.Read(pb.ReadRequest(topic=topic, start=pb.Place(edge=wrong)))),
        lambda: list(stub.Read(pb.ReadRequest(topic=topic, end=pb.Place(edge=wrong)))),
        lambda: admin.Seek(pb.SeekRequest(topic=topic, group="g", to=pb.Place(edge=wrong))),
        lambda: shared.subscribe(topic, reset=wrong).next(),
        lambda: shared.subscribe(topic, start=pb.Place(edge=wrong)).next(),
    ]
    for call in calls:
        with refused(INVALID, "BAD_ARGUMENT"):
            call()
    assert "not-made" not in [info.name for info in shared.store.topics()]
    assert shared.store.groups(topic) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda stub, _, topic: stub.Publish(pb.PublishRequest(topic=topic)),
        lambda stub, _, topic: stub.Publish(
            pb.PublishRequest(topic=topic, messages=[pb.NewMessage(value=b"x", timestamp_us=FAR)])
        ),
        lambda stub, _, topic: list(stub.Read(pb.ReadRequest(topic=topic, start=pb.Place()))),
        lambda stub, _, topic: list(stub.Read(pb.ReadRequest(topic=topic, start=pb.Place(offset=(1 << 64) - 1)))),
        lambda stub, _, topic: list(stub.Read(pb.ReadRequest(topic=topic, start=pb.Place(time_us=FAR)))),
        lambda stub, _, topic: list(stub.Read(pb.ReadRequest(topic=topic, start=pb.Place(time_us=-FAR)))),
        lambda stub, _, topic: list(stub.Read(pb.ReadRequest(topic=topic, max_messages=(1 << 64) - 1))),
        lambda stub, _, topic: stub.Commit(pb.CommitRequest(topic=topic, group="g", offset=(1 << 64) - 1)),
        lambda _, admin, topic: admin.Seek(pb.SeekRequest(topic=topic, group="g")),
        lambda _, admin, topic: admin.ReplayDeadLetters(pb.ChooseDeadLettersRequest(topic=topic)),
        lambda _, admin, topic: admin.ReplayDeadLetters(pb.ChooseDeadLettersRequest(topic=topic, all=False)),
        lambda _, admin, topic: admin.DiscardDeadLetters(pb.ChooseDeadLettersRequest(topic=topic)),
        lambda _, admin, topic: admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic, max_messages=0)),
        lambda _, admin, topic: admin.ListDeadLetters(pb.ListDeadLettersRequest(topic=topic, max_messages=1_000_000)),
    ],
)
def test_wrong_values_are_refused(stub: PenstockStub, admin: AdminStub, topic: str, call: Any) -> None:
    with refused(INVALID, "BAD_ARGUMENT"):
        call(stub, admin, topic)


@pytest.mark.parametrize(
    ("settings", "partitions"),
    [({}, 0), ({}, 1 << 31), ({"segment_bytes": 1}, 1), ({"max_message_bytes": 1 << 40}, 1), ({"dedup_window_ms": 0}, 1)],
)
def test_wrong_settings_of_a_topic_are_refused(admin: AdminStub, settings: dict[str, int], partitions: int) -> None:
    request = pb.CreateTopicRequest(name="wrong", partitions=partitions, settings=pb.TopicSettings(**settings))  # type: ignore[arg-type]
    with pytest.raises(grpc.RpcError) as caught:
        admin.CreateTopic(request)
    assert caught.value.code() is INVALID
    with refused(grpc.StatusCode.NOT_FOUND, "TOPIC_NOT_FOUND"):
        admin.GetTopic(pb.GetTopicRequest(topic="wrong"))


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 0}, {"prefetch": 1 << 31}, {"prefetch_bytes": 0}, {"prefetch_bytes": 1 << 40}, {"concurrency": 0},
        {"lease_ms": 0}, {"lease_ms": 1 << 60}, {"backoff_ms": 1 << 60}, {"max_deliveries": 1 << 31},
    ],
)  # fmt: skip
def test_wrong_options_of_a_subscription_are_refused(shared: Running, topic: str, options: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        shared.subscribe(topic, **options).next()
    assert caught.value.code() is INVALID
    assert shared.store.groups(topic) == []


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.SubscribeRequest(start=pb.Subscription(topic="x", group="g")), "USAGE_ERROR"),
        (pb.SubscribeRequest(credit=1_000_001), "BAD_ARGUMENT"),
        (pb.SubscribeRequest(ack=[pb.Tags(first=0, count=(1 << 32) - 1)]), "BAD_ARGUMENT"),
        (pb.SubscribeRequest(nack=[pb.Nack(tags=[pb.Tags(first=0, count=60_000)])] * 2), "BAD_ARGUMENT"),
        (pb.SubscribeRequest(extend=[pb.Extend(tags=[pb.Tags(first=0, count=60_000)])] * 2), "BAD_ARGUMENT"),
        (pb.SubscribeRequest(give_back=[pb.Tags(first=0, count=60_000)] * 2), "BAD_ARGUMENT"),
        (pb.SubscribeRequest(durable=True), "BAD_ARGUMENT"),
    ],
)
def test_a_wrong_request_ends_its_subscription(shared: Running, topic: str, request_: pb.SubscribeRequest, code: str) -> None:
    stream = shared.subscribe(topic)
    stream.started()
    stream._requests.put(request_)
    with refused(INVALID, code):
        stream.next()
    until(lambda: shared.store.stats().topics[topic].groups["g"].members == 0)


def test_a_delay_that_is_too_long_is_refused_and_the_message_is_not_lost(
    shared: Running, stub: PenstockStub, topic: str
) -> None:
    stub.Publish(request_of(topic, b"x"))
    stream = shared.subscribe(topic, credit=1, concurrency=1, backoff_ms=0)
    stream.started()
    (delivery,) = stream.deliveries()
    stream.send(nack=[pb.Nack(tags=[pb.Tags(first=delivery.tag, count=1)], delay_ms=1 << 62)])
    with refused(INVALID, "BAD_ARGUMENT"):
        stream.next()
    again = shared.subscribe(topic, credit=1)
    again.started()
    assert again.deliveries()[0].message.value == b"x"
    again.end()


def test_a_subscription_begins_with_start(stub: PenstockStub) -> None:
    with refused(INVALID, "USAGE_ERROR"):
        list(stub.Subscribe(iter([pb.SubscribeRequest(credit=1)])))
    with refused(INVALID, "USAGE_ERROR"):
        list(stub.Subscribe(iter([])))


def test_tags_of_another_stream_name_nothing(shared: Running, stub: PenstockStub, topic: str) -> None:
    stub.Publish(request_of(topic, *numbered(2)))
    one, other = shared.subscribe(topic, credit=1), shared.subscribe(topic, credit=1)
    one.started(), other.started()
    (mine,), (theirs,) = one.deliveries(), other.deliveries()
    assert mine.tag != theirs.tag
    assert one.ack(theirs) == 1
    assert one.nack(theirs, reject=True) == 1
    assert one.settle(extend=[pb.Extend(tags=[pb.Tags(first=theirs.tag, count=1)])]) == 1
    assert one.settle(give_back=[pb.Tags(first=theirs.tag, count=1)]) == 0
    assert other.ack(theirs) == 0
    assert one.ack(mine) == 0
    one.end()
    other.end()


def test_what_is_no_message_is_refused(shared: Running) -> None:
    channel = shared.channel()
    for method in ("Publish", "Read", "Commit"):
        with refused(INVALID, "USAGE_ERROR"):
            list(channel.unary_stream(f"/penstock.v1.Penstock/{method}")(b"\xff\xff\xff", timeout=PATIENCE))
    with refused(INVALID, "USAGE_ERROR"):
        list(channel.stream_stream("/penstock.v1.Penstock/Subscribe")(iter([b"\xff\xff"]), timeout=PATIENCE))
    (answer,) = channel.stream_stream("/penstock.v1.Penstock/PublishStream")(iter([b"\xff\xff"]), timeout=PATIENCE)
    assert pb.PublishStreamResponse.FromString(answer).error.code == "USAGE_ERROR"


def test_a_message_over_the_limit_of_its_topic_is_refused(shared: Running, stub: PenstockStub, admin: AdminStub) -> None:
    admin.CreateTopic(pb.CreateTopicRequest(name="small", settings=pb.TopicSettings(max_message_bytes=10)))
    with refused(INVALID, "MESSAGE_TOO_LARGE"):
        stub.Publish(request_of("small", b"ok", b"x" * 11))
    assert shared.store.stats().topics["small"].messages == 0


def test_a_request_over_the_limit_is_refused_before_it_is_read() -> None:
    with running(request_bytes_max=10_000) as server:
        stub = server.stub()
        with pytest.raises(grpc.RpcError) as caught:
            stub.Publish(request_of("t", b"x" * 10_001))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.Publish(request_of("t", b"x" * 9_000)).receipts[0].offset == 0


def test_too_much_metadata_is_refused() -> None:
    with running() as server:
        stub = server.stub()
        with pytest.raises(grpc.RpcError) as caught:
            stub.Publish(request_of("t", b"x"), metadata=[("x-large", "a" * 20_000)])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert stub.Publish(request_of("t", b"x")).receipts[0].offset == 0


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
def test_compressed_requests_are_not_taken(shared: Running, topic: str, compression: Any) -> None:
    """What a few compressed bytes become is bounded by nothing."""
    with pytest.raises(grpc.RpcError) as caught:
        shared.stub().Publish(request_of(topic, b"\0" * 3_000_000), compression=compression)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert shared.store.stats().topics[topic].messages == 0


def test_more_calls_than_may_run_are_refused() -> None:
    with running(calls_max=2) as server:
        server.store.create_topic("t")
        streams = [server.subscribe("t", f"g{number}") for number in range(2)]
        for stream in streams:
            stream.started()
        with refused(grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"):
            server.stub().Publish(request_of("t", b"x"))
        streams[0].end()
        until(lambda: server.listener.service.calls < 2)
        assert server.stub().Publish(request_of("t", b"x")).receipts[0].offset == 0


def test_more_connections_than_may_be_are_not_taken() -> None:
    with running(connections_max=2) as server:
        server.store.create_topic("t")
        first, second = server.subscribe("t", "a"), server.subscribe("t", "b")
        first.started(), second.started()
        with pytest.raises(grpc.RpcError):
            Subscribed(server.stub(), "t", "c").next()
        first.cancel()
        second.end()


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        b"\0" * 1_000,
        b"\xff" * 1_000,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"PSTK\x01\x00\x00\x00",
    ],
)
def test_what_is_no_grpc_harms_nobody(shared: Running, stub: PenstockStub, topic: str, data: bytes) -> None:
    host, _, port = shared.target.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass
    assert stub.Publish(request_of(topic, b"x")).receipts[0].offset == 0


@pytest.mark.parametrize("setting", GRPC_SETTINGS, ids=lambda one: one.name)
def test_a_setting_out_of_its_limits_is_refused(setting: Any) -> None:
    assert getattr(GrpcSettings(), setting.name) == setting.default
    wrong: Any
    for wrong in (setting.least - 1, setting.most + 1, "1", None, True, 1.5):
        with pytest.raises(BadSetting):
            GrpcSettings(**{setting.name: wrong})


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"ttl_ms": 0}, "BAD_ARGUMENT"), ({"ttl_ms": 1 << 63}, "BAD_ARGUMENT"), ({"delay_ms": 1 << 63}, "BAD_ARGUMENT"),
        ({"deliver_at_us": FAR}, "BAD_ARGUMENT"), ({"priority": pb.PRIORITY_UNSPECIFIED}, "BAD_ARGUMENT"),
        ({"priority": 9}, "BAD_ARGUMENT"),
        ({"priority": pb.PRIORITY_HIGH}, "BAD_ARGUMENT"),
    ],
    ids=str,
)  # fmt: skip
def test_bad_options_of_a_message_are_refused(
    stub: PenstockStub, shared: Running, topic: str, message: dict[str, Any], code: str
) -> None:
    """The last one: the topic has no priorities."""
    request = pb.PublishRequest(topic=topic, messages=[pb.NewMessage(value=b"fine"), pb.NewMessage(value=b"x", **message)])
    with refused(INVALID, code):
        stub.Publish(request)
    assert list(shared.store.read(topic)) == []


def test_bad_compression_is_refused(stub: PenstockStub, admin: AdminStub, shared: Running, topic: str) -> None:
    with refused(INVALID, "BAD_SETTING"):
        stub.Publish(pb.PublishRequest(topic=topic, messages=[pb.NewMessage(value=b"x")], compression="brotli"))
    with refused(INVALID, "BAD_SETTING"):
        admin.CreateTopic(pb.CreateTopicRequest(name="packed", settings=pb.TopicSettings(compression="brotli")))
    assert list(shared.store.read(topic)) == []
