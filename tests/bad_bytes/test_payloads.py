"""
Messages that look like the store's own bytes: batches, segments, footers and frames as values never come alive.

The forger here knows everything: the values are stamped with the uid of the very segment or journal file they will lie in, with the
next offset or frame number, and with right checksums. After a torn write they are what a search for valid bytes would find.
"""

from __future__ import annotations

import struct
from random import Random
from typing import NamedTuple

import pytest

from penstock.errors import Corrupt
from penstock.format.batch import EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import COMPATIBLE_PREWRITTEN, set_compatible_flag
from penstock.format.frame import JournalFileHeader, batch_entry, encode_frame
from penstock.format.segment import Footer, SegmentHeader
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.volume import Volume

STORE = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024,
    frame_bytes=16 * 1024,
    reference_bytes=16 * 1024,
    checkpoint_bytes=64 * 1024,
    free_bytes_floor=0,
    reserve_bytes=0,
)
INNER = b"an inner message that nobody published"
SEGMENT = f"{STORE}/topics/t/0/{0:020d}.log"
JOURNAL = f"{STORE}/journal/000001.wal"


def open_volume(files: SimulatedFileSystem) -> Volume:
    return Volume.open(STORE, settings=SETTINGS, files=files, clock=FakeClock(), background=False)


def values(volume: Volume) -> list[bytes]:
    """Every value in the store."""
    found: list[bytes] = []
    log = volume.log("t")
    offset = 0
    while part := log.read(offset):
        found += [bytes(value) for batch in part for index in range(len(batch)) if (value := batch.value(index)) is not None]
        offset = part[-1].end_offset
    return found


def start(sync: SyncMode) -> tuple[SimulatedFileSystem, Volume]:
    files = SimulatedFileSystem()
    volume = open_volume(files)
    volume.create_topic("t", settings=TopicSettings(sync=sync, segment_bytes=1024 * 1024, index_interval_bytes=64))
    volume.append(volume.log("t"), encode_single(b"honest 0"))
    volume.checkpoint()
    volume.append(volume.log("t"), encode_single(b"honest 1"))
    return files, volume


def forged_batch(volume: Volume, offset: int, *, durable_end: int = 0) -> bytes:
    """A batch that would fit the end of the log: right segment, offset, epoch and checksums."""
    log = volume.log("t")
    assert log.active is not None
    batch = encode_single(INNER)
    batch.stamp(offset, 1, 1, log.active.header.segment_uid, durable_end, log.log_epoch)
    return bytes(batch.data)


def payload(files: SimulatedFileSystem, volume: Volume) -> bytes:
    """Everything that could be taken for something else, at every alignment that the formats have."""
    log = volume.log("t")
    assert log.active is not None
    header = log.active.header
    after = log.committed_end
    frame_uid = JournalFileHeader.decode(files.files()[JOURNAL]).file_uid
    frames = [
        encode_frame(number, frame_uid, 1, 1, list(batch_entry(log.identity.log_id, bytearray(forged_batch(volume, offset)))))
        for number, offset in ((2, 1), (3, 2), (4, 3))
    ]
    segment = SegmentHeader(
        header.store_id,
        header.topic_id,
        header.partition,
        header.generation,
        header.first_offset,
        header.segment_uid,
        header.log_epoch,
        1,
        1,
    ).encode()
    footer = Footer(
        header.segment_uid, header.first_offset, after + 2, log.active.position, 1, after + 2, after + 2, 0, 1
    ).encode()
    batches = [forged_batch(volume, offset) for offset in (after, after + 1, after + 2)]
    return b"".join([*batches, segment, *batches, footer, *frames, *batches])


class Torn(NamedTuple):
    """A store in which the last write was torn."""

    name: str
    files: SimulatedFileSystem


def tears(files: SimulatedFileSystem, path: str, begin: int, end: int) -> list[Torn]:
    """
    The write [begin, end) of a file torn in many ways, after a power cut, so that nobody remembers how far it got.

    Cut at each eighth byte; each sector lost alone; all sectors before one lost, so that only the end of the write is there.
    """
    content = files.files()[path]
    torn = []

    def add(name: str, damaged: bytes) -> None:
        copy = files.crash(Random(0), keep="everything")
        copy.replace(path, damaged)
        torn.append(Torn(f"{path}: {name}", copy))

    for at in range(begin, end, 8):
        add(f"cut at {at}", content[:at])
        add(f"zeros from {at}", content[:at] + bytes(len(content) - at))
    for at in range(begin // 512 * 512, end, 512):
        low, high = max(at, begin), min(at + 512, end)
        add(f"sector {at} lost", content[:low] + bytes(high - low) + content[high:])
        add(f"all before {high} lost", content[:begin] + bytes(high - begin) + content[high:])
    return torn


def assert_inner_stays_inside(torn: list[Torn], honest: list[bytes]) -> int:
    """Open each; what is read is a beginning of the *honest* values. Returns how many opened."""
    opened = 0
    for name, files in torn:
        try:
            volume = open_volume(files)
            found = values(volume)
        except Corrupt:
            continue
        assert found == honest[: len(found)], name
        assert len(found) >= 1, name
        # What comes next does not wake anything up either.
        volume.append(volume.log("t"), encode_single(b"next"))
        assert values(volume) == [*found, b"next"], name
        volume.close()
        again = open_volume(files)
        assert values(again) == [*found, b"next"], name
        opened += 1
    return opened


def test_a_whole_payload_is_read_back_as_it_is() -> None:
    """After an orderly closing, after a kill, and after a power cut."""
    for sync in (SyncMode.ALWAYS, SyncMode.OS):
        files, volume = start(sync)
        value = payload(files, volume)
        volume.append(volume.log("t"), encode_single(value))
        honest = [b"honest 0", b"honest 1", value]
        killed, powerless = files.kill(), files.crash(Random(1), keep="everything")
        volume.close()
        for state in (files.kill(), killed, powerless):
            assert values(open_volume(state)) == honest


def test_a_torn_payload_in_a_log_does_not_come_alive() -> None:
    """The segment is cut before the torn batch, whatever valid batches lie inside of it."""
    files, volume = start(SyncMode.OS)
    begin = len(files.files()[SEGMENT])
    value = payload(files, volume)
    volume.append(volume.log("t"), encode_single(value))
    torn = tears(files, SEGMENT, begin, len(files.files()[SEGMENT]))
    opened = assert_inner_stays_inside(torn, [b"honest 0", b"honest 1", value])
    # Only a forged claim of durability could make recovery refuse, and these batches claim nothing.
    assert opened == len(torn)


def test_a_torn_payload_in_the_journal_does_not_come_alive() -> None:
    """Frames inside a torn frame are at most evidence that something is wrong; they are never carried out."""
    files, volume = start(SyncMode.ALWAYS)
    before = len(files.files()[JOURNAL].rstrip(b"\0"))
    begin = before + (-before & 7)
    value = payload(files, volume)
    volume.append(volume.log("t"), encode_single(value))
    end = len(files.files()[JOURNAL].rstrip(b"\0"))
    torn = []
    for name, state in tears(files, JOURNAL, begin, end):
        # The frame was torn, so the log has nothing of it: the log is written after the frame is synced.
        segment = state.files()[SEGMENT]
        state.replace(SEGMENT, segment[: segment.index(value[:64]) - 136])
        torn.append(Torn(name, state))
    opened = assert_inner_stays_inside(torn, [b"honest 0", b"honest 1", value])
    assert opened


@pytest.mark.parametrize("sync", [SyncMode.ALWAYS, SyncMode.OS])
def test_power_cuts_at_random_do_not_bring_a_payload_alive(sync: SyncMode, rng: Random) -> None:
    """What the simulated disk makes of un-synced writes, with several such payloads behind each other."""
    files, volume = start(sync)
    honest = [b"honest 0", b"honest 1"]
    for number in range(3):
        value = payload(files, volume) + struct.pack("<Q", number)
        volume.append(volume.log("t"), encode_batch([value], keys=[value[:144]]))
        honest.append(value)
    torn = [Torn(f"crash {number}", files.crash(rng)) for number in range(150)]
    assert assert_inner_stays_inside(torn, honest)


def test_a_payload_can_at_most_make_recovery_stop_and_ask() -> None:
    """
    A value that holds a batch of this very segment which claims that later offsets are durable, torn: the store does not open.

    That is a refusal and not a loss, and the forger must know the random uid of the segment. Nothing is changed by it.
    """
    files, volume = start(SyncMode.OS)
    begin = len(files.files()[SEGMENT])
    value = forged_batch(volume, 2, durable_end=1 << 40) * 4
    volume.append(volume.log("t"), encode_single(value))
    for torn in tears(files, SEGMENT, begin, len(files.files()[SEGMENT])):
        before = torn.files.files()[SEGMENT]
        try:
            found = values(open_volume(torn.files))
        except Corrupt:
            assert torn.files.files()[SEGMENT] == before, torn.name
        else:
            assert found in ([b"honest 0", b"honest 1"], [b"honest 0", b"honest 1", value]), torn.name


@pytest.mark.parametrize("sync", [SyncMode.ALWAYS, SyncMode.OS])
def test_a_batch_from_outside_that_claims_to_be_written_ahead_is_not_cut(sync: SyncMode) -> None:
    """
    Only its frame commits a batch that was written ahead, so recovery cuts one without; a publisher cannot ask for that.

    Found by reading: the flag of a batch that somebody else encoded was taken over.
    """
    files, volume = start(sync)
    batch = encode_single(b"honest 2")
    set_compatible_flag(batch.data, COMPATIBLE_PREWRITTEN)
    batch.stamp(0, 0, 0, 0, 0, 0)
    volume.append(volume.log("t"), EncodedBatch.adopt(batch.data))
    for state in (files.kill(), files.crash(Random(0), keep="everything")):
        assert values(open_volume(state)) == [b"honest 0", b"honest 1", b"honest 2"]
