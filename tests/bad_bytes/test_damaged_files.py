"""Whole files that are cut short, deleted, overwritten, swapped or set back: all is read back as it was, or a typed error comes."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

import pytest

from penstock.errors import MissingData, StoreNotFound
from penstock.testing import SimulatedFileSystem
from penstock.volume.volume import Volume
from tests.bad_bytes.faults import CACHES, KINDS, files_of, fills, truncations
from tests.bad_bytes.stores import SETTINGS, STORE, STORES, Fault, Store, closed_store, examine, examine_all, killed_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

CONDITIONS = ("closed", "killed")


def rules(condition: str, kind: str) -> Callable[[Fault, str], bool]:
    """What may come of damage to this kind of file."""
    must_be_whole = kind in (*CACHES, "checkpoints") or (kind, condition) == ("journal", "closed")

    def allows(fault: Fault, outcome: str) -> bool:
        return outcome == "whole" or (outcome != "SilentLoss" and not must_be_whole)

    return allows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_file_cut_at_any_byte_is_missed_or_not_needed(condition: str, kind: str) -> None:
    """Each file at each length below its own; of preallocated zeros a sample of lengths."""
    store = STORES[condition]()
    examine_all(store, truncations(store, kind), rules(condition, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", STORES)
def test_a_deleted_file_is_missed_or_not_needed(condition: str, kind: str) -> None:
    """Opening makes nothing new in the place of what is gone, unless it is a cache."""
    store = STORES[condition]()
    faults = [Fault(f"{path} deleted", path, store.without_file(path)) for path in files_of(store, kind)]
    if (condition, kind) == ("powerless", "journal"):
        # The power cut made the journal the only place of the last messages, and the checkpoint names the file they are in.
        assert {examine(fault.files, store) for fault in faults} == {"whole", "MissingData"}
        return
    examine_all(store, faults, rules(condition, kind))


@pytest.mark.parametrize("byte", [0, 0xFF])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_an_overwritten_sector_is_reported_or_not_needed(condition: str, kind: str, byte: int) -> None:
    """512 bytes of zeros or ones anywhere, on a boundary of sectors and across it."""
    store = STORES[condition]()
    examine_all(store, fills(store, kind, byte), rules(condition, kind))


@pytest.mark.parametrize("kind", ["index caches", "positions", "LOCK"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_caches_may_hold_anything(condition: str, kind: str, rng: Random) -> None:
    """Random bytes, ones only, something empty or far too long: the store opens, and all of it is there."""
    store = STORES[condition]()
    faults = []
    for path, content in files_of(store, kind).items():
        contents = [
            b"", b"\xff" * len(content), bytes(len(content)), b"\xff" * 100_000, rng.randbytes(len(content)), content * 3,
            content[: len(content) // 2] + rng.randbytes(len(content) // 2),
        ]  # fmt: skip
        faults += [Fault(f"{path} is {garbage[:20]!r}...", path, store.with_file(path, garbage)) for garbage in contents]
    examine_all(store, faults, lambda _, outcome: outcome == "whole")


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_store_opens_without_any_of_its_caches(condition: str) -> None:
    """All of them gone at once."""
    store = STORES[condition]()
    files = store.files.kill()
    for kind in ("index caches", "positions", "LOCK"):
        for path in files_of(store, kind):
            files.unlink(path)
    assert examine(files, store) == "whole"


@pytest.mark.parametrize("condition", STORES)
def test_swapped_segments_are_noticed(condition: str) -> None:
    """Each file says which log and which offset it is for, also when both are undamaged."""
    store = STORES[condition]()
    segments = {**files_of(store, "segments of always"), **files_of(store, "segments of os")}
    assert len(segments) >= 2
    for (one, content), (other, other_content) in combinations(segments.items(), 2):
        files = store.files.kill()
        files.replace(one, other_content)
        files.replace(other, content)
        assert examine(files, store) in {"DamagedFile", "MissingData"}, (one, other)


@pytest.mark.parametrize("kind", ["checkpoints", "journal", "index caches"])
@pytest.mark.parametrize("condition", STORES)
def test_swapped_files_of_one_kind_are_noticed_or_do_no_harm(condition: str, kind: str) -> None:
    """The number of a checkpoint, the name of a journal file and the uid of an index all stand inside the file."""
    store = STORES[condition]()
    faults = []
    for (one, content), (other, other_content) in combinations(files_of(store, kind).items(), 2):
        files = store.files.kill()
        files.replace(one, other_content)
        files.replace(other, content)
        faults.append(Fault(f"{one} and {other} swapped", one, files))
    examine_all(store, faults, rules(condition, kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_an_older_copy_of_a_file_is_noticed_or_does_no_harm(condition: str, kind: str) -> None:
    """As after a restore of one file, or a disk that lost a write which it had acknowledged."""
    store = STORES[condition]()
    examine_all(store, older_copies(store, kind), rules(condition, kind))


@pytest.mark.parametrize("condition", ["reopened", "powerless", "referring"])
def test_an_older_copy_of_a_checkpoint_does_not_pass_for_the_last_one(condition: str) -> None:
    """
    Then the other checkpoint is the latest, and it says that the store was closed in order, which is not true any more.

    The two that are there follow each other, so that only the journal can tell: it has frames that neither of them knows.
    """
    store = STORES[condition]()
    faults = older_copies(store, "checkpoints")
    assert faults
    examine_all(store, faults)


def older_copies(store: Store, kind: str) -> list[Fault]:
    return [
        Fault(f"{path} as it was in state {number}", path, store.with_file(path, copy))
        for path in files_of(store, kind)
        for number, copy in enumerate(store.older.get(path, []))
    ]


def test_there_are_older_copies_of_what_changes() -> None:
    """Else the test above would test nothing."""
    for kind in ("checkpoints", "journal", "segments of always", "segments of os", "positions"):
        assert older_copies(killed_store(), kind)
    assert older_copies(closed_store(), "checkpoints")


def test_a_store_without_its_identity_is_not_taken_for_an_empty_folder() -> None:
    """Neither with nor without `create`: it holds data, so it is `MissingData` and not `StoreNotFound`."""
    files = closed_store().without_file(f"{STORE}/store.json")
    for create in (True, False):
        with pytest.raises(MissingData, match="identity"):
            Volume.open(STORE, settings=SETTINGS, files=files, create=create, background=False)
    with pytest.raises(StoreNotFound):
        Volume.open(STORE, settings=SETTINGS, files=SimulatedFileSystem(), create=False, background=False)


def test_a_topic_whose_folder_lost_its_segments_is_missed() -> None:
    """All segments of one log gone at once, as after a careless `rm`: the checkpoint and the journal know better."""
    for make in (closed_store, killed_store):
        store = make()
        for kind in ("segments of always", "segments of os"):
            files = store.files.kill()
            for path in files_of(store, kind):
                files.unlink(path)
            assert examine(files, store) == "MissingData"
