"""A client that wants few messages is sent few batches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import penstock
from penstock.client.reading import RemoteLog
from penstock.server.running import RunningServer
from penstock.store.store import Store
from penstock.wire.calls import Call
from tests.client.served import eventually

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from penstock.format.batch import Batch
    from tests.client.served import Served


def test_one_message_is_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it is, also where what was asked for is gone and the next one is another batch's."""
    sent: list[int] = []
    read = RemoteLog.read

    def counted(log: RemoteLog, *arguments: int) -> list[Batch]:
        batches = read(log, *arguments)
        sent.append(len(batches))
        return batches

    monkeypatch.setattr(RemoteLog, "read", counted)
    with Store.open(str(tmp_path / "data")) as owner, RunningServer(owner) as server:
        owner.create_topic("latest", compaction=True, segment_messages=10)
        for number in range(50):
            owner.publish_many("orders", [b"%d" % number] * 2)
            owner.publish("latest", b"%d" % number, key=b"other" if number == 25 else b"key")
        assert owner.compact("latest").messages
        with penstock.open(server.address) as store:
            for start in (0, 1, 2, 51, 99):
                (found,) = store.read("orders", 0, start=start, max_messages=1)
                assert (found.offset, found.value) == (start, b"%d" % (start // 2))
            assert sent == [1] * 5
            assert list(store.read("orders", 0, start=100, max_messages=1)) == []
            kept = [one.offset for one in store.read("latest", 0)]
            assert len(kept) < 50
            for start in range(50):
                (found,) = store.read("latest", 0, start=start, max_messages=1)
                assert found.offset == min(one for one in kept if one >= start)
            assert len(list(store.read("orders", 0, max_messages=2))) == 2


def test_a_few_dead_letters_are_listed_without_reading_them_all(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be a million."""
    client: Any = served.client()
    client.publish_many("orders", [bytes(400_000)] * 12)
    with served.store.subscribe("orders", "workers") as consumer:
        while messages := consumer.get_many(100, 0):
            for message in messages:
                message.reject("a planted failure")
    eventually(lambda: len(client.dead_letters("orders")) == 12)
    reads = []
    call = client._connection.call

    def noted(number: int, *arguments: Any, **options: Any) -> Any:
        reads.append(number)
        return call(number, *arguments, **options)

    monkeypatch.setattr(client._connection, "call", noted)
    assert [one.offset for one in client.dead_letters("orders").list(2)] == [0, 1]
    assert reads.count(Call.READ) == 1
    assert len(client.dead_letters("orders").list()) == 12
