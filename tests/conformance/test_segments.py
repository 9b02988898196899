"""Segments: where one ends and the next begins, reading across them, and what a torn or empty one leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance.backends import Backend, DirectoryBackend, skip_unless
from tests.conformance.helpers import all_of, numbered, offsets, stored

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import Store


@pytest.fixture
def folder(lasting: Backend) -> DirectoryBackend:
    """A backend whose files can be looked at."""
    skip_unless(isinstance(lasting, DirectoryBackend), "looks at the store's files")
    assert isinstance(lasting, DirectoryBackend)
    return lasting


def segments(backend: DirectoryBackend, topic: str = "t") -> list[Path]:
    """The segment files of a topic's first partition."""
    return sorted((backend.path / "topics" / topic / "0").glob("*.log"))


def test_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after(folder: DirectoryBackend) -> None:
    """Five messages, seven bytes of garbage behind them, restart: the size of before, offset 5 is next; restart again: all six."""
    store = folder.open()
    store.create_topic("t", sync="os")
    for number in range(5):
        store.publish("t", b"%d" % number)
    folder.die()
    (segment,) = segments(folder)
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"garbage")
    store = folder.open()
    assert segment.stat().st_size == size
    assert stored(store, "t") == numbered(5)
    assert store.publish("t", b"5").offset == 5
    for restart in (folder.kill, folder.reopen, folder.kill):
        assert stored(restart(), "t") == numbered(6)


def test_an_empty_log_ends_cleanly(folder: DirectoryBackend) -> None:
    """Nothing in it is nothing to read, and no damage; nor is what lies behind the last whole frame."""
    store = folder.open()
    store.create_topic("t")
    for restart in (folder.reopen, folder.kill):
        store = restart()
        assert stored(store, "t") == []
    assert store.publish("t", b"x").offset == 0


def test_a_segment_ends_when_it_has_its_bytes(folder: DirectoryBackend) -> None:
    """Room for two and a half messages, five of them: segments begin at 0, 2, 4; a larger message gets a segment of its own, whole."""
    store = folder.open()
    options: dict[str, Any] = {"sync": "os", "coalesce_below_bytes": 0}
    store.create_topic("probe", **options)
    sizes = []
    for _ in range(2):
        store.publish("probe", bytes(1_000))
        sizes.append(segments(folder, "probe")[0].stat().st_size)
    each = sizes[1] - sizes[0]
    cap = sizes[0] - each + round(2.5 * each)
    store.create_topic("t", segment_bytes=cap, **options)
    assert [store.publish("t", bytes(1_000)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [int(path.stem) for path in segments(folder)] == [0, 2, 4]
    large = bytes(cap * 3)
    assert store.publish("t", large).offset == 5
    assert store.publish("t", bytes(1_000)).offset == 6
    assert [int(path.stem) for path in segments(folder)] == [0, 2, 4, 5, 6]
    assert stored(store, "t")[5] == large
    assert len(stored(folder.reopen(), "t")) == 7


def test_a_segment_ends_when_it_has_its_messages(backend: Backend) -> None:
    """Fifty messages in segments of ten are read back in order, and again after a restart."""
    store = backend.open()
    store.create_topic("t", segment_messages=10)
    for value in numbered(50):
        store.publish("t", value)
    assert stored(store, "t") == numbered(50)
    if isinstance(backend, DirectoryBackend):
        assert [int(path.stem) for path in segments(backend)][:5] == [0, 10, 20, 30, 40]
        assert stored(backend.reopen(), "t") == numbered(50)


def test_segments_that_end_beside_concurrent_publishers_lose_nothing(live: Backend) -> None:
    """Two hundred publishes from eight threads over many segments: offsets dense, all there, also after a restart."""
    store = live.open()
    store.create_topic("t", segment_messages=7)

    def publish(name: int) -> list[int]:
        return [store.publish("t", b"%d %d" % (name, number)).offset for number in range(25)]

    places = [offset for thread in all_of(publish, range(8)) for offset in thread]
    assert sorted(places) == list(range(200))
    if live.keeps_data:
        store = live.reopen()
    assert sorted(stored(store, "t"), key=lambda value: value or b"") == sorted(
        b"%d %d" % (name, number) for name in range(8) for number in range(25)
    )


def test_old_segments_are_found_and_offsets_go_on(lasting: Backend) -> None:
    """Many segments, several restarts: nothing is hidden, nothing overwritten."""
    store = lasting.open()
    store.create_topic("t", segment_messages=5)
    for turn in range(6):
        assert [store.publish("t", value).offset for value in numbered(13, turn * 13)] == list(range(turn * 13, turn * 13 + 13))
        store = lasting.reopen() if turn % 2 else lasting.kill()
        assert stored(store, "t") == numbered(turn * 13 + 13)


def test_reading_goes_on_into_the_next_segment(store: Store) -> None:
    """From every offset to the end, and in one delivery after the other."""
    store.create_topic("t", segment_messages=3)
    for value in numbered(20):
        store.publish("t", value)
    for start in range(21):
        assert offsets(store.read("t", 0, start=start)) == list(range(start, 20))
    with store.subscribe("t", "g", prefetch=20) as consumer:
        assert offsets(consumer.get_many(20, timeout=0)) == list(range(20))
