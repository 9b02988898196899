"""`publish_many` over several partitions is one step, whichever way it goes."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from penstock.errors import PenstockError, StorageFull
from penstock.log.partition_log import PartitionLog
from tests.conformance.helpers import numbered

if TYPE_CHECKING:
    from typing import Any

    from penstock import Store
    from tests.conformance.backends import Backend

PARTITIONS = 8
KEYS = [b"key %d" % number for number in range(40)]


def spread(receipts: Any) -> dict[int, list[int]]:
    """The offsets of a call by partition."""
    found: dict[int, list[int]] = {}
    for receipt in receipts:
        found.setdefault(receipt.partition, []).append(receipt.offset)
    return found


@pytest.mark.parametrize("sync", ["always", "os"])
def test_receipts_say_where_each_message_of_a_call_lies(store: Store, sync: str) -> None:
    store.create_topic("t", partitions=PARTITIONS, sync=sync)
    for _ in range(3):
        values = numbered(len(KEYS))
        receipts = list(store.publish_many("t", values, keys=KEYS))
        assert len(spread(receipts)) > 1
        for value, key, receipt in zip(values, KEYS, receipts, strict=True):
            [message] = store.read("t", receipt.partition, start=receipt.offset, max_messages=1)
            assert (bytes(message.value or b""), message.key) == (value, key)
            assert not receipt.duplicate


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_reader_never_sees_a_part_of_a_call(backend: Backend, store: Store, sync: str) -> None:
    """The ends of all partitions, looked at while calls come one after the other, lie between two calls."""
    store.create_topic("t", partitions=PARTITIONS, sync=sync)
    first = spread(store.publish_many("t", numbered(len(KEYS)), keys=KEYS))
    step = {number: len(offsets) for number, offsets in first.items()}
    owner, stop, seen, failures = backend.owner(), threading.Event(), 0, []

    def look() -> None:
        nonlocal seen
        while not stop.is_set():
            ends = owner.ends("t")
            seen += 1
            if len({ends[number] / count for number, count in step.items()}) != 1:
                failures.append(ends)
                return

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for _ in range(60):
            store.publish_many("t", numbered(len(KEYS)), keys=KEYS)
    finally:
        stop.set()
        reader.join()
    assert not failures
    assert seen


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_call_that_is_refused_stored_nothing(
    backend: Backend, store: Store, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """One partition has no room: the others get nothing either, and the next call is stored as if this one had never been."""
    store.create_topic("t", partitions=PARTITIONS, sync=sync)
    store.publish_many("t", numbered(len(KEYS)), keys=KEYS)
    owner = backend.owner()
    before = owner.ends("t")

    def full(log: PartitionLog, *_: object) -> None:
        raise StorageFull(log.directory, None, None)

    real = PartitionLog.make_room
    last = max(before)
    with monkeypatch.context() as patched:
        patched.setattr(PartitionLog, "has_room", lambda *_: False)
        patched.setattr(
            PartitionLog, "make_room", lambda log, *rest: full(log) if log.identity.partition == last else real(log, *rest)
        )
        if sync == "always":
            patched.setattr("penstock.volume.commit_cycle.all_have_room", lambda *_: False)
        with pytest.raises(PenstockError) as refused:
            store.publish_many("t", numbered(len(KEYS)), keys=KEYS)
        assert refused.value.code == "STORAGE_FULL"
    assert owner.ends("t") == before
    receipts = spread(store.publish_many("t", numbered(len(KEYS)), keys=KEYS))
    assert {number: offsets[0] for number, offsets in receipts.items()} == {number: before[number] for number in receipts}


def test_the_strict_way_of_a_weaker_topic_is_one_step_too(store: Store) -> None:
    store.create_topic("t", partitions=PARTITIONS, sync="os")
    receipts = spread(store.publish_many("t", numbered(len(KEYS)), keys=KEYS, sync="always"))
    assert sorted(len(offsets) for offsets in receipts.values()) == sorted(
        len(offsets) for offsets in spread(store.publish_many("t", numbered(len(KEYS)), keys=KEYS)).values()
    )
    assert len(list(store.read("t"))) == 2 * len(KEYS)
