"""
Every decoder with bytes that nobody encoded: a typed error, and no more memory than the bytes justify.

The decoders, valid inputs for them and what makes their checksums right again are those of `benchmarks.fuzz`, which throws far more
at them.
"""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks import fuzz
from penstock.errors import BadBytes, Corrupt, PenstockError
from penstock.format.batch import Batch, encode_batch
from penstock.format.checksum import crc32c
from penstock.format.compression import Codec
from penstock.testing import SimulatedFileSystem
from penstock.values import MIB
from penstock.volume.document import decode_document, encode_document
from penstock.volume.identity import read_identity
from penstock.volume.topic_files import read_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = list(fuzz.targets())
LISTS = {"group operations", "producers"}
"""What an entry of the journal holds for a layer above: between two of its parts it may end."""


def decode(name: str, data: bytes) -> bool:
    """Whether a decoder takes *data*; any error but a typed one is passed on."""
    try:
        fuzz.targets()[name].decode(data)
    except PenstockError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_valid_inputs_are_taken(name: str) -> None:
    """And making their checksums right changes nothing, so that what the tests below forge is really reached."""
    target = fuzz.targets()[name]
    for sample in target.samples:
        assert decode(name, sample)
        data = bytearray(sample)
        target.mend(data)
        assert data == sample


@pytest.mark.parametrize("name", NAMES)
def test_inputs_cut_at_any_byte_are_refused(name: str) -> None:
    """With wrong checksums, and with right ones for what is left."""
    target = fuzz.targets()[name]
    for sample in target.samples:
        for length in range(len(sample)):
            if name == "document" and not sample[length:].strip():
                continue  # only the last line break is gone
            if name in LISTS and decode(name, sample[:length]):
                assert decode(name, sample[length:]), length  # cut between two parts
                continue
            assert not decode(name, sample[:length])
            data = bytearray(sample[:length])
            target.mend(data)
            decode(name, bytes(data))


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=300), magic=st.booleans(), mend=st.booleans())
def test_random_bytes_are_refused_with_a_typed_error(name: str, data: bytes, magic: bool, mend: bool) -> None:
    """With the right magic or without, with the right checksum or without."""
    target = fuzz.targets()[name]
    changed = bytearray(target.magic + data if magic else data)
    if mend:
        target.mend(changed)
    decode(name, bytes(changed))


@pytest.mark.parametrize("name", NAMES)
@given(seed=st.integers(0, 1 << 64))
def test_mutated_inputs_are_taken_or_refused_with_a_typed_error(name: str, seed: int) -> None:
    """What the fuzzer does, a little of it in each run."""
    rng = Random(seed)
    for _ in range(10):
        decode(name, fuzz.make_input(rng, fuzz.targets()[name]))


def forgeries(name: str) -> Iterator[bytes]:
    """
    Each aligned field of each valid input set to each of some numbers, with right checksums.

    Fields of 1 and 2 bytes are tried in the first 136 bytes, where all formats have theirs, and those of 4 and 8 bytes everywhere.
    """
    target = fuzz.targets()[name]
    for sample in target.samples:
        for layout, end in (("<B", 136), ("<H", 136), ("<I", len(sample)), ("<Q", len(sample))):
            size = struct.calcsize(layout)
            most = (1 << size * 8) - 1
            for at in range(0, min(end, len(sample) - size + 1), size):
                for number in (most, most >> 1) if size < 4 else (most, most >> 1, 1 << 20):
                    data = bytearray(sample)
                    struct.pack_into(layout, data, at, number)
                    target.mend(data)
                    yield bytes(data)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"arrow", "document"}])
def test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with(name: str) -> None:
    """
    Lengths up to 2^64 in every field, with right checksums: a typed error or a valid reading, within 4 times the input + 1 MiB.

    The compressed samples inflate to a few KiB, so that the limit holds for them as well.
    """
    decode(name, fuzz.targets()[name].samples[0])  # imports what is imported at the first use
    tracemalloc.start()
    try:
        for data in forgeries(name):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            decode(name, data)
            peak = tracemalloc.get_traced_memory()[1] - before
            assert peak < 4 * len(data) + 1 * MIB, data.hex()
    finally:
        tracemalloc.stop()


def test_a_batch_that_inflates_to_the_limit_and_no_further() -> None:
    """The most that a small input can make a reader allocate is what one batch may hold, and only block by block."""
    batch = encode_batch([bytes(8 * MIB)], codec=Codec.ZSTD)
    batch.stamp(0, 0, 0, 0, 0, 0)
    data = bytes(batch.data)
    assert len(data) < 4096
    tracemalloc.start()
    try:
        view = Batch(data)
        view.verify()
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
        view.check()
        assert tracemalloc.get_traced_memory()[1] < 3 * 8 * MIB
    finally:
        tracemalloc.stop()


# Documents


def deep_document(depth: int) -> bytes:
    """A JSON object with a list nested *depth* times; its checksum is wrong if it is too deep for Python to make one."""
    text = '{"deep":' + "[" * depth + "]" * depth + "}"
    return text.replace("}", f',"crc32c":"{crc32c(text.encode()):08x}"}}').encode()


@given(st.integers(0, 100_000))
@example(900)
@example(950)
@example(1_000_000)
def test_a_document_nested_too_deep_is_refused(depth: int) -> None:
    """Wherever Python's limit is reached first, in reading it or in making its checksum."""
    with contextlib.suppress(BadBytes):
        decode_document("store", deep_document(depth))


def test_each_depth_around_the_limit_of_python_is_refused_or_taken() -> None:
    """
    Reading and writing JSON reach the limit at different depths.

    Found by reading: a document that was just not too deep to be read raised `RecursionError` when its checksum was made.
    """
    for depth in range(700, 1100):
        with contextlib.suppress(BadBytes):
            decode_document("store", deep_document(depth))


@given(
    st.dictionaries(
        st.text(max_size=5),
        st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5),
        max_size=4,
    )
)
def test_a_document_is_read_back(values: dict[str, object]) -> None:
    """Any JSON values; the name of the checksum is taken."""
    values.pop("crc32c", None)
    assert decode_document("store", encode_document(values)) == values


INFINITY = float("inf")
NUMBERS: list[object] = [True, 0, -1, 1.5, INFINITY, -INFINITY, float("nan"), 1 << 70]
OTHERS: list[object] = [None, "", "text", "00" * 16, [], [[]], [1, "a"], {}, {"a": 1}]


def odd_values(valid: dict[str, object]) -> Iterator[dict[str, object]]:
    """Documents with a right checksum in which one value is odd or missing."""
    for name in valid:
        yield {key: value for key, value in valid.items() if key != name}
        for value in NUMBERS + OTHERS:
            yield {**valid, name: value}


def assert_typed(read: Callable[[], object]) -> None:
    with contextlib.suppress(Corrupt):
        read()


def test_an_identity_of_odd_values_is_refused_with_a_typed_error() -> None:
    """The checksum is right, so that each field is really looked at."""
    files = SimulatedFileSystem()
    files.make_directory("/s")
    for values in odd_values({"format": 1, "id": "00" * 16, "required": [], "generation": 1}):
        files.replace("/s/store.json", encode_document(values))
        assert_typed(lambda: read_identity(files, "/s"))


def test_a_topic_of_odd_values_is_refused_with_a_typed_error() -> None:
    """
    Every field of `topic.json` and every setting in it.

    Found by forging: `Infinity` partitions raised `OverflowError`.
    """
    files = SimulatedFileSystem()
    files.make_directory("/t")
    files.make_directory("/t/name")
    valid: dict[str, object] = {
        "name": "name",
        "id": "00" * 16,
        "partitions": 1,
        "first_log_id": 0,
        "required": [],
        "generation": 1,
    }
    settings: dict[str, object] = {
        "sync": "always",
        "segment_bytes": 1024,
        "max_message_bytes": 100,
        "index_interval_bytes": 64,
    }
    for values in [*odd_values({**valid, "settings": settings}), *[{**valid, "settings": odd} for odd in odd_values(settings)]]:
        files.replace("/t/name/topic.json", encode_document(values))
        assert_typed(lambda: read_topic(files, "/t", "name"))


# The fuzzer itself


def test_the_fuzzer_repeats_a_run_from_its_seed() -> None:
    """The same inputs, whoever runs them."""
    assert fuzz.run_chunk(7, 3, 300, NAMES) == fuzz.run_chunk(7, 3, 300, NAMES)


def test_the_fuzzer_reports_what_is_not_a_typed_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, the seed, and the input as hex."""

    def fragile(data: bytes) -> None:
        if len(data) > 90:
            raise IndexError("as a decoder that trusts its input would")

    monkeypatch.setitem(fuzz.targets(), "footer", fuzz.targets()["footer"]._replace(decode=fragile))
    assert fuzz.main(["--inputs", "1000", "--seed", "5", "--target", "footer"]) == 1
    captured = capsys.readouterr()
    assert "seed 5" in captured.out
    assert "IndexError" in captured.err
    with pytest.raises(IndexError):
        fuzz.main(["--reproduce", "footer", captured.err.split()[-1]])


def test_the_fuzzer_finds_nothing_in_a_short_run(seed: int) -> None:
    """Ten thousand inputs with the seed of this test run; `make fuzz` takes a million."""
    assert fuzz.main(["--inputs", "10000", "--seed", str(seed)]) == 0
