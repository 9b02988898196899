"""Which member gets which partition: even, sticky, and the same whenever it is asked."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given
from hypothesis import strategies as st

from penstock.groups.assignment import assign

members = st.lists(st.integers(1, 9), unique=True, max_size=6)
currents = st.dictionaries(st.integers(0, 11), st.integers(1, 9), max_size=12)


def _counts(result: dict[int, int], chosen: list[int]) -> list[int]:
    return [sum(1 for member in result.values() if member == one) for one in chosen]


@given(st.integers(1, 12), members, currents)
def test_every_partition_has_one_member_and_all_have_about_the_same(
    partitions: int, chosen: list[int], current: dict[int, int]
) -> None:
    result = assign(partitions, chosen, current)
    if not chosen:
        assert result == {}
        return
    assert sorted(result) == list(range(partitions))
    counts = _counts(result, chosen)
    assert sum(counts) == partitions
    assert max(counts) - min(counts) <= 1


@given(st.integers(1, 12), members, currents)
def test_as_many_as_can_be_stay(partitions: int, chosen: list[int], current: dict[int, int]) -> None:
    """Compared with the best of all ways to give the larger shares away."""
    if not chosen:
        return
    result = assign(partitions, chosen, current)
    held = {one: sum(1 for at in range(partitions) if current.get(at) == one) for one in chosen}
    least, extra = divmod(partitions, len(chosen))
    best = max(sum(min(held[one], least + (rank < extra)) for rank, one in enumerate(order)) for order in permutations(chosen))
    assert sum(1 for at in range(partitions) if result[at] == current.get(at)) == best


@given(st.integers(1, 12), members.filter(bool))
def test_asking_again_changes_nothing(partitions: int, chosen: list[int]) -> None:
    result = assign(partitions, chosen, {})
    assert assign(partitions, chosen, result) == result


@given(st.integers(1, 12), members.filter(bool), st.integers(20, 25))
def test_who_comes_and_goes_moves_its_own_share_only(partitions: int, chosen: list[int], new: int) -> None:
    """A new member takes as many as its share; when it leaves again, only those move."""
    before = assign(partitions, chosen, {})
    joined = assign(partitions, [*chosen, new], before)
    moved = [at for at in range(partitions) if joined[at] != before[at]]
    assert all(joined[at] == new for at in moved)
    left = assign(partitions, chosen, joined)
    assert all(left[at] == joined[at] for at in range(partitions) if joined[at] != new)
