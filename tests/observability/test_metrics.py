"""The snapshot of a store: lag, dead letters, and how long things take, where somebody measures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.client.address import parse_address
from penstock.client.store import RemoteStore
from penstock.errors import Closed, MessageTooLarge
from penstock.files import RealFileSystem
from penstock.format.batch import encode_single
from penstock.server.running import RunningServer
from penstock.store.metrics import BOUNDS_S, Histogram
from penstock.store.store import Store
from penstock.testing import FakeClock
from tests.conformance.backends import SETTINGS
from tests.one_log import replace_of

if TYPE_CHECKING:
    from pathlib import Path


class CountingFiles(RealFileSystem):
    """Counts the files that are opened."""

    opened = 0

    def open(self, *arguments: Any, **options: Any) -> Any:
        self.opened += 1
        return super().open(*arguments, **options)


def test_lag_and_dead_letters_are_told_in_messages_and_seconds(tmp_path: Path) -> None:
    clock = FakeClock()
    with Store.open(tmp_path / "s", settings=SETTINGS, clock=clock, background=False) as store:
        store.publish_many("t", [b"0", b"1"])
        with store.subscribe("t", "g") as consumer:
            clock.advance(10)
            store.publish("t", b"2")
            consumer.get(0).ack()  # type: ignore[union-attr]
            consumer.get(0).reject("bad")  # type: ignore[union-attr]
            store.flush()
            clock.advance(5)
            found = store.metrics().topics["t"]
            assert (found.groups["g"].stats.lag, found.groups["g"].lag_s) == (1, 5.0)
            assert (found.dead_letters, found.dead_letter_age_s) == (1, 5.0)
            consumer.get(0).ack()  # type: ignore[union-attr]
            store.flush()
            assert store.metrics().topics["t"].groups["g"].lag_s == 0


def test_the_bytes_of_a_topic_are_those_of_its_segments(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", settings=SETTINGS, background=False) as store:
        store.create_topic("t", partitions=2, segment_bytes=4_000, retain="always", retention_messages=10)
        for number in range(60):
            store.publish("t", b"x" * 200, partition=number % 2)

        def on_disk() -> int:
            return sum(file.stat().st_size for file in (tmp_path / "s" / "topics" / "t").glob("*/*.log"))

        before = on_disk()
        assert store.stats().topics["t"].bytes == before > 60 * 200
        store._volume.checkpoint()
        store._volume.checkpoint()  # both of them must point behind what is rewritten
        assert store._volume.coalesce() > 0
        assert store.stats().topics["t"].bytes == on_disk() < before, "rewritten segments are counted anew"
        before = on_disk()
        assert store.retain("t").segments > 0
        assert store.stats().topics["t"].bytes == on_disk() < before
        assert store.metrics().topics["t"].stats.bytes == on_disk()
        with penstock.open(tmp_path / "s", read_only=True) as reader:
            assert reader.stats().topics["t"].bytes == on_disk()


def test_asking_again_opens_no_sealed_segment(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", settings=SETTINGS) as store:
        store.create_topic("t", segment_messages=1)
        for _ in range(20):
            store.publish("t", b"x")
    files = CountingFiles()
    with Store.open(tmp_path / "s", settings=SETTINGS, files=files, background=False) as store:
        first = store.stats().topics["t"].bytes
        assert len(store._catalog.get("t").logs[0].segment_firsts) > 10
        opened = files.opened
        store.publish("t", b"y")
        assert store.stats().topics["t"].bytes > first
        assert store.stats().topics["t"].bytes > first
        assert files.opened - opened <= 3


def test_times_are_taken_while_the_store_is_measured(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", settings=SETTINGS) as store:
        store.publish("t", b"0")
        assert store.metrics().fsync is None
        assert "publish" not in vars(store), "off means that the calls are the plain ones"
        store.measure()
        store.publish("t", b"1")
        store.publish_many("t", [b"2", b"3"])
        with store.subscribe("t", "g") as consumer:
            for _ in range(4):
                with consumer.get(30):  # type: ignore[union-attr]
                    pass
        found = store.metrics()
        assert found.fsync is not None
        assert found.fsync.count >= 2
        topic = found.topics["t"]
        assert topic.publish is not None
        assert topic.publish.count == 2
        assert topic.groups["g"].deliver_to_ack is not None
        assert topic.groups["g"].deliver_to_ack.count == 4
        assert 0 < topic.publish.p50 <= topic.publish.p95 <= topic.publish.p99 < 60
        store.measure(on=False)
        assert store.metrics().fsync is None
        assert "publish" not in vars(store)
        store.publish("t", b"4")


def test_a_client_of_a_server_has_the_same_snapshot(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path / "s", settings=SETTINGS) as own,
        RunningServer(own) as server,
        RemoteStore(parse_address(server.address)) as store,
    ):
        store.measure()
        store.publish("t", b"0")
        with store.subscribe("t", "g") as consumer:
            consumer.get(30).reject("bad")  # type: ignore[union-attr]
            consumer.flush()
        topic = store.metrics().topics["t"]
        assert topic.dead_letters == 1
        assert topic.publish is not None
        assert topic.publish.count == 1
        store.measure(on=False)
        assert store.metrics().topics["t"].publish is None


def test_a_client_has_the_times_of_a_server_that_measures(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path / "s", settings=SETTINGS) as own,
        RunningServer(own) as server,
        RemoteStore(parse_address(server.address)) as store,
    ):
        own.measure()
        store.create_topic("many", partitions=3)
        store.create_topic("weak", sync="os")
        store.publish("t", b"0")
        store.publish_many("weak", [b"0"] * 10)
        with store.producer("t", linger=0, name="p") as producer:
            producer.send(b"1").result(60)
        own.publish_many("many", [b"0", b"1", b"2"], keys=[b"a", b"b", b"c"])
        with store.subscribe("t", "g") as consumer:
            consumer.get(30).ack(wait=True)  # type: ignore[union-attr]
        found, here = store.metrics(), own.metrics()
        assert found.topics.keys() == here.topics.keys()
        assert {name: one.publish.count for name, one in found.topics.items() if one.publish} == {"t": 2, "many": 1, "weak": 1}
        assert found.fsync is not None
        assert found.fsync.count > 0
        group = found.topics["t"].groups["g"]
        assert group.deliver_to_ack == here.topics["t"].groups["g"].deliver_to_ack
        assert group.deliver_to_ack is not None
        assert group.deliver_to_ack.count == 1
        assert group.lag_s > 0
        own.measure(on=False)
        store.publish("t", b"2")
        assert (store.metrics().topics["t"].publish, store.metrics().fsync) == (None, None)


def test_a_batch_that_was_refused_is_no_observation(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", settings=SETTINGS) as store:
        store.measure()
        store.create_topic("t", max_message_bytes=10)
        with pytest.raises(MessageTooLarge):
            store.publish("t", b"x" * 11)
        ticket = store._volume._append_ticket(store._volume._committer, store._catalog.get("t").logs[0], encode_single(b"x"))
        ticket.finish(Closed("it"))
        assert store.metrics().topics["t"].publish is None


def test_a_topic_that_is_deleted_is_forgotten_and_made_anew_is_measured_anew(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", settings=SETTINGS) as store:
        store.measure()
        for _ in range(2):
            store.publish("t", b"0")
            with store.subscribe("t", "g") as consumer:
                consumer.get(30).ack()  # type: ignore[union-attr]
            topic = store.metrics().topics["t"]
            assert topic.publish is not None
            assert topic.groups["g"].deliver_to_ack is not None
            assert (topic.publish.count, topic.groups["g"].deliver_to_ack.count) == (1, 1)
            store.delete_topic("t")
            assert not store.metrics().topics
            assert not store._meter.publish  # type: ignore[union-attr]


def test_the_oldest_dead_letter_is_found_without_reading_those_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    with Store.open(tmp_path / "s", settings=SETTINGS, clock=clock, background=False) as store:
        store.create_topic("t")
        with store.subscribe("t", "g") as consumer:
            for number in range(30):
                store.publish("t", b"%d" % number)
                consumer.get(0).reject("bad")  # type: ignore[union-attr]
                clock.advance(1)
        box = store.dead_letters("t")
        assert box.discard(offsets=range(25)) == 25
        reads = []
        log: Any = store._catalog.get("t.dlq").logs[0]
        plain = log.read

        def read(offset: int, *rest: Any) -> Any:
            reads.append(offset)
            return plain(offset, *rest)

        replace_of(monkeypatch, log, "read", read)
        assert [one.offset for one in box] == [25, 26, 27, 28, 29]
        assert min(reads) == 25
        found = store.metrics().topics["t"]
        assert (found.dead_letters, found.dead_letter_age_s) == (5, 5.0)


def test_asking_reads_one_dead_letter_however_many_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While letters come, each question is about another number of them; it read a megabyte each time, and held it meanwhile."""
    clock = FakeClock()
    with Store.open(tmp_path / "s", settings=SETTINGS, clock=clock, background=False) as store:
        consumer = store.subscribe("t", "g")
        read_batches = []
        for number in range(40):
            store.publish("t", b"%d" % number)
            consumer.get(0).reject("bad")  # type: ignore[union-attr]
            clock.advance(1)
            if number == 19:
                # Also where the oldest ones are not the first in the log.
                assert store.dead_letters("t").discard(offsets=[0, 1, 2, 5]) == 4
                log: Any = store._catalog.get("t.dlq").logs[0]
                plain = log.read

                def read(offset: int, *rest: Any, plain: Any = plain) -> Any:
                    found = plain(offset, *rest)
                    read_batches.append(len(found))
                    return found

                replace_of(monkeypatch, log, "read", read)
            if number >= 19:
                topic = store.metrics().topics["t"]
                assert (topic.dead_letters, topic.dead_letter_age_s) == (number + 1 - 4, number + 1 - 3)
        assert sum(read_batches) <= 25


def test_quantiles_lie_in_the_bucket_that_has_them() -> None:
    histogram = Histogram()
    assert histogram.snapshot().p99 == 0
    for _ in range(98):
        histogram.observe(0.0007)
    for _ in range(2):
        histogram.observe(20)
    found = histogram.snapshot()
    assert 0.0005 < found.p50 < found.p95 <= 0.001
    assert 10 < found.p99 <= 30
    assert found.sum_s == pytest.approx(98 * 0.0007 + 40)
    histogram.observe(1e9)
    assert histogram.snapshot().quantile(1) == BOUNDS_S[-1]


def test_a_store_in_memory_is_measured_too() -> None:
    with penstock.open("memory:") as store:
        store.measure()
        store.publish("t", b"0")
        assert store.metrics().topics["t"].publish.count == 1  # type: ignore[union-attr]
