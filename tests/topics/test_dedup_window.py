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
        self.inner = DedupWindow([], 100_000, lambda: 0, keys_max)
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


def test_retention_waits_for_keys_that_count_only() -> None:
    """Not for one that is over."""
    window = Window(10)
    window.publish("a", 0)
    window.publish("b", 50)
    assert window.floor(99) == 0
    assert window.floor(100) == 1
    assert window.floor(150) is None


def test_a_key_counts_for_its_window_exactly(rng: random.Random) -> None:
    """A key that is called a duplicate was stored less than a window ago; one that is not was never, or is older."""
    for _ in range(200):
        window = Window(1_000)
        stored: dict[str, int] = {}
        now = 0
        for _ in range(60):
            now += rng.choice([0, 1, 1, 5, 30, 99, 100, 101, 1_000])
            key = rng.choice("abcd")
            known = key in stored and now - stored[key] < 100
            assert window.publish(key, now) == known
            if not known:
                stored[key] = now
        assert window.inner.evicted == 0
