"""
One flipped bit anywhere in a store: all is read back as it was written, or a typed error says that it is not.

One bit of each byte of every file is flipped, another one from byte to byte, in stores of every condition. The long run flips
every bit of closed and killed stores, and half of all bits of the others; which half, the seed says.
Of preallocated zeros that lie more than 64 bytes behind the last byte in use (journal files, `positions`) every 97th byte is tried.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from penstock.errors import Corrupt
from tests.bad_bytes.faults import CACHES, KINDS, files_of, flipped, flips, frames_of
from tests.bad_bytes.stores import (
    STORES,
    Fault,
    SilentLoss,
    Store,
    closed_store,
    examine,
    examine_all,
    killed_store,
    open_volume,
)

AFTER_A_POWER_CUT = ("powerless", "referring")


def examine_flips(condition: str, kind: str, *, every_bit: bool, half: int | None = None) -> None:
    """Flip bits in all files of a kind; fails unless each flip is harmless or reported."""
    store = STORES[condition]()
    # Either checkpoint alone is enough to recover, and after an orderly closing nobody needs the journal.
    must_be_whole = kind in (*CACHES, "checkpoints") or (kind, condition) == ("journal", "closed")

    def allows(fault: Fault, outcome: str) -> bool:
        return outcome == "whole" or (outcome != "SilentLoss" and not must_be_whole)

    faults = flips(store, kind, every_bit=every_bit, half=half)
    if kind == "journal" and condition in AFTER_A_POWER_CUT:
        begin, end = last_frame(store)
        last = max(files_of(store, "journal"))
        torn = {f"{last} byte {at} " for at in range(begin, end)}
        faults = (fault for fault in faults if fault.name.rpartition("bit")[0] not in torn)
    examine_all(store, faults, allows)


def last_frame(store: Store) -> tuple[int, int]:
    """Where in the last journal file its last frame lies."""
    journal = files_of(store, "journal")
    return frames_of(journal[max(journal)])[-1]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", STORES)
def test_a_flipped_bit_in_each_byte_is_harmless_or_reported(condition: str, kind: str) -> None:
    """Never other data, never fewer messages without an error, no error that is not `Corrupt`; caches do no harm at all."""
    examine_flips(condition, kind, every_bit=False)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", STORES)
def test_each_flipped_bit_is_harmless_or_reported_in_every_condition(condition: str, kind: str, seed: int) -> None:
    """All bits of what the test above flips in part; except in two conditions half of them, and another half in the next run."""
    examine_flips(condition, kind, every_bit=True, half=None if condition in ("closed", "killed") else seed)


@pytest.mark.parametrize("condition", AFTER_A_POWER_CUT)
def test_after_a_power_cut_a_damaged_last_frame_passes_for_a_torn_one(condition: str) -> None:
    """
    Nothing can tell the last frame, damaged, from one that was being written when the power went: the log ends before it.

    It is the only loss that no error tells of, and no other frame goes with it.
    """
    store = STORES[condition]()
    shorter = replace(store, batches={**store.batches, "always": store.batches["always"][:-1]})
    path, content = max(files_of(store, "journal").items())
    for at in range(*last_frame(store)):
        examine(store.with_file(path, flipped(content, at, at % 8)), shorter, path)


def changed_by_refusals(store: Store, kind: str, step: int) -> list[str]:
    """Damage every *step*-th byte of all files of a kind, and say what a refused opening changed although it should not."""
    changed: list[str] = []
    for fault in islice(flips(store, kind, every_bit=False), 0, None, step):
        before = fault.files.files()
        try:
            open_volume(fault.files)
        except Corrupt as error:
            after = fault.files.files()
            for path, content in before.items():
                if not path.endswith((".idx", "/positions", "/LOCK")) and after.get(path) != content:
                    gone = "is gone" if path not in after else f"has {len(after[path])} bytes instead of {len(content)}"
                    changed.append(f"{fault.name}: {path} {gone} after {type(error).__name__}: {error}")
    return changed


@pytest.mark.parametrize("kind", ["journal", "segments of always", "segments of os"])
@pytest.mark.parametrize("condition", ["killed", "reopened", "referring"])
def test_a_refused_opening_changes_nothing(condition: str, kind: str) -> None:
    """
    What the error says is true: after `Corrupt` every file but the caches is as it was, so that nothing gets worse by trying.

    Every third byte is damaged, in one bit; the long run damages each byte of all kinds of files.
    """
    changed = changed_by_refusals(STORES[condition](), kind, 3)
    assert not changed, f"{len(changed)} refusals, of which the first are:\n" + "\n".join(changed[:10])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", STORES)
def test_a_refused_opening_changes_nothing_in_any_condition(condition: str, kind: str) -> None:
    """The same with each byte."""
    changed = changed_by_refusals(STORES[condition](), kind, 1)
    assert not changed, f"{len(changed)} refusals, of which the first are:\n" + "\n".join(changed[:10])


def test_a_flipped_bit_is_found_by_every_way_of_reading() -> None:
    """
    A reader that hops over batches to its offset must not hop on a damaged header: it would skip a message silently.

    Found by flipping: opening goes on from the index cache and does not look at the batches before it, and the search for an
    offset used length and offset of headers whose checksum nobody had checked.
    """
    store = closed_store()
    lost = []
    for path, content in files_of(store, "segments of os").items():
        magic = content.find(b"PSB1", 256)
        while magic >= 0:
            for at in range(magic + 24, magic + 48):
                for bit in range(8):
                    try:
                        examine(store.with_file(path, flipped(content, at, bit)), store, path)
                    except SilentLoss:
                        lost.append(f"{path} byte {at} bit {bit}: field at {at - magic} of the batch")
            magic = content.find(b"PSB1", magic + 1)
    assert not lost, lost


def test_the_stores_are_what_they_should_be() -> None:
    """The undamaged stores are whole, and hold what the tests of this folder count on."""
    for make in STORES.values():
        store = make()
        assert examine(store.files.kill(), store) == "whole"
    assert files_of(closed_store(), "index caches")
    assert len(files_of(killed_store(), "segments of always")) == 2
