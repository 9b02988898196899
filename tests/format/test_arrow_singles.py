"""Messages that were stored one by one come together, and are the same as one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from penstock.errors import BadBytes
from penstock.format import arrow_singles
from penstock.format.arrow_singles import Singles
from penstock.format.batch import Batch, encode_batch
from penstock.format.compression import Codec

if TYPE_CHECKING:
    import random

NAMES = ["offset", "timestamp", "key", "value", "headers", "timestamp_type"]


def stored(offset: int, values: list[bytes | None], **columns: Any) -> Batch:
    encoded = encode_batch(values, **columns)
    encoded.stamp(0, offset, 1_000_000 + offset, 0, 0, 0)
    return Batch(encoded.data)


def mixed(rng: random.Random, count: int) -> list[Batch]:
    """Mostly plain single messages, and some that are not."""
    batches: list[Batch] = []
    offset = 0
    for _ in range(count):
        value = rng.choice([None, b"", rng.randbytes(rng.randrange(30))])
        columns: dict[str, Any] = {"keys": [rng.choice([None, b"", b"key"])]} if rng.random() < 0.5 else {}
        kind = rng.randrange(12)
        if kind == 0:
            columns["headers"] = [[("a", b"b")]]
        elif kind == 1:
            columns["times_us"] = [rng.choice([None, 5])]
        elif kind == 2:
            columns["dedup_keys"] = [b"once"]
        elif kind == 3:
            columns["codec"] = Codec.ZSTD
        batches.append(stored(offset, [value, b"other"] if kind == 4 and not columns else [value], **columns))
        offset = batches[-1].end_offset
    return batches


def gathered(batches: list[Batch], names: list[str] | None) -> list[Any]:
    singles = Singles(names)
    found = []
    for batch in batches:
        if not singles.add(batch):
            if singles:
                found.append(singles.take())
            found.append(batch.to_arrow(names))
        elif singles.full:
            found.append(singles.take())
    return [*found, singles.take()] if singles else found


def test_they_are_the_same_rows_in_the_same_order_and_types(rng: random.Random) -> None:
    for names in (NAMES, ["value", "offset"], ["key"]):
        batches = mixed(rng, 400)
        expected = pa.Table.from_batches([batch.to_arrow(names) for batch in batches])
        found = gathered(batches, names)
        assert pa.Table.from_batches(found).equals(expected)
        assert len(found) < len(batches) * 0.8


def test_they_come_in_batches_of_a_good_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_singles, "ROWS_MAX", 40)
    monkeypatch.setattr(arrow_singles, "BYTES_MAX", 100_000)
    small = [stored(n, [b"x"]) for n in range(100)]
    assert [one.num_rows for one in gathered(small, NAMES)] == [40, 40, 20]
    large = [stored(n, [bytes(30_000)]) for n in range(10)]
    assert [one.num_rows for one in gathered(large, NAMES)] == [4, 4, 2]


def test_columns_that_depend_on_more_than_the_batch_are_not_gathered() -> None:
    for names in (None, ["value", "expires_at"], ["value", "priority"]):
        assert not Singles(names).add(stored(0, [b"x"]))


def test_offsets_beyond_the_data_are_told() -> None:
    batch = stored(0, [b"value"])
    entry = batch.entry(1)
    assert entry is not None
    data = bytearray(batch.buffer)
    for first, last in ((0, 6), (-1, 5), (3, 2), (0, 2_000_000_000)):
        data[entry.position : entry.position + 8] = first.to_bytes(4, "little", signed=True) + last.to_bytes(4, "little")
        with pytest.raises(BadBytes):
            Singles(["value"]).add(Batch(data))
