"""A full disk: what is refused, what is remembered of it, and how the volume gets room again."""

from __future__ import annotations

import errno

import pytest

from penstock.errors import StorageFailed, StorageFull
from penstock.format.batch import encode_batch, encode_single
from penstock.format.batch_header import Producer
from penstock.settings import TopicSettings
from penstock.values import SyncMode
from tests.volume.simulated import new_volume


def test_a_log_whose_sync_found_the_disk_full_is_a_failed_one() -> None:
    """I5: the kernel gave those pages up; no later checkpoint may say that they are durable."""
    files, volume, log = new_volume(TopicSettings(sync=SyncMode.OS))
    volume.append(log, encode_single(b"1"))
    files.fail("sync_data", 1, errno.ENOSPC, path_contains=".log")
    with pytest.raises(StorageFailed):
        volume.checkpoint()
    with pytest.raises(StorageFailed):
        volume.append(log, encode_single(b"2"))


def test_maintenance_frees_the_journal_on_a_full_disk() -> None:
    """Making the next file fails; checkpoints, which free old ones, come all the same."""
    files, volume, log = new_volume()
    files.fail("reserve", 1, errno.ENOSPC, count=None, path_contains=".wal")
    with pytest.raises(StorageFull):
        while True:
            volume.append(log, encode_single(b"x" * 1_000))
    for _ in range(4):
        try:
            volume.maintain_once()
        except OSError:
            continue
    volume.append(log, encode_single(b"again"))


def test_a_refused_append_is_not_remembered_as_its_producers() -> None:
    """I30: the producer will send it again, and that is no duplicate."""
    files, volume, log = new_volume(TopicSettings(sync=SyncMode.OS, segment_bytes=600))
    volume.append(log, encode_single(b"x" * 300))
    files.fail("write", 2, errno.ENOSPC, path_contains=".log")
    with pytest.raises(StorageFull):
        volume.append(log, encode_batch([b"y" * 300], producer=Producer(7, 1, 1)))
    assert log.state.recent == {}
    assert volume.append(log, encode_batch([b"y" * 300], producer=Producer(7, 1, 1))) == 1
    assert list(log.state.recent) == [7]
