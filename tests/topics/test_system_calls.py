"""
What a topic that uses no feature asks of the operating system: pinned, so that no feature adds a call for those who do not use it.

The numbers are those of commit 4f29132, from before there were priorities, delays, compression, retention and compaction.
`python -m benchmarks.before` counts both sides again, with strace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.store.store import Store
from penstock.testing import FakeClock
from tests.topics.counted_files import CountedFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.store.consumer import Consumer

DURABLE = {"pwrite journal": 1, "sync_data journal": 1}
PUBLISHED = {**DURABLE, "pwrite log": 1}
SMALL_FILE = {
    "exists tmp": 1,
    "create tmp": 1,
    "pwrite tmp": 1,
    "sync_data tmp": 1,
    "rename tmp": 1,
    "sync_directory folder": 1,
}


class Plain:
    """A store with two topics and a group, all in use before anything is counted."""

    def __init__(self, path: str) -> None:
        self.files = CountedFiles()
        self.store = Store.open(path, files=self.files, clock=FakeClock(), background=False)
        for topic in ("t", "u"):
            self.store.create_topic(topic)
            self.store.publish(topic, b"x")
        self.consumer: Consumer = self.store.subscribe("t", "g", prefetch=100)
        self.get_and_ack(1)
        self.consumer.flush()
        self.store._volume.checkpoint()

    def get_and_ack(self, count: int) -> None:
        """One by one."""
        for _ in range(count):
            message = self.consumer.get(timeout=0)
            assert message is not None
            message.ack()

    def calls(self, act: Callable[[], object]) -> dict[str, int]:
        """What *act* asks of the file system."""
        before = self.files.counts.copy()
        act()
        return dict(self.files.counts - before)


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Plain]:
    plain = Plain(str(tmp_path / "store"))
    yield plain
    plain.store.close()


def test_a_publish_takes_three_calls_and_so_do_a_thousand_messages(plain: Plain) -> None:
    store = plain.store

    def send() -> None:
        with store.producer("t") as producer:
            for _ in range(1000):
                producer.send(b"x")

    for _ in range(3):
        assert plain.calls(lambda: store.publish("t", b"x")) == PUBLISHED
        assert plain.calls(lambda: store.publish_many("t", [b"x"] * 1000)) == PUBLISHED
        assert plain.calls(send) == PUBLISHED


def test_consuming_takes_a_read_for_each_refill_and_a_commit_for_each_flush(plain: Plain) -> None:
    """A get with something at hand and an ack without waiting take none."""
    store, consumer = plain.store, plain.consumer
    store.publish_many("t", [b"x"] * 90)
    # A look-up from the nearest place that the index has, and the batch.
    assert plain.calls(lambda: plain.get_and_ack(1)) == {"pread log": 2}
    assert plain.calls(lambda: plain.get_and_ack(80)) == {}
    assert plain.calls(consumer.flush) == DURABLE
    message = consumer.get(timeout=0)
    assert message is not None
    assert plain.calls(lambda: message.ack(wait=True)) == DURABLE
    assert plain.calls(lambda: consumer.get(timeout=0)) == {}


def test_a_commit_cycle_of_two_topics_and_a_group_takes_one_frame(plain: Plain) -> None:
    store = plain.store
    message = plain.store.publish("t", b"x") and plain.consumer.get(timeout=0)
    assert message is not None

    def change() -> None:
        with store.transaction() as transaction:
            transaction.publish("t", b"y")
            transaction.publish("u", b"z")
            transaction.ack(message)

    assert plain.calls(change) == {**DURABLE, "pwrite log": 2}


def test_a_checkpoint_syncs_each_log_that_changed_and_writes_one_file(plain: Plain) -> None:
    plain.store.publish("t", b"x")
    assert plain.calls(plain.store._volume.checkpoint) == {**SMALL_FILE, "sync_data log": 1}
    assert plain.calls(plain.store._volume.checkpoint) == SMALL_FILE
