"""Small batches to several logs that are committed together: the same as any other changes, whatever else is in the cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import BatchTooLarge
from penstock.format.batch import encode_batch, encode_single
from penstock.format.batch_header import COMPATIBLE_PREWRITTEN
from penstock.settings import TopicSettings
from penstock.values import SyncMode
from penstock.volume.tickets import Other
from penstock.volume.volume import Volume
from tests.volume.gated_files import GatedFileSystem
from tests.volume.test_commits import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.log.partition_log import PartitionLog


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    """An open store."""
    with Volume.open(tmp_path / "store", settings=SETTINGS, background=False) as volume:
        volume.create_topic("t", 4)
        volume.create_topic("weak", 1, TopicSettings(sync=SyncMode.OS))
        yield volume


def values(log: PartitionLog) -> list[bytes]:
    return [bytes(batch.value(index) or b"") for batch in log.read(0) for index in range(len(batch))]


def test_all_of_it_is_one_frame_and_one_sync(volume: Volume) -> None:
    """And the entries of other layers with it."""
    applied: list[bytes] = []
    volume.on_other(9, applied.append)
    logs = [volume.log("t", partition) for partition in range(4)]
    syncs, number = volume._journal.syncs, volume._journal.number
    for turn in range(3):
        assert volume.commit_together(logs, [encode_single(b"%d" % turn) for _ in logs], [Other(9, b"%d" % turn)]) == [turn] * 4
    assert (volume._journal.syncs - syncs, volume._journal.number - number) == (3, 3)
    assert [values(log) for log in logs] == [[b"0", b"1", b"2"]] * 4
    assert applied == [b"0", b"1", b"2"]


def test_values_are_the_same_as_batches_of_one_value(volume: Volume) -> None:
    """Byte for byte but for their places, of any length, and also where a segment has no room for them."""
    volume.create_topic("short", 2, TopicSettings(segment_bytes=64 * 1024))
    logs = [volume.log("short", partition) for partition in range(2)]
    found = []
    for length in [*range(20), 4095, 4096, 30 * 1024, 30 * 1024, 30 * 1024, SETTINGS.reference_bytes - 100, 5]:
        value = bytes(length)
        found += [volume.commit_together(logs[:1], [value], []), volume.commit_together(logs[1:], [encode_single(value)], [])]
    assert found == [[at // 2] for at in range(len(found))]
    ours, theirs = ([bytes(batch.buffer[batch.header.header_bytes :]) for batch in log.read(0)] for log in logs)
    assert ours == theirs
    assert logs[0].segment_firsts == logs[1].segment_firsts
    assert len(logs[0].segment_firsts) > 1


@pytest.mark.parametrize("bare", [False, True], ids=["batches", "values"])
@pytest.mark.parametrize("what", ["twice the same log", "a weak log", "a large batch"])
def test_what_is_not_small_and_simple_is_committed_all_the_same(volume: Volume, what: str, bare: bool) -> None:
    """It goes the way of all other changes."""
    first = volume.log("t", 0)
    second = {"twice the same log": first, "a weak log": volume.log("weak"), "a large batch": volume.log("t", 1)}[what]
    both = [b"a", bytes(SETTINGS.reference_bytes) if what == "a large batch" else b"b"]
    found = volume.commit_together([first, second], both if bare else list(map(encode_single, both)), [Other(9, b"done")])
    assert found == ([0, 1] if second is first else [0, 0])
    assert volume.commit_together([first], [encode_single(b"c")], []) == [first.committed_end - 1]


def test_two_batches_for_one_log_fit_its_segment_together_or_begin_another(volume: Volume) -> None:
    """Room is made for both, not for each as if it were alone."""
    volume.create_topic("short", 1, TopicSettings(segment_bytes=64 * 1024))
    log = volume.log("short")
    volume.append(log, encode_single(b"first"))
    volume.commit_together([log, log], [encode_single(bytes(40 * 1024)) for _ in range(2)], [])
    assert log.segment_firsts == [0, 1]


def test_a_batch_over_the_limit_is_refused_and_changes_nothing(volume: Volume) -> None:
    """Nothing of the others either."""
    logs = [volume.log("t", 0), volume.log("t", 1)]
    with pytest.raises(BatchTooLarge):
        volume.commit_together(logs, [encode_single(b"a"), encode_batch([bytes(9 * 1024 * 1024)])], [])
    assert volume.ends(logs) == [0, 0]


@pytest.mark.parametrize("bare", [False, True], ids=["batches", "values"])
def test_it_shares_a_cycle_with_others_in_the_same_logs(tmp_path: Path, bare: bool) -> None:
    """Batches of one log keep the order of their tickets, also where a large one makes them travel by reference."""
    files = GatedFileSystem()
    path = tmp_path / "store"
    with Volume.open(path, settings=SETTINGS, files=files, background=False) as volume:
        volume.create_topic("t", 3)
        logs = [volume.log("t", partition) for partition in range(3)]
        large = encode_single(bytes(SETTINGS.reference_bytes))
        tickets = [volume.submit(logs[0], encode_single(b"before")), volume.submit(logs[1], large)]
        syncs = volume._journal.syncs
        together = [b"together" for _ in logs]
        assert volume.commit_together(logs, together if bare else list(map(encode_single, together)), []) == [1, 1, 0]
        assert [ticket.first_offset for ticket in tickets] == [0, 0]
        assert volume._journal.syncs == syncs + 1
        assert values(logs[0]) == [b"before", b"together"]
        flags = [[batch.header.compatible & COMPATIBLE_PREWRITTEN for batch in log.read(0)] for log in logs]
        assert flags == [[0, 0], [1, 1], [0]]
    with Volume.open(path, settings=SETTINGS, background=False) as volume:
        assert [values(volume.log("t", partition))[-1] for partition in range(3)] == [b"together"] * 3


def test_receipts_are_in_the_order_of_the_calls_also_of_a_topic_that_is_made_meanwhile(tmp_path: Path) -> None:
    """The new topic is made when the transaction commits, and its messages stand where they were published."""
    with penstock.open(tmp_path / "store") as store:
        store.create_topic("old", partitions=2)
        with store.transaction() as transaction:
            transaction.publish("old", b"a", partition=1)
            transaction.publish("new", b"b")
            transaction.publish_many("old", [b"c", b"d"], partition=0)
            transaction.publish("new", b"e")
            assert transaction.receipts == []
        assert [(one.topic, one.partition, one.offset) for one in transaction.receipts] == [
            ("old", 1, 0), ("new", 0, 0), ("old", 0, 0), ("old", 0, 1), ("new", 0, 1),
        ]  # fmt: skip
        assert [message.value for message in store.read("new")] == [b"b", b"e"]
        assert store.stats().topics["old"].published == 3
