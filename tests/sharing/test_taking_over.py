"""The owner ends, in order or not, and the others go on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Store
from penstock.client.store import RemoteStore
from penstock.errors import LeaseExpired, StoreNotFound
from penstock.files import RealLock
from penstock.server import helper
from penstock.sharing.door import SocketDoor
from penstock.sharing.folder import SURE_SECONDS
from penstock.sharing.names import SOCKET_NAME, STARTING_NAME
from tests.sharing.processes import SETTINGS, eventually, owner_of, program

if TYPE_CHECKING:
    from pathlib import Path

OWNER = """
store = open()
say("open")
told()
store.close()
say("closed")
told()
"""


@pytest.mark.parametrize("how", ["in order", "killed"])
def test_siblings_go_on_when_the_owner_ends(path: Path, how: str) -> None:
    """A publish just waits a little; a consumer subscribes again, and what it held is void."""
    with program(path, OWNER) as owner:
        assert owner.hear() == "open"
        with penstock.open(path, **SETTINGS) as store:
            consumer = store.subscribe("t", "g") if store.publish("t", b"0") else None
            assert consumer is not None
            held = consumer.get(timeout=30)
            assert held is not None
            if how == "killed":
                owner.kill()
            else:
                owner.tell()
                assert owner.hear() == "closed"
            assert store.publish("t", b"1").offset == 1
            assert owner_of(path) not in (None, os.getpid(), owner.pid)
            with pytest.raises(LeaseExpired):
                held.ack()
            again = consumer.get_many(2, timeout=30)
            again += consumer.get_many(2, timeout=30) if len(again) < 2 else []
            assert sorted(bytes(message.value or b"") for message in again) == [b"0", b"1"]
            consumer.ack(again, wait=True)


def test_a_producer_with_batches_on_their_way_stores_each_once(path: Path) -> None:
    """The batches that the dead owner had stored, and had not said so, are known to the next one."""
    with program(path, OWNER) as owner:
        assert owner.hear() == "open"
        with penstock.open(path, **SETTINGS) as store, store.producer("t", linger=0, batch_messages=5) as producer:
            futures = [producer.send(b"%d" % number) for number in range(500)]
            futures[5].result(30)
            owner.kill()
            futures += [producer.send(b"%d" % number) for number in range(500, 600)]
            assert [future.result(30).offset for future in futures] == list(range(600))
            assert [message.value for message in store.read("t")] == [b"%d" % number for number in range(600)]


def test_many_siblings_start_one_helper(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is first; and the others use it."""
    started: list[int] = []
    popen = subprocess.Popen

    def start(*given: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(1)
        return popen(*given, **options)

    with program(path, OWNER) as owner:
        assert owner.hear() == "open"
        siblings = [penstock.open(path, **SETTINGS) for _ in range(8)]
        siblings[0].create_topic("t")
        monkeypatch.setattr(subprocess, "Popen", start)
        owner.kill()
        threads = [threading.Thread(target=sibling.publish, args=("t", b"x")) for sibling in siblings]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert siblings[0].stats().topics["t"].messages == 8
        for sibling in siblings:
            sibling.close()
    assert len(started) == 1
    assert (path / "share.log").read_text() == ""


def test_a_helper_that_dies_is_followed_by_another(path: Path) -> None:
    """As any owner is."""
    with penstock.open(path, share="helper", **SETTINGS) as store:
        assert store.publish("t", b"x").offset == 0
        owner = owner_of(path)
        assert owner is not None
        os.kill(owner, signal.SIGKILL)
        assert store.publish("t", b"x").offset == 1


def test_a_helper_that_is_told_to_stop_stops_in_order(path: Path) -> None:
    """And is followed by another, if somebody is still there."""
    with penstock.open(path, share="helper", **SETTINGS) as store:
        store.publish("t", b"x")
        owner = owner_of(path)
        assert owner is not None
        os.kill(owner, signal.SIGTERM)
        eventually(lambda: owner_of(path) != owner)
        assert store.publish("t", b"x").offset == 1
        assert owner_of(path) not in (None, owner)


def test_a_helper_ends_when_nobody_is_left(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, and not while somebody is there."""
    monkeypatch.setattr(helper, "LINGER_SECONDS", 0.0)
    monkeypatch.setattr(helper, "LOOK_SECONDS", 0.01)
    door = SocketDoor()
    with Store.open(path, door=door) as owner:
        sibling = penstock.open(path)
        eventually(lambda: door.connections == 1)
        ended = threading.Event()

        def serve() -> None:
            helper._serve(owner, door, threading.Event())
            ended.set()

        thread = threading.Thread(target=serve)
        thread.start()
        assert not ended.wait(0.2)
        sibling.close()
        assert ended.wait(30)
        thread.join()


def test_a_socket_of_a_process_that_died_is_in_nobodys_way(path: Path) -> None:
    """The next owner takes its place, under the lock; a sibling that finds it alone starts an owner."""
    penstock.open(path, **SETTINGS).close()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path / SOCKET_NAME))
    with penstock.open(path, **SETTINGS) as store:
        assert not isinstance(store, RemoteStore)
        with penstock.open(path) as sibling:
            sibling.publish("t", b"x")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path / SOCKET_NAME))
    with penstock.open(path, share="helper", **SETTINGS) as store:
        assert store.publish("t", b"y").offset == 1


def test_what_is_no_socket_stays_and_the_store_opens_unshared(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing of somebody else's is removed."""
    penstock.open(path, **SETTINGS).close()
    (path / SOCKET_NAME).write_text("mine")
    with penstock.open(path, **SETTINGS) as store:
        assert store.publish("t", b"x").offset == 0
    assert (path / SOCKET_NAME).read_text() == "mine"
    assert "cannot be shared" in caplog.text


def test_who_waits_for_an_owner_to_begin_waits_while_somebody_else_starts_it(path: Path) -> None:
    """A lock that a starter left behind by dying is nobody's; one that is held is waited for."""
    penstock.open(path, **SETTINGS).close()
    held = RealLock(str(path / STARTING_NAME))
    found: list[penstock.Store] = []
    thread = threading.Thread(target=lambda: found.append(penstock.open(path, share="helper", **SETTINGS)))
    thread.start()
    assert owner_of(path) is None
    held.release()
    thread.join(60)
    assert found[0].publish("t", b"x").offset == 0
    found[0].close()


@pytest.mark.parametrize("in_lock", ["nothing", "one that was killed"])
def test_an_owner_that_has_not_written_its_name_yet_is_waited_for(path: Path, in_lock: str) -> None:
    """It may share, and it may have no time to say so for longer than an owner that does not share is looked at."""
    penstock.open(path, share=False, **SETTINGS).close()
    assert json.loads((path / "LOCK").read_text()) == {}, "who has closed it is not taken for the next one"
    held = RealLock(str(path / "LOCK"))
    with subprocess.Popen(["true"]) as ended:
        pass
    named = {"pid": ended.pid, "host": socket.gethostname()}
    (path / "LOCK").write_text("" if in_lock == "nothing" else json.dumps(named))
    found: list[penstock.Store | BaseException] = []

    def work() -> None:
        try:
            found.append(penstock.open(path, **SETTINGS))
        except penstock.PenstockError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(SURE_SECONDS + 0.3)
    assert not found
    held.release()
    thread.join(60)
    [store] = found
    assert not isinstance(store, BaseException), store
    assert store.publish("t", b"x").offset == 0
    store.close()


def test_a_folder_that_was_removed_is_told_so(path: Path, tmp_path: Path) -> None:
    """No sibling brings it back, empty."""
    with program(path, OWNER) as owner:
        assert owner.hear() == "open"
        with penstock.open(path, **SETTINGS) as store:
            store.publish("t", b"x")
            path.rename(tmp_path / "away")
            owner.kill()
            with pytest.raises(StoreNotFound):
                store.topics()
    assert not path.exists()


def test_a_long_path_is_no_obstacle(tmp_path: Path) -> None:
    """The kernel takes 107 bytes; folders are longer."""
    path = tmp_path.joinpath(*["a-folder-with-quite-a-long-name"] * 5)
    path.parent.mkdir(parents=True)
    assert len(str(path)) > 150
    with penstock.open(path, **SETTINGS) as owner:
        with penstock.open(path) as sibling:
            sibling.publish("t", b"x")
        assert [message.value for message in owner.read("t")] == [b"x"]
    assert not (path / SOCKET_NAME).exists()
