"""A batch of one message with its producer is recognised at one look; what that lets pass the thorough look lets pass too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import PenstockError
from penstock.format import batch as module
from penstock.format.batch import EncodedBatch, encode_batch, encode_single
from penstock.format.batch_header import Producer
from penstock.format.checksum import crc32c

if TYPE_CHECKING:
    from random import Random


def single(value: bytes) -> bytes:
    batch = encode_single(value).with_producer(Producer(12, 1, 7))
    batch.stamp(0, 0, 0, 0, 0, 0)
    return bytes(batch.data)


def sealed(data: bytearray) -> bytes:
    """The same with a header whose checksum fits."""
    data[4:8] = crc32c(bytes(data[8:152])).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 100, 5_000])
def test_it_is_recognised_and_taken_over_as_it_is(length: int) -> None:
    data = single(b"x" * length)
    assert module._is_single(data)
    adopted = EncodedBatch.adopt(data)
    assert (bytes(adopted.data), adopted.count, adopted.offset_span, adopted.header_bytes) == (data, 1, 1, 152)
    assert adopted.producer == Producer(12, 1, 7)


def test_every_damaged_byte_is_found() -> None:
    data = single(b"a message")
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(PenstockError):
            EncodedBatch.adopt(bytes(damaged))


def test_what_the_quick_look_lets_pass_the_thorough_one_does_too(rng: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers that say something else, with a checksum that fits: made by somebody who means it."""
    data = single(b"a message")
    quick = module._is_single
    monkeypatch.setattr(module, "_is_single", lambda _: False)
    passed = 0
    for _ in range(3_000):
        changed = bytearray(data)
        for _ in range(rng.randrange(1, 3)):
            changed[rng.randrange(8, 160)] = rng.randrange(256)
        forged = sealed(changed)
        if quick(forged):
            passed += 1
            assert bytes(EncodedBatch.adopt(forged).data) == forged
    assert passed


def test_other_batches_are_left_to_the_thorough_look() -> None:
    for other in (encode_batch([b"one", b"two"]), encode_single(b"x"), encode_batch([b"x"], keys=[b"key"])):
        other.stamp(0, 0, 0, 0, 0, 0)
        assert not module._is_single(bytes(other.data))
        EncodedBatch.adopt(bytes(other.data))
