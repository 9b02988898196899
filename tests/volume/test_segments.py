"""Segments: made, rolled, merged and indexed while commits, checkpoints, retention and crashes go on."""

from __future__ import annotations

import errno
import random
import threading
from typing import TYPE_CHECKING

import pytest

from penstock.errors import OutcomeUnknown, StorageFailed
from penstock.format.batch import encode_batch, encode_single
from penstock.format.compression import Codec
from penstock.log.partition_log import PartitionLog
from penstock.settings import TopicSettings
from penstock.values import SyncMode
from penstock.volume import volume as volume_module
from penstock.volume.verification import verify
from tests.volume.simulated import LARGE, PATH, kill_at, new_volume, open_volume, power_loss

if TYPE_CHECKING:
    from penstock.testing import SimulatedFileSystem

PATIENCE_S = 60.0


def test_a_large_batch_waits_for_the_name_of_its_segment_to_be_durable(monkeypatch: pytest.MonkeyPatch) -> None:
    """I3: another thread is in the middle of syncing the folder; its beginning is not its end."""
    files, volume, log = new_volume()
    volume.append(log, encode_single(b"1"))
    inside, gate = threading.Event(), threading.Event()
    sync = files.sync_directory

    def slow_sync(path: str) -> None:
        if path.endswith("/a/0") and threading.current_thread().name == "checkpoint":
            inside.set()
            gate.wait(2 * PATIENCE_S)
        sync(path)

    monkeypatch.setattr(files, "sync_directory", slow_sync)
    checkpoint = threading.Thread(target=volume.checkpoint, name="checkpoint")
    checkpoint.start()
    assert inside.wait(PATIENCE_S)
    states: list[SimulatedFileSystem] = []

    def append() -> None:
        volume.append(log, encode_single(LARGE))
        states.append(power_loss(files))

    appending = threading.Thread(target=append)
    appending.start()
    appending.join(0.2)
    assert not states, "it was acknowledged while its segment could still lose its name"
    gate.set()
    checkpoint.join(PATIENCE_S)
    appending.join(PATIENCE_S)
    assert open_volume(states[0]).log("a").committed_end == 2


def test_an_index_that_covers_a_cut_batch_is_gone_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint in another thread may have stored it just when the journal failed."""
    files, volume, log = new_volume()
    volume.create_topic("b", 1)
    other = volume.log("b")
    volume.append(log, encode_single(b"1"))
    volume.append(other, encode_single(b"1"))
    monkeypatch.setattr(volume_module, "_INDEX_CACHE_EVERY_BYTES", 1)
    sync_names = PartitionLog.sync_names
    failed: list[Exception] = []

    def sync_names_then_fail(self: PartitionLog) -> None:
        sync_names(self)
        if self is log and not failed and threading.current_thread().name == "checkpoint":
            files.fail("sync_data", 1, errno.EIO, path_contains="journal")
            with pytest.raises(OutcomeUnknown) as caught:
                volume.append(other, encode_single(LARGE))
            failed.append(caught.value)
            files.clear_faults()

    monkeypatch.setattr(PartitionLog, "sync_names", sync_names_then_fail)
    results: list[Exception] = []

    def checkpoint() -> None:
        try:
            volume.checkpoint()
        except StorageFailed as error:
            results.append(error)

    thread = threading.Thread(target=checkpoint, name="checkpoint")
    thread.start()
    thread.join(PATIENCE_S)
    monkeypatch.undo()
    assert failed
    assert results
    disk = files.crash(random.Random(1), keep="everything")
    again = open_volume(disk)
    for _ in range(100):
        again.append(again.log("b"), encode_single(b"y" * 333))
    again.checkpoint()
    again.append(again.log("b"), encode_single(b"z"))
    assert open_volume(disk.kill()).log("b").committed_end == again.log("b").committed_end


def test_a_roll_beside_retention_keeps_its_segment() -> None:
    """Both change the list of segments; neither may forget what the other did."""
    _, volume, log = new_volume(TopicSettings(segment_bytes=600, coalesce_below_bytes=0))
    for number in range(13):
        volume.append(log, encode_single(b"%d" % number))
    volume.checkpoint()
    volume.append(log, encode_single(b"x"))
    volume.checkpoint()
    with log.files_lock:  # as coalescing holds it
        retaining = threading.Thread(target=lambda: volume.retain(log, messages_max=4))
        retaining.start()
        retaining.join(0.2)
        for number in range(8):
            volume.append(log, encode_single(b"y%d" % number))
    retaining.join(PATIENCE_S)
    at = log.log_start
    assert at > 0
    while at < log.committed_end:
        at = log.read(at, 1)[-1].end_offset


def test_merging_is_bounded_by_what_batches_hold_and_not_by_what_they_take() -> None:
    """Small compressed batches are large ones: merging them must not inflate a whole segment at once."""
    _, volume, log = new_volume(TopicSettings(segment_bytes=40_000, max_message_bytes=4 << 20, coalesce_to_bytes=1 << 20))
    for _ in range(30):
        volume.append(log, encode_batch([bytes(2 << 20)], codec=Codec.GZIP))
    volume.checkpoint()
    volume.checkpoint()
    volume.coalesce()
    assert max(batch.header.total_bytes for batch in log.read(0, 1 << 20)) < 40_000


@pytest.mark.parametrize("sync", [SyncMode.ALWAYS, SyncMode.OS])
def test_a_store_killed_before_the_first_message_of_a_segment_is_in_and_killed_again_while_it_is_written_opens(
    sync: SyncMode,
) -> None:
    """The checkpoint of the opening in between names the new, empty segment: what was never committed is cut off it, and it stays."""
    files, volume, log = new_volume(TopicSettings(sync=sync, segment_bytes=600, coalesce_below_bytes=0))
    volume.append(log, encode_single(b"1" * 500), sync=SyncMode.ALWAYS)
    # The segment is made, and the process is killed before its first batch is in it or in the journal.
    files = kill_at(files, "reserve", f"{1:020d}.log", lambda: volume.append(log, encode_single(LARGE), sync=SyncMode.ALWAYS))
    volume = open_volume(files)
    log = volume.log("a")
    assert log.segment_firsts == [0, 1]
    # The batch is in the log, ahead of the frame that would have committed it.
    files = kill_at(files, "pwrite", "/journal/", lambda: volume.append(log, encode_single(LARGE), sync=SyncMode.ALWAYS))
    for _ in range(2):
        volume = open_volume(files)
        assert volume.log("a").committed_end == 1
        assert verify(PATH, files=files).is_sound
        files = files.kill()
    volume = open_volume(files)
    assert volume.append(volume.log("a"), encode_single(b"2"), sync=SyncMode.ALWAYS) == 1
    volume.close()
    log = open_volume(files).log("a")
    assert [bytes(batch.value(0) or b"") for batch in log.read(0)] == [b"1" * 500]
    assert [bytes(batch.value(0) or b"") for batch in log.read(1)] == [b"2"]
