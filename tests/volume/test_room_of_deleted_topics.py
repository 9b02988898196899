"""A deleted topic gives its disk space back at once: nobody keeps a file of it open whom it is of no use to."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import TopicNotFound
from penstock.values import KIB

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import Store


def held(folder: Path) -> list[str]:
    """What this process has open or mapped of files below *folder* that have no name any more."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue
    with open("/proc/self/maps", encoding="utf-8") as maps:
        found += [line.split(maxsplit=5)[-1].strip() for line in maps]
    return [path for path in found if path.startswith(f"{folder}/") and path.endswith("(deleted)") and ".log" in path]


def fill(store: Store) -> None:
    """A topic with sealed segments, synced, and an active one."""
    store.create_topic("t", partitions=2, segment_bytes=64 * KIB)
    for _ in range(40):
        store.publish_many("t", [bytes(1000)] * 20)
    store._volume.checkpoint()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return penstock.open(tmp_path / "s", free_bytes_floor=0)


def test_the_owner_lets_go_of_the_files_of_a_deleted_topic(tmp_path: Path, store: Store) -> None:
    """Also where a consumer is subscribed, has messages in hand and others buffered."""
    with store:
        fill(store)
        consumer = store.subscribe("t", "g")
        consumer.get(timeout=10)
        assert sum(1 for _ in store.read("t")) == 800
        store.delete_topic("t")
        assert held(tmp_path) == []


def test_a_message_in_hand_stays_what_it_was(tmp_path: Path, store: Store) -> None:
    """It keeps its segment, and no other, until the program lets go of it."""
    with store:
        fill(store)
        message = next(store.read("t", 0))
        assert sum(1 for _ in store.read("t")) == 800
        store.delete_topic("t")
        assert message.value == bytes(1000)
        assert len(set(held(tmp_path))) <= 1
        del message
        assert held(tmp_path) == []


def test_who_reads_a_topic_when_it_is_deleted_is_told(tmp_path: Path, store: Store) -> None:
    with store:
        fill(store)
        reading = store.read("t", 0)
        next(reading)
        store.delete_topic("t")
        with pytest.raises(TopicNotFound):
            list(reading)
        del reading
        assert held(tmp_path) == []


@pytest.mark.parametrize("again", ["the same topic", "another topic"])
def test_a_reader_beside_the_owner_lets_go_when_it_looks_again(tmp_path: Path, store: Store, again: str) -> None:
    with store:
        fill(store)
        store.publish("other", b"x")
        with penstock.open(tmp_path / "s", read_only=True) as reader:
            assert sum(1 for _ in reader.read("t")) == 800
            store.delete_topic("t")
            if again == "another topic":
                assert [message.value for message in reader.read("other")] == [b"x"]
            else:
                with pytest.raises(TopicNotFound):
                    list(reader.read("t"))
            assert held(tmp_path) == []
