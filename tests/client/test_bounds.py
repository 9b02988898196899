"""What clients can make a native server hold, and how long they can keep it busy: bounded, whatever they send or do not read."""

from __future__ import annotations

import json
import os
import ssl
import struct
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.broker import calls_under_way, memory_budget
from penstock.broker.memory_budget import MemoryBudget
from penstock.errors import BadBytes, BatchTooLarge, PenstockError, Unauthenticated, Unavailable
from penstock.server import native
from penstock.server.auth import TokenAuth, new_token
from penstock.server.running import RunningServer
from penstock.server.tls import TlsFiles
from penstock.values import MIB
from penstock.wire.calls import FIELDS_BYTES_MAX, LONG_FIELDS_BYTES_MAX, PROTOCOL_VERSION, Call
from penstock.wire.failures import decode_error
from penstock.wire.frame import ERROR, REQUEST, decode_frame
from tests.cli.serving import serving
from tests.client.served import PATIENCE_S, RawClient, Served, eventually, later
from tests.server.test_listening import Authority

if TYPE_CHECKING:
    from pathlib import Path

BUDGET = 12 * MIB


def head(payload_bytes: int, fields: bytes = b"{}", call: int = Call.PUBLISH) -> bytes:
    """The beginning of a request, which claims that so much follows."""
    return struct.pack("<IBBHQI", 16 + len(fields) + payload_bytes, REQUEST, call, 0, 7, len(fields)) + fields


def push(raw: RawClient, data: bytes) -> int:
    """Send as much as is taken without waiting for long; returns how much that was."""
    raw.socket.settimeout(0.2)
    sent = 0
    try:
        while sent < len(data):
            sent += raw.socket.send(data[sent : sent + 65_536])
    except OSError:  # it takes no more, or hung up
        pass
    raw.socket.settimeout(PATIENCE_S)
    return sent


def last_words(raw: RawClient) -> PenstockError:
    """The error before the server hung up."""
    frame = raw.read()
    assert frame is not None
    assert frame.kind == ERROR
    assert raw.read() is None
    return decode_error(frame.fields)


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> MemoryBudget:
    monkeypatch.setattr(memory_budget, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(memory_budget, "LOOK_SECONDS", 0.1)
    return MemoryBudget(BUDGET)


@pytest.fixture
def bounded(served: Served, budget: MemoryBudget) -> Served:
    """The same store on a server with little memory for its clients."""
    served.stop()
    served.server = RunningServer(served.store, budget=budget)
    return served


def test_unfinished_requests_of_many_connections_have_one_bound(bounded: Served, budget: MemoryBudget) -> None:
    """Whoever wants more is not read from; small calls of others are answered meanwhile; the biggest is cut, and told why."""
    other = bounded.raw()
    clients = [bounded.raw() for _ in range(8)]
    sends = [later(lambda raw=raw: push(raw, head(5 * MIB) + bytes(5 * MIB - 1))) for raw in clients]  # type: ignore[misc]
    most = 0
    while not all(one.done() for one in sends) or budget.cuts < 3:
        most = max(most, budget.held)
        assert other.call(Call.PING).fields == {}
    assert most <= BUDGET + 9 * native.READ_BYTES
    for raw in clients:
        raw.close()
    eventually(lambda: budget.held == 0)


def test_a_client_that_is_cut_is_told_that_it_held_most(bounded: Served, budget: MemoryBudget) -> None:
    greedy, modest = bounded.raw(), bounded.raw()
    push(greedy, head(20 * MIB) + bytes(7 * MIB))
    eventually(lambda: budget.cuts)
    error = last_words(greedy)
    assert isinstance(error, Unavailable)
    assert "held most of it" in str(error)
    assert modest.call(Call.PING).fields == {}
    eventually(lambda: budget.held == 0)


def test_answers_that_nobody_reads_have_the_same_bound(bounded: Served, budget: MemoryBudget) -> None:
    """Large answers are made when there is room, and never more than fit."""
    bounded.store.publish_many("t", [bytes(1 * MIB)] * 4)
    other = bounded.raw()
    clients = [bounded.raw() for _ in range(12)]
    for raw in clients:
        for _ in range(6):
            raw.send(Call.READ, {"topic": "t", "partition": 0, "offset": 0, "bytes": 4 * MIB})
    most = 0
    while budget.cuts < 3:
        most = max(most, budget.held)
        assert other.call(Call.PING).fields == {}
    assert most <= BUDGET + 5 * MIB
    for raw in clients:
        raw.close()
    eventually(lambda: budget.held == 0)
    assert len(other.call(Call.READ, topic="t", partition=0, offset=0, bytes=4 * MIB).payload) > 3 * MIB


def test_answers_over_tls_that_nobody_reads_count_too(served: Served, budget: MemoryBudget, tmp_path: Path) -> None:
    """They wait encrypted, a layer below."""
    served.store.publish("t", bytes(1 * MIB))
    authority = Authority(tmp_path / "authority", "ours")
    tls = TlsFiles(*authority.sign("server"), None).context()
    served.stop()
    served.server = RunningServer(served.store, budget=budget, tls=tls)
    raw = served.raw(hello=False)
    raw.socket = ssl.create_default_context(cafile=authority.certificate).wrap_socket(raw.socket, server_hostname="localhost")
    raw.call(Call.HELLO, version=PROTOCOL_VERSION)
    for _ in range(20):
        raw.send(Call.READ, {"topic": "t", "partition": 0, "offset": 0, "bytes": 1 * MIB})
    eventually(lambda: budget.held > 900_000)


def test_honest_clients_get_through_while_others_fill_the_server(bounded: Served, budget: MemoryBudget) -> None:
    """They wait, and are not lost: what they publish is stored once."""
    hogs = [bounded.raw() for _ in range(6)]
    sends = [later(lambda raw=raw: push(raw, head(5 * MIB) + bytes(4 * MIB))) for raw in hogs]  # type: ignore[misc]
    store = bounded.client(give_up=PATIENCE_S)
    for number in range(5):
        store.publish("t", b"%d" % number + bytes(1_000_000))
    assert [bytes(message.value or b"")[:1] for message in bounded.store.read("t")] == [b"0", b"1", b"2", b"3", b"4"]
    for one in sends:
        one.result(PATIENCE_S)
    for raw in hogs:
        raw.close()


def test_a_frame_that_is_not_finished_in_time_ends_the_connection(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    served.stop()
    served.server = RunningServer(served.store, frame_s=0.5)
    raw, patient = served.raw(), served.raw()
    raw.socket.sendall(head(1_000) + bytes(10))
    error = last_words(raw)
    assert isinstance(error, Unavailable)
    assert "within 0.5 s" in str(error)
    [record] = [one for one in caplog.records if getattr(one, "penstock", {}).get("event") == "frame_unfinished"]
    assert record.penstock["bytes"] == 32  # type: ignore[attr-defined]
    assert patient.call(Call.PING).fields == {}


def test_frames_that_follow_each_other_without_end_are_not_taken_for_one(served: Served) -> None:
    """Each read ends in the middle of another frame, for longer than one frame may take."""
    served.stop()
    served.server = RunningServer(served.store, frame_s=0.3)
    raw = served.raw()
    request, _ = raw.request(Call.PING, {})
    end = time.monotonic() + 1.5
    raw.socket.sendall(request[:9])
    count = 0
    while time.monotonic() < end:
        raw.socket.sendall(request[9:] + request[:9])
        assert raw.read() is not None
        count += 1
        time.sleep(0.01)
    assert count > 5


# -- fields ---------------------------------------------------------------------------------------------------------


def test_fields_that_are_too_long_are_refused_by_their_head(served: Served) -> None:
    """Before the rest has come. What a client sends by the library is refused there."""
    for call, size in ((Call.PING, FIELDS_BYTES_MAX + 1), (Call.READ, 16 * MIB), (Call.TRANSACT, LONG_FIELDS_BYTES_MAX + 1)):
        raw = served.raw()
        raw.socket.sendall(struct.pack("<IBBHQI", 16 + size, REQUEST, call, 0, 7, size))
        error = last_words(raw)
        assert isinstance(error, BadBytes)
        assert f"{size:,} bytes of fields" in str(error)
    client = served.client()
    with pytest.raises(BatchTooLarge, match="bytes of fields"):
        client._connection.call(Call.PING, {"x": "y" * FIELDS_BYTES_MAX})  # type: ignore[attr-defined]
    client.publish("t", b"the connection lives")


def test_long_fields_are_never_read_in_the_event_loop(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they say, and in their order among the calls of their connection."""
    read: list[tuple[str, int]] = []

    def noting(data: bytes) -> object:
        read.append((threading.current_thread().name, len(data)))
        return decode_frame(data)

    monkeypatch.setattr(native, "decode_frame", noting)
    served.store.create_topic("t")
    raw, other = served.raw(), served.raw()
    long: list[tuple[Call, dict[str, Any]]] = [
        (Call.TRANSACT, {"parts": [["t", 0]] * 60_000}),
        (Call.POSITIONS, {"topics": [f"t{number}" for number in range(60_000)]}),
        (Call.ACK, {"consumer": 1, "tags": [[1, 1]] * 80_000}),
        (Call.REPLAY_DEAD_LETTERS, {"topic": "t", "offsets": list(range(100_000))}),
        (Call.SEEK, {"topic": "t", "group": "g", "to": {str(number): 0 for number in range(50_000)}}),
        (Call.TRANSACT, {"parts": ["x" * 600_000]}),
    ]
    numbers = []
    for call, fields in long:
        numbers.append(raw.send(call, fields))
        numbers.append(raw.send(Call.PING, {}))
        assert other.call(Call.PING).fields == {}
    frames = [raw.read() for _ in numbers]
    pings = [frame.correlation for frame in frames if frame is not None and frame.call == Call.PING]
    assert pings == numbers[1::2]
    assert sorted(frame.correlation for frame in frames if frame is not None) == sorted(numbers)
    for name, size in read:
        assert size <= native.LOOP_FIELDS_BYTES + 100 or not name.startswith("penstock-server")
    assert max(size for _, size in read) > 500_000


def test_a_transaction_of_many_messages_names_its_topics_once(served: Served) -> None:
    """As many as a frame of the journal takes, under a long name."""
    topic = "a-topic-with-a-name-that-is-rather-long-for-one-that-is-said-so-often"
    store = served.client()
    store.create_topic(topic, partitions=2)
    with store.transaction() as transaction:
        for number in range(2_500):
            transaction.publish(topic, b"%d" % number, partition=number % 2)
    assert [receipt.offset for receipt in transaction.receipts] == [number // 2 for number in range(2_500)]
    assert served.values(topic, 1) == [b"%d" % number for number in range(1, 2_500, 2)]


def test_many_messages_with_dedup_keys_and_times_travel_with_their_times(served: Served) -> None:
    """In the batch: as fields they would be too long."""
    store = served.client()
    store.create_topic("t", dedup_window=60)
    values = [b"%d" % number for number in range(3_000)]
    times = [1_700_000_000 + number / 1_000 for number in range(3_000)]
    store.publish_many("t", values, dedup_keys=values, timestamps=times)
    assert [message.timestamp.timestamp() for message in served.store.read("t")] == times


# -- tokens ---------------------------------------------------------------------------------------------------------


def write_tokens(path: Path, *entries: tuple[str, str, str]) -> None:
    """A file of tokens: name, hash and rights of each."""
    text = "".join(
        f'[[token]]\nname = "{name}"\nsha256 = "{sha256}"\n[token.rights]\n{rights}\n' for name, sha256, rights in entries
    )
    path.write_text(text)
    path.chmod(0o600)


def test_a_token_that_is_revoked_ends_its_open_connections(served: Served, tmp_path: Path) -> None:
    """They can ack, extend and commit nothing more; those of others go on."""
    mine, others = new_token(), new_token()
    rights = 'consume = ["*"]\npublish = ["*"]'
    write_tokens(tmp_path / "tokens", ("mine", mine.sha256, rights), ("others", others.sha256, rights))
    auth = TokenAuth(str(tmp_path / "tokens"))
    served.stop()
    served.server = RunningServer(served.store, auth=auth)
    served.store.publish_many("t", [b"one", b"two"])
    raw, idle, kept = (served.raw(hello=False) for _ in range(3))
    for one, token in ((raw, mine), (idle, mine), (kept, others)):
        one.call(Call.HELLO, version=PROTOCOL_VERSION, token=token.token)
    handle = raw.call(Call.SUBSCRIBE, topic="t", group="g").fields["handle"]
    raw.call(Call.FETCH, consumer=handle, count=1, wait=1)
    write_tokens(tmp_path / "tokens", ("others", others.sha256, rights))
    auth.reload()
    # Each call looks, also those that need no right.
    raw.send(Call.FLUSH, {})
    assert isinstance(last_words(raw), Unauthenticated)
    # And who asks for nothing is told when the tokens are read again.
    listener = served.server._listener
    served.server._loop.call_soon_threadsafe(listener.look_at_tokens)
    assert isinstance(last_words(idle), Unauthenticated)
    assert kept.call(Call.PING).fields == {}
    eventually(lambda: served.members("t", "g") == 0)


# -- memory of a real process ---------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["unfinished frames", "unread answers"])
def test_the_memory_of_a_server_is_bounded_and_given_back(tmp_path: Path, kind: str) -> None:
    """As `top` sees it: 20 connections that want 77 MiB, or 64 MiB, each."""
    with serving("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--no-http", "--no-grpc") as server:
        address, pid = server.address("native"), server.process.pid
        with penstock.open(address) as store:
            for _ in range(16):
                store.publish("t", bytes(1 * MIB))
            before = resident(pid)
            most, stop = before, threading.Event()

            def watch() -> None:
                nonlocal most
                while not stop.wait(0.02):
                    most = max(most, resident(pid))

            watching = later(watch)
            clients = [RawClient(int(address.rpartition(":")[2]), hello=True) for _ in range(20)]

            def attack(raw: RawClient) -> None:
                if kind == "unfinished frames":
                    push(raw, head(78 * MIB) + bytes(77 * MIB))
                else:
                    for _ in range(8):
                        raw.send(Call.READ, {"topic": "t", "partition": 0, "offset": 0, "bytes": 16 * MIB})
                    time.sleep(8)

            for one in [later(lambda raw=raw: attack(raw)) for raw in clients]:  # type: ignore[misc]
                one.result(PATIENCE_S)
            store.publish("t", b"works")
            for raw in clients:
                raw.close()
            eventually(lambda: resident(pid) < before + 64 * MIB)
            stop.set()
            watching.result(PATIENCE_S)
            print(json.dumps({"before": before // MIB, "most": most // MIB, "after": resident(pid) // MIB}))
            assert most - before < 420 * MIB


def test_a_connection_on_which_many_calls_begin_to_wait_at_once_is_read_on(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are many calls for a moment, and then none: only what is read next may bring what they wait for."""
    monkeypatch.setattr(calls_under_way, "OUTSTANDING_MAX", 10)
    served.store.create_topic("orders")
    raw = served.raw()
    handle = raw.call(Call.SUBSCRIBE, topic="orders", group="workers", options={}).fields["handle"]
    fetches = [raw.request(Call.FETCH, {"consumer": handle, "count": 1, "wait": None})[0] for _ in range(50)]
    raw.socket.sendall(b"".join(fetches))
    raw.call(Call.PING)
