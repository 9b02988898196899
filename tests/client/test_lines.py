"""Publishes and reads that may wait for the disk leave the server's event loop free, and keep their order."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.broker.publishing import LOOP_BYTES_MAX
from penstock.format.batch import encode_batch
from penstock.store.transaction import Transaction
from penstock.wire.calls import Call
from penstock.wire.frame import ANSWER
from tests.client.served import PATIENCE_S, eventually, later
from tests.one_log import replace_of

if TYPE_CHECKING:
    from tests.client.served import RawClient, Served


def batch(*values: bytes) -> bytes:
    """A batch as a client sends it."""
    encoded = encode_batch(values)
    encoded.stamp(0, 0, 0, 0, 0, 0)
    return bytes(encoded.data)


def publish(raw: RawClient, values: list[bytes]) -> int:
    return raw.send(Call.PUBLISH, {"topic": "orders", "partition": 0}, [batch(*values)])


@pytest.mark.parametrize("sync", ["always", "os", "interval"])
def test_long_and_short_batches_of_one_connection_stay_in_order(served: Served, sync: str) -> None:
    """The long ones are checked in a thread; what comes behind them waits there."""
    served.store.create_topic("orders", sync=sync, max_message_bytes=1 << 20)
    raw = served.raw()
    sent = [bytes([number]) * (LOOP_BYTES_MAX + 1_000 if number % 5 == 0 else 10) for number in range(40)]
    for value in sent:
        publish(raw, [value])
    answers = [raw.read() for _ in sent]
    assert [one.kind for one in answers if one is not None] == [ANSWER] * 40
    assert served.values("orders") == sent


def test_a_batch_that_is_refused_in_line_is_told_and_those_behind_it_are_stored(served: Served) -> None:
    served.store.create_topic("orders", max_message_bytes=LOOP_BYTES_MAX)
    raw = served.raw()
    numbers = [publish(raw, [bytes(LOOP_BYTES_MAX + 1)]), publish(raw, [b"behind"])]
    found = {one.correlation: one for one in (raw.read(), raw.read()) if one is not None}
    assert found[numbers[0]].fields["code"] == "MESSAGE_TOO_LARGE"
    assert found[numbers[1]].fields["offset"] == 0
    assert served.values("orders") == [b"behind"]


def test_a_log_that_is_held_up_holds_up_nobody_else(served: Served) -> None:
    """A transaction holds the log of a weaker topic over its sync; another client is answered meanwhile."""
    served.store.create_topic("orders", sync="os")
    served.store.create_topic("others", sync="os")
    served.store.publish("orders", b"first")
    client: Any = served.client()
    other: Any = served.client()
    other.publish("others", b"known")
    client.publish("orders", b"second")
    log = served.store._catalog.get("orders").logs[0]
    with log.lock:
        waiting = [later(lambda: client.publish("orders", b"held up")) for _ in range(3)]
        for _ in range(20):
            assert later(lambda: other.publish("others", b"x")).result(PATIENCE_S).offset > 0
        assert not any(one.done() for one in waiting)
    assert sorted(one.result(PATIENCE_S).offset for one in waiting) == [2, 3, 4]
    assert client.publish("orders", b"last").offset == 5


def test_what_lies_only_on_the_disk_is_read_by_another_thread_first(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A consumer that is far behind: the first who reads a sealed segment is not the event loop."""
    served.store.create_topic("orders", sync="os", segment_bytes=1 << 20)
    for number in range(40):
        served.store.publish_many("orders", [bytes([number]) * 10_000] * 10)
    log = served.store._catalog.get("orders").logs[0]
    assert len(log.segment_firsts) > 2
    readers: list[tuple[int, str]] = []
    read = log.read

    def noted(offset: int, *arguments: Any, **options: Any) -> Any:
        readers.append((offset, threading.current_thread().name))
        return read(offset, *arguments, **options)

    replace_of(monkeypatch, log, "read", noted)
    client: Any = served.client()
    consumer = client.subscribe("orders", "workers")
    values = [consumer.get(timeout=PATIENCE_S).value[:1] for _ in range(100)]
    assert values == [bytes([number]) for number in range(10) for _ in range(10)]
    first: dict[int, str] = {}
    for offset, thread in readers:
        first.setdefault(offset, thread)
    assert first
    assert "penstock-server" not in first.values()
    consumer.close()


def test_a_transaction_whose_consumer_is_closed_meanwhile_is_answered(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is committed, and must not be told as failed."""
    client: Any = served.client()
    client.create_topic("orders")
    client.publish("orders", b"work")
    client.create_topic("out")
    consumer = client.subscribe("orders", "workers")
    message = consumer.get(timeout=PATIENCE_S)
    sessions = [one._session for one in served.server._listener.connections]
    commit = Transaction.commit
    inside, go_on = threading.Event(), threading.Event()

    def slow(self: Transaction) -> Any:
        found = commit(self)
        inside.set()
        go_on.wait(PATIENCE_S)
        return found

    monkeypatch.setattr(Transaction, "commit", slow)

    def transact() -> None:
        with client.transaction() as making:
            making.publish("out", b"result")
            making.ack(message)

    waiting = later(transact)
    assert inside.wait(PATIENCE_S)
    for one in sessions:
        assert one is not None
        one._consumers._subscriptions.clear()
    go_on.set()
    waiting.result(PATIENCE_S)
    eventually(lambda: served.values("out") == [b"result"])
