"""
A store's owner that is killed and started again, and a reader beside it, as programs.

`serve_owners` forks an owner for each line it gets, so that a start costs no imports; `read_along` reads what the owners write. The
value of each message follows from its log and its offset, so that the reader knows what it must find without asking anybody.
"""

from __future__ import annotations

import json
import os
import random
import select
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingData, OffsetOutOfRange, StoreNotFound, Unavailable
from penstock.format.batch import Batch, EncodedBatch, encode_batch, encode_single
from penstock.settings import StoreSettings, TopicSettings
from penstock.values import SyncMode
from penstock.volume.reader import VolumeReader
from penstock.volume.tickets import Append
from penstock.volume.volume import Volume
from tests.real_disk.writer import STORE

if TYPE_CHECKING:
    from penstock.log.log_reader import LogReader
    from penstock.log.partition_log import PartitionLog

TOPICS: dict[str, tuple[int, TopicSettings]] = {
    "lazy": (1, TopicSettings(sync=SyncMode.OS, segment_bytes=8 * 1024, coalesce_below_bytes=4 * 1024)),
    "pair": (2, TopicSettings(segment_bytes=16 * 1024, coalesce_below_bytes=4 * 1024)),
    "plain": (1, TopicSettings(segment_bytes=4 * 1024, coalesce_below_bytes=4 * 1024)),
}
LOGS = [(topic, partition) for topic, (partitions, _) in TOPICS.items() for partition in range(partitions)]
KEPT = {"lazy": 3000, "plain": 1000}
"""Topics with retention, and how many of their messages are kept."""


def expected_value(topic: str, partition: int, offset: int) -> bytes:
    """What the message at this offset says."""
    head = b"%s/%d-%d;" % (topic.encode(), partition, offset)
    return head * (1 + offset % 5)


def make_batch(log: PartitionLog, first: int, count: int) -> EncodedBatch:
    """The next *count* messages of *log*, which will get the offsets from *first* on."""
    topic, partition = log.identity.topic, log.identity.partition
    values = [expected_value(topic, partition, offset) for offset in range(first, first + count)]
    return encode_single(values[0]) if count == 1 else encode_batch(values)


# -- the owner ----------------------------------------------------------------------------------------------------------


def own(path: str, seed: int, *, idle: bool) -> None:
    """Open the store, say where its logs end, and write until somebody ends it; with *idle* write nothing."""
    volume = Volume.open(path, settings=StoreSettings(**STORE), background=True)
    for name, (partitions, settings) in TOPICS.items():
        volume.create_topic(name, partitions, settings)
    ends = {f"{topic}/{partition}": volume.log(topic, partition).committed_end for topic, partition in LOGS}
    os.write(1, json.dumps({"pid": os.getpid(), "ends": ends}).encode() + b"\n")
    if not idle:
        for work in (_write_plain, _write_pair, _write_lazy, _remove):
            threading.Thread(target=work, args=(volume, random.Random(f"{seed} {work.__name__}"))).start()
    time.sleep(600)


def _write_plain(volume: Volume, rng: random.Random) -> None:
    log = volume.log("plain")
    while True:
        first = log.committed_end
        assert volume.append(log, make_batch(log, first, rng.choice([1, 1, 1, 7, 300]))) == first


def _write_pair(volume: Volume, rng: random.Random) -> None:
    """Both partitions get as many messages each time, so that they end at the same offset whenever somebody looks."""
    logs = [volume.log("pair", 0), volume.log("pair", 1)]
    while True:
        count, first = rng.choice([1, 2, 20]), logs[0].committed_end
        ticket = volume.submit_changes([Append(log, make_batch(log, first, count)) for log in logs])
        ticket.wait()
        assert ticket.first_offsets == [first, first]


def _write_lazy(volume: Volume, rng: random.Random) -> None:
    log = volume.log("lazy")
    while True:
        first = log.committed_end
        strict = SyncMode.ALWAYS if rng.random() < 0.05 else None
        assert volume.append(log, make_batch(log, first, rng.choice([1, 1, 1, 30])), sync=strict) == first
        time.sleep(rng.choice([0, 0.001]))


def _remove(volume: Volume, rng: random.Random) -> None:
    while True:
        time.sleep(rng.uniform(0.005, 0.03))
        topic = rng.choice(list(KEPT))
        volume.retain(volume.log(topic), messages_max=KEPT[topic])


def serve_owners() -> None:
    """Fork an owner for each request, a line of JSON; say how it ended when it has."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                own(**request)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        os.write(1, b'{"ended": %d}\n' % status)


# -- the reader -----------------------------------------------------------------------------------------------------


class Follower:
    """Reads all logs to their ends, over and over, and notes everything that is not as it must be."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._reader = self._open()
        self._next: dict[str, int] = {}
        self.ends: dict[str, int] = {}
        self.anomalies: list[str] = []
        self.counts = {"rounds": 0, "messages": 0, "openings": 1, "overtaken": 0, "unsettled": 0}

    def _open(self) -> VolumeReader:
        while True:
            try:
                return VolumeReader.open(self._path)
            except (StoreNotFound, Unavailable):
                time.sleep(0.005)

    def reopen(self) -> None:
        """Begin anew, and read everything that is there once more."""
        self._reader.close()
        self._reader = self._open()
        self._next = {}
        self.counts["openings"] += 1

    def look(self) -> bool:
        """Ask for the ends; False if there is no topic yet."""
        self._reader.refresh()
        if {record.name for record in self._reader.topics} != set(TOPICS):
            return False
        for topic, partition in LOGS:
            name, end = f"{topic}/{partition}", self._reader.log(topic, partition).committed_end
            if end < self.ends.get(name, 0):
                self.anomalies.append(f"{name} ended at {self.ends[name]} and ends at {end}")
            self.ends[name] = max(self.ends.get(name, 0), end)
        pair = self._reader.ends([self._reader.log("pair", 0), self._reader.log("pair", 1)])
        if pair[0] != pair[1]:
            self.anomalies.append(f"half of a change is seen: {pair}")
        return True

    def follow(self) -> None:
        """Read all that is new."""
        self.counts["rounds"] += 1
        if self.look():
            for topic, partition in LOGS:
                self._follow_log(topic, partition, self._reader.log(topic, partition))

    def _follow_log(self, topic: str, partition: int, log: LogReader) -> None:
        name = f"{topic}/{partition}"
        offset = max(self._next.get(name, 0), log.log_start)
        end = log.committed_end
        while offset < end:
            try:
                batches = log.read(offset, 64 * 1024)
            except OffsetOutOfRange:
                # Allowed if, and only if, retention was quicker; then the start of the log says so.
                if offset >= log.log_start:
                    self.anomalies.append(f"{name}: offset {offset} of [{log.log_start}, {end}) is out of range")
                    return
                self.counts["overtaken"] += 1
                offset = log.log_start
                continue
            except Unavailable:
                self.counts["unsettled"] += 1
                break  # the next owner says where the log begins
            except MissingData as error:
                self.anomalies.append(f"{name}: offset {offset} of [{log.log_start}, {end}) cannot be read: {error}")
                return
            if not batches:
                self.anomalies.append(f"{name}: nothing at offset {offset}, before the end {end}")
                return
            for batch in batches:
                offset = self._check(name, topic, partition, batch, offset)
        self._next[name] = offset

    def _check(self, name: str, topic: str, partition: int, batch: Batch, offset: int) -> int:
        for index in range(batch.index_of(offset), len(batch)):
            if batch.offset(index) != offset:
                self.anomalies.append(f"{name}: offset {batch.offset(index)} where {offset} is next")
                offset = batch.offset(index)
            value = bytes(batch.value(index) or b"")
            if value != expected_value(topic, partition, offset):
                self.anomalies.append(f"{name}: offset {offset} says {value[:60]!r}")
            offset += 1
            self.counts["messages"] += 1
        return offset


def read_along(path: str) -> None:
    """Follow the store until told to stop; a line asks for the ends that can be seen now, and reads to them."""
    follower = Follower(path)
    os.write(1, b"ready\n")
    while True:
        ready, _, _ = select.select([0], [], [], 0)
        if ready:
            command = os.read(0, 100)
            if not command:
                return
            if command == b"reopen\n":
                follower.reopen()
            follower.follow()
            answer: dict[str, Any] = {"ends": follower.ends, "anomalies": follower.anomalies[:20], **follower.counts}
            os.write(1, json.dumps(answer).encode() + b"\n")
        follower.follow()
        if follower.counts["rounds"] % 50 == 0:
            follower.reopen()
