"""The table of deduplication keys, by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.topics.deduplication import DedupWindow, Seen

if TYPE_CHECKING:
    import random

SECOND = 1_000_000


class Window:
    """A window of 100 s and some keys over a log without messages."""

    def __init__(self, keys_max: int) -> None:
        self.inner = DedupWindow([], 100_000, keys_max)
        self.offset = 0

    def publish(self, key: str, second: int) -> bool:
        """Whether it was there already."""
        name = key.encode()
        found, pending = self.inner.claim([name], second * SECOND)
        if found[0] is not None:
            self.inner.settle(pending, None, ())
            return True
        self.inner.settle(pending, {name: Seen(0, self.offset, second * SECOND)}, [name])
        self.offset += 1
        return False

    def floor(self, second: int) -> int | None:
        return self.inner.floor(0, second * SECOND)


def test_the_oldest_are_evicted_and_counted() -> None:
    """A possible duplicate, never a loss: what is evicted is stored again."""
    window = Window(3)
    assert [window.publish(key, 0) for key in "abcd"] == [False] * 4
    assert window.inner.evicted == 1
    assert [window.publish(key, 1) for key in "bcd"] == [True] * 3
    assert not window.publish("a", 2)
    assert window.inner.evicted == 2
    assert not window.publish("b", 3)


def test_what_is_ahead_of_the_clock_is_the_first_to_go() -> None:
    """It takes the place of nobody who counts."""
    window = Window(4)
    for key in "abcd":
        window.publish(key, 10_000)
    for number, key in enumerate("efgh"):
        assert not window.publish(key, number)
    assert [window.publish(key, 5) for key in "efgh"] == [True] * 4
    assert window.inner.evicted == 4
    assert len(window.inner._table) + len(window.inner._ahead) == 4
    assert not window.publish("a", 10_000)


def test_what_is_behind_one_that_is_ahead_is_forgotten_in_its_time() -> None:
    """It neither counts nor holds back retention, nor is it counted as evicted when it goes."""
    window = Window(3)
    window.publish("ahead", 90)
    window.publish("behind", 0)
    assert window.floor(99) == 0
    assert window.publish("behind", 99)
    assert window.floor(150) == 0
    assert not window.publish("behind", 150)
    assert window.floor(195) == 2
    for number, key in enumerate("abc"):
        window.publish(key, 300 + number)
    assert window.inner.evicted == 0


def test_retention_waits_for_keys_that_count_only() -> None:
    """Not for one whose moment is a year away, nor for one that is over."""
    window = Window(10)
    window.publish("a", 1_000_000)
    assert window.floor(0) is None
    window.publish("b", 0)
    assert window.floor(0) == 1
    assert window.floor(100) is None
    assert window.floor(1_000_000) == 0


def test_a_key_counts_within_its_window_whatever_the_clock_does(rng: random.Random) -> None:
    """A key that is called a duplicate was stored less than a window away; one that is not was never, or was evicted."""
    for _ in range(200):
        window = Window(1_000)
        stored: dict[str, list[int]] = {}
        now = 0
        latest = 0
        for _ in range(60):
            now += rng.choice([1, 1, 5, 30, 99, 100, 101, 1_000, -1, -5, -99, -100, -101, -1_000])
            key = rng.choice("abcd")
            near = [second for second in stored.get(key, []) if abs(second - now) < 100]
            duplicate = window.publish(key, now)
            if duplicate:
                assert near, f"{key} at {now} was never stored near, and is lost"
            elif near:
                assert latest >= min(near) + 100, f"{key} at {now} was forgotten though the clock never left its window"
            if not duplicate:
                stored.setdefault(key, []).append(now)
            latest = max(latest, now)
        assert window.inner.evicted == 0
