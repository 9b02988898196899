"""Damage hides only what is damaged: what lies before it is read and delivered, and what lies behind it can be read from there on."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import Corrupt
from penstock.format.batch_header import MAGIC
from penstock.store import checking

if TYPE_CHECKING:
    from pathlib import Path

COUNT, BAD = 40, 20


@pytest.fixture(params=["value", "header", "length"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A closed store with a topic of two partitions; in partition 0 a message in the middle is damaged, in one of its parts."""
    path = str(tmp_path / "data")
    with penstock.open(path) as store:
        store.create_topic("t", partitions=2, segment_bytes=6000)
        for number in range(COUNT):
            store.publish("t", b"zero %d" % number, partition=0)
            store.publish("t", b"one %d" % number, partition=1)
    damage(path, f"{path}/topics/t/0", BAD, request.param)
    return path


def damage(path: str, folder: str, offset: int, part: str) -> None:
    """Flip a bit of the message at *offset*; the caches of indexes go, so that nobody finds his way around it by them."""
    for name in glob.glob(f"{path}/topics/t/*/*.idx"):
        os.unlink(name)
    for name in sorted(glob.glob(f"{folder}/*.log")):
        with open(name, "r+b") as file:
            data = file.read()
            at = data.find(b"zero %d" % offset)
            if at < 0:
                continue
            if part != "value":
                at = data.rfind(MAGIC, 0, at) + (8 if part == "length" else 30)
            file.seek(at)
            file.write(bytes([data[at] ^ 1]))
            return
    raise AssertionError("the message is not there")


def _open(path: str, *, read_only: bool) -> Any:
    return penstock.open(path, read_only=True) if read_only else penstock.open(path)


def _values(messages: Any) -> list[bytes]:
    return [bytes(message.value or b"") for message in messages]


@pytest.mark.parametrize("read_only", [False, True], ids=["owner", "reader"])
def test_what_is_asked_for_before_the_damage_is_read(damaged: str, *, read_only: bool) -> None:
    """By its end, by its number, and up to the damage."""
    with _open(damaged, read_only=read_only) as store:
        assert _values(store.read("t", partition=0, end=1)) == [b"zero 0"]
        assert _values(store.read("t", partition=0, max_messages=5)) == [b"zero %d" % number for number in range(5)]
        assert _values(store.read("t", partition=0, end=BAD)) == [b"zero %d" % number for number in range(BAD)]
        found: list[bytes] = []
        with pytest.raises(Corrupt):
            found.extend(bytes(message.value or b"") for message in store.read("t", partition=0))
        assert found == [b"zero %d" % number for number in range(BAD)]


@pytest.mark.parametrize("read_only", [False, True], ids=["owner", "reader"])
def test_what_lies_behind_the_damage_is_read(damaged: str, *, read_only: bool) -> None:
    """From each offset behind it on, however near."""
    with _open(damaged, read_only=read_only) as store:
        for start in range(BAD + 1, COUNT):
            assert _values(store.read("t", partition=0, start=start)) == [b"zero %d" % number for number in range(start, COUNT)]
        with pytest.raises(Corrupt):
            list(store.read("t", partition=0, start=BAD))
        assert _values(store.read("t", partition=1)) == [b"one %d" % number for number in range(COUNT)]


def test_a_group_gets_what_lies_before_it_and_the_other_partition(damaged: str) -> None:
    """Then the error comes, again and again: nothing is passed over in silence. Who seeks over it gets the rest."""
    with penstock.open(damaged) as store:
        got: set[bytes] = set()
        errors = 0
        with store.subscribe("t", "g") as consumer:
            while errors < 3:
                try:
                    message = consumer.get(timeout=0.2)
                except Corrupt:
                    errors += 1
                    continue
                assert message is not None, "the consumer was told that there is nothing more"
                with message:
                    got.add(bytes(message.value or b""))
        assert got == {b"zero %d" % number for number in range(BAD)} | {b"one %d" % number for number in range(COUNT)}
        store.seek("t", "g", BAD + 1, partition=0)
        with store.subscribe("t", "g") as consumer:
            while (message := consumer.get(timeout=0.2)) is not None:
                with message:
                    got.add(bytes(message.value or b""))
        assert len(got) == 2 * COUNT - 1


def test_a_repaired_store_goes_on_behind_the_gap(damaged: str) -> None:
    """The group gets all but the one that is lost."""
    assert not checking.verify(damaged).is_sound
    assert checking.repair(damaged).lost
    assert checking.verify(damaged).is_sound
    with penstock.open(damaged) as store, store.subscribe("t", "g") as consumer:
        got = []
        while (message := consumer.get(timeout=0.2)) is not None:
            with message:
                got.append(bytes(message.value or b""))
        lost = {b"zero %d" % number for number in range(COUNT)} - set(got)
        assert lost <= {b"zero %d" % BAD}
