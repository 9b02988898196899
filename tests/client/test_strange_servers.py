"""Servers that answer what no server should: the client says so, and nobody waits for ever."""

from __future__ import annotations

import socket
import struct
import threading
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import BadBytes, PenstockError
from penstock.format.batch import encode_batch
from penstock.settings import TopicSettings
from penstock.wire.calls import PROTOCOL_VERSION, Call
from penstock.wire.documents import encode_settings
from penstock.wire.frame import ANSWER, PUSH, Frame, FrameReader, encode_frame
from tests.client.served import PATIENCE_S, later

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Answer = Callable[[Frame], list[bytes]]

HANDLE = 12


class StrangeServer:
    """Greets as it should, and answers the rest by a table of a test."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"penstock://127.0.0.1:{self._listener.getsockname()[1]}"
        self.answers: dict[int, Answer] = {}
        self._made: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                made = self._listener.accept()[0]
            except OSError:
                return
            self._made.append(made)
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: socket.socket) -> None:
        reader = FrameReader()
        try:
            while data := made.recv(65_536):
                for frame in reader.feed(data):
                    for part in self._answer(frame):
                        made.sendall(part)
        except OSError:
            pass

    def _answer(self, frame: Frame) -> list[bytes]:
        if frame.call in self.answers:
            return self.answers[frame.call](frame)
        known: dict[int, dict[str, Any]] = {
            Call.HELLO: {
                "version": PROTOCOL_VERSION,
                "store_id": "00",
                "auto_create": True,
                "default": encode_settings(TopicSettings()),
            },
            Call.SUBSCRIBE: {"handle": HANDLE, "topic": "orders", "group": "workers", "ordered": False, "partitions": 1},
            Call.TOPICS: {"topics": []},
        }
        return [answer(frame, known.get(frame.call, {}))]

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for made in self._made:
            made.close()


def answer(frame: Frame, fields: dict[str, Any], payload: bytes = b"") -> bytes:
    return b"".join(encode_frame(ANSWER, frame.call, frame.correlation, fields, [payload]))


@pytest.fixture
def strange() -> Iterator[StrangeServer]:
    server = StrangeServer()
    yield server
    server.close()


@pytest.fixture
def client(strange: StrangeServer) -> Iterator[Any]:
    client = penstock.open(strange.address, give_up=0.3)
    yield client
    later(client.close).result(PATIENCE_S)


def batch_of_the_future() -> bytes:
    """A whole batch that only a newer version can read."""
    batch = encode_batch([b"x"])
    struct.pack_into("<H", batch.data, 14, 0x8000)
    batch.stamp(0, 0, 0, 0, 0, 0)
    return bytes(batch.data)


LOT = [0, 0, 0, [1, 1], 1, 0]


@pytest.mark.parametrize(
    ("lots", "payload"),
    [
        ([LOT], b"no batch at all" * 10), ([LOT], b""), ([LOT], batch_of_the_future()), (None, b""), ("x", b""), ([[1]], b""),
        ({"a": 1}, b""),
        ([[0, 0, 0, [1, 1], {}, 0]], bytes(encode_batch([b"x"]).data)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["fetch", "push"])
def test_messages_that_are_none_do_not_stop_the_client(
    strange: StrangeServer, client: Any, way: str, lots: Any, payload: bytes
) -> None:
    """Who asked is told, or the connection is made again; other calls go on."""
    strange.answers[Call.FETCH] = lambda frame: [answer(frame, {"lots": lots}, payload)]
    strange.answers[Call.CREDIT] = lambda frame: [
        answer(frame, {}), b"".join(encode_frame(PUSH, Call.FETCH, HANDLE, {"lots": lots}, [payload]))
    ]  # fmt: skip
    consumer = client.subscribe("orders", "workers")
    getting = later(lambda: consumer.get(timeout=PATIENCE_S) if way == "fetch" else next(iter(consumer)))
    assert later(client.topics).result(PATIENCE_S) == []
    if way == "fetch":
        with pytest.raises(PenstockError):
            getting.result(PATIENCE_S)
    assert later(client.topics).result(PATIENCE_S) == []
    later(consumer.close).result(PATIENCE_S)


@pytest.mark.parametrize(
    "data", [b"\xff" * 40, struct.pack("<IBBHQI", 18, 2, 2, 0, 1, 2) + b"[]"], ids=["no frame", "no object"]
)
def test_a_call_that_breaks_its_connection_each_time_is_given_up(strange: StrangeServer, client: Any, data: bytes) -> None:
    """The server answers it with what is no frame; others are answered."""
    strange.answers[Call.STATS] = lambda _: [data]
    asking = later(client.stats)
    try:
        with pytest.raises(PenstockError):
            asking.result(PATIENCE_S)
    finally:
        strange.answers.clear()
    assert later(client.topics).result(PATIENCE_S) == []


@pytest.mark.parametrize("fields", [{"topics": [None]}, {"topics": [{"name": 1}]}])
def test_answers_that_are_wrong_are_told(strange: StrangeServer, client: Any, fields: dict[str, Any]) -> None:
    """As an error of ours."""
    strange.answers[Call.TOPICS] = lambda frame: [answer(frame, fields)]
    with pytest.raises(PenstockError):
        later(client.topics).result(PATIENCE_S)


@pytest.mark.parametrize("fields", [{}, {"topics": None}, {"topics": 5}])
def test_answers_without_what_was_asked_for_are_told(strange: StrangeServer, client: Any, fields: dict[str, Any]) -> None:
    """As an error of ours."""
    strange.answers[Call.TOPICS] = lambda frame: [answer(frame, fields)]
    with pytest.raises(PenstockError):
        later(client.topics).result(PATIENCE_S)


def test_answers_that_nobody_asked_for_are_ignored(strange: StrangeServer, client: Any) -> None:
    """And pushes to nobody."""
    strange.answers[Call.TOPICS] = lambda frame: [
        b"".join(encode_frame(ANSWER, Call.TOPICS, 999_999, {"topics": 5})),
        b"".join(encode_frame(PUSH, Call.FETCH, 999_999, {"lots": 5})),
        answer(frame, {"topics": []}),
    ]
    assert later(client.topics).result(PATIENCE_S) == []


@pytest.mark.parametrize(
    ("call", "ask"),
    [
        (Call.GROUPS, lambda client: client.groups()),
        (Call.COMMITTED, lambda client: client.committed("job", 1)),
        (Call.COMMIT, lambda client: client.commit("job", 1, [])),
        (Call.ABORT, lambda client: client.abort([])),
        (Call.RETAIN, lambda client: client.retain()),
        (Call.STATS, lambda client: client.stats()),
        (Call.METRICS, lambda client: client.metrics()),
        (Call.SUBSCRIBE, lambda client: client.subscribe("orders", "workers")),
        (Call.POSITIONS, lambda client: client.ends("orders")),
        (Call.STAGE, lambda client: client.stage("job")),
    ],
    ids=lambda one: one.name if isinstance(one, Call) else "",
)
@pytest.mark.parametrize("value", [None, "text", {}, [None], -0.5])
def test_answers_of_other_kinds_are_told(strange: StrangeServer, client: Any, call: Call, ask: Any, value: Any) -> None:
    """Every field is something else, or is missing: an error that says that the server is not understood."""
    names = [
        "groups",
        "messages",
        "duplicate",
        "count",
        "segments",
        "bytes",
        "topics",
        "handle",
        "topic",
        "starts",
        "ends",
        "stage",
    ]
    for fields in ({}, dict.fromkeys(names, value)):
        strange.answers[call] = lambda frame, fields=fields: [answer(frame, fields)]  # type: ignore[misc]
        if call == Call.COMMITTED and fields.get("messages") is None:
            continue  # that is how it says that there is none
        if call == Call.STAGE and fields.get("stage") == "text":
            continue  # any text is an id
        with pytest.raises(BadBytes):
            later(lambda: ask(client)).result(PATIENCE_S)
