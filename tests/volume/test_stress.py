"""Many threads at once on a real disk: appends of every kind, checkpoints, coalescing, retention and readers."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from penstock.errors import OffsetOutOfRange
from penstock.format.batch import encode_batch, encode_single
from penstock.settings import StoreSettings, TopicSettings
from penstock.values import SyncMode
from penstock.volume.reader import VolumeReader
from penstock.volume.tickets import Append
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from penstock.log.partition_log import PartitionLog

SETTINGS = StoreSettings(
    journal_file_bytes=256 * 1024,
    frame_bytes=64 * 1024,
    reference_bytes=4 * 1024,
    checkpoint_bytes=128 * 1024,
    checkpoint_interval_ms=20,
    sync_interval_ms=5,
    free_bytes_floor=0,
    reserve_bytes=0,
)
SMALL = TopicSettings(segment_bytes=16 * 1024, index_interval_bytes=512, coalesce_below_bytes=2_000, coalesce_to_bytes=8_000)
APPENDS = 250


def _follow(log: PartitionLog, count: int, values: list[bytes], errors: list[BaseException]) -> None:
    """Read a log from its start to *count* messages while it is written."""
    at = 0
    try:
        while at < count:
            if not log.wait_for(at, timeout=100):
                raise AssertionError(f"{log} stopped at {at}")
            for batch in log.read(at):
                for index in range(batch.index_of(at), len(batch)):
                    assert batch.offset(index) == at
                    values.append(bytes(batch.value(index) or b""))
                    at += 1
    except BaseException as error:
        errors.append(error)


def test_threads_publish_and_read_while_segments_roll_merge_and_go(tmp_path: Path) -> None:
    """No deadlock, no lost or doubled message, dense offsets; a reader in the same process sees each message once."""
    errors: list[BaseException] = []
    volume = Volume.open(tmp_path / "s", settings=SETTINGS)
    volume.create_topic("always", 2, SMALL)
    volume.create_topic("os", 1, replace(SMALL, sync=SyncMode.OS))
    volume.create_topic("interval", 1, replace(SMALL, sync=SyncMode.INTERVAL))
    volume.create_topic("short", 1, SMALL)

    def guarded(work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)

        return threading.Thread(target=run, daemon=True)

    def publish(name: str, log: PartitionLog) -> None:
        for number in range(APPENDS):
            value = b"%s-%d" % (name.encode(), number)
            if number % 25 == 24:
                volume.append(log, encode_batch([value + b"x" * 5_000]))
            elif number % 10 == 9:
                volume.submit(log, encode_single(value)).wait(100)
            else:
                volume.append(log, encode_single(value))

    def publish_both() -> None:
        logs = [volume.log("always", 0), volume.log("always", 1)]
        for number in range(APPENDS):
            volume.submit_changes([Append(log, encode_single(b"both-%d" % number)) for log in logs]).wait(100)

    def expire() -> None:
        log = volume.log("short")
        for number in range(APPENDS):
            volume.append(log, encode_single(b"%d" % number))
            if number % 40 == 39:
                volume.checkpoint()
                volume.retain(log, messages_max=20)

    writers = [
        guarded(lambda: publish("a", volume.log("always", 0))),
        guarded(lambda: publish("b", volume.log("always", 0))),
        guarded(lambda: publish("c", volume.log("always", 1))),
        guarded(publish_both),
        guarded(lambda: publish("d", volume.log("os"))),
        guarded(lambda: publish("e", volume.log("os"))),
        guarded(lambda: publish("f", volume.log("interval"))),
        guarded(expire),
    ]
    followed: dict[tuple[str, int], list[bytes]] = {}
    readers = []
    for topic, partition, count in (("always", 0, 3 * APPENDS), ("always", 1, 2 * APPENDS), ("os", 0, 2 * APPENDS)):
        values = followed[topic, partition] = []
        arguments = (volume.log(topic, partition), count, values, errors)
        readers.append(threading.Thread(target=_follow, args=arguments, daemon=True))
    for thread in [*writers, *readers]:
        thread.start()
    for thread in [*writers, *readers]:
        thread.join(120)
        assert not thread.is_alive(), f"{thread} hangs; {errors}"
    assert errors == []
    for values in followed.values():
        assert len(set(values)) == len(values)
    for prefix in (b"a-", b"b-", b"both-"):
        numbers = [int(value.split(b"-")[1].rstrip(b"x")) for value in followed["always", 0] if value.startswith(prefix)]
        assert numbers == list(range(APPENDS))
    with VolumeReader.open(tmp_path / "s") as reader:
        assert reader.ends([reader.log("always", 0), reader.log("os")]) == [3 * APPENDS, 2 * APPENDS]
    volume.close()
    again = Volume.open(tmp_path / "s", settings=SETTINGS)
    for key, values in followed.items():
        log = again.log(*key)
        assert log.committed_end == len(values)
        found: list[bytes] = []
        _follow(log, len(values), found, errors)
        assert found == values
    log = again.log("short")
    assert log.log_start > 0
    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(0)
    assert caught.value.first == log.log_start
    again.close()
    assert errors == []
