"""A reader beside the owner: damaged files give it the right messages or a typed error, like anybody else."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from penstock.errors import Corrupt
from penstock.volume.reader import VolumeReader
from tests.bad_bytes.faults import CACHES, KINDS, flips, truncations
from tests.bad_bytes.stores import STORE, STORES, Fault, SilentLoss, Store, stored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.testing import SimulatedFileSystem

READ = ("segments of always", "segments of os", *CACHES)
"""What a reader takes messages from; what it takes their number from is another matter, and is not checked by a checksum."""
CASES = [
    (condition, kind) for condition in ("closed", "killed") for kind in READ if (condition, kind) != ("killed", "index caches")
]
"""A killed store left no index cache."""


def examine_reader(fault: Fault, store: Store) -> None:
    """
    Read the topic that is damaged from its start and from each other offset.

    Raises `SilentLoss` if anything but the right batch or `Corrupt` comes.
    """
    try:
        reader = VolumeReader.open(STORE, files=fault.files)
    except Corrupt:
        return
    for topic, expected in store.batches.items():
        log = reader.log(topic)
        if log.committed_end != expected[-1].end_offset:
            raise SilentLoss(f"{fault.name}: {topic} ends at {log.committed_end}")
        if "/topics/" in fault.path and f"/{topic}/" not in fault.path:
            continue
        for number, batch in enumerate(expected):
            for offset in range(batch.first_offset, batch.end_offset):
                try:
                    found = [stored(one) for one in log.read(offset, 1 if offset else 1 << 20)]
                except Corrupt:
                    continue
                if not found or found != expected[number : number + len(found)]:
                    raise SilentLoss(f"{fault.name}: offset {offset} of {topic} gave {found}")
    reader.close()


def examine_readers(store: Store, faults: Iterator[Fault]) -> None:
    """One at a time: each fault holds a store of its own, and all of them together do not fit into memory."""
    lost = []
    examined = 0
    for fault in faults:
        examined += 1
        try:
            examine_reader(fault, store)
        except SilentLoss as error:
            lost.append(str(error))
    assert not lost, f"{len(lost)} of {examined}, of which the first are:\n" + "\n".join(lost[:10])
    assert examined


@pytest.mark.parametrize(("condition", "kind"), CASES)
def test_a_reader_never_passes_over_a_damaged_batch(condition: str, kind: str) -> None:
    """One bit of each byte flipped, another one from byte to byte."""
    store = STORES[condition]()
    examine_readers(store, flips(store, kind, every_bit=False))


@pytest.mark.long
@pytest.mark.parametrize(("condition", "kind"), CASES)
def test_a_reader_never_passes_over_a_damaged_batch_at_any_bit(condition: str, kind: str) -> None:
    """All bits."""
    store = STORES[condition]()
    examine_readers(store, flips(store, kind, every_bit=True))


@pytest.mark.parametrize("kind", READ)
def test_a_reader_misses_what_was_cut_off(kind: str) -> None:
    """Each file at each length below its own."""
    store = STORES["closed"]()
    examine_readers(store, truncations(store, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_a_reader_changes_no_file(kind: str) -> None:
    """Neither what is damaged nor anything else."""
    store = STORES["killed"]()
    for number, fault in enumerate(flips(store, kind, every_bit=False)):
        if number % 16:
            continue
        before = fault.files.files()
        with contextlib.suppress(SilentLoss):  # the tests above judge that
            examine_reader(fault, store)
        assert fault.files.files() == before, fault.name


def test_a_reader_of_an_undamaged_store_reads_all() -> None:
    """Else the tests above would test nothing."""
    for condition in ("closed", "killed"):
        store = STORES[condition]()
        files: SimulatedFileSystem = store.files.kill()
        examine_reader(Fault("undamaged", "", files), store)
        assert VolumeReader.open(STORE, files=files).log("os").committed_end == 7
