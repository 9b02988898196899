"""A volume with one topic, on a simulated disk that can be killed at any operation or lose its power."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import SimulatedFileSystem
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.log.partition_log import PartitionLog
    from penstock.testing import Operation

PATH = "/store"
SETTINGS = StoreSettings(
    journal_file_bytes=64 * 1024, frame_bytes=16 * 1024, reference_bytes=8 * 1024, free_bytes_floor=0, reserve_bytes=0
)
LARGE = b"x" * 9_000
"""Too large for the journal: it goes into the log, and a reference to it into the journal."""


def open_volume(files: SimulatedFileSystem) -> Volume:
    """The volume on this disk; nothing happens in it by itself."""
    return Volume.open(PATH, settings=SETTINGS, files=files, background=False)


def new_volume(topic: TopicSettings | None = None) -> tuple[SimulatedFileSystem, Volume, PartitionLog]:
    """A new disk, a volume on it, and the log of its topic `a`."""
    files = SimulatedFileSystem()
    volume = open_volume(files)
    volume.create_topic("a", 1, topic)
    return files, volume, volume.log("a")


def power_loss(files: SimulatedFileSystem) -> SimulatedFileSystem:
    """The disk after a power loss that took everything that was not synced."""
    return files.crash(random.Random(1), keep="nothing")


class Killed(BaseException):
    """Ends what is being done in the middle, as SIGKILL would."""


def kill_at(files: SimulatedFileSystem, kind: str, path_contains: str, work: Callable[[], object]) -> SimulatedFileSystem:
    """Do *work* until just before the first operation of this kind on such a file; returns the disk as the next process finds it."""
    disks: list[SimulatedFileSystem] = []

    def kill(operation: Operation) -> None:
        if operation.kind == kind and path_contains in operation.path:
            files.on_operation = None
            disks.append(files.kill())
            raise Killed

    files.on_operation = kill
    with pytest.raises(Killed):
        work()
    return disks[0]
