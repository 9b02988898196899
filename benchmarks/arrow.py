"""From stored bytes to Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.load import BATCH_MESSAGES, KEYS, VALUES
from benchmarks.measure import Group, Row, alternate, at_most, calls, microseconds
from penstock.format.batch import Batch, encode_batch
from penstock.format.checksum import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench


def _arrow(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    encoded = encode_batch(VALUES, keys=KEYS)
    encoded.stamp(1_000_000, 1_700_000_000_000_000, 1_700_000_000_000_000, 1, 0, 1)
    data = bytes(encoded.data)
    parsed = Batch(data)
    arrays = [parsed.to_arrow(["key"]).column(0).buffers(), parsed.to_arrow(["value"]).column(0).buffers()]
    schema = pa.schema([pa.field("key", pa.binary()), pa.field("value", pa.binary())])
    binary = pa.binary()
    whole = parsed.to_arrow()

    def bare_two() -> object:
        columns = [pa.Array.from_buffers(binary, BATCH_MESSAGES, buffers) for buffers in arrays]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def full() -> object:
        batch = Batch(data)
        batch.verify()
        return batch.to_arrow()

    bare, two, crc, all_columns, cut, part = alternate(
        sizes.repeats,
        [
            calls(bare_two, sizes.decodes),
            calls(lambda: Batch(data).to_arrow(["key", "value"]), sizes.decodes),
            calls(lambda: crc32c(data), sizes.decodes),
            calls(full, sizes.decodes),
            calls(lambda: whole.slice(100, 100), sizes.decodes),
            calls(lambda: parsed.slice(100, 200).to_arrow(), sizes.decodes),
        ],
        turns=sizes.turns,
    )
    for name, ours, raw, most, note in (
        ("arrow-key-value", two, bare, 20, "parse and wrap key and value, no CRC; raw: pyarrow over known buffers"),
        ("arrow-all", all_columns, crc, 60, "parse, verify, all columns; raw: CRC of the bytes"),
        ("arrow-slice", part, cut, 5, "100 of 1000 messages, parsed before; raw: RecordBatch.slice"),
    ):
        took, least = microseconds(1e6 / ours.median), microseconds(1e6 / raw.median)
        yield Row(name, ours.microseconds, took, least, at_most(most, "us"), "us", note, unsteadiness=raw.unsteadiness)


GROUPS = (Group("arrow", ("arrow-key-value", "arrow-all", "arrow-slice"), _arrow),)
