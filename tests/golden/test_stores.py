"""
Whole stores as version 0.1 wrote them: one that was closed in order, and one whose process was killed.

Their bytes depend on random numbers, so they are not compared: they are opened and read. `LOCK` and `positions`, which name a
process and a boot, are not kept.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from penstock.format.batch import encode_batch, encode_single
from penstock.format.batch_header import Producer
from penstock.format.compression import Codec
from penstock.format.segment import SegmentHeader
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.volume import Volume
from tests.format.strategies import Message, messages
from tests.golden.files import FOLDER, REGENERATE_VARIABLE, may_write, write_files

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.format.batch import EncodedBatch
    from penstock.log.partition_log import PartitionLog

CONDITIONS = ("closed", "killed")
BEGAN_US = 1_700_000_000_000_000
SETTINGS = StoreSettings(
    journal_file_bytes=8192, frame_bytes=4096, reference_bytes=400, checkpoint_bytes=1024, free_bytes_floor=0, reserve_bytes=0
)
TOPICS = {
    ("orders", 2): TopicSettings(sync=SyncMode.ALWAYS, segment_bytes=1500, index_interval_bytes=128),
    ("clicks", 1): TopicSettings(sync=SyncMode.OS, segment_bytes=1500, index_interval_bytes=128, coalesce_to_bytes=4096),
}


def batches(topic: str, partition: int) -> list[EncodedBatch]:
    """What each log holds, one batch a second."""
    name = f"{topic}-{partition}".encode()
    return [
        encode_single(name + b" 0"),
        encode_batch([name + b" 1", None, b""], keys=[b"k", b"", None], headers=[[("h", b"1"), ("h", b"2")], None, []]),
        encode_batch(
            [name + b" 4"], producer=Producer(7, 1, 5), expires_us=[60_000_000], expires_relative=True, priorities=[9]
        ),
        encode_batch([name * 200], codec=Codec.GZIP),
        encode_single(name + b" 6 " + b"x" * 400),
        encode_single(name + b" 7"),
    ]


def expected(topic: str, partition: int) -> list[Message]:
    """What must be read, written out by hand."""
    name = f"{topic}-{partition}".encode()

    def plain(offset: int, value: bytes | None, second: int) -> Message:
        return Message(value, None, [], BEGAN_US + second * 1_000_000, None, None, 0, None, offset)

    second = plain(1, name + b" 1", 2)._replace(key=b"k", headers=[("h", b"1"), ("h", b"2")])
    fifth = plain(4, name + b" 4", 3)._replace(expires_us=BEGAN_US + 63_000_000, priority=9)
    return [
        plain(0, name + b" 0", 1),
        second,
        plain(2, None, 2)._replace(key=b""),
        plain(3, b"", 2),
        fifth,
        plain(5, name * 200, 4),
        plain(6, name + b" 6 " + b"x" * 400, 5),
        plain(7, name + b" 7", 6),
    ]


def write_store(folder: Path, *, killed: bool) -> None:
    """Make a golden store: on a simulated disk, so that nothing of this machine gets into it."""
    files, clock = SimulatedFileSystem(), FakeClock(now_us=BEGAN_US)
    volume = Volume.open("/store", settings=SETTINGS, files=files, clock=clock, background=False)
    logs = []
    for (name, partitions), settings in TOPICS.items():
        volume.create_topic(name, partitions, settings)
        logs += [volume.log(name, partition) for partition in range(partitions)]
    for number in range(6):
        clock.advance(1)
        for log in logs:
            volume.append(log, batches(log.identity.topic, log.identity.partition)[number])
        if number == 2:
            volume.checkpoint()
    if not killed:
        # Only what lies behind both checkpoints is rewritten.
        volume.checkpoint()
        volume.checkpoint()
        assert volume.coalesce() == len(logs)
        volume.close()
    write_files(folder, files)


@pytest.fixture(params=CONDITIONS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of a golden store."""
    folder = FOLDER / f"store-{request.param}"
    if not folder.exists():
        assert may_write(), f"{folder} is missing; {REGENERATE_VARIABLE}=1 writes it"
        write_store(folder, killed=request.param == "killed")
    return shutil.copytree(folder, tmp_path / "store")


def read_all(log: PartitionLog) -> list[Message]:
    found: list[Message] = []
    offset = 0
    while part := log.read(offset):
        found += [message for batch in part for message in messages(batch)]
        offset = part[-1].end_offset
    return found


def test_a_golden_store_is_read_and_written_on(store: Path) -> None:
    """All of its messages are there, it takes new ones, and it is still there when it is opened again."""
    with Volume.open(store, settings=SETTINGS, create=False, background=False) as volume:
        assert [(record.name, record.partitions, record.settings) for record in volume.topics] == [
            (name, partitions, settings) for (name, partitions), settings in sorted(TOPICS.items(), key=lambda item: item[0])
        ]
        for log in volume.logs:
            assert read_all(log) == expected(log.identity.topic, log.identity.partition)
            assert volume.append(log, encode_single(b"new")) == 8
    with Volume.open(store, create=False, background=False) as volume:
        for log in volume.logs:
            found = read_all(log)
            assert found[:-1] == expected(log.identity.topic, log.identity.partition)
            assert found[-1].value == b"new"


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_golden_store_has_every_kind_of_file(condition: str) -> None:
    """So that opening it reads all formats: documents, checkpoints, journal, and sealed, rewritten and active segments."""
    folder = FOLDER / f"store-{condition}"
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {"store.json", "checkpoint-0", "checkpoint-1", "topics/orders/topic.json", "topics/clicks/topic.json"} <= names
    assert any(name.endswith(".wal") for name in names)
    segments = [folder / name for name in sorted(names) if name.endswith(".log")]
    assert len(segments) == 6
    generations = [SegmentHeader.decode(path.read_bytes()).generation for path in segments]
    assert generations == ([1, 0] * 3 if condition == "closed" else [0] * 6)
    assert [path.read_bytes()[-96:-92] == b"PSEN" for path in segments] == [True, False] * 3
    assert any(name.endswith(".idx") for name in names) == (condition == "closed")
