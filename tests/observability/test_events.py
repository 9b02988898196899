"""Each event of the log is provoked, and has the fields that docs/observability.md tells."""

from __future__ import annotations

import asyncio
import errno
import itertools
import logging
import socket
import sqlite3
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import database as databases
from penstock.broker.memory_budget import MemoryBudget
from penstock.broker.replies import BadFields
from penstock.errors import NoAccess, OutcomeUnknown, StorageFailed, StorageFull, Unauthenticated
from penstock.groups.delivery_times import WINDOW_US
from penstock.log_events import Often
from penstock.server import auth as authentication
from penstock.server.auth import TokenAuth
from penstock.server.last_resort import LastResort
from penstock.server.running import RunningServer
from penstock.server.serving import Server, ServerSettings
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.docs.pages import ROOT, rows
from tests.faces import open_face
from tests.groups.sim import PATH, SETTINGS, Sim, numbered, one, take
from tests.server.running import running, write_tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

DAY_S = 86_400.0
PATIENCE_S = 60.0


class Broken(logging.Handler):
    """One of a program's own. Python asks the handlers behind it no more, so it gives the record to *caplog* itself."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        super().__init__()
        self._caplog = caplog

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.startswith("penstock"):
            self._caplog.handler.handle(record)
            raise RuntimeError("this handler always fails")


@pytest.fixture(params=["", "to a handler that raises"])
def told(caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest) -> Iterator[Callable[[str], list[dict[str, Any]]]]:
    """
    The events of a name so far, without the name; each has exactly the fields that the page tells.

    Whatever tells of it goes on in the same way if a handler of the program's raises.
    """
    caplog.set_level(logging.INFO, logger="penstock")
    broken = Broken(caplog)
    if request.param:
        logging.getLogger().addHandler(broken)
    page = (ROOT / "docs" / "observability.md").read_text()
    fields = {row[0].strip("`"): set(filter(None, row[1].split(", "))) for row in rows(page, "event")}

    def find(name: str) -> list[dict[str, Any]]:
        found = [dict(record.penstock) for record in caplog.records if hasattr(record, "penstock")]
        found = [about for about in found if about.pop("event") == name]
        assert all(about.keys() == fields[name] for about in found)
        return found

    yield find
    logging.getLogger().removeHandler(broken)


@pytest.fixture
def sim() -> Iterator[Sim]:
    sim = Sim()
    yield sim
    sim.files.capacity_bytes = None
    sim.files.clear_faults()
    sim.store.close()


def fill_disk(sim: Sim) -> None:
    """Nothing can be published any more."""
    sim.files.capacity_bytes = 0
    sim.store._volume._space.left = 0  # the next publish asks


def wait_for(find: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """What a thread of the store tells, however slow the machine is."""
    end = time.monotonic() + PATIENCE_S
    while not (found := find()):
        assert time.monotonic() < end, "nothing is told"
        time.sleep(0.005)
    return found


def test_worker_waits(told: Any) -> None:
    with penstock.open("memory:", auto_create=False) as store:
        store.worker("orders", group="billing")(lambda _: None)
        runner = threading.Thread(target=store.run)
        runner.start()
        wait_for(lambda: told("worker_waits"))
        store.stop()
        runner.join()
    assert told("worker_waits") == [{"topic": "orders"}]


def test_member_evicted(told: Any) -> None:
    with penstock.open("memory:") as store:
        store.publish_many("orders", numbered(3))
        with store.subscribe("orders", group="billing") as consumer:
            assert consumer.get(timeout=0) is not None
            [member] = store.members("orders", "billing")
            store.evict_member("orders", "billing", member.id)
    assert told("member_evicted") == [{"topic": "orders", "group": "billing", "member": member.id, "messages": 3}]


def test_worker_evicted(told: Any) -> None:
    with penstock.open("memory:") as store:
        store.create_topic("orders")
        store.worker("orders", group="billing")(lambda _: None)
        runner = threading.Thread(target=store.run)
        runner.start()
        wait_for(lambda: store.groups("orders") and store.members("orders", "billing"))  # type: ignore[arg-type,return-value]
        store.evict_member("orders", "billing", store.members("orders", "billing")[0].id)
        wait_for(lambda: told("worker_evicted"))
        store.stop()
        runner.join()
    assert told("worker_evicted") == [{"topic": "orders", "group": "billing"}]


def test_handler_failed(told: Any) -> None:
    with penstock.open("memory:") as store:
        store.create_topic("orders", partitions=2)
        store.publish_many("orders", numbered(3), partition=1)

        @store.worker("orders", group="billing", batch=3, max_deliveries=1)
        def handle(messages: Any) -> None:
            store.stop()
            raise ValueError("no")

        store.run()
    assert told("handler_failed") == [
        {
            "topic": "orders", "group": "billing", "partition": 1, "offset": 0, "key": None, "messages": 3, "attempt": 1,
            "max_deliveries": 1, "error": "ValueError", "outcome": "dead_letter", "retry_s": None,
        }
    ]  # fmt: skip


@pytest.mark.parametrize("served", [False, True], ids=["embedded", "server"])
def test_a_failing_handler_is_told_with_all_that_one_needs(
    told: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, *, served: bool
) -> None:
    """Each failure: which message, which attempt of how many, where it was raised, and what happens next; for both kinds of store."""
    with open_face(tmp_path, served=served) as store:
        store.publish("orders", b"17", key="ada")

        @store.worker("orders", group="billing", max_deliveries=2, backoff=0.01)
        def handle(message: Any) -> None:
            raise ValueError("no such customer")

        runner = threading.Thread(target=store.run)
        runner.start()
        wait_for(lambda: told("dead_lettered"))
        store.stop()
        runner.join()
    first, second = told("handler_failed")
    assert first == {
        "topic": "orders", "group": "billing", "partition": 0, "offset": 0, "key": "ada", "messages": 1, "attempt": 1, "max_deliveries": 2,
        "error": "ValueError", "outcome": "retry", "retry_s": 0.01,
    }  # fmt: skip
    assert (second["attempt"], second["outcome"], second["retry_s"]) == (2, "dead_letter", None)
    records = [record for record in caplog.records if getattr(record, "penstock", {}).get("event") == "handler_failed"]
    assert [record.levelname for record in records] == ["WARNING", "ERROR"]
    assert "delivery 1 of 2: ValueError: no such customer; it comes again in 0.01 s" in records[0].getMessage()
    # Not the captured text: PySpark, where it was in use in this process, makes JSON of that, without tracebacks.
    assert records[0].exc_info is not None
    assert "in handle" in logging.Formatter().formatException(records[0].exc_info)


def test_dead_lettered(sim: Sim, told: Any) -> None:
    sim.store.publish_many("t", numbered(2))
    consumer = sim.store.subscribe("t", "g")
    take(consumer)[1].reject("no good")
    assert told("dead_lettered") == [
        {"topic": "t", "group": "g", "partition": 0, "offset": 1, "deliveries": 1, "reason": "no good", "left_out": 0}
    ]


def test_a_flood_of_dead_letters_is_told_in_part(sim: Sim, told: Any) -> None:
    """Ten at once, and with the next one how many were left out."""
    now = [0.0]
    sim.store.publish_many("t", numbered(30))
    consumer = sim.store.subscribe("t", "g")
    sim.group()._dead_letter_lines = Often(10, 1.0, lambda: now[0])
    *messages, last = take(consumer)
    for message in messages:
        message.reject("no good")
    now[0] = 2.0
    last.reject("no good")
    assert [one["left_out"] for one in told("dead_lettered")] == [0] * 10 + [19]


def test_store_recovered(sim: Sim, told: Any) -> None:
    sim.store.publish_many("t", numbered(3))
    sim.restart()
    assert told("store_recovered") == []
    sim.store.publish_many("t", numbered(3))
    sim.kill()
    [about] = told("store_recovered")
    assert about == {"path": PATH, "frames": 1, "cut_bytes": about["cut_bytes"], "removed_segments": 0}


def test_token_refused(told: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By each listener; no token stands in the log."""
    monkeypatch.setattr(authentication, "_REFUSED", Often(10, 10.0))  # other tests of this process were refused too
    auth = TokenAuth(write_tokens(tmp_path / "tokens.toml", {"ada": {"admin": ["*"]}}))
    with penstock.open("memory:") as store, RunningServer(store, auth=auth) as server:
        with pytest.raises(Unauthenticated):
            penstock.open(f"{server.address}?token=secret-guess").topics()
        [about] = told("token_refused")
        assert (about["interface"], about["left_out"]) == ("native", 0)
        assert about["peer"].startswith("127.0.0.1:")
    with running(auth=auth) as http:
        assert http.client("secret-guess").get("/v1/topics").status_code == 401
    assert [about["interface"] for about in told("token_refused")] == ["native", "http"]
    assert "secret-guess" not in caplog.text


def test_connection_opened(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="penstock")
    with penstock.open("memory:") as store, RunningServer(store) as server:
        with penstock.open(server.address) as client:
            client.topics()
        wait_for(lambda: told("connection_closed"))
        [came], [went] = told("connection_opened"), told("connection_closed")
        assert came == went
        assert (came["interface"], came["principal"]) == ("native", "anybody")


def test_checkpoint_failed(sim: Sim, told: Any) -> None:
    """Told once; the store goes on."""
    sim.store.publish("t", b"x")
    sim.files.fail("create", 1, errno.EACCES, count=2, path_contains="checkpoint")
    for _ in range(2):
        sim.clock.advance(6)
        with pytest.raises(NoAccess):
            sim.store._volume.maintain_once()
        sim.store.publish("t", b"x")
    sim.clock.advance(6)
    sim.store._volume.maintain_once()
    assert told("checkpoint_failed") == [{"path": sim.store.path, "error": "NoAccess"}]


def test_storage_full(sim: Sim, told: Any) -> None:
    """Told once, however much is refused."""
    sim.store.publish("t", b"x")
    fill_disk(sim)
    for _ in range(3):
        with pytest.raises(StorageFull):
            sim.store.publish("t", b"x")
    assert [about["path"] for about in told("storage_full")] == [sim.store.path]
    stats = sim.store.stats()
    assert (stats.is_full, stats.refused) == (True, 3)


def test_storage_has_room(sim: Sim, told: Any) -> None:
    """Told when a message is taken again, or when the maintenance sees it."""
    sim.store.publish("t", b"x")
    for asks in (True, False):
        fill_disk(sim)
        with pytest.raises(StorageFull):
            sim.store.publish("t", b"x")
        sim.files.capacity_bytes = None
        if asks:
            sim.store.publish("t", b"x")
        else:
            sim.clock.advance(2)
            sim.store._volume.maintain_once()
        assert not sim.store.stats().is_full
    assert len(told("storage_full")) == len(told("storage_has_room")) == 2


def test_dead_letter_failed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", partitions=2)
    sim.store.publish_many("t", numbered(2), partition=1)
    consumer = sim.store.subscribe("t", "g")
    _, message = take(consumer)
    fill_disk(sim)
    message.reject("no good")
    assert told("dead_letter_failed") == [
        {"topic": "t", "group": "g", "partition": 1, "offset": 1, "error": StorageFull.code}
    ]  # fmt: skip
    assert len(sim.store.dead_letters("t")) == 0


@pytest.mark.parametrize("leader", ["the groups' thread", "another thread"])
def test_storage_failed(leader: str, told: Any) -> None:
    """No thread of the store ends with a traceback, which would be a warning here: the log says it once, and all get one error."""
    files = SimulatedFileSystem()
    store = Store.open(PATH, settings=SETTINGS, files=files)
    store.create_topic("t")
    store.publish_many("t", numbered(3))
    consumer = store.subscribe("t", "g", prefetch=3)
    first, second, third = take(consumer)
    consumer.flush()
    if leader == "another thread":
        files.fail("sync_data", 1, errno.EIO, count=None, path_contains="/journal/")
        first.ack()
        with pytest.raises((OutcomeUnknown, StorageFailed)):
            store.publish("t", b"x")
    else:
        files.fail("sync_data", 1, errno.EIO, count=None, path_contains="/journal/")
        first.ack()
    [failed] = wait_for(lambda: told("storage_failed"))
    thread = store._groups._thread
    assert thread is not None
    second.ack()  # it is in memory, and wakes the thread if it still sleeps
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert failed["path"] == PATH
    assert "Input/output error" in failed["reason"]
    for refused in (lambda: store.publish("t", b"x"), consumer.flush, lambda: third.ack(wait=True)):
        with pytest.raises(StorageFailed, match="Input/output error"):
            refused()
    store.close()
    assert len(told("storage_failed")) == 1


def test_clock_jumped(sim: Sim, told: Any) -> None:
    """Once for each jump."""
    sim.store.create_topic("t")
    sim.store.publish("t", b"x")
    for seconds in (DAY_S, -3 * DAY_S):
        sim.clock.jump_wall(seconds)
        for _ in range(3):
            sim.store.retain()
    assert [about["seconds"] for about in told("clock_jumped")] == [round(DAY_S), round(-2 * DAY_S)]
    assert told("clock_jumped")[0]["grace_seconds"] == 3600.0


def test_clock_settled(sim: Sim, told: Any) -> None:
    """When the jump is undone, or its time is believed."""
    sim.store.create_topic("t")
    sim.store.publish("t", b"x")
    sim.clock.jump_wall(DAY_S)
    sim.store.retain()
    assert told("clock_settled") == []
    sim.clock.jump_wall(-DAY_S)
    sim.store.retain()
    assert told("clock_settled") == [{}]
    sim.clock.jump_wall(-DAY_S)
    sim.store.retain()
    sim.clock.advance(3600.0)
    for _ in range(3):
        sim.store.retain()
    assert told("clock_settled") == [{}, {}]


def test_deliveries_not_recorded(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", record_deliveries=True)
    sim.store.publish("t", b"x")
    one(sim.store.subscribe("t", "g"))
    sim.clock.advance(WINDOW_US / 1e6)
    fill_disk(sim)
    for _ in range(2):
        sim.store._deliveries.write()
    assert told("deliveries_not_recorded") == [{"topic": "t", "error": "StorageFull"}]


def test_dead_letters_expired(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", dead_letter_retention=DAY_S)
    sim.store.publish_many("t", numbered(3))
    for message in take(sim.store.subscribe("t", "g")):
        message.reject("no good")
    sim.store.retain()
    assert told("dead_letters_expired") == []
    sim.clock.advance(2 * DAY_S)
    sim.store.retain()
    assert told("dead_letters_expired") == [{"topic": "t.dlq", "messages": 3}]


def test_messages_skipped(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_bytes=1, retain="always")
    consumer = sim.store.subscribe("t", "g", start="earliest")
    for value in numbered(100):
        sim.store.publish("t", value)
    sim.store.retain()
    first = one(consumer).offset
    assert first > 0
    assert told("messages_skipped") == [{"topic": "t", "group": "g", "partition": 0, "messages": first}]


def test_messages_skipped_by_a_database_consumer(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_bytes=1, retain="always")
    sim.store.publish("t", b"0")
    with closing(sqlite3.connect(":memory:")) as connection:
        with databases.consumer(sim.store, "t", "g", connection=connection) as consumer:
            batch = consumer.get(0)
            assert batch is not None
            with batch:
                pass
        for value in numbered(100):
            sim.store.publish("t", value)
        sim.store.retain()
        with databases.consumer(sim.store, "t", "g", connection=connection, reset="earliest") as consumer:
            assert consumer.get(0) is not None
            skipped = consumer.skipped
    assert skipped > 0
    assert {"topic": "t", "group": "g", "partition": 0, "messages": skipped} in told("messages_skipped")


def test_messages_lost(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", sync="os")
    sim.store.publish_many("t", numbered(4), sync="always")
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g")
    consumer.ack(take(consumer), wait=True)
    sim.lose_power()
    assert sim.store.ends("t") == {0: 4}
    assert told("messages_lost") == [{"topic": "t", "group": "g", "partition": 0, "messages": 3}]


def busy_store(files: SimulatedFileSystem) -> Store:
    """One whose own threads look for work all the time."""
    return Store.open(PATH, settings=replace(SETTINGS, retention_interval_ms=10), files=files, clock=FakeClock())


def fill(store: Store) -> None:
    """Many segments, which may be removed and rewritten: both checkpoints point behind them."""
    for number in range(100):
        store.publish("t", b"x" * 100, key=b"%d" % (number % 3))
    for _ in range(2):
        store._volume.checkpoint()


def test_retention_failed(told: Any) -> None:
    files = SimulatedFileSystem()
    with busy_store(files) as store:
        store.create_topic("t", segment_bytes=1_000, retention_bytes=1)
        files.fail("unlink", 1, errno.EIO, count=None, path_contains="/topics/t/")
        fill(store)
        found = wait_for(lambda: told("retention_failed"))
        files.clear_faults()
    assert found[0] == {"topic": "t", "partition": 0, "error": "OSError"}


def test_unfinished_removed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_bytes_hard=3_000)
    sim.store.subscribe("t", "g", start="earliest").close()
    for value in numbered(100):
        sim.store.publish("t", value)
    removed = sim.store.retain()
    assert removed.segments > 0
    assert told("unfinished_removed") == [
        {"topic": "t", "partition": 0, "segments": removed.segments, "bytes": removed.bytes}
    ]  # fmt: skip


def test_group_expired(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_bytes=1_000, retention_age=1.0, group_expiry=30 * DAY_S)
    sim.store.subscribe("t", "g", start="earliest").close()
    for days in (29, 2):
        assert told("group_expired") == []
        sim.clock.advance(days * DAY_S)
        sim.store.retain()
    assert told("group_expired") == [{"topic": "t", "group": "g"}]
    sim.store.retain()
    assert len(told("group_expired")) == 1, "once"


def test_rewriting_failed(told: Any) -> None:
    files = SimulatedFileSystem()
    with busy_store(files) as store:
        store.create_topic("t", segment_bytes=1_000, compaction=True)
        files.fail("create", 1, errno.EIO, count=None, path_contains=".log.tmp")
        fill(store)
        found = wait_for(lambda: told("rewriting_failed"))
        files.clear_faults()
    assert found[0] == {"topic": "t", "partition": 0, "error": "OSError"}


def test_coalescing_failed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", segment_messages=10)
    for value in numbered(40):
        sim.store.publish("t", value)
    sim.store.close()
    file = sim.files.open(f"{PATH}/topics/t/0/{10:020}.log", write=True)
    file.pwrite(bytes(64), 0)
    file.close()
    sim.restart()
    sim.store.publish("t", b"a change")
    for _ in range(2):
        sim.store._volume.checkpoint()
    sim.store._volume.coalesce()
    assert told("coalescing_failed") == [{"topic": "t", "partition": 0, "error": "DamagedFile"}]


def test_batch_failed(sim: Sim, told: Any) -> None:
    sim.store.create_topic("t", partitions=2)
    sim.store.publish_many("t", numbered(3), partition=1)

    def handle(cursor: Any, message: Any) -> None:
        consumer.stop()
        raise ValueError("no")

    with (
        closing(sqlite3.connect(":memory:")) as connection,
        databases.consumer(sim.store, "t", "g", connection=connection) as consumer,
    ):
        consumer.run(handle)
    assert told("batch_failed") == [{"topic": "t", "group": "g", "partition": 1, "messages": 3, "error": "ValueError"}]


def test_outbox_set_aside(sim: Sim, told: Any, tmp_path: Path) -> None:
    sim.store.create_topic("t", max_message_bytes=1_000)
    with closing(sqlite3.connect(tmp_path / "outbox")) as connection:
        for value in (b"good", b"x" * 2_000):
            databases.outbox.publish(connection, "t", value)
        connection.commit()
        with databases.relay(sim.store, connection=connection) as relay:
            assert relay.run_once() == 1
    [found] = told("outbox_set_aside")
    assert found.pop("error").startswith("MESSAGE_TOO_LARGE: ")
    assert found == {"table": "penstock_outbox", "id": 2}


def test_bad_fields(told: Any) -> None:
    moments = iter((0.0, 1.0, 2.0, 61.0))
    bad = BadFields(lambda: next(moments))
    for _ in range(4):
        bad.tell(4, TypeError("no text"))
    assert told("bad_fields") == [{"call": 4, "error": "TypeError", "more": 0}, {"call": 4, "error": "TypeError", "more": 2}]


def test_frame_unfinished(told: Any, tmp_path: Path) -> None:
    with (
        Store.open(str(tmp_path / "store")) as store,
        RunningServer(store, frame_s=0.05) as server,
        socket.create_connection(("127.0.0.1", int(server.address.rpartition(":")[2]))) as connected,
    ):
        connected.sendall(bytes((200, 0, 0, 0)))
        while connected.recv(1_000):
            pass
    [found] = told("frame_unfinished")
    assert found.pop("client").startswith("127.0.0.1:")
    assert found == {"bytes": 4, "seconds": 0.05}


class Stalled:
    """A client that never does what only it can do."""

    def hold_back(self) -> None: ...
    def go_on(self) -> None: ...
    def cut(self, error: object) -> None: ...
    def look(self) -> None: ...


def test_client_cut(told: Any) -> None:
    later: list[Any] = []
    moments = itertools.count(0.0, 10.0)
    budget = MemoryBudget(1_000, now=lambda: next(moments), call_later=lambda _, function: later.append(function))
    account = budget.open(Stalled(), "a client")
    account.set_principal("billing")
    account.set_receiving(900)
    later[0]()
    assert told("client_cut") == [
        {"client": "a client", "principal": "billing", "receiving": 900, "sending": 0, "held": 900, "bytes_max": 1_000}
    ]


def _stop_server(tmp_path: Path) -> None:
    settings = ServerSettings(str(tmp_path / "served"), native="127.0.0.1:0", grpc=None, http=None, drain_s=0.01)

    async def main() -> None:
        server = Server(settings)
        consumers: list[Any] = []

        def hold(running: Server) -> None:
            def take() -> None:
                store = penstock.open(running.addresses["native"], give_up=0.01)
                store.publish("t", b"x")
                consumers.append(store)
                assert store.subscribe("t", "g").get(timeout=60) is not None
                loop.call_soon_threadsafe(running.stop)

            threading.Thread(target=take, daemon=True).start()

        loop = asyncio.get_running_loop()
        await server.run(hold)
        for consumer in consumers:
            consumer.close()

    asyncio.run(main())


def test_server_draining(told: Any, tmp_path: Path) -> None:
    _stop_server(tmp_path)
    assert told("server_draining") == [{"seconds": 0.01}]


def test_server_drained(told: Any, tmp_path: Path) -> None:
    _stop_server(tmp_path)
    [found] = told("server_drained")
    assert found.pop("seconds") >= 0.01
    assert found == {"held": 1}


def test_stop_forced(told: Any) -> None:
    ended = threading.Event()
    last_resort = LastResort(lambda _: ended.set())
    last_resort.expect("closing the store", 0.001)
    assert ended.wait(60)
    last_resort.done()
    [found] = told("stop_forced")
    assert "MainThread" in found.pop("threads")
    assert found == {"stage": "closing the store", "tasks": []}


def test_every_event_has_a_test() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert {row[0].strip("`") for row in rows(page, "event")} <= tests


def test_connection_closed(told: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that is cut."""
    caplog.set_level(logging.DEBUG, logger="penstock")
    with penstock.open("memory:") as store, RunningServer(store) as server, penstock.open(server.address) as client:
        client.topics()
        server.disconnect_all()
        assert wait_for(lambda: told("connection_closed"))[0]["interface"] == "native"
