"""Topics whose messages are not synced one by one: what is remembered of what was published."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.errors import OutcomeUnknown, StorageFull
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def store() -> Iterator[Store]:
    """A store."""
    with Store.open("memory:") as store:
        yield store


def full_at_the_third(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    """Let the third log that is asked for something find no room for it."""
    real, calls = getattr(PartitionLog, method), 0

    def sometimes(log: PartitionLog, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StorageFull("/store", None, None)
        return real(log, *arguments)

    monkeypatch.setattr(PartitionLog, method, sometimes)


@pytest.mark.parametrize("with_keys", [False, True])
def test_messages_for_which_one_partition_has_no_room_are_all_refused(
    store: Store, monkeypatch: pytest.MonkeyPatch, with_keys: bool
) -> None:
    """Room is made in every partition before the first one is written."""
    store.create_topic("t", partitions=4, sync="os", dedup_window=3600)
    keys = values = [b"%d" % number for number in range(16)]
    dedup_keys = keys if with_keys else None
    with monkeypatch.context() as patched:
        full_at_the_third(patched, "make_room")
        with pytest.raises(StorageFull):
            store.publish_many("t", values, keys=keys, dedup_keys=dedup_keys)
    assert list(store.read("t")) == []
    receipts = store.publish_many("t", values, keys=keys, dedup_keys=dedup_keys)
    assert not any(receipt.duplicate for receipt in receipts)
    assert len(list(store.read("t"))) == 16


def test_messages_of_which_a_log_took_a_part_have_no_duplicates_when_they_are_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the partitions that were stored are remembered, and those of the others are free."""
    store.create_topic("t", partitions=4, sync="os", dedup_window=3600)
    keys = values = [b"%d" % number for number in range(16)]
    with monkeypatch.context() as patched:
        full_at_the_third(patched, "append")
        with pytest.raises(OutcomeUnknown):
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
