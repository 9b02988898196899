"""The byte layout of every format, pinned by a file each."""

from __future__ import annotations

import json
import struct
from array import array

import pytest

from penstock.errors import ProducerFenced
from penstock.format.batch import Batch, EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import (
    COMPATIBLE_APPEND_TIMES,
    COMPATIBLE_PREWRITTEN,
    Producer,
    Transaction,
    set_compatible_flag,
)
from penstock.format.checkpoint import Checkpoint, LogRow
from penstock.format.checksum import crc32c
from penstock.format.compression import Codec
from penstock.format.digest import digest_of
from penstock.format.frame import (
    JournalFileHeader,
    Reference,
    batch_entry,
    decode_log_start,
    decode_reference,
    encode_frame,
    frame_entries,
    log_start_entry,
    other_entry,
    parse_frame,
    reference_entry,
)
from penstock.format.index import IndexSnapshot
from penstock.format.merge import merge
from penstock.format.segment import Footer, SegmentHeader
from penstock.format.stage import (
    STAGE_FOOTER_BYTES,
    Stage,
    StageEntry,
    StagePart,
    decode_stage,
    encode_stage_digest,
    encode_stage_entry,
    encode_stage_footer,
    encode_stage_header,
    encode_stage_part,
)
from penstock.format.state import EpochStart, ProducerRecord, decode_state, encode_state
from penstock.groups import operations as ops
from penstock.groups.hands import Hands, HandsBefore
from penstock.offset_set import OffsetSet
from penstock.settings import GroupSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.topics.producers import Producers
from penstock.volume.document import decode_document, encode_document
from tests.format.strategies import Message, messages
from tests.golden.files import golden

APPEND_TIME_US = 1_700_000_000_123_456
STORE_ID = bytes(range(16))
TOPIC_ID = bytes(range(16, 32))


def stored(encoded: EncodedBatch, first_offset: int = 1000) -> bytes:
    encoded.stamp(first_offset, APPEND_TIME_US, APPEND_TIME_US + 5, 0x0102030405060708, 900, 3)
    return bytes(encoded.data)


def everything(codec: Codec = Codec.NONE) -> EncodedBatch:
    """A batch with every column and every extension; compressible, so that a codec is used."""
    encoded = encode_batch(
        [b"golden value " * 100, None, b"", b"fourth"],
        keys=[b"golden key " * 100, b"", None, b"k"],
        headers=[[("trace", b"1"), ("trace", b"2")], None, [], [("\N{SNOWMAN}", b"golden header " * 100), ("", b"")]],
        times_us=[1, None, 3, -4],
        expires_us=[60_000_000, None, 0, 1],
        expires_relative=True,
        deliver_us=[None, APPEND_TIME_US + 7, 8, 9],
        priorities=[0, 1, 200, 255],
        dedup_keys=[b"d", None, b"", b"e"],
        offset_deltas=[0, 2, 5, 9],
        offset_span=10,
        producer=Producer(0x1111, 0x22, 0x3333),
        transaction=Transaction(0x4444, 0x55),
        schema_id=0x6666,
        codec=codec,
    )
    set_compatible_flag(encoded.data, COMPATIBLE_PREWRITTEN)
    return encoded


EVERYTHING = [
    Message(
        b"golden value " * 100,
        b"golden key " * 100,
        [("trace", b"1"), ("trace", b"2")],
        1,
        APPEND_TIME_US + 60_000_000,
        None,
        0,
        b"d",
        1000,
    ),
    Message(None, b"", [], APPEND_TIME_US, None, APPEND_TIME_US + 7, 1, None, 1002),
    Message(b"", None, [], 3, APPEND_TIME_US, 8, 200, b"", 1005),
    Message(b"fourth", b"k", [("\N{SNOWMAN}", b"golden header " * 100), ("", b"")], -4, APPEND_TIME_US + 1, 9, 255, b"e", 1009),
]


def check_everything(batch: Batch) -> None:
    batch.check()
    assert messages(batch) == EVERYTHING
    assert (batch.producer, batch.transaction, batch.schema_id) == (
        Producer(0x1111, 0x22, 0x3333),
        Transaction(0x4444, 0x55),
        0x6666,
    )
    header = batch.header
    assert (header.append_time_us, header.max_time_us, header.segment_uid) == (
        APPEND_TIME_US,
        APPEND_TIME_US + 5,
        0x0102030405060708,
    )
    assert (header.durable_end, header.log_epoch, header.compatible, batch.end_offset) == (900, 3, COMPATIBLE_PREWRITTEN, 1010)


def test_a_data_batch() -> None:
    """Every column and every extension, byte by byte."""
    encoded = stored(everything())
    data = golden("batch.bin", encoded)
    check_everything(Batch(data))
    assert encoded == data


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.ZSTD, Codec.LZ4])
def test_a_compressed_batch(codec: Codec) -> None:
    """It decodes to the same messages; its bytes may differ from one version of the library to the next."""
    batch = Batch(golden(f"batch-{codec.name.lower()}.bin", stored(everything(codec))))
    check_everything(batch)
    entries = [batch.entry(column) for column in (1, 2, 3)]
    assert [entry.codec for entry in entries if entry] == [codec] * 3


def test_a_single_message() -> None:
    """The commonest batch of all."""
    encoded = stored(encode_single(b"hello, world"))
    data = golden("batch-single.bin", encoded)
    assert [message.value for message in messages(Batch(data))] == [b"hello, world"]
    assert encoded == data


def test_a_merged_batch() -> None:
    """With the runs of its sources."""
    sources = [
        Batch(stored(encode_single(b"first"), 1000)),
        Batch(stored(encode_batch([b"second", b"third"], producer=Producer(1, 2, 3)), 1001)),
        Batch(stored(encode_batch([b"fourth"], transaction=Transaction(4, 5)), 1005)),
    ]
    encoded = stored(merge(sources))
    data = golden("batch-merged.bin", encoded)
    batch = Batch(data)
    batch.check()
    assert [(message.offset, message.value) for message in messages(batch)] == [
        (1000, b"first"),
        (1001, b"second"),
        (1002, b"third"),
        (1005, b"fourth"),
    ]
    assert [(run.end_index, run.flags, run.producer_id, run.transaction_number, run.first_offset) for run in batch.runs()] == [
        (1, 0, 0, 0, 1000), (3, 1, 1, 0, 1001), (4, 2, 0, 4, 1005),
    ]  # fmt: skip
    assert encoded == data


def test_a_merged_batch_without_producers() -> None:
    """It needs no runs: a flag says that its time column tells when each message was appended."""
    sources = []
    for number, value in enumerate([b"first", b"second"]):
        encoded = encode_single(value)
        encoded.stamp(1000 + number, APPEND_TIME_US + number, APPEND_TIME_US + number, 0x0102030405060708, 900, 3)
        sources.append(Batch(encoded.data))
    encoded_bytes = stored(merge(sources))
    data = golden("batch-merged-plain.bin", encoded_bytes)
    batch = Batch(data)
    batch.check()
    assert batch.header.compatible == COMPATIBLE_APPEND_TIMES
    assert [(message.offset, message.value) for message in messages(batch)] == [(1000, b"first"), (1001, b"second")]
    assert [batch.append_time_us(index) for index in range(2)] == [APPEND_TIME_US, APPEND_TIME_US + 1]
    assert not batch.runs()
    assert encoded_bytes == data


def test_a_state_batch() -> None:
    """Producers and epochs."""
    producers = [ProducerRecord(1, 2, 3, 4, 5, 6), ProducerRecord(7, 8, 9, 10, 11, 12)]
    epochs = [EpochStart(0, 1), EpochStart(500, 4)]
    encoded = stored(encode_state(producers, epochs))
    data = golden("state.bin", encoded)
    assert decode_state(Batch(data)) == (producers, epochs)
    assert encoded == data


def test_a_segment_header() -> None:
    """128 bytes."""
    header = SegmentHeader(STORE_ID, TOPIC_ID, 3, 1, 1000, 0x0102030405060708, 4, APPEND_TIME_US, APPEND_TIME_US - 1)
    data = golden("segment-header.bin", header.encode())
    assert SegmentHeader.decode(data) == header
    assert header.encode() == data


def test_a_segment_footer() -> None:
    """96 bytes."""
    footer = Footer(0x0102030405060708, 1000, 2000, 65_536, APPEND_TIME_US + 9, 990, 100, 0xDEADBEEF, APPEND_TIME_US)
    data = golden("segment-footer.bin", footer.encode())
    assert Footer.decode(data) == footer
    assert footer.encode() == data


def test_an_index_file() -> None:
    """With entries and the state of the log."""
    state = stored(encode_state([ProducerRecord(1, 2, 3, 4, 5, 6)], [EpochStart(0, 1)]))
    snapshot = IndexSnapshot(
        0x0102030405060708, 70_000, 2000, APPEND_TIME_US, 40, 0xCAFEF00D,
        array("q", [1000, 1500]), array("q", [5, APPEND_TIME_US]), array("q", [300, 40_000]), state,
    )  # fmt: skip
    data = golden("index.bin", snapshot.encode())
    assert IndexSnapshot.decode(data) == snapshot
    assert snapshot.encode() == data


def test_a_journal_file() -> None:
    """The header, and a frame with an entry of each kind."""
    header = JournalFileHeader(STORE_ID, 12, 0x1112131415161718, 0)
    batch = bytearray(stored(encode_single(b"journaled")))
    reference = Reference(2, 3, 1001, 5, 0x0102030405060708, 4096, 8192, 0xABCDEF01)
    entries: list[bytes | bytearray | memoryview] = [
        *batch_entry(1, batch),
        reference_entry(reference),
        log_start_entry(3, 777),
        other_entry(4, b"a layer above"),
    ]
    frame = encode_frame(55, header.file_uid, APPEND_TIME_US, 4, entries)
    encoded = header.encode() + frame
    data = golden("journal.bin", encoded)
    assert JournalFileHeader.decode(data) == header
    parsed = parse_frame(data, 64)
    assert (parsed.number, parsed.file_uid, parsed.time_us, parsed.frame_bytes) == (
        55,
        header.file_uid,
        APPEND_TIME_US,
        len(data) - 64,
    )
    found = list(frame_entries(data, 64, parsed))
    assert [(entry.kind, entry.owner) for entry in found] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert bytes(found[0].body) == batch
    assert decode_reference(found[1]) == reference
    assert decode_log_start(found[2]) == 777
    assert bytes(found[3].body) == b"a layer above"
    assert encoded == data


def test_a_checkpoint() -> None:
    """With two logs and three sections."""
    rows = (LogRow(0, 2000, 100, 1000, 4096, APPEND_TIME_US), LogRow(1, 0, 0, 0, 0, 0))
    sections = ((1, b"state of the groups"), (2, b""), (77, b"of others"))
    checkpoint = Checkpoint(STORE_ID, 9, 4, 55, 12, 3, clean=True, next_log_id=2, rows=rows, sections=sections)
    data = golden("checkpoint.bin", checkpoint.encode())
    assert Checkpoint.decode(data) == checkpoint
    assert checkpoint.encode() == data


GROUP = {
    "topic_id": TOPIC_ID.hex(), "topic": "orders", "name": "billing", "settings": GroupSettings(lease_ms=5000).to_json(), "starts": [0, 7],
}  # fmt: skip
FAILURE = ops.Failed(1001, APPEND_TIME_US + 60_000_000, 1_700_000_000, 1_700_000_009, 3, "ValueError: \N{SNOWMAN}")
MEMBER = 0x0102030405060708


def operations_in_order(data: bytes, first: int, last: int) -> list[ops.Operation]:
    """The operations of an entry, one of each kind."""
    found = list(ops.operations(data))
    assert [operation.kind for operation in found] == list(range(first, last + 1))
    return found


def test_group_operations() -> None:
    """One of each kind that the journal holds."""
    offsets = [1000, 1002, 70_000, 1 << 40]
    encoded = b"".join(
        [
            ops.encode_document(ops.MADE, 5, GROUP),
            ops.encode_document(ops.CONFIGURED, 5, GroupSettings(ordered=True, reset="fail").to_json()),
            ops.encode_document(ops.DELETED, 4, {}),
            ops.encode_ranges(ops.LEASED, 1, 5, 2, MEMBER, 3, [(1000, 1003), (2000, 2001)]),
            *ops.encode_finished(1, 5, 2, offsets),
            ops.encode_failed(1, 5, 2, FAILURE),
            ops.encode_ranges(ops.RETURNED, 1, 5, 2, MEMBER, 0, [(2000, 2001)]),
            ops.encode_begun(1, 5, 2, MEMBER, 1001),
            ops.encode_offset(ops.SOUGHT, 0, 5, 3, 777),
            ops.encode_offset(ops.COMMITTED, 0, 5, 3, 778),
            ops.encode_left(5, MEMBER),
        ]
    )
    data = golden("group-operations.bin", encoded)
    found = operations_in_order(data, ops.MADE, ops.LEFT)
    made, configured, _, leased, finished, failed, returned, begun, sought, committed, left = found
    assert [(operation.partition, operation.group_id, operation.generation) for operation in found] == [
        (0, 5, 0), (0, 5, 0), (0, 4, 0), *[(1, 5, 2)] * 5, (0, 5, 3), (0, 5, 3), (0, 5, 0),
    ]  # fmt: skip
    assert ops.decode_document(made) == GROUP
    assert GroupSettings.from_json(ops.decode_document(configured)) == GroupSettings(ordered=True, reset="fail")
    assert ops.decode_ranges(leased) == (MEMBER, 3, [(1000, 1003), (2000, 2001)])
    assert list(ops.decode_bitmap(finished.body)) == offsets
    assert ops.decode_failed(failed) == FAILURE
    assert ops.decode_ranges(returned) == (MEMBER, 0, [(2000, 2001)])
    assert ops.decode_begun(begun) == (MEMBER, 1001)
    assert [ops.decode_number(operation) for operation in (sought, committed, left)] == [777, 778, MEMBER]
    assert encoded == data


def test_group_operations_of_snapshots() -> None:
    """One of each kind that only a checkpoint holds."""
    encoded = b"".join(
        [
            ops.encode_position(1, 5, 2, 3000, OffsetSet([1001, 1002, 2999])),
            ops.encode_bitmap(ops.SUSPECTS, 1, 5, 2, OffsetSet([1002])),
            ops.encode_failed_all(1, 5, 2, FAILURE, [1001, 2999]),
            ops.encode_offset(ops.NEXT_ID, 0, 0, 0, 6),
        ]
    )
    data = golden("group-snapshot.bin", encoded)
    position, suspects, failed_all, next_id = operations_in_order(data, ops.POSITION, ops.NEXT_ID)
    scan, open_offsets = ops.decode_position(position)
    failed, offsets = ops.decode_failed_all(failed_all)
    assert (scan, list(open_offsets)) == (3000, [1001, 1002, 2999])
    assert list(ops.decode_bitmap(suspects.body)) == [1002]
    assert (failed, list(offsets)) == (FAILURE._replace(offset=0), [1001, 2999])
    assert ops.decode_number(next_id) == 6
    assert encoded == data


def test_producer_entries() -> None:
    """One of each kind, put together by hand; a snapshot gives the same bytes."""
    entries = [
        (1, {"id": MEMBER, "incarnation": 2, "time_us": APPEND_TIME_US}),
        (2, {"producer": "job", "number": 9, "time_us": APPEND_TIME_US, "result": {"messages": 3, "stages": 2}}),
    ]
    texts = [(kind, json.dumps(values, separators=(",", ":")).encode()) for kind, values in entries]
    encoded = b"".join([struct.pack("<B3xI", kind, len(text)) + text for kind, text in texts])
    data = golden("producers.bin", encoded)
    producers = Producers(FakeClock(now_us=APPEND_TIME_US))
    producers.restore(data)
    with pytest.raises(ProducerFenced) as fenced:
        producers.check(MEMBER, 1)
    assert fenced.value.newest == 2
    assert producers.result_of("job", 9) == {"messages": 3, "stages": 2}
    assert producers.snapshot() == data
    assert encoded == data


def test_a_stage() -> None:
    """With a batch for each of two partitions."""
    batches = [encode_single(b"staged"), encode_batch([b"one", None], keys=[b"k", b""])]
    for batch in batches:
        batch.stamp(0, 0, 0, 0, 0, 0)
    encoded = encode_stage_header(STORE_ID, "job \N{SNOWMAN}", APPEND_TIME_US)
    for partition, batch in enumerate(batches):
        encoded += encode_stage_entry(TOPIC_ID, partition) + batch.data
    encoded += encode_stage_footer(crc32c(encoded), 2, len(encoded) + STAGE_FOOTER_BYTES)
    data = golden("stage.bin", encoded)
    entries = [StageEntry(TOPIC_ID, partition, memoryview(batch.data)) for partition, batch in enumerate(batches)]
    assert decode_stage(data) == Stage(STORE_ID, "job \N{SNOWMAN}", APPEND_TIME_US, entries, [])
    assert encoded == data


def test_a_stage_with_parts() -> None:
    """A batch of its own, and the headers of two that lie in a part."""
    batches = [encode_single(b"staged"), encode_single(b"in a part"), encode_batch([b"one", None], keys=[b"k", b""])]
    for batch in batches:
        batch.stamp(0, 0, 0, 0, 0, 0)
    headers = [memoryview(batch.data)[: batch.header_bytes] for batch in batches[1:]]
    part = StagePart(TOPIC_ID, 0, 3, 49_152, headers)
    encoded = encode_stage_header(STORE_ID, "job", APPEND_TIME_US)
    encoded += encode_stage_entry(TOPIC_ID, 0) + batches[0].data + encode_stage_part(part)
    encoded += encode_stage_footer(crc32c(encoded), 2, len(encoded) + STAGE_FOOTER_BYTES)
    data = golden("stage-parts.bin", encoded)
    entries = [StageEntry(TOPIC_ID, 0, memoryview(batches[0].data))]
    assert decode_stage(data) == Stage(STORE_ID, "job", APPEND_TIME_US, entries, [part])
    assert encoded == data


def test_a_stage_with_a_digest() -> None:
    """What tells a repetition from something else."""
    batch = encode_batch([b"one", None], keys=[b"k", b""])
    batch.stamp(0, 0, 0, 0, 0, 0)
    encoded = encode_stage_header(STORE_ID, "job", APPEND_TIME_US) + encode_stage_entry(TOPIC_ID, 0) + batch.data
    digest = digest_of("t", Batch(batch.data))
    encoded += encode_stage_digest(2, digest)
    encoded += encode_stage_footer(crc32c(encoded), 2, len(encoded) + STAGE_FOOTER_BYTES)
    data = golden("stage-digest.bin", encoded)
    entries = [StageEntry(TOPIC_ID, 0, memoryview(batch.data))]
    assert decode_stage(data) == Stage(STORE_ID, "job", APPEND_TIME_US, entries, [], digest)
    assert decode_stage(data).messages == 2
    assert encoded == data


def test_the_identity_of_a_store() -> None:
    """JSON, with a checksum over its canonical form."""
    values = {"format": 1, "id": STORE_ID.hex(), "required": [], "generation": 1}
    data = golden("store.json", encode_document(values))
    assert decode_document("store", data) == values
    assert encode_document(values) == data


def test_the_file_of_hands_is_as_it_was() -> None:
    """Two members of group 7, one of them with more in its hands than it has words, and one that has left."""
    store_id = bytes(range(16))
    files = SimulatedFileSystem()
    files.make_directory("/store")
    hands = Hands(files, "/store", store_id, 3)
    first, second, gone = hands.claim(7, 1001, 6), hands.claim(7, 1002, 1), hands.claim(7, 1003, 1)
    for offset in range(6):
        first.pick_up(offset << 14 | 2)
    first.put_down(1 << 14 | 2)
    second.pick_up(1 << 40 | 9)
    second.pick_up(1 << 41 | 9, 3)
    hands.release(gone)
    data = golden("hands.bin", files.files()["/store/hands"])
    assert data == files.files()["/store/hands"]
    other = SimulatedFileSystem()
    other.make_directory("/store")
    file = other.create("/store/hands")
    file.pwrite(data, 0)
    file.close()
    found = HandsBefore.read(other, "/store", store_id, 3)
    assert found is not None
    assert found.complete
    assert {key: (sorted(hand.places), hand.many) for key, hand in found.members.items()} == {
        (7, 1001): ([(2, 0), (2, 2), (2, 3), (2, 4), (2, 5)], False),
        (7, 1002): ([(9, 1 << 26)], True),
    }
