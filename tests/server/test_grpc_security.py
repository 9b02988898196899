"""
Every method of the gRPC server, for every kind of token: a table like that of HTTP, and a test that fails when a method has no row.

All requests are such that they would succeed, or fail by what they name (NOT_FOUND), for who may make them.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from penstock.server.auth import TokenAuth
from penstock.server.grpc.router import METHODS, PUBLIC
from penstock.testing import FakeClock
from penstock.wire import penstock_pb2 as pb
from tests.grpc.helpers import code_of, refused, request_of, until
from tests.grpc.running import PATIENCE, Running, Subscribed, running
from tests.server.running import write_tokens
from tests.server.test_security import ALL, CONSUMERS, DLQ_ADMINS, READERS, TOKENS, VALID, WHO

if TYPE_CHECKING:
    from collections.abc import Iterator

OK, NOT_FOUND, INVALID = grpc.StatusCode.OK, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.INVALID_ARGUMENT
TOPIC_READERS = {"reader", "topic-admin", "admin"}
DLQ_READERS = {"reader", "dlq-admin", "admin"}
MESSAGES, ADMIN = "/penstock.v1.Penstock/", "/penstock.v1.Admin/"


class Row(NamedTuple):
    """What a method answers: to those who may ask, who they are, and what it is asked."""

    done: grpc.StatusCode
    allowed: set[str]
    request: Any
    answer: Any
    streams: bool = False


CHOSEN = pb.ChooseDeadLettersRequest(topic="t", offsets=pb.Offsets(offsets=[7]))
START = pb.SubscribeRequest(start=pb.Subscription(topic="t", group="g"))
LISTED = reflection_pb2.ServerReflectionRequest(list_services="")
HEALTH = health_pb2.HealthCheckRequest()
TABLE: dict[str, Row] = {
    MESSAGES + "Publish": Row(OK, {"publisher", "topic-admin", "admin"}, request_of("t", b"x"), pb.PublishResponse),
    MESSAGES + "PublishStream": Row(
        OK, {"publisher", "topic-admin", "admin"}, request_of("t", b"x"), pb.PublishStreamResponse, True
    ),
    MESSAGES + "Subscribe": Row(OK, CONSUMERS, START, pb.SubscribeResponse, True),
    MESSAGES + "Read": Row(OK, TOPIC_READERS, pb.ReadRequest(topic="t"), pb.ReadResponse),
    MESSAGES + "Commit": Row(OK, CONSUMERS, pb.CommitRequest(topic="t", group="g"), pb.CommitResponse),
    ADMIN + "CreateTopic": Row(OK, {"topic-admin", "admin"}, pb.CreateTopicRequest(name="t"), pb.Topic),
    ADMIN + "ListTopics": Row(OK, VALID, pb.ListTopicsRequest(), pb.ListTopicsResponse),
    ADMIN + "GetTopic": Row(
        OK, {"publisher", "consumer", "reader", "topic-admin", "admin"}, pb.GetTopicRequest(topic="t"), pb.GetTopicResponse
    ),
    ADMIN + "Retain": Row(OK, {"topic-admin", "admin"}, pb.RetainRequest(topic="t"), pb.RetainResponse),
    ADMIN + "Vacuum": Row(OK, {"topic-admin", "admin"}, pb.RewriteRequest(topic="t"), pb.RewriteResponse),
    ADMIN + "Compact": Row(INVALID, {"topic-admin", "admin"}, pb.RewriteRequest(topic="t"), pb.RewriteResponse),
    ADMIN + "DeleteTopic": Row(NOT_FOUND, {"admin"}, pb.DeleteTopicRequest(topic="none"), pb.DeleteTopicResponse),
    ADMIN + "ListGroups": Row(OK, TOPIC_READERS, pb.ListGroupsRequest(topic="t"), pb.ListGroupsResponse),
    ADMIN + "DeleteGroup": Row(
        NOT_FOUND, {"topic-admin", "admin"}, pb.DeleteGroupRequest(topic="t", group="none"), pb.DeleteGroupResponse
    ),
    ADMIN + "Seek": Row(
        OK, CONSUMERS, pb.SeekRequest(topic="t", group="g", to=pb.Place(edge=pb.EDGE_EARLIEST)), pb.SeekResponse
    ),
    ADMIN + "ListMembers": Row(OK, TOPIC_READERS, pb.ListMembersRequest(topic="t", group="g"), pb.ListMembersResponse),
    ADMIN + "EvictMember": Row(
        NOT_FOUND, {"topic-admin", "admin"}, pb.EvictMemberRequest(topic="t", group="none", member="1"), pb.EvictMemberResponse
    ),
    ADMIN + "GetStats": Row(OK, READERS, pb.GetStatsRequest(), pb.GetStatsResponse),
    ADMIN + "GetMetrics": Row(OK, READERS, pb.GetMetricsRequest(), pb.GetMetricsResponse),
    ADMIN + "ListDeadLetters": Row(OK, DLQ_READERS, pb.ListDeadLettersRequest(topic="t"), pb.ListDeadLettersResponse),
    ADMIN + "ReplayDeadLetters": Row(OK, DLQ_ADMINS, CHOSEN, pb.DeadLettersResponse),
    ADMIN + "DiscardDeadLetters": Row(OK, DLQ_ADMINS, CHOSEN, pb.DeadLettersResponse),
    "/grpc.health.v1.Health/Check": Row(OK, ALL, HEALTH, health_pb2.HealthCheckResponse),
    "/grpc.health.v1.Health/Watch": Row(OK, ALL, HEALTH, health_pb2.HealthCheckResponse),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Row(
        OK, ALL, LISTED, reflection_pb2.ServerReflectionResponse, streams=True
    ),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Row(
        OK, ALL, LISTED, reflection_pb2.ServerReflectionResponse, streams=True
    ),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    auth = TokenAuth(write_tokens(tmp_path_factory.mktemp("tokens") / "tokens.toml", TOKENS))
    with running(auth=auth) as server:
        server.store.create_topic("t")
        server.store.create_topic("secret-of-others")
        server.store.publish("t", b"x")
        server.store.subscribe("t", "g").close()
        yield server


@pytest.fixture(scope="module")
def channel(guarded: Running) -> grpc.Channel:
    return guarded.channel()


def bearer(who: str) -> list[tuple[str, str]]:
    return [] if who == "none" else [("authorization", f"Bearer {who}-token")]


def ask(channel: grpc.Channel, method: str, metadata: list[tuple[str, str]]) -> tuple[grpc.StatusCode, str | None]:
    """The status of a call, and the code of its error. Everything is asked as a stream: on the wire there is no difference."""
    row = TABLE[method]
    asked = channel.stream_stream(
        method, request_serializer=lambda request: request.SerializeToString(), response_deserializer=row.answer.FromString
    )
    answers = asked(iter([row.request]), metadata=metadata, timeout=PATIENCE)
    try:
        # Who watches health watches for ever.
        first = list(itertools.islice(answers, 1) if method.endswith("Watch") else answers)
    except grpc.RpcError as error:
        return error.code(), dict(error.trailing_metadata()).get("penstock-code")
    answers.cancel()
    assert first
    if isinstance(first[0], pb.PublishStreamResponse) and first[0].WhichOneof("result") == "error":
        found = next(one for one in grpc.StatusCode if one.value[0] == first[0].error.status)
        return found, first[0].error.code
    return OK, None


def expected(row: Row, who: str) -> tuple[grpc.StatusCode, str | None]:
    if who in row.allowed:
        code = {OK: None, NOT_FOUND: "TOPIC_NOT_FOUND" if row.answer is pb.DeleteTopicResponse else "GROUP_NOT_FOUND"}
        return row.done, code.get(row.done, "BAD_SETTING")
    if who in ("none", "bad", "expired"):
        return grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"
    return grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"


def test_every_method_has_a_row() -> None:
    assert set(TABLE) == {*METHODS, *PUBLIC}


@pytest.mark.parametrize("method", TABLE)
def test_everybody_gets_what_the_table_says(channel: grpc.Channel, method: str) -> None:
    assert {who: ask(channel, method, bearer(who)) for who in WHO} == {who: expected(TABLE[method], who) for who in WHO}


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "Bearer admin-token"), ("authorization", "Bearer admin-token")],
        [("authorization", "Bearer bad-token"), ("authorization", "Bearer admin-token")],
        [("authorization", "Basic YWRtaW46YWRtaW4=")],
        [("authorization", "Bearer admin-token, Basic x")],
        [("authorization", "Bearer")],
        [("authorization", "admin-token")],
        [("authorization", "Bearer admin-tokenx")],
        [("authorization", "Bearer " + "A" * 2_000)],
        [("authorization-bin", b"Bearer admin-token")],
        [("x-authorization", "Bearer admin-token")],
        [("cookie", "token=admin-token")],
        [("x-forwarded-user", "admin")],
    ],
)
def test_tricks_with_metadata_open_nothing(channel: grpc.Channel, metadata: list[tuple[str, str]]) -> None:
    assert ask(channel, ADMIN + "GetStats", metadata) == (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_may_be_in_any_case(channel: grpc.Channel, scheme: str) -> None:
    assert ask(channel, ADMIN + "GetStats", [("authorization", f"{scheme} admin-token")]) == (OK, None)


@pytest.mark.parametrize(
    "method", ["/penstock.v1.admin/GetStats", "/penstock.v1.Admin/getStats", "/penstock.v1.Admin//GetStats", "/x/y", "/"]
)
def test_other_spellings_of_a_method_lead_nowhere(channel: grpc.Channel, method: str) -> None:
    asked = channel.unary_unary(method)
    with pytest.raises(grpc.RpcError) as caught:
        asked(b"", metadata=bearer("admin"), timeout=PATIENCE)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_who_may_not_know_a_topic_learns_nothing_of_it(guarded: Running) -> None:
    """The answer is the same whether it is there or not, and lists leave it out."""
    admin, texts = guarded.admin(), []
    for topic in ("secret-of-others", "secret-that-is-not"):
        with pytest.raises(grpc.RpcError) as caught:
            admin.GetTopic(pb.GetTopicRequest(topic=topic), metadata=bearer("publisher"))
        assert code_of(caught.value) == "PERMISSION_DENIED"
        texts.append(caught.value.details().replace(topic, "X"))
    assert texts[0] == texts[1]
    for who, names in (("publisher", ["t"]), ("elsewhere", [])):
        found = admin.ListTopics(pb.ListTopicsRequest(), metadata=bearer(who)).topics
        assert [one.name for one in found] == names


@pytest.mark.parametrize("name", ["x" * 1_000_000, "\U0001f600" * 100_000, "\0" * 10_000])
def test_a_name_of_any_length_is_refused_with_its_code(guarded: Running, name: str) -> None:
    """An error that is too long for the client's metadata would not arrive."""
    with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
        guarded.stub().Publish(request_of(name, b"x"), metadata=bearer("publisher"))


def test_numbers_of_one_topic_need_the_right_on_that_topic(guarded: Running) -> None:
    admin = guarded.admin()
    found = admin.GetStats(pb.GetStatsRequest(topic="t"), metadata=bearer("topic-admin")).topics
    assert set(found) == {"t"}
    for request in (pb.GetStatsRequest(topic="secret-of-others"), pb.GetStatsRequest(), pb.GetStatsRequest(topic="")):
        with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
            admin.GetStats(request, metadata=bearer("topic-admin"))
    assert set(admin.GetMetrics(pb.GetMetricsRequest(topic="t"), metadata=bearer("topic-admin")).topics) == {"t"}
    for wanted in (pb.GetMetricsRequest(topic="secret-of-others"), pb.GetMetricsRequest()):
        with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
            admin.GetMetrics(wanted, metadata=bearer("topic-admin"))


def test_publishing_makes_a_topic_only_for_who_may_make_it(tmp_path: Any) -> None:
    auth = TokenAuth(write_tokens(tmp_path / "tokens", {"p": {"publish": ["new*"]}, "a": {"admin": ["new*"]}}))
    with running(auth=auth) as server:
        with refused(NOT_FOUND, "TOPIC_NOT_FOUND"):
            server.stub().Publish(request_of("new-one", b"x"), metadata=bearer("p"))
        with refused(INVALID, "RESERVED_NAME"):
            server.stub().Publish(request_of("new-one.dlq", b"x"), metadata=bearer("p"))
        for who in ("a", "p"):
            server.stub().Publish(request_of("new-one", b"x"), metadata=bearer(who))
        assert server.store.ends("new-one") == {0: 2}


def test_a_right_that_is_taken_away_ends_open_streams(tmp_path: Any) -> None:
    """A consumer loses its stream, and what it held goes back; a publisher's next request is refused."""
    path = tmp_path / "tokens"
    auth = TokenAuth(write_tokens(path, {"c": {"consume": ["t"]}, "p": {"publish": ["t"]}}))
    with running(auth=auth) as server:
        server.store.create_topic("t")
        server.store.publish("t", b"x")
        stream = Subscribed(server.stub(), "t", credit=1, metadata=bearer("c"))
        stream.started()
        assert len(stream.deliveries()) == 1
        write_tokens(path, {"c": {"consume": ["other"]}})
        auth.reload()
        with refused(grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"):
            stream.next()
        until(lambda: server.store.stats().topics["t"].groups["g"].members == 0)
        with server.store.subscribe("t", "g") as consumer:
            message = consumer.get(PATIENCE)
            assert message is not None
            assert message.attempt == 1
        with refused(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"):
            server.stub().Publish(request_of("t", b"x"), metadata=bearer("p"))


def test_a_token_that_expires_while_a_stream_is_open(tmp_path: Any) -> None:
    clock = FakeClock(now_us=1_700_000_000_000_000)
    tokens = write_tokens(tmp_path / "tokens", {"c": {"consume": ["t"], "expires": "2023-11-14T22:13:30Z"}})
    with running(auth=TokenAuth(tokens, clock=clock)) as server:
        server.store.create_topic("t")
        stream = Subscribed(server.stub(), "t", credit=1, metadata=bearer("c"))
        stream.started()
        clock.advance(10)
        with refused(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"):
            stream.next()


def test_nothing_of_a_request_is_read_for_who_may_not_send_it(guarded: Running) -> None:
    """A refused stream of large requests ends at once: the server does not take them in first."""
    sent = 0

    def requests() -> Iterator[pb.PublishRequest]:
        nonlocal sent
        for _ in range(1_000):
            sent += 1
            yield request_of("t", b"x" * 1_000_000)

    with refused(grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"):
        list(guarded.stub().PublishStream(requests()))
    assert sent < 50


def test_who_watches_health_leaves_room_for_others(tmp_path: Any) -> None:
    with running(public_calls_max=3) as server:
        stub = health_pb2_grpc.HealthStub(server.channel())
        watching = [stub.Watch(health_pb2.HealthCheckRequest()) for _ in range(3)]
        assert [next(one).status for one in watching] == [health_pb2.HealthCheckResponse.SERVING] * 3
        with refused(grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"):
            stub.Check(health_pb2.HealthCheckRequest())
        assert server.stub().Publish(request_of("t", b"x")).receipts[0].offset == 0
        for one in watching:
            one.cancel()
        until(lambda: server.listener.service.public_calls == 0)
        assert stub.Check(health_pb2.HealthCheckRequest()).status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_is_for_everybody_and_tells_no_names(guarded: Running) -> None:
    guarded.store.create_topic("a-name-of-a-topic")
    stub = reflection_pb2_grpc.ServerReflectionStub(guarded.channel())
    (answer,) = stub.ServerReflectionInfo(iter([LISTED]))
    assert "a-name-of-a-topic" not in str(answer)
