"""Stages that are made beside the owner."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import penstock
from penstock.errors import BadArgument, TopicNotFound
from penstock.store.outside import stage_outside
from penstock.topics import stages
from penstock.volume.verification import verify
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path


def rows(count: int, size: int = 100) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([b"%08d" % n + bytes(size) for n in range(count)], pa.binary())], ["value"])


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    with penstock.Store.open(path, settings=SETTINGS) as store:
        store.create_topic("t", segment_bytes=8 * 1024 * 1024)
    return path


def values(path: str) -> list[bytes | None]:
    with penstock.open(path, read_only=True) as store:
        return [message.value for message in store.read("t")]


@pytest.mark.parametrize("count", [10, 100_000])
def test_a_stage_made_beside_the_owner_is_committed_by_it(path: str, count: int) -> None:
    """Small ones are copied, and large ones become segments; nothing is visible before."""
    owner = penstock.Store.open(path, settings=SETTINGS)
    with penstock.open(path, read_only=True) as reader:
        with stage_outside(reader, "p") as stage:
            for _ in range(2):
                stage.publish_arrow("t", rows(count))
        assert values(path) == []
    assert owner.commit("p", 0, [stage.identity]).messages == 2 * count
    assert owner.commit("p", 0, [stage.identity]).duplicate
    assert values(path) == rows(count)["value"].to_pylist() * 2
    assert os.listdir(os.path.join(path, "staging")) == []
    owner.close()
    assert not verify(path).findings


def test_keyed_rows_over_many_partitions_are_staged_in_a_batch_for_each(path: str) -> None:
    """Arrow batches of some thousand rows have tiny pieces for each of 64 partitions; rows of one key keep their order."""
    keys = [b"%d" % (number * 7 % 500) for number in range(3_000)]
    with penstock.Store.open(path, settings=SETTINGS) as owner:
        owner.create_topic("keyed", partitions=64)
        with penstock.open(path, read_only=True) as reader, stage_outside(reader, "p") as stage:
            for call in range(12):
                columns = [pa.array([b"%d %d" % (call, n) for n in range(3_000)], pa.binary()), pa.array(keys, pa.binary())]
                stage.publish_arrow("keyed", pa.RecordBatch.from_arrays(columns, ["value", "key"]))
        assert len(owner._staging._stages.load(stage.identity).entries) == 64
        assert owner.commit("p", 0, [stage.identity]).messages == 36_000
        found: dict[bytes, list[bytes]] = {}
        for partition in range(64):
            for message in owner.read("keyed", partition=partition):
                found.setdefault(message.key or b"", []).append(message.value or b"")
    for key in keys[:500]:
        numbers = [number for number, one in enumerate(keys) if one == key]
        assert found[key] == [b"%d %d" % (call, number) for call in range(12) for number in numbers]


def test_an_owner_that_opens_leaves_unfinished_stages_of_others_alone(path: str) -> None:
    """They are finished and committed as if nothing had happened; so each commit may open the store."""
    with penstock.open(path, read_only=True) as reader, stage_outside(reader, "p") as stage:
        stage.publish_arrow("t", rows(60_000))
        penstock.Store.open(path, settings=SETTINGS).close()
        stage.publish_arrow("t", rows(60_000))
    with penstock.Store.open(path, settings=SETTINGS) as store:
        assert store.commit("p", 0, [stage.identity]).messages == 120_000


def test_stages_of_processes_that_died_go_after_a_day(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With their parts."""
    with penstock.open(path, read_only=True) as reader:
        stage = stage_outside(reader, "p")
        stage.publish_arrow("t", rows(60_000))
        assert len(os.listdir(os.path.join(path, "staging"))) == 2
        penstock.Store.open(path, settings=SETTINGS).close()
        assert len(os.listdir(os.path.join(path, "staging"))) == 2
        monkeypatch.setattr(stages, "OUTSIDE_EXPIRY_US", -60_000_000)
        penstock.Store.open(path, settings=SETTINGS).close()
        assert os.listdir(os.path.join(path, "staging")) == []


def test_a_topic_must_be_there(path: str) -> None:
    """Only an owner can make one."""
    with penstock.open(path, read_only=True) as reader, pytest.raises(TopicNotFound), stage_outside(reader, "p") as stage:
        stage.publish_arrow("u", rows(1))
    assert os.listdir(os.path.join(path, "staging")) == []


def test_messages_staged_beside_the_owner_keep_their_options(path: str) -> None:
    with penstock.Store.open(path, settings=SETTINGS) as owner:
        owner.create_topic("urgent", priorities=True, compression="gzip")
        with penstock.open(path, read_only=True) as reader, stage_outside(reader, "p") as stage:
            stage.publish("urgent", b"a" * 5000, ttl=5, priority="high")
            stage.publish_many("urgent", [b"b", b"c"], delays=[None, 7])
            with pytest.raises(BadArgument):
                stage.publish("urgent", b"d", ttl=0)
        assert owner.commit("p", 0, [stage.identity]).messages == 3
        found = list(owner.read("urgent"))
    assert [message.value for message in found] == [b"a" * 5000, b"b", b"c"]
    assert [message.priority for message in found] == ["high", "low", "low"]
    assert [message.expires_at is None for message in found] == [False, True, True]
    assert [message.deliver_at is None for message in found] == [True, True, False]
