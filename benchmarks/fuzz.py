"""
Throw broken bytes at every decoder: `python -m benchmarks.fuzz --inputs 1000000 [--seed N] [--workers 2] [--target batch]`.

An input is a valid encoding with a few mutations, or random bytes behind a valid magic or none. In most inputs the checksums are
made right again afterwards, so that what lies behind them is reached: a matching CRC says that bytes are as written, not that
their writer was honest. A decoder may take an input or raise a `PenstockError`. Anything else ends the run with exit code 1 and
prints the input as hex; `--reproduce TARGET HEX` decodes it again. The same seed gives the same inputs. It needs what the tests
need: pyarrow and the libraries of all codecs.
"""

from __future__ import annotations

import argparse
import json
import secrets
import struct
import sys
import time
import traceback
from array import array
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import PenstockError
from penstock.format import columns as c
from penstock.format.batch import Batch, EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import (
    DIRECTORY_ENTRY_BYTES,
    FIXED_BYTES,
    KIND_STATE,
    MAGIC,
    Producer,
    Transaction,
    parse_header,
)
from penstock.format.checkpoint import CHECKPOINT_MAGIC, Checkpoint, LogRow
from penstock.format.checksum import crc32c
from penstock.format.compression import Codec
from penstock.format.frame import (
    ENTRY_BATCH,
    ENTRY_LOG_START,
    ENTRY_REFERENCE,
    FRAME_MAGIC,
    JOURNAL_MAGIC,
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
from penstock.format.index import INDEX_MAGIC, IndexSnapshot
from penstock.format.merge import merge
from penstock.format.segment import FOOTER_MAGIC, SEGMENT_MAGIC, Footer, SegmentHeader
from penstock.format.stage import (
    STAGE_FOOTER_BYTES,
    STAGE_MAGIC,
    StagePart,
    decode_stage,
    encode_stage_entry,
    encode_stage_footer,
    encode_stage_header,
    encode_stage_part,
)
from penstock.format.state import EpochStart, ProducerRecord, decode_state, encode_state
from penstock.groups import operations as ops
from penstock.offset_set import OffsetSet
from penstock.settings import GroupSettings
from penstock.testing import FakeClock
from penstock.topics.producers import Producers
from penstock.volume.document import decode_document, encode_document

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNK_INPUTS = 5_000
WEIGHTS = {"batch": 6, "arrow": 2, "frame": 2, "state": 2, "group operations": 3}
"""A decoder with more to get wrong gets more inputs."""
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
NUMBERS = (
    0,
    1,
    7,
    8,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFF,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
"""What a forged length or number is set to."""


class Target(NamedTuple):
    """One decoder: valid inputs for it, the call, what an input begins with, and how to make its checksums right."""

    samples: list[bytes]
    decode: Callable[[bytes], object]
    magic: bytes
    mend: Callable[[bytearray], None]


class Broken(AssertionError):
    """A decoder took an input and cannot read it."""


# -- decoders ---------------------------------------------------------------------------------------------------------


def read_batch(data: bytes) -> None:
    """Check a batch as one from outside, and read all of it: what passed the check must be readable to the last message."""
    batch = Batch(data)
    batch.check()
    try:
        read_messages(batch)
    except PenstockError as error:
        raise Broken(f"check() passed and then: {error!r}") from error
    if batch.header.kind != KIND_STATE:
        merge([batch])
        batch.slice(0, min(2, len(batch))).encode()


def read_messages(batch: Batch) -> None:
    """Ask for everything that a batch can tell."""
    batch.producer, batch.transaction, batch.schema_id, batch.runs()
    for index in range(len(batch)):
        batch.value(index)
        batch.key(index)
        batch.dedup_key(index)
        batch.headers(index)
        batch.offset(index)
        batch.time_us(index)
        batch.append_time_us(index)
        batch.expires_us(index)
        batch.deliver_us(index)
        batch.priority(index)


def read_arrow(data: bytes) -> None:
    """What passed the check must be valid as Arrow, which looks at the same bytes without asking the columns."""
    batch = Batch(data)
    batch.check()
    if batch.header.kind != KIND_STATE:
        batch.to_arrow().validate(full=True)


def read_state(data: bytes) -> None:
    """What opening a segment does with its first batch."""
    batch = Batch(data)
    batch.verify()
    decode_state(batch)


def read_frame(data: bytes) -> None:
    """What replay does with a frame, and recovery with its entries."""
    header = parse_frame(data, 0)
    for entry in frame_entries(data, 0, header):
        if entry.kind == ENTRY_REFERENCE:
            decode_reference(entry)
        elif entry.kind == ENTRY_LOG_START:
            decode_log_start(entry)
        elif entry.kind == ENTRY_BATCH:
            parse_header(entry.body)
            Batch(entry.body)


OPERATIONS: dict[int, Callable[[ops.Operation], object]] = {
    ops.MADE: ops.decode_document,
    ops.CONFIGURED: ops.decode_document,
    ops.LEASED: ops.decode_ranges,
    ops.FINISHED: lambda operation: read_bitmap(ops.decode_bitmap(operation.body)),
    ops.FAILED: ops.decode_failed,
    ops.RETURNED: ops.decode_ranges,
    ops.BEGUN: ops.decode_begun,
    ops.SOUGHT: ops.decode_number,
    ops.COMMITTED: ops.decode_number,
    ops.LEFT: ops.decode_number,
    ops.POSITION: lambda operation: read_bitmap(ops.decode_position(operation)[1]),
    ops.SUSPECTS: lambda operation: read_bitmap(ops.decode_bitmap(operation.body)),
    ops.FAILED_ALL: lambda operation: read_bitmap(ops.decode_failed_all(operation)[1]),
    ops.NEXT_ID: ops.decode_number,
}
"""How the body of each kind of group operation is read; that of a deleted group has nothing to say."""


def read_operations(data: bytes) -> None:
    """What replay does with an entry of the groups, and restoring with their section of a checkpoint."""
    for operation in ops.operations(data):
        decode = OPERATIONS.get(operation.kind)
        if decode is not None:
            decode(operation)


def read_bitmap(bitmap: OffsetSet) -> None:
    """Use a bitmap that was taken: the library is C code, and one that is not sound may bring the process down."""
    if bitmap:
        low, high = bitmap.min(), bitmap.max()
        if low not in bitmap or high not in bitmap or not low <= high or len(bitmap) > high - low + 1:
            raise Broken(f"a bitmap of {len(bitmap)} offsets from {low} to {high}")
    other = OffsetSet(range(0, 100_000, 3))
    if len(other & bitmap) + len(other - bitmap) != len(other):
        raise Broken("a bitmap that is neither here nor there")
    other |= bitmap
    other.remove_range(0, 70_000)
    other.add_range(10, 20)
    if OffsetSet.deserialize(bitmap.serialize()) != bitmap:
        raise Broken("a bitmap that is another one when it is stored again")


def read_producers(data: bytes) -> None:
    """What replay does with an entry of the producers; what they took goes through a snapshot unchanged."""
    producers, again = Producers(FakeClock(now_us=0)), Producers(FakeClock(now_us=0))
    producers.replay(data)
    snapshot = producers.snapshot()
    try:
        again.restore(snapshot)
    except PenstockError as error:
        raise Broken(f"replay() passed and then, of its snapshot: {error!r}") from error
    if again.snapshot() != snapshot:
        raise Broken("a snapshot of a snapshot is another one")


# -- valid inputs -----------------------------------------------------------------------------------------------------


def stamped(batch: EncodedBatch, first_offset: int = 1000) -> bytes:
    """The bytes of a batch as a log would store it."""
    batch.stamp(first_offset, 1_700_000_000_000_000, 1_700_000_000_000_001, 0x1122334455667788, 900, 3)
    return bytes(batch.data)


def batch_samples() -> list[bytes]:
    """Batches with every column, extension and codec."""
    text = [b"a value that repeats itself, " * 20, b"another one, " * 30, b"a value that repeats itself, " * 20, b"end"]
    full = encode_batch(
        [b"one", None, b"", b"four"],
        keys=[b"key", b"", None, b"key"],
        headers=[[("name", b"value"), ("name", b"")], None, [], [("\N{SNOWMAN}", b"x")]],
        times_us=[1, None, 3, -4],
        expires_us=[5, None, 7, 8],
        expires_relative=True,
        deliver_us=[9, 10, 11, 12],
        priorities=[0, 1, 2, 255],
        dedup_keys=[b"d", None, b"", b"e"],
        offset_deltas=[0, 2, 5, 9],
        offset_span=10,
        producer=Producer(1, 2, 3),
        transaction=Transaction(4, 5),
        schema_id=6,
    )
    packed = [
        stamped(encode_batch(text, keys=text, headers=[[("h" * 40, b"v" * 600)] * 2] * 4, codec=codec))
        for codec in (Codec.GZIP, Codec.ZSTD, Codec.LZ4)
    ]
    small = [Batch(stamped(encode_single(b"single"), 1000)), Batch(stamped(encode_single(b"another"), 1001))]
    produced = Batch(stamped(encode_batch([b"x"], producer=Producer(1, 2, 3)), 1002))
    merged = [stamped(merge(small)), stamped(merge([*small, produced]))]
    return [stamped(encode_single(b"single")), stamped(full), *packed, *merged]


def state_samples() -> list[bytes]:
    """State batches, empty and full."""
    producers = [ProducerRecord(1, 2, 3, 4, 5, 6), ProducerRecord(7, 8, 9, 10, 11, 12)]
    return [stamped(encode_state([], [])), stamped(encode_state(producers, [EpochStart(0, 1), EpochStart(9, 2)]))]


def frame_samples() -> list[bytes]:
    """Frames with each kind of entry."""
    batch = bytearray(stamped(encode_single(b"journaled")))
    entries = [
        b"".join(batch_entry(1, batch)),
        reference_entry(Reference(2, 3, 4, 5, 6, 7, 8, 9)),
        log_start_entry(3, 77),
        other_entry(4, b"a layer above"),
    ]
    return [bytes(encode_frame(9, 0xAB, 1, 4, list(entries))), bytes(encode_frame(1, 2, 3, 1, [entries[2]]))]


def checkpoint_samples() -> list[bytes]:
    """Checkpoints with and without logs and sections."""
    empty = Checkpoint(b"s" * 16, 1, 2, 3, 4, 5, clean=True, next_log_id=6, rows=())
    rows = (LogRow(1, 2, 3, 4, 5, 6),) * 3
    sections = ((1, b"groups"), (2, b""), (3, b"a multiple of 8."))
    return [
        empty.encode(),
        empty._replace(clean=False, rows=rows).encode(),
        empty._replace(rows=rows[:1], sections=sections).encode(),
    ]


def operation_samples() -> list[bytes]:
    """Each kind of group operation, and all of them in one entry; with each kind of container in a bitmap."""
    made = {"topic_id": "00" * 16, "topic": "t", "name": "g", "settings": GroupSettings().to_json(), "starts": [0, 7]}
    failed = ops.Failed(3, 1_700_000_000_000_000, 1_700_000_000, 1_700_000_009, 2, "ValueError: \N{SNOWMAN}")
    dense = OffsetSet(range(100, 200_000, 2))
    single = [
        ops.encode_document(ops.MADE, 1, made),
        ops.encode_document(ops.CONFIGURED, 1, GroupSettings(ordered=True).to_json()),
        ops.encode_document(ops.DELETED, 1, {}),
        ops.encode_ranges(ops.LEASED, 1, 1, 2, 3, 4, [(0, 5), (7, 9)]),
        *ops.encode_finished(1, 1, 2, [1, 2, 70_000, 1 << 40]),
        *ops.encode_finished(1, 1, 2, list(dense[:4096])),
        ops.encode_failed(1, 1, 2, failed),
        ops.encode_ranges(ops.RETURNED, 1, 1, 2, 3, 0, [(7, 9)]),
        ops.encode_begun(1, 1, 2, 3, 4),
        ops.encode_offset(ops.SOUGHT, 1, 1, 3, 5),
        ops.encode_offset(ops.COMMITTED, 1, 1, 3, 6),
        ops.encode_left(1, 3),
        ops.encode_position(1, 1, 2, 3000, OffsetSet(range(10, 2000))),
        ops.encode_position(0, 1, 2, 0, OffsetSet()),
        ops.encode_bitmap(
            ops.SUSPECTS, 1, 1, 2, OffsetSet(range(5, 5_000, 3)) | OffsetSet(range(1 << 33, (1 << 33) + 100_000))
        ),
        ops.encode_failed_all(1, 1, 2, failed, [1, 2, 3, 9]),
        ops.encode_offset(ops.NEXT_ID, 0, 0, 0, 2),
    ]
    return [*single, b"".join(single[:4] + single[6:])]


def producer_samples() -> list[bytes]:
    """Entries of both kinds."""
    incarnation = b'{"id":72623859790382856,"incarnation":2,"time_us":1700000000000000}'
    transaction = b'{"producer":"job","number":9,"time_us":1700000000000000,"result":{"messages":3,"stages":[1,null,"x",1e9]}}'
    entries = [struct.pack("<B3xI", kind, len(text)) + text for kind, text in ((1, incarnation), (2, transaction))]
    return [*entries, b"".join(entries)]


def stage_samples() -> list[bytes]:
    """Stages, empty and with batches."""
    samples = []
    for batches in ([], [encode_single(b"staged"), encode_batch([b"one", None], keys=[b"k", b""])]):
        data = encode_stage_header(b"s" * 16, "job", 1_700_000_000_000_000)
        for batch in batches:
            data += encode_stage_entry(b"t" * 16, 1) + stamped(batch, 0)
        samples.append(data + encode_stage_footer(crc32c(data), len(batches), len(data) + STAGE_FOOTER_BYTES))
    headers = [memoryview(stamped(batch, 0))[: batch.header_bytes] for batch in batches]
    data = encode_stage_header(b"s" * 16, "job", 1_700_000_000_000_000)
    data += encode_stage_part(StagePart(b"t" * 16, 1, 0, 49_152, headers))
    samples.append(data + encode_stage_footer(crc32c(data), 1, len(data) + STAGE_FOOTER_BYTES))
    return samples


# -- checksums made right ---------------------------------------------------------------------------------------------


def mend_batch(data: bytearray) -> None:
    """Make the CRC of each column and of the header fit, as far as the lengths let one know where they are."""
    if len(data) < FIXED_BYTES:
        return
    (header_bytes,) = _U32.unpack_from(data, 8)
    columns = data[13]
    view = memoryview(data)
    if header_bytes <= len(data):
        for number in range(columns):
            at = header_bytes - (columns - number) * DIRECTORY_ENTRY_BYTES
            if at < FIXED_BYTES:
                break
            entry = c.Entry._make(c.ENTRY.unpack_from(data, at))
            if entry.position + entry.stored_bytes <= len(data):
                _U32.pack_into(data, at + 4, crc32c(view[entry.position : entry.position + entry.stored_bytes]))
    _U32.pack_into(data, 4, crc32c(view[8 : max(8, min(header_bytes, len(data)))]))


def mend_range(crc_at: int, begin: int, end: int | None) -> Callable[[bytearray], None]:
    """For a format with one CRC over a fixed range."""

    def mend(data: bytearray) -> None:
        if len(data) >= begin:
            _U32.pack_into(data, crc_at, crc32c(memoryview(data)[begin:end]))

    return mend


def mend_frame(data: bytearray) -> None:
    """Make the CRC of a frame fit its length, or all bytes there are."""
    if len(data) >= 12:
        (length,) = _U32.unpack_from(data, 8)
        _U32.pack_into(data, 4, crc32c(memoryview(data)[8 : max(8, length)]))


def mend_document(data: bytearray) -> None:
    """Write the document again with the checksum of what stands in it, if it is JSON."""
    try:
        values = json.loads(bytes(data))
        if isinstance(values, dict):
            values.pop("crc32c", None)
            data[:] = encode_document(values)
    except (ValueError, RecursionError):
        return


def mend_stage(data: bytearray) -> None:
    """Make the checksum and the length in the footer fit."""
    end = len(data) - STAGE_FOOTER_BYTES
    if end >= 0:
        _U32.pack_into(data, end + 4, crc32c(memoryview(data)[:end]))
        _U64.pack_into(data, end + 16, len(data))


def mend_list(length_at: int, head_bytes: int) -> Callable[[bytearray], None]:
    """For a list of entries with a length each and no checksum of its own: let the last one end where the bytes do."""

    def mend(data: bytearray) -> None:
        at = 0
        while len(data) - at >= head_bytes:
            (length,) = _U32.unpack_from(data, at + length_at)
            left = len(data) - at - head_bytes
            if length > left:
                _U32.pack_into(data, at + length_at, left)
                return
            at += head_bytes + length

    return mend


@lru_cache(maxsize=1)
def targets() -> dict[str, Target]:
    """All decoders by name."""
    return {
        "batch": Target(batch_samples(), read_batch, MAGIC, mend_batch),
        "arrow": Target(batch_samples(), read_arrow, MAGIC, mend_batch),
        "state": Target(state_samples(), read_state, MAGIC, mend_batch),
        "frame": Target(frame_samples(), read_frame, FRAME_MAGIC, mend_frame),
        "journal header": Target(
            [JournalFileHeader(b"s" * 16, 1, 2, 3).encode()], JournalFileHeader.decode, JOURNAL_MAGIC, mend_range(8, 12, 64)
        ),
        "segment header": Target(
            [SegmentHeader(b"s" * 16, b"t" * 16, 1, 0, 1000, 2, 3, 4, 5).encode()],
            SegmentHeader.decode,
            SEGMENT_MAGIC,
            mend_range(8, 12, 128),
        ),
        "footer": Target([Footer(1, 2, 3, 4, 5, 6, 7, 8, 9).encode()], Footer.decode, FOOTER_MAGIC, mend_range(4, 8, 96)),
        "index": Target(
            [
                IndexSnapshot(1, 5000, 3, 4, 5, 6, array("q", [1, 2]), array("q", [3, 4]), array("q", [300, 4000]), b"state").encode(),
                IndexSnapshot(1, 128, 3, 4, 0, 0, array("q"), array("q"), array("q"), b"").encode(),
            ],
            IndexSnapshot.decode,
            INDEX_MAGIC,
            mend_range(8, 12, None),
        ),
        "checkpoint": Target(checkpoint_samples(), Checkpoint.decode, CHECKPOINT_MAGIC, mend_range(8, 12, None)),
        "stage": Target(stage_samples(), decode_stage, STAGE_MAGIC, mend_stage),
        "group operations": Target(operation_samples(), read_operations, b"", mend_list(12, 16)),
        "producers": Target(producer_samples(), read_producers, b"", mend_list(4, 8)),
        "document": Target(
            [
                encode_document({"format": 1, "id": "00" * 16, "required": [], "generation": 1}),
                encode_document({"name": "topic", "settings": {"sync": "always", "n": -1.5e300}, "deep": [[[["\ud800"]]]]}),
            ],
            lambda data: decode_document("document", data),
            b"{",
            mend_document,
        ),
    }  # fmt: skip


# -- inputs -----------------------------------------------------------------------------------------------------------


def mutate(rng: Random, data: bytearray, other: bytes) -> None:
    """Do one thing to *data* that a fault or a forger may do."""
    if not data:
        data += rng.randbytes(8)
        return
    size = len(data)
    at = int(rng.random() * size)
    way = int(rng.random() * 11)
    if way <= 1:
        data[at] ^= 1 << int(rng.random() * 8)
    elif way == 2:
        data[at] = int(rng.random() * 256)
    elif way <= 4:
        # A forged number in an aligned field, where lengths, counts and offsets are.
        at &= ~3
        if at + 4 <= size:
            _U32.pack_into(data, at, rng.choice(NUMBERS) & 0xFFFFFFFF)
    elif way == 5:
        at &= ~7
        if at + 8 <= size:
            _U64.pack_into(data, at, rng.choice(NUMBERS))
    elif way == 6:
        # A number that is only a little wrong.
        at &= ~3
        if at + 4 <= size:
            (number,) = _U32.unpack_from(data, at)
            _U32.pack_into(data, at, (number + rng.choice((-8, -4, -1, 1, 4, 8, 40))) & 0xFFFFFFFF)
    elif way == 7:
        del data[at:]
    elif way == 8:
        data[at:at] = rng.randbytes(1 + int(rng.random() * 16))
    elif way == 9:
        del data[at : at + 1 + int(rng.random() * 16)]
    else:
        length = 1 + int(rng.random() * 64)
        begin = int(rng.random() * len(other))
        data[at : at + length] = other[begin : begin + length]


def make_input(rng: Random, target: Target) -> bytes:
    """One input for a decoder."""
    chance = rng.random()
    if chance < 0.05:
        data = bytearray(rng.randbytes(int(rng.random() * 300)))
        if chance < 0.04:
            data[: len(target.magic)] = target.magic
    else:
        data = bytearray(rng.choice(target.samples))
        other = rng.choice(target.samples)
        for _ in range(1 + int(rng.random() * 3)):
            mutate(rng, data, other)
    if rng.random() < 0.65:
        target.mend(data)
    return bytes(data)


class Failure(NamedTuple):
    """An input that a decoder did not survive."""

    target: str
    data: bytes
    text: str


def run_chunk(seed: int, number: int, inputs: int, names: list[str]) -> tuple[Counter[tuple[str, str]], Failure | None]:
    """Decode *inputs* inputs, the same for the same *seed* and *number*; counts (target, outcome). Stops at the first failure."""
    rng = Random(f"{seed} {number}")
    chosen = [(name, targets()[name]) for name in names for _ in range(WEIGHTS.get(name, 1))]
    counts: Counter[tuple[str, str]] = Counter()
    for index in range(inputs):
        name, target = chosen[index % len(chosen)]
        data = make_input(rng, target)
        try:
            target.decode(data)
            outcome = "taken"
        except PenstockError as error:
            outcome = type(error).__name__
        except BaseException:  # noqa: BLE001 (whatever it is, it is what this program looks for)
            return counts, Failure(name, data, traceback.format_exc(limit=-6))
        counts[name, outcome] += 1
    return counts, None


def run(seed: int, inputs: int, workers: int, names: list[str]) -> tuple[Counter[tuple[str, str]], Failure | None]:
    """Decode *inputs* inputs in *workers* processes; counts (target, outcome)."""
    sizes = [min(CHUNK_INPUTS, inputs - begin) for begin in range(0, inputs, CHUNK_INPUTS)]
    counts: Counter[tuple[str, str]] = Counter()
    if workers == 1:
        for number, size in enumerate(sizes):
            some, failure = run_chunk(seed, number, size, names)
            counts += some
            if failure is not None:
                return counts, failure
        return counts, None
    with ProcessPoolExecutor(workers) as pool:
        futures = [pool.submit(run_chunk, seed, number, size, names) for number, size in enumerate(sizes)]
        for future in futures:
            some, failure = future.result()
            counts += some
            if failure is not None:
                pool.shutdown(wait=True, cancel_futures=True)
                return counts, failure
    return counts, None


def report(counts: Counter[tuple[str, str]], seconds: float) -> None:
    """Print what became of the inputs, by decoder."""
    outcomes = sorted({outcome for _, outcome in counts}, key=lambda outcome: (outcome != "taken", outcome))
    print(f"{'decoder':18}{'inputs':>12}" + "".join([f"{outcome:>20}" for outcome in outcomes]))
    for name in targets():
        row = [counts[name, outcome] for outcome in outcomes]
        if any(row):
            print(f"{name:18}{sum(row):>12,}" + "".join([f"{number:>20,}" for number in row]))
    print(f"{counts.total():,} inputs in {seconds:.1f} s, {counts.total() / seconds:,.0f} inputs/s")


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description="Throw broken bytes at every decoder.")
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="repeats a run; chosen and printed if not given")
    parser.add_argument("--workers", type=int, default=1, help="processes; each input is the same for any number of them")
    parser.add_argument("--target", action="append", choices=list(targets()), help="only this decoder; may be given again")
    parser.add_argument("--reproduce", nargs=2, metavar=("TARGET", "HEX"), help="decode one input that a run printed")
    options = parser.parse_args(arguments)
    if options.reproduce:
        name, text = options.reproduce
        targets()[name].decode(bytes.fromhex(text))
        return 0
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}, {options.inputs:,} inputs, {options.workers} workers", flush=True)
    began = time.perf_counter()
    counts, failure = run(seed, options.inputs, options.workers, options.target or list(targets()))
    report(counts, time.perf_counter() - began)
    if failure is None:
        return 0
    print(f"\nFAILED with seed {seed}: {failure.target}\n{failure.text}\nRepeat this input with:", file=sys.stderr)
    print(f'python -m benchmarks.fuzz --reproduce "{failure.target}" {failure.data.hex()}', file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
