"""Small segments in a log that remembers many producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.settings import TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.volume.test_reading import _open, _read_all

if TYPE_CHECKING:
    from penstock.volume.volume import Volume

SEGMENT_BYTES = 16 * 1024


def _fill(volume: Volume, first: int, count: int) -> list[bytes]:
    log = volume.log("t")
    values = [b"%08d" % number for number in range(first, first + count)]
    for number, value in enumerate(values, first):
        volume.append(log, encode_batch([value], producer=Producer(2 * (number % 500) + 2, 1, number // 500)))
    return values


def test_a_segment_has_as_much_of_batches_as_of_producers_that_the_log_remembers() -> None:
    """When the state of the log outgrew `segment_bytes`, each batch began a segment of its own, with all of the state before it."""
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, TopicSettings(segment_bytes=SEGMENT_BYTES))
    values = _fill(volume, 0, 1_000)
    log = volume.log("t")
    before = len(log.segment_firsts)
    state_bytes = len(log.state.encode().data)
    assert state_bytes > 2 * SEGMENT_BYTES
    values += _fill(volume, 1_000, 1_000)
    assert len(log.segment_firsts) - before <= 10
    # 703 kB in 15 segments, half of it state; it was 78 MB in 1,623.
    assert log.stored_bytes < 1_000_000
    producers = dict(log.state.recent)
    volume.close()
    volume = _open(files, clock)
    assert [value for _, value, *_ in _read_all(volume.log("t"))] == values
    assert volume.log("t").state.recent == producers


def test_few_producers_change_nothing_about_when_a_segment_ends() -> None:
    files, clock = SimulatedFileSystem(), FakeClock()
    volume = _open(files, clock)
    volume.create_topic("t", 1, TopicSettings(segment_bytes=SEGMENT_BYTES))
    log = volume.log("t")
    for number in range(300):
        volume.append(log, encode_batch([b"x" * 400], producer=Producer(2, 1, number)))
    sizes = [log.segment_bytes(first) for first in log.segment_firsts[:-1]]
    assert len(sizes) > 5
    assert all(SEGMENT_BYTES * 0.9 < size <= SEGMENT_BYTES for size in sizes)
