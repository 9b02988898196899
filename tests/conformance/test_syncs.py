"""Publishing and the sync that makes it durable: nothing is seen or answered before it, and many share one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.conformance.backends import Backend, skip_unless
from tests.conformance.helpers import PATIENCE, Running, stored, uncommitted, until

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import Store
    from tests.volume.gated_files import GatedFileSystem


def test_a_message_is_invisible_and_unanswered_until_the_sync(gated: tuple[Store, GatedFileSystem]) -> None:
    """Through publish, a producer and a transaction; readers and consumers see nothing while the sync is held back."""
    store, files = gated
    consumer = store.subscribe("t", "g")
    store.flush()
    files.gate.clear()
    files.at_gate.clear()
    publishing = Running(lambda: store.publish("t", b"x", partition=0))
    assert files.at_gate.wait(PATIENCE)
    assert list(store.read("t")) == []
    assert consumer.get(timeout=0.1) is None
    producer = store.producer("t")
    future = producer.send(b"y", partition=1)

    def transact() -> None:
        with store.transaction() as t:
            t.publish("t", b"z", partition=2)

    transacting = Running(transact)
    assert not future.done()
    files.gate.set()
    assert publishing.result().offset == 0
    assert future.result(PATIENCE).offset == 0
    transacting.result()
    assert stored(store, "t") == [b"x", b"y", b"z"]
    assert len([consumer.get(timeout=PATIENCE) for _ in range(3)]) == 3
    consumer.close()
    producer.close()


def test_many_publishers_share_a_sync(gated: tuple[Store, GatedFileSystem]) -> None:
    """What gathers while one sync is held back is committed by the next few, not by one each; on any partitions."""
    store, files = gated
    files.gate.clear()
    files.at_gate.clear()
    first = Running(lambda: store.publish("t", b"first", partition=0))
    assert files.at_gate.wait(PATIENCE)
    before = files.journal_syncs
    others = [Running(lambda number=number: store.publish("t", b"x", partition=number % 4)) for number in range(40)]
    assert until(lambda: uncommitted(store) == 40)
    files.gate.set()
    for running in [first, *others]:
        running.result()
    assert files.journal_syncs - before < 10
    assert len(stored(store, "t")) == 41


def test_closing_commits_what_waits(live: Backend, tmp_path: Path) -> None:
    """A message that a producer holds is there after the store was closed and opened."""
    skip_unless(live.keeps_data, "opens the store again")
    store = live.open()
    producer = store.producer("t", linger=60)
    future = producer.send(b"x")
    store.close()
    assert future.exception(PATIENCE) is None
    assert stored(live.open(), "t") == [b"x"]
