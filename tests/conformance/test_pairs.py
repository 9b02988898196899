"""
Every feature alone, every pair of features, and many of them at once: see `stories.py`.

Each pair is told alone in memory and on a simulated disk, which takes milliseconds. On the other backends, where opening a store takes
longer, all pairs are told in a few stories of several features, chosen so that every two features are together in one.
"""

from __future__ import annotations

from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conformance.backends import BACKENDS, Backend, MemoryBackend, SimulatedBackend, skip_unless
from tests.conformance.features import FEATURES
from tests.conformance.stories import Feature, Story

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

BY_NAME = {feature.name: feature for feature in FEATURES}
NAMES = tuple(BY_NAME)
MEANINGLESS = {
    ("priority", "aging"): "aging is a rule of priorities, and never without them",
    ("priority", "ordered group"): "refused: test_urgency.py::test_an_ordered_group_of_a_topic_with_priorities_is_refused",
    ("aging", "ordered group"): "refused, since aging is a rule of priorities",
    ("dead letters", "replay and discard"): "replay is of dead letters: its story has them",
    ("dead letters", "retention of dead letters"): "it is of dead letters: its story has them",
}
"""Pairs that are told nowhere, and why."""
PAIRS = [pair for pair in combinations(NAMES, 2) if pair not in MEANINGLESS]
APART = {
    ("ttl", "aging"), ("ttl of the topic", "aging"), ("expired messages to the dead letters", "aging"),
}  # fmt: skip
"""Pairs that are told without others only: whether an expired message takes the turn of those that have aged is nobody's business."""
SIZE = 10
"""So many features at most are in a story that covers pairs."""
EXAMPLES = {
    "what the issue names": ("delay", "priority", "ttl", "nack with backoff", "restart", "small segments"),
    "the same after a kill": ("delay", "priority", "ttl", "nack with backoff", "kill", "small segments"),
    "the same many at once": ("delay", "priority", "ttl", "nack with backoff", "restart", "small segments", "many at once"),
    "the same with dead letters": (
        "delay", "priority", "ttl", "expired messages to the dead letters", "nack with backoff", "kill", "small segments",
        "replay and discard",
    ),
    "the same in transactions": ("delay", "priority", "ttl", "nack with backoff", "restart", "small segments", "transactions"),
    "the same in order": ("delay", "ordered group", "ttl", "nack with backoff", "restart", "small segments"),
}  # fmt: skip


def go_together(names: Sequence[str]) -> bool:
    """Whether a story of more than two features may have all of these."""
    return all(pair not in MEANINGLESS and pair not in APART for pair in combinations(sorted(names, key=NAMES.index), 2))


def cover(names: Sequence[str], wanted: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Stories in which each of the *wanted* pairs is: each takes, one after the other, what brings most pairs that are still missing."""
    missing = dict.fromkeys(wanted)
    stories: list[tuple[str, ...]] = []
    while missing:
        chosen = list(next(iter(missing)))
        while len(chosen) < SIZE:
            gains = {
                name: sum(1 for one in chosen if (one, name) in missing or (name, one) in missing)
                for name in names
                if name not in chosen and go_together([*chosen, name])
            }
            best = max(gains, key=lambda name: gains[name], default=None)
            if best is None or not gains[best]:
                break
            chosen.append(best)
        story = tuple(sorted(chosen, key=NAMES.index))
        for pair in combinations(story, 2):
            missing.pop(pair, None)
        stories.append(story)
    return stories


# Over HTTP and gRPC there are no transactions: they have stories of their own, so that nothing else is left out with them.
PLAIN = [name for name in NAMES if name != "transactions"]
STORIES = [
    *cover(PLAIN, [pair for pair in PAIRS if "transactions" not in pair]),
    *cover(NAMES, [pair for pair in PAIRS if "transactions" in pair]),
]


def tell(backend: Backend, names: Sequence[str]) -> Story:
    """The story of these features, on an empty store."""
    chosen: list[Feature] = [BY_NAME[name]() for name in names]
    skip_unless(
        backend.keeps_data or not any(one.keeps_data for one in chosen),
        f"a {backend.name} store ends with its closing: there is nothing to come back to",
    )
    story = Story(backend, chosen)
    story.tell()
    return story


def tell_quickly(quick: type[Backend], names: Sequence[str]) -> None:
    """The same on a backend that needs no folder."""
    with closing(quick(Path(), live=False)) as backend:
        tell(backend, names)


QUICK: tuple[type[Backend], ...] = (MemoryBackend, SimulatedBackend)
"""They open a store in no time."""
TOLD_ALONE = [
    pytest.param(backend, pair, id=f"{pair[0]} with {pair[1]}, {backend.name}")
    for one in PAIRS
    for pair in (one, one[::-1])  # what they do half-way and at the end, they do in this order
    for backend in QUICK
    if backend.keeps_data or not any(BY_NAME[name].keeps_data for name in pair)
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("backend_type", BACKENDS, ids=lambda backend: backend.name)
def test_alone(backend_type: type[Backend], tmp_path: Path, name: str) -> None:
    """Over asyncio, HTTP and gRPC each is in stories of several."""
    with closing(backend_type(tmp_path, live=False)) as backend:
        story = tell(backend, [name])
        story.features[0].alone(story)


@pytest.mark.parametrize(("quick", "pair"), TOLD_ALONE)
def test_a_pair(quick: type[Backend], pair: tuple[str, str]) -> None:
    tell_quickly(quick, pair)


@pytest.mark.parametrize("names", STORIES, ids=[f"story {number}" for number in range(len(STORIES))])
def test_several_at_once(backend: Backend, names: tuple[str, ...]) -> None:
    tell(backend, names)


@pytest.mark.parametrize("names", EXAMPLES.values(), ids=EXAMPLES)
def test_an_example(backend: Backend, names: tuple[str, ...]) -> None:
    tell(backend, names)


@pytest.mark.parametrize("quick", QUICK, ids=lambda backend: backend.name)
def test_any_features_at_once(quick: type[Backend], rng: random.Random) -> None:
    """Chosen at random, in any order."""
    for _ in range(20):
        chosen: list[str] = []
        for name in rng.sample(NAMES, rng.randrange(3, 14)):
            if go_together([*chosen, name]) and (quick.keeps_data or not BY_NAME[name].keeps_data):
                chosen.append(name)
        try:
            tell_quickly(quick, chosen)
        except AssertionError as error:
            raise AssertionError(f"{chosen}: {error}") from error


def test_every_feature_is_in_pairs_with_every_other_or_there_is_a_reason() -> None:
    """And on every backend all of those pairs are told, in stories of several."""
    assert {feature.name for feature in Feature.__subclasses__() if feature.name} <= set(NAMES)
    assert len(BY_NAME) == len(FEATURES)
    assert set(MEANINGLESS) | APART <= set(combinations(NAMES, 2))
    assert all(MEANINGLESS.values())
    told = {pair for story in STORIES for pair in combinations(story, 2)}
    assert told == set(PAIRS)
    assert all(len(story) == 2 or go_together(story) for story in [*STORIES, *EXAMPLES.values()])
