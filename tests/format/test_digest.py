"""The digest of messages: of the messages alone, and the same whether they are hashed as a whole or one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.format import digest
from penstock.format.batch import Batch, encode_batch
from penstock.format.compression import Codec

if TYPE_CHECKING:
    import random

LENGTHS = [0, 1, 3, 4, 5, 63, 64, 65, 255, 256, 257, 1000, 2047, 2048, 2049, 5000]


def batch_of(rows: list[dict[str, Any]], codec: Codec = Codec.NONE, *, relative: bool = False) -> Batch:
    columns: dict[str, Any] = {
        name: [row.get(name) for row in rows]
        for name in ("keys", "headers", "times_us", "expires_us", "deliver_us", "dedup_keys")
    }
    columns = {name: column for name, column in columns.items() if any(one is not None for one in column)}
    columns["priorities"] = [row.get("priority", 0) for row in rows]
    encoded = encode_batch([row["value"] for row in rows], **columns, expires_relative=relative, codec=codec)
    encoded.stamp(0, 0, 0, 0, 0, 0)
    return Batch(encoded.data)


def each(topic: str, batch: Batch) -> int:
    return digest._sum_of_each(digest._topic_seed(topic), batch)


def whole(topic: str, batch: Batch) -> int:
    libraries = digest._load()
    assert libraries is not None
    return digest._sum_of_all(libraries, digest._topic_seed(topic), batch)


def random_row(rng: random.Random, lengths: list[int]) -> dict[str, Any]:
    headers = [None, [], [("a", b"x")], [("a", b"x"), ("b", rng.randbytes(9))], [("b", b""), ("a", b"x")]]
    return {
        "value": None if rng.random() < 0.1 else rng.randbytes(rng.choice(lengths)),
        "keys": rng.choice([None, b"", rng.randbytes(3)]),
        "headers": rng.choice(headers),
        "times_us": rng.choice([None, rng.randrange(-(10**15), 10**16)]),
        "expires_us": rng.choice([None, rng.randrange(10**16)]),
        "deliver_us": rng.choice([None, rng.randrange(10**16)]),
        "priority": rng.randrange(3),
        "dedup_keys": rng.choice([None, rng.randbytes(4)]),
    }


@pytest.mark.parametrize("lengths", [[10], [0], LENGTHS, [2000, 3000]])
def test_messages_have_the_same_digest_in_any_order_and_in_any_batches(rng: random.Random, lengths: list[int]) -> None:
    """As a whole and one by one, compressed or not."""
    rows = [random_row(rng, lengths) for _ in range(200)]
    expected = each("t", batch_of(rows))
    assert whole("t", batch_of(rows)) == expected
    rng.shuffle(rows)
    assert whole("t", batch_of(rows, Codec.GZIP)) == expected
    parts = [batch_of(rows[:1]), batch_of(rows[1:60]), batch_of(rows[60:])]
    assert sum(whole("t", part) for part in parts) % (1 << 64) == expected
    assert (
        digest.add(digest.add(each("t", parts[0]), digest.digest_of("t", parts[1])), digest.digest_of("t", parts[2]))
        == expected
    )


def test_messages_that_differ_anywhere_have_another_digest(rng: random.Random) -> None:
    """In one byte, in what belongs to whom, in what is there; and those of another topic."""
    rows: list[dict[str, Any]] = [
        {
            "value": b"value %d of so many" % number,
            "keys": b"key %d" % number,
            "headers": [("a", b"1"), ("b", b"2")],
            "expires_us": 5,
        }
        for number in range(40)
    ]
    known = {each("t", batch_of(rows))}

    def check(changed: list[dict[str, Any]], topic: str = "t", *, relative: bool = False) -> None:
        found = each(topic, batch_of(changed, relative=relative))
        assert found == whole(topic, batch_of(changed, relative=relative))
        assert found not in known
        known.add(found)

    check(rows, "u")
    check(rows, relative=True)
    check(rows[1:])
    check([*rows, rows[0]])
    swapped = [{**rows[0], "keys": rows[1]["keys"]}, {**rows[1], "keys": rows[0]["keys"]}, *rows[2:]]
    check(swapped)
    others: list[dict[str, Any]] = [
        {"value": None}, {"value": b""}, {"keys": None}, {"keys": b""}, {"headers": []}, {"headers": [("b", b"2"), ("a", b"1")]},
        {"expires_us": 6}, {"expires_us": None}, {"deliver_us": 5}, {"times_us": 5}, {"priority": 1}, {"priority": 2},
        {"value": rows[0]["value"] + b"\0"}, {"value": rows[0]["keys"], "keys": rows[0]["value"]}, {"dedup_keys": b"d"},
    ]  # fmt: skip
    for other in others:
        check([{**rows[0], **other}, *rows[1:]])
    value = rng.randbytes(100)
    for at in range(100):
        for bit in (1, 128):
            check([{"value": value[:at] + bytes([value[at] ^ bit]) + value[at + 1 :]}])
    for start in range(0, 96, 8):  # the highest bytes of two words
        changed = bytearray(value)
        changed[start + 3] ^= 128
        changed[start + 7] ^= 128
        check([{"value": bytes(changed)}])
