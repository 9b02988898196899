"""What can be said about the comparison without the other queues, which need not be installed."""

from typing import Any

import pytest

from benchmarks import publish
from benchmarks.measure import Rates
from benchmarks.queue_peers import PEERS, Peer, _check_synchronous, _Sqlite

SQLITE = PEERS[0]
NOT_THERE = Peer("nobody", "there_is_no_such_queue", _Sqlite)


@pytest.mark.parametrize("fsync", [False, True])
def test_a_table_by_hand_is_a_queue_of_the_class_that_was_asked_for(tmp_path, fsync):
    queue = SQLITE.open(str(tmp_path), fsync=fsync)
    assert isinstance(queue, _Sqlite)
    _check_synchronous(queue._connection, fsync=fsync)
    with pytest.raises(AssertionError, match="synchronous"):
        _check_synchronous(queue._connection, fsync=not fsync)
    queue.put(queue.value)
    queue.put_many([queue.value] * 3)
    queue.take(2)
    queue.take_many(2)
    with pytest.raises(AssertionError):
        queue.take(1)
    queue.close()


def test_every_message_of_a_peer_has_100_bytes():
    made: list[Any] = [peer.make for peer in PEERS]
    assert {len(each.value) for each in made} == {100}


def test_a_peer_that_cannot_be_imported_has_a_row_that_says_why(monkeypatch):
    monkeypatch.setattr(publish, "PEERS", (SQLITE, NOT_THERE))
    ours, theirs = Rates([30.0, 40.0]), Rates([10.0, 20.0])
    there, absent = publish.peer_rows("os", ours, {SQLITE: theirs}, {"sqlite3": "a note", "nobody": ""})
    assert (there.name, there.values, there.verdict) == ("os-sqlite3", [3.0, 2.0], "info")
    assert (absent.name, absent.verdict) == ("os-nobody", "absent")
    assert "there_is_no_such_queue" in absent.cells()[-1]


def test_the_best_peer_is_the_fastest_of_those_that_are_there(monkeypatch):
    slow = SQLITE._replace(name="slow")
    monkeypatch.setattr(publish, "PEERS", (SQLITE, slow, NOT_THERE))
    row = publish.best_row("best", Rates([30.0]), {slow: Rates([1.0]), SQLITE: Rates([10.0])}, None, "a note")
    assert row.values == [3.0]
    assert row.note == "a note; raw: the best peer, sqlite3; not installed: nobody"


def test_an_error_in_one_of_many_threads_is_not_taken_for_a_rate():
    def broken():
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        publish.threads_side(broken, 4, 0.0)()
