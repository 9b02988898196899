"""The volume against lists: hypothesis chooses operations, crashes and restarts, and shrinks what breaks to a few steps."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from penstock.errors import OffsetOutOfRange
from penstock.format.batch import encode_batch
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.reader import VolumeReader
from penstock.volume.tickets import Append
from penstock.volume.volume import Volume

SETTINGS = StoreSettings(
    journal_file_bytes=16 * 1024, frame_bytes=8 * 1024, reference_bytes=1_000, free_bytes_floor=0, reserve_bytes=0
)
ALWAYS = TopicSettings(segment_bytes=1_500, index_interval_bytes=200, coalesce_below_bytes=700, coalesce_to_bytes=2_000)
WEAK = TopicSettings(sync=SyncMode.OS, segment_bytes=1_500, index_interval_bytes=200, coalesce_below_bytes=700)
LOGS = [("a", 0), ("a", 1), ("weak", 0)]

values = st.lists(
    st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=1_100, max_size=1_200)), min_size=1, max_size=4
)


class VolumeMachine(RuleBasedStateMachine):
    """Each log is a list of values; crashes may take un-synced values from the end of a weak log, and nothing else."""

    @initialize()
    def start(self) -> None:
        """A new store with two kinds of logs."""
        self.files = SimulatedFileSystem()
        self.clock = FakeClock()
        self.model: dict[tuple[str, int], list[bytes | None]] = {key: [] for key in LOGS}
        self.starts = dict.fromkeys(LOGS, 0)
        self.durable = 0
        self._open()
        self.volume.create_topic("a", 2, ALWAYS)
        self.volume.create_topic("weak", 1, WEAK)

    def _open(self) -> None:
        self.volume = Volume.open("/s", settings=SETTINGS, files=self.files, clock=self.clock, background=False)

    @rule(key=st.sampled_from(LOGS), batch=values, strict=st.booleans())
    def append(self, key: tuple[str, int], batch: list[bytes | None], strict: bool) -> None:
        """One batch to one log."""
        self.clock.advance(1)
        sync = SyncMode.ALWAYS if strict else None
        first = self.volume.append(self.volume.log(*key), encode_batch(batch), sync=sync)
        assert first == len(self.model[key])
        self.model[key] += batch
        if key == ("weak", 0) and strict:
            self.durable = len(self.model[key])

    @rule(one=values, two=values)
    def append_together(self, one: list[bytes | None], two: list[bytes | None]) -> None:
        """One change to two logs."""
        ticket = self.volume.submit_changes(
            [Append(self.volume.log("a", 0), encode_batch(one)), Append(self.volume.log("a", 1), encode_batch(two))]
        )
        ticket.wait()
        self.model["a", 0] += one
        self.model["a", 1] += two

    @rule()
    def checkpoint(self) -> None:
        """Everything becomes durable in the logs' own files."""
        self.volume.checkpoint()
        self.durable = len(self.model["weak", 0])

    @rule()
    def coalesce(self) -> None:
        """Rewriting changes nothing that can be seen."""
        self.volume.coalesce()

    @rule(key=st.sampled_from(LOGS), keep=st.integers(0, 10))
    def retain(self, key: tuple[str, int], keep: int) -> None:
        """Old segments go; at least *keep* messages stay."""
        log = self.volume.log(*key)
        self.volume.retain(log, messages_max=keep)
        assert log.log_start >= self.starts[key]
        assert log.committed_end - log.log_start >= min(keep, len(self.model[key]) - self.starts[key])
        self.starts[key] = log.log_start

    @rule(key=st.sampled_from(LOGS))
    def seal(self, key: tuple[str, int]) -> None:
        """A quiet topic's active segment is sealed, unless nothing is in it; nothing of that can be seen."""
        log = self.volume.log(*key)
        active = log.active
        has_messages = active is not None and log.committed_end > active.first_offset
        assert self.volume.roll(log, lambda: log.is_overdue(0, self.clock.now_us() + 1)) == has_messages
        assert not has_messages or log.segment_firsts[-1] == log.committed_end

    @rule()
    def restart(self) -> None:
        """An orderly restart loses nothing."""
        self.volume.close()
        self._open()
        self.durable = len(self.model["weak", 0])

    @rule()
    def kill(self) -> None:
        """A killed process loses nothing."""
        self.files = self.files.kill()
        self._open()
        self.durable = len(self.model["weak", 0])

    @rule(seed=st.integers(0, 1 << 16))
    def lose_power(self, seed: int) -> None:
        """Power loss takes at most the un-synced end of the weak log."""
        self.files = self.files.crash(random.Random(seed))
        self._open()
        end = self.volume.log("weak").committed_end
        assert self.durable <= end <= len(self.model["weak", 0])
        del self.model["weak", 0][end:]
        self.durable = end

    @invariant()
    def logs_equal_their_models(self) -> None:
        """The owner and a reader beside it see exactly the model."""
        if not hasattr(self, "volume"):
            return
        reader = VolumeReader.open("/s", files=self.files)
        for key, expected in self.model.items():
            for log in (self.volume.log(*key), reader.log(*key)):
                start = self.starts[key]
                assert (log.log_start, log.committed_end) == (start, len(expected))
                found: list[bytes | None] = []
                at = start
                while at < log.committed_end:
                    for batch in log.read(at, 500):
                        for index in range(batch.index_of(at), len(batch)):
                            value = batch.value(index)
                            found.append(None if value is None else bytes(value))
                        at = batch.end_offset
                assert found == expected[start:]
                if start:
                    with pytest.raises(OffsetOutOfRange) as caught:
                        log.read(start - 1)
                    assert caught.value.first == start
        reader.close()


TestVolumeModel = VolumeMachine.TestCase
TestVolumeModel.settings = settings(max_examples=250, stateful_step_count=40, deadline=None)
