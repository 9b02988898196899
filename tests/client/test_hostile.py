"""Clients that do not keep to the protocol: they are told, or hung up on, and nobody else notices."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import math
import struct
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.calls_under_way import OUTSTANDING_MAX
from penstock.broker.rights import RULES
from penstock.broker.subscription import expand_tags
from penstock.errors import BadArgument, Corrupt, PenstockError, ReservedName, UsageError
from penstock.format.batch import Batch, encode_batch
from penstock.server import native
from penstock.wire.calls import PROTOCOL_VERSION, Call
from penstock.wire.failures import decode_error
from penstock.wire.frame import ANSWER, ERROR, HELLO_BYTES_MAX, PUSH, REQUEST, encode_frame
from tests.client.served import PATIENCE_S, delivered, eventually, later

if TYPE_CHECKING:
    from random import Random

    from tests.client.served import RawClient, Served


@pytest.fixture(autouse=True)
def _others_are_served(served: Served, caplog: pytest.LogCaptureFixture) -> Any:
    """Whatever a test does, another client works before it and after it."""
    caplog.set_level(logging.CRITICAL, "penstock")
    other = served.client()
    other.publish("others", b"before")
    yield
    assert other.publish("others", b"after").offset == 1
    assert served.values("others") == [b"before", b"after"]


def batch(*values: bytes) -> bytes:
    """An unstamped batch, as a client sends it."""
    encoded = encode_batch(values or (b"value",))
    encoded.stamp(0, 0, 0, 0, 0, 0)
    return bytes(encoded.data)


def last_words(raw: RawClient) -> PenstockError | None:
    """The error that the server says before it hangs up."""
    frame = raw.read()
    if frame is None:
        return None
    assert frame.kind == ERROR
    assert raw.read() is None
    return decode_error(frame.fields)


# -- the beginning --------------------------------------------------------------------------------------------------


def test_garbage_is_hung_up_on(served: Served, rng: Random) -> None:
    """Random bytes, and what other protocols begin with."""
    beginnings = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 3, bytes(64)]
    for data in [*beginnings, *[rng.randbytes(rng.randrange(20, 2_000)) for _ in range(30)]]:
        raw = served.raw(hello=False)
        raw.socket.sendall(data)
        raw.socket.shutdown(1)
        error = last_words(raw)
        assert error is None or isinstance(error, (Corrupt, UsageError))


def test_who_speaks_http_to_the_native_port_is_told_so_in_http(served: Served) -> None:
    """With where to go."""
    with pytest.raises(urllib.error.HTTPError) as told:
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/v1/topics", timeout=PATIENCE_S)
    assert told.value.code == 400
    assert b"native port" in told.value.read()


def test_a_frame_before_the_hello_must_be_short(served: Served) -> None:
    """Its length alone is enough to be hung up on."""
    raw = served.raw(hello=False)
    raw.socket.sendall(struct.pack("<IBBHQI", HELLO_BYTES_MAX + 1, REQUEST, Call.HELLO, 0, 1, 2))
    assert isinstance(last_words(raw), Corrupt)
    raw = served.raw(hello=False)
    assert raw.ask(Call.HELLO, {"version": PROTOCOL_VERSION, "client": "x" * (HELLO_BYTES_MAX - 100)}).kind == ANSWER


def test_a_frame_that_is_too_long_ends_the_connection(served: Served) -> None:
    """Before any of it is awaited."""
    raw = served.raw()
    raw.socket.sendall(struct.pack("<IBBHQI", 0xFFFFFFFF, REQUEST, Call.PUBLISH, 0, 1, 2))
    assert isinstance(last_words(raw), Corrupt)


@pytest.mark.parametrize("kind", [0, ANSWER, ERROR, PUSH, 5, 255])
def test_only_requests_are_taken(served: Served, kind: int) -> None:
    """A client that answers, or says what nobody knows, is hung up on."""
    raw = served.raw()
    raw.socket.sendall(b"".join(encode_frame(kind, Call.PING, 1, {})))
    assert isinstance(last_words(raw), Corrupt)


def test_who_says_nothing_is_hung_up_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who says half a hello; nobody waits for one that was said."""
    greeted = served.raw()
    assert all(one._deadline is None for one in served.server._listener.connections)
    monkeypatch.setattr(native, "HANDSHAKE_SECONDS", 0.2)
    silent, halting = served.raw(hello=False), served.raw(hello=False)
    hello = halting.request(Call.HELLO, {"version": PROTOCOL_VERSION})[0]
    with contextlib.suppress(OSError):  # it may have taken so long already
        halting.socket.sendall(hello[:-1])
    assert silent.read() is None
    assert halting.read() is None
    assert greeted.call(Call.PING).fields == {}


@pytest.mark.parametrize("call", [Call.PING, Call.PUBLISH, Call.TOPICS, Call.COMMIT, 200])
def test_a_request_before_the_hello_is_refused(served: Served, call: int) -> None:
    """And ends the connection."""
    raw = served.raw(hello=False)
    raw.send(call, {"topic": "others", "partition": 0}, [batch()])
    assert isinstance(last_words(raw), UsageError)


@pytest.mark.parametrize("version", [0, 2, -1, None, "1", [1], 1e300])
def test_a_version_that_nobody_speaks_is_refused(served: Served, version: object) -> None:
    """And ends the connection."""
    raw = served.raw(hello=False)
    raw.send(Call.HELLO, {"version": version})
    assert isinstance(last_words(raw), UsageError)


def test_a_second_hello_is_refused(served: Served) -> None:
    """The connection goes on."""
    raw = served.raw()
    with pytest.raises(UsageError):
        raw.call(Call.HELLO, version=PROTOCOL_VERSION)
    assert raw.call(Call.PING).fields == {}


@pytest.mark.parametrize("call", sorted(set(range(256)) - set(Call))[::15])
def test_an_unknown_call_is_refused(served: Served, call: int) -> None:
    """The connection goes on."""
    raw = served.raw()
    with pytest.raises(UsageError):
        raw.call(call, topic="others")
    assert raw.call(Call.PING).fields == {}


# -- fields ---------------------------------------------------------------------------------------------------------

CONSUMER = 424_242
"""Stands for the handle of the consumer."""
TAG = 515_151
"""Stands for the tag of a message that it holds."""
KNOWN: dict[Call, dict[str, Any]] = {
    Call.TOPIC: {"topic": "held"},
    Call.CREATE_TOPIC: {"topic": "made", "settings": {"partitions": 1}},
    Call.TOPIC_TO_PUBLISH: {"topic": "held"},
    Call.RETAIN: {"topic": "held"},
    Call.VACUUM: {"topic": "held"},
    Call.COMPACT: {"topic": "keyed"},
    Call.DELETE_TOPIC: {"topic": "gone"},
    Call.PUBLISH: {"topic": "held", "partition": 0, "sync": None},
    Call.PUBLISH_MANY: {"topic": "held", "partitions": [0], "sync": None},
    Call.PUBLISH_ONCE: {"topic": "held", "partition": 0, "times_us": None, "sync": None},
    Call.OPEN_PRODUCER: {"topic": "held", "name": "till"},
    Call.TRANSACT: {"parts": [["held", 0]], "acks": [[CONSUMER, [[TAG, 1]]]]},
    Call.STAGE: {"producer": "till"},
    Call.STAGE_ADD: {"stage": "STAGE", "parts": [["held", 0]]},
    Call.STAGE_FINISH: {"stage": "STAGE"},
    Call.STAGE_ABANDON: {"stage": "STAGE"},
    Call.COMMIT: {"producer": "till", "number": 1, "stages": ["x"]},
    Call.ABORT: {"stages": ["x"]},
    Call.COMMITTED: {"producer": "till", "number": 1},
    Call.SUBSCRIBE: {"topic": "held", "group": "more", "options": {"prefetch": 1, "lease": 1, "start": 0, "ordered": False}},
    Call.FETCH: {"consumer": CONSUMER, "count": 1, "wait": 0},
    Call.CREDIT: {"consumer": CONSUMER, "messages": 0},
    Call.ACK: {"consumer": CONSUMER, "tags": [[TAG, 1]], "wait": False, "ends": TAG},
    Call.NACK: {"consumer": CONSUMER, "tags": [[TAG, 1]], "delay": 0, "reason": "why", "reject": False, "ends": TAG},
    Call.EXTEND: {"consumer": CONSUMER, "tag": TAG, "seconds": 1, "begins": False},
    Call.RETURN: {"consumer": CONSUMER, "tags": [[TAG, 1]], "ends": TAG},
    Call.COMMIT_POSITION: {"consumer": CONSUMER, "position": 1, "partition": 0},
    Call.UNSUBSCRIBE: {"consumer": CONSUMER},
    Call.PAUSE: {"consumer": CONSUMER, "paused": True},
    Call.CANCEL: {"correlation": 1},
    Call.CONSUMER: {"consumer": CONSUMER},
    Call.HEARTBEAT: {"consumers": []},
    Call.GROUPS: {"topic": "held"},
    Call.DELETE_GROUP: {"topic": "held", "group": "workers"},
    Call.SEEK: {"topic": "held", "group": "workers", "to": 0, "partition": 0},
    Call.MEMBERS: {"topic": "held", "group": "workers"},
    Call.EVICT_MEMBER: {"topic": "held", "group": "workers", "member": "1"},
    Call.POSITIONS: {"topic": "held"},
    Call.READ: {"topic": "held", "partition": 0, "offset": 0, "bytes": 100},
    Call.OFFSET_OF_TIME: {"topic": "held", "partition": 0, "time_us": 0},
    Call.DEAD_LETTERS: {"topic": "held", "max_messages": 1, "count": False},
    Call.REPLAY_DEAD_LETTERS: {"topic": "held", "offsets": []},
    Call.DISCARD_DEAD_LETTERS: {"topic": "held", "offsets": []},
}
"""Every field of every call that has some, right."""
WITHOUT = {Call.STOPPING, Call.HELLO, Call.PING, Call.TOPICS, Call.STATS, Call.METRICS, Call.FLUSH}
WRONG: list[Any] = [
    "", "no such", "\ud800", "x" * 5_000, "../others", -1, -(1 << 70), 1 << 31, 1 << 63, 1 << 64, 10**400, 0.5,
    [], [[]], [None], [[None, None]], [["held", -1]], [[1, [[1, -1]]]], [[1, 1, 1]], [[-1, 1]], [[1 << 62, 1 << 62]], {},
    {"x": 1}, {"time_us": 1 << 80}, {"-1": 0}, True,
]  # fmt: skip
IGNORED = {
    (Call.DEAD_LETTERS, "count"), (Call.ACK, "wait"), (Call.NACK, "reject"), (Call.PAUSE, "paused"), (Call.EXTEND, "begins"),
}  # fmt: skip
"""Fields that are only true or not."""


LOOSE = {(Call.PUBLISH, "sync"), (Call.PUBLISH_MANY, "sync"), (Call.CANCEL, "correlation")}
"""Fields that are not looked at where they change nothing."""


def test_every_call_is_tried() -> None:
    """A new call must be given its right fields above."""
    assert set(KNOWN) | WITHOUT == set(Call)


def test_every_call_has_a_handler_and_a_rule(served: Served) -> None:
    """Whoever adds a call and forgets either is told here, and not by a user."""
    assert set(RULES) >= set(Call) - WITHOUT
    raw = served.raw()
    with pytest.raises(UsageError) as caught:
        raw.call(max(Call) + 1)
    refusal = str(caught.value).replace(str(max(Call) + 1), "N")
    for call in Call:
        if call not in (Call.CANCEL, Call.STOPPING):  # the one has no answer, the other is only pushed
            frame = raw.ask(call, {}, [])
            told = str(decode_error(frame.fields)) if frame.kind == ERROR else ""
            assert told.replace(str(int(call)), "N") != refusal, f"{call.name} is unknown to the server"


@pytest.mark.parametrize("call", sorted(KNOWN), ids=lambda call: call.name)
def test_fields_of_wrong_types_and_values_are_refused(served: Served, call: Call, caplog: pytest.LogCaptureFixture) -> None:
    """Or taken, where they are right after all; the connection lives, and what is stored stays as it is."""
    owner = served.store
    owner.create_topic("held")
    owner.publish_many("held", [b"one", b"two"])
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="held", group="workers").fields["handle"]
    (message,) = delivered(raw.call(Call.FETCH, consumer=handle, count=1, wait=1))
    stage = raw.call(Call.STAGE, producer="till").fields["stage"]
    right = json.loads(
        json.dumps(KNOWN[call]).replace(str(CONSUMER), str(handle)).replace("STAGE", stage).replace(str(TAG), str(message.tag))
    )
    payload = [batch()] if call in (Call.PUBLISH, Call.PUBLISH_MANY, Call.PUBLISH_ONCE, Call.TRANSACT, Call.STAGE_ADD) else []
    tried: list[dict[str, Any]] = [{}, dict.fromkeys(right)]
    for name in right:
        tried.append({**right, name: None})
        tried.append({other: value for other, value in right.items() if other != name})
        if (call, name) not in IGNORED:
            # Waiting for a long time is allowed.
            waits = (call, name) == (Call.FETCH, "wait")
            tried += [{**right, name: value} for value in WRONG if not (waits and type(value) is int and value > 0)]
    if call is Call.FETCH:
        tried = [
            {"wait": 0.01, **{name: 0.01 if name == "wait" and value is None else value for name, value in one.items()}}
            for one in tried
        ]
    if call is Call.CREATE_TOPIC:
        tried += [{"topic": "made", "settings": {name: value}} for name in ("partitions", "sync", "no such") for value in WRONG]
    if call is Call.SUBSCRIBE:
        names = ("prefetch", "lease", "start", "concurrency", "ordered", "backoff", "max_deliveries", "reset", "no such")
        tried += [{"topic": "held", "group": "more", "options": {name: value}} for name in names for value in WRONG]
    before = owner.stats().topics["held"].ends
    stored = 0
    for fields in tried:
        frame = raw.ask(call, fields, payload)
        assert frame.kind in (ANSWER, ERROR)
        assert frame.call == call
        if frame.kind == ERROR:
            # It is told in words, and as an error that can be shown.
            assert str(decode_error(json.loads(json.dumps(frame.fields))))
            assert frame.fields["code"] != "UNAVAILABLE", fields
        elif call in (Call.PUBLISH, Call.PUBLISH_MANY, Call.PUBLISH_ONCE):
            stored += 1
        elif call is Call.TRANSACT:
            stored += len(frame.fields["offsets"])
    assert raw.call(Call.PING).fields == {}
    # Whoever sends nonsense fills no log: a line a minute, without a traceback.
    assert not [record for record in caplog.records if record.exc_info]
    assert len([record for record in caplog.records if record.name == "penstock.broker"]) <= 1
    after = owner.stats().topics["held"].ends
    assert after[0] - before[0] == stored
    assert {one.name for one in owner.topics()} - {"others", "held", "made", "no"} <= {"x" * 5_000}


def test_numbers_that_json_does_not_know_are_refused(served: Served) -> None:
    """Every field of every call; the connection may end with it."""
    served.store.create_topic("held")
    for call, right in KNOWN.items():
        for name, number in itertools.product(right, (math.nan, -math.inf)):
            raw = served.raw()
            raw.send(call, {**right, name: number}, [batch()])
            frame = raw.read()
            assert frame is not None
            if (call, name) not in IGNORED | LOOSE:
                assert frame.kind == ERROR, (call, name)
            raw.close()


def test_what_is_refused_leaves_the_message_with_its_consumer(served: Served) -> None:
    """A nack with a wrong field is no nack."""
    served.store.create_topic("held")
    served.store.publish("held", b"one")
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="held", group="workers").fields["handle"]
    (message,) = delivered(raw.call(Call.FETCH, consumer=handle, count=1, wait=1))
    tags = [[message.tag, 1]]
    for fields in ({"delay": -1}, {"delay": "soon"}, {"delay": 1e300}):
        with pytest.raises(UsageError):
            raw.call(Call.NACK, consumer=handle, tags=tags, **fields)
    assert raw.call(Call.ACK, consumer=handle, tags=tags, wait=True).fields == {"late": 0}


def test_a_reason_of_any_kind_and_length_reaches_the_dead_letters_whole_or_cut(served: Served) -> None:
    """It never stops the message from getting there."""
    served.store.create_topic("held")
    reasons: list[Any] = ["x" * 900_000, "\ud800", 5, ["a"], {"b": 1}, None, "\x00"]
    served.store.publish_many("held", [b"bad"] * len(reasons))
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="held", group="workers").fields["handle"]
    for reason in reasons:
        (message,) = delivered(raw.call(Call.FETCH, consumer=handle, count=1, wait=1))
        tags = [[message.tag, 1]]
        frame = raw.ask(Call.NACK, {"consumer": handle, "tags": tags, "reason": reason, "reject": True})
        if frame.kind == ERROR:
            assert isinstance(decode_error(frame.fields), UsageError)
            raw.call(Call.NACK, consumer=handle, tags=tags, reject=True)
    eventually(lambda: len(served.store.dead_letters("held")) == len(reasons))
    assert sum(len(value) for one in served.store.dead_letters("held") for _, value in one.headers) < 1_000_000


def test_tags_make_no_more_work_than_there_are_deliveries() -> None:
    """Many pairs that name a million each are one short frame."""
    begun_s = time.thread_time()
    with pytest.raises(BadArgument):
        expand_tags([[0, 1_000_000]] * 20, 10)
    assert time.thread_time() - begun_s < 0.5


def test_requests_with_one_number_are_all_answered(served: Served) -> None:
    """A client that never counts harms itself only."""
    served.store.create_topic("held")
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="held", group="workers").fields["handle"]
    for _ in range(3):
        raw.send(Call.FETCH, {"consumer": handle, "count": 1, "wait": 0.05}, correlation=77)
    assert {raw.until(77).kind for _ in range(3)} <= {ANSWER, ERROR}


def test_more_requests_at_once_than_are_run_at_once_are_all_answered(served: Served) -> None:
    """A connection that was not read from for a while is read from again."""
    served.store.create_topic("held")
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="held", group="workers").fields["handle"]
    count = 3 * OUTSTANDING_MAX
    requests = [raw.request(Call.ACK, {"consumer": handle, "tags": []}) for _ in range(count)]
    raw.socket.sendall(b"".join(data for data, _ in requests))
    raw.socket.settimeout(PATIENCE_S)
    raw.until(requests[-1][1])
    assert raw.call(Call.PING).fields == {}


# -- payloads -------------------------------------------------------------------------------------------------------


def test_payloads_that_are_no_batch_are_refused(served: Served, rng: Random) -> None:
    """Nothing, half a batch, two of them, flipped bits: nothing is stored."""
    served.store.create_topic("held")
    raw = served.raw()
    whole = batch(b"a" * 50, b"b" * 50)
    wrong = [b"", whole[:-1], whole[:20], whole + b"x", rng.randbytes(300), bytes(300)]
    for _ in range(200):
        flipped = bytearray(whole)
        flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
        wrong.append(bytes(flipped))
    for data in wrong:
        frame = raw.ask(Call.PUBLISH, {"topic": "held", "partition": 0}, [data])
        if frame.kind == ANSWER:
            continue  # a flipped bit in what the owner of the log writes itself
        assert isinstance(decode_error(frame.fields), (Corrupt, UsageError))
    assert set(served.values("held")) <= {b"a" * 50, b"b" * 50}
    for call, fields in (
        (Call.PUBLISH_ONCE, {"topic": "held", "partition": 0}),
        (Call.TRANSACT, {"parts": [["held", 0]], "acks": []}),
    ):
        for data in wrong[:6]:
            assert raw.ask(call, fields, [data]).kind == ERROR


def test_a_batch_whose_contents_lie_is_refused(served: Served) -> None:
    """Its checksums are right and its offsets into the values are not: no consumer could read it."""
    served.store.create_topic("held")
    raw = served.raw()
    forged = forge(batch(b"one", b"two"))
    with pytest.raises((Corrupt, UsageError)):
        raw.call(Call.PUBLISH, forged, topic="held", partition=0)
    assert served.values("held") == []


def forge(data: bytes) -> bytes:
    """Let the second value begin behind its end, under right checksums."""
    from penstock.format import columns as c
    from penstock.format.batch_header import stamp
    from penstock.format.checksum import crc32c

    found = bytearray(data)
    view = Batch(data)
    entry = view.entry(c.VALUE)
    assert entry is not None
    struct.pack_into("<i", found, entry.position + 4, 1_000_000)
    crc = crc32c(found[entry.position : entry.position + entry.stored_bytes])
    directory = view.header.header_bytes - view.header.columns * c.ENTRY.size
    assert struct.unpack_from("<I", found, directory + 4)[0] == entry.crc
    struct.pack_into("<I", found, directory + 4, crc)
    stamp(found, view.header.header_bytes, 0, 0, 0, 0, 0, 0)
    return bytes(found)


def test_topics_of_dead_letters_and_of_deliveries_take_no_messages_from_clients(served: Served) -> None:
    """Only Penstock writes them, over the network too."""
    served.store.create_topic("held", record_deliveries=True)
    served.store.publish("held", b"bad")
    consumer = served.store.subscribe("held", "workers")
    message = consumer.get(timeout=PATIENCE_S)
    assert message is not None
    message.reject("no")
    eventually(lambda: len(served.store.dead_letters("held")) == 1)
    served.store._deliveries.write(unfinished=True)
    raw = served.raw()
    for topic in ("held.dlq", "held.deliveries"):
        for call, fields in (
            (Call.TRANSACT, {"parts": [[topic, 0]], "acks": []}),
            (Call.PUBLISH, {"topic": topic, "partition": 0}),
            (Call.PUBLISH_ONCE, {"topic": topic, "partition": 0}),
        ):
            with pytest.raises(ReservedName):
                raw.call(call, batch(), **fields)
    assert len(served.store.dead_letters("held")) == 1
    assert len(served.values("held.deliveries")) == 1


def test_a_message_over_the_topics_limit_is_refused(served: Served) -> None:
    """However it is sent."""
    served.store.create_topic("held", max_message_bytes=1_000)
    raw = served.raw()
    for call, fields in (
        (Call.PUBLISH, {"topic": "held", "partition": 0}),
        (Call.PUBLISH_ONCE, {"topic": "held", "partition": 0}),
        (Call.TRANSACT, {"parts": [["held", 0]], "acks": []}),
    ):
        with pytest.raises(UsageError):
            raw.call(call, batch(bytes(2_000)), **fields)
    assert served.values("held") == []


# -- connections ----------------------------------------------------------------------------------------------------


def test_a_connection_that_is_lost_while_it_subscribes_leaves_no_member(served: Served) -> None:
    """A member that nobody is would be dealt partitions that nobody reads."""
    served.store.create_topic("held", partitions=4)
    for _ in range(30):
        raw = served.raw()
        raw.send(Call.SUBSCRIBE, {"topic": "held", "group": "workers", "options": {"ordered": True}})
        raw.socket.close()
    eventually(lambda: served.server.connections == 1)
    time.sleep(0.3)
    eventually(lambda: not served.store.groups("held") or served.members("held", "workers") == 0)


def test_a_subscribe_that_is_cancelled_leaves_no_member(served: Served) -> None:
    """The client was told that nothing was changed."""
    served.store.create_topic("held")
    raw = served.raw()
    for _ in range(30):
        subscribe, number = raw.request(Call.SUBSCRIBE, {"topic": "held", "group": "workers"})
        cancel, _ = raw.request(Call.CANCEL, {"correlation": number})
        raw.socket.sendall(subscribe + cancel)
        raw.socket.settimeout(PATIENCE_S)
        frame = raw.until(number)
        if frame.kind == ANSWER:
            raw.call(Call.UNSUBSCRIBE, consumer=frame.fields["handle"])
    time.sleep(0.3)
    eventually(lambda: not served.store.groups("held") or served.members("held", "workers") == 0)


def test_a_call_that_is_cancelled_is_not_done_unless_it_says_so(served: Served) -> None:
    """Only calls that wait for messages end by CANCEL; a commit that was refused must not be there afterwards."""
    served.store.create_topic("held")
    raw = served.raw()
    for number in range(30):
        transact, correlation = raw.request(Call.TRANSACT, {"parts": [["held", 0]], "acks": []}, [batch(b"%d" % number)])
        cancel, _ = raw.request(Call.CANCEL, {"correlation": correlation})
        raw.socket.sendall(transact + cancel)
        raw.socket.settimeout(PATIENCE_S)
        frame = raw.until(correlation)
        if frame.kind == ERROR:
            served.store.flush()
            time.sleep(0.02)
            assert b"%d" % number not in served.values("held"), frame.fields


def test_stages_that_are_added_to_at_once_are_whole(served: Served) -> None:
    """Requests of one connection may be on their way together."""
    served.store.create_topic("held")
    raw = served.raw()
    stage = raw.call(Call.STAGE, producer="till").fields["stage"]
    values = [b"%03d" % number + bytes(2_000) for number in range(200)]
    requests = [raw.request(Call.STAGE_ADD, {"stage": stage, "parts": [["held", 0]]}, [batch(value)]) for value in values]
    sending = later(lambda: raw.socket.sendall(b"".join(data for data, _ in requests)))
    left = {number for _, number in requests}
    while left:
        frame = raw.read()
        assert frame is not None
        assert frame.kind == ANSWER, frame.fields
        left.discard(frame.correlation)
    sending.result(PATIENCE_S)
    raw.call(Call.STAGE_FINISH, stage=stage)
    assert raw.call(Call.COMMIT, producer="till", number=1, stages=[stage]).fields == {
        "messages": 200, "duplicate": False, "newest": 1,
    }  # fmt: skip
    assert sorted(served.values("held")) == values


def test_a_thousand_idle_connections_are_kept(served: Served) -> None:
    """And are all still served."""
    raws = [served.raw() for _ in range(1_000)]
    assert served.server.connections == 1_001
    for raw in raws[::100]:
        assert raw.call(Call.PING).fields == {}
    for raw in raws:
        raw.close()
    eventually(lambda: served.server.connections == 1)
