"""Who looks at one message of a server is sent one batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import penstock
from penstock.client.reading import RemoteLog
from penstock.server.running import RunningServer
from penstock.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from penstock.format.batch import Batch


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
