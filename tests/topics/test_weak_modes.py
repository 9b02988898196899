"""Topics whose messages are not synced one by one: what is remembered of what was published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.errors import StorageFull
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store() -> Iterator[Store]:
    """A store."""
    with Store.open("memory:") as store:
        yield store


def test_a_batch_that_is_refused_half_way_has_no_duplicates_when_it_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the partitions that were stored are remembered, and those of the others are free."""
    store.create_topic("t", partitions=4, sync="os", dedup_window=3600)
    keys = values = [b"%d" % number for number in range(16)]
    append = store._volume.append
    calls = 0

    def append_twice(*arguments: Any, **options: Any) -> int:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StorageFull("/store", None, None)
        return append(*arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(store._volume, "append", append_twice)
        with pytest.raises(StorageFull):
            store.publish_many("t", values, keys=keys, dedup_keys=keys)
    stored = [bytes(message.value or b"") for message in store.read("t")]
    assert 0 < len(stored) < len(values)
    assert store.stats().topics["t"].published == len(stored)
    receipts = store.publish_many("t", values, keys=keys, dedup_keys=keys)
    assert [value for value, receipt in zip(values, receipts, strict=True) if receipt.duplicate] == sorted(stored, key=int)
    assert sorted([bytes(message.value or b"") for message in store.read("t")], key=int) == values


def test_the_way_in_remembers_no_producers_that_the_log_remembers(store: Store) -> None:
    """However many there were; and each is still stored once."""
    store.create_topic("t", sync="os")
    gate = store._catalog.get("t").gate(0)
    batches = [encode_batch([b"x"], producer=Producer(2 * number + 2, 0, 0)) for number in range(300)]
    firsts = [gate.append(batch)[0] for batch in batches]
    assert len(gate._sent) == 0
    assert gate.append(batches[-1]) == (firsts[-1], True)
    assert gate.append(encode_batch([b"y"], producer=Producer(2, 0, 1))) == (300, False)
