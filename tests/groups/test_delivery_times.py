"""How long messages waited: counted by batch and window, written once, and free where nobody asked for it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadSetting, OutcomeUnknown, ReservedName
from penstock.groups.delivery_times import (
    WAIT_MAX_US,
    WINDOW_US,
    WINDOWS_MAX,
    Window,
    bucket_bounds_us,
    bucket_of,
)
from penstock.groups.leasing import Leasing
from penstock.settings import StoreSettings
from penstock.store.delivery_records import DeliveryRecords
from penstock.store.store import Store
from penstock.testing import FakeClock
from penstock.topics.catalog import Catalog
from penstock.topics.topic import Topic
from tests.groups.sim import Sim, numbered, one, take

if TYPE_CHECKING:
    import random
    from pathlib import Path

WINDOW_S = WINDOW_US / 1e6
MANY: dict[str, Any] = {
    "segment_bytes": 2_000,
    "coalesce_below_bytes": 2_000,
    "coalesce_to_bytes": 900,
    "index_interval_bytes": 64,
}
"""Settings that make a segment of some messages, and merge them."""


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.store.create_topic("t", record_deliveries=True, **MANY)
    return sim


def write(sim: Sim) -> int:
    return sim.store._deliveries.write()


def records(sim: Sim, topic: str = "t") -> list[dict[str, Any]]:
    return [json.loads(message.value or b"") for message in sim.store.read(f"{topic}.deliveries")]


def waits_ms(record: dict[str, Any]) -> list[float]:
    """The highest wait of each bucket, as often as it was seen."""
    return [(bucket_bounds_us(bucket)[1] - 1) / 1000 for bucket, count in record["buckets"] for _ in range(count)]


def near(wanted_ms: list[float]) -> Any:
    return pytest.approx(wanted_ms, rel=1 / 32, abs=0.001)


# -- buckets ------------------------------------------------------------------------------------------------------------


def test_buckets_tile_all_waits_and_none_is_wider_than_a_thirty_second_of_its_lowest(rng: random.Random) -> None:
    last = bucket_of(WAIT_MAX_US)
    assert last < 1_500
    end = 0
    for bucket in range(last + 1):
        low, high = bucket_bounds_us(bucket)
        assert low == end
        assert high - low <= max(1, low / 32)
        assert bucket_of(low) == bucket_of(high - 1) == bucket
        end = high
    assert end == WAIT_MAX_US + 1
    for wait in [rng.randrange(1 << rng.randrange(1, 50)) for _ in range(2_000)]:
        low, high = bucket_bounds_us(bucket_of(wait))
        assert low <= wait < high
    assert bucket_of(-5) == 0
    assert bucket_of(1 << 60) == last


# -- what is counted ----------------------------------------------------------------------------------------------------


def test_the_wait_of_each_message_is_from_its_appending_until_it_is_handed_out(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(3))
    sim.clock.advance(0.25)
    sim.store.publish_many("t", numbered(2))
    sim.clock.advance(0.75)
    consumer = sim.store.subscribe("t", "g")
    assert len(consumer.get_many(10, 0)) == 5
    sim.clock.advance(WINDOW_S)
    assert write(sim) == 1
    [record] = records(sim)
    assert waits_ms(record) == near([750, 750, 1000, 1000, 1000])
    buckets = record.pop("buckets")
    assert sum(count for _, count in buckets) == 5
    assert record == {
        "version": 1, "group": "g", "window_start_us": 1_700_000_000_000_000, "window_us": WINDOW_US, "delivered": 5, "redelivered": 0,
        "max_us": 1_000_000,
    }  # fmt: skip
    [message] = sim.store.read("t.deliveries")
    assert message.key == b"g"


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages each addition was for."""
    found: list[int] = []
    plain = Window.add

    def counted(self: Window, wait_us: int, count: int) -> None:
        found.append(count)
        plain(self, wait_us, count)

    monkeypatch.setattr(Window, "add", counted)
    return found


def test_messages_of_one_batch_cost_one_addition(sim: Sim, added: list[int]) -> None:
    for count in (40, 50):
        sim.store.publish_many("t", numbered(count))
    consumer = sim.store.subscribe("t", "g")
    assert len(consumer.get_many(100, 0)) == 90
    assert added == [40, 50]


def test_a_merged_batch_knows_the_wait_of_each_message_and_adds_once_where_they_are_alike(sim: Sim, added: list[int]) -> None:
    for number in range(40):
        sim.store.publish("t", b"%d" % number)
        sim.clock.advance(0.1)
    sim.checkpoint()
    sim.checkpoint()
    assert sim.store._volume.coalesce() > 1
    assert any(batch.is_merged for batch in sim.store._catalog.get("t").logs[0].read(0, 1 << 20))
    consumer = sim.store.subscribe("t", "g")
    assert len(consumer.get_many(100, 0)) == 40
    sim.clock.advance(WINDOW_S)
    write(sim)
    [record] = records(sim)
    assert waits_ms(record) == near([100.0 * (n + 1) for n in range(40)])
    assert record["max_us"] == 4_000_000
    late = sim.store.subscribe("t", "late")
    sim.clock.advance(86_400)
    added.clear()
    assert len(late.get_many(100, 0)) == 40
    assert max(added) > 1
    assert sum(added) == 40
    sim.clock.advance(WINDOW_S)
    write(sim)
    [_, record] = records(sim)
    assert len(record["buckets"]) == 1
    assert record["max_us"] > 86_400_000_000


def test_a_wanted_delay_is_no_wait(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(2), delays=[5, None])
    sim.clock.advance(1)
    assert len(take(consumer)) == 1
    sim.clock.advance(6)
    assert len(take(consumer)) == 1
    sim.store.close()
    sim.restart()
    assert waits_ms(records(sim)[0]) == near([1000, 2000])


def test_redeliveries_are_counted_and_have_no_wait(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(4))
    consumer = sim.store.subscribe("t", "g", backoff=0)
    messages = take(consumer)
    for message in messages[:3]:
        message.nack(delay=0)
    sim.clock.advance(2)
    again = take(consumer)
    assert [message.attempt for message in again] == [2, 2, 2]
    sim.clock.advance(WINDOW_S)
    write(sim)
    [record] = records(sim)
    assert (record["delivered"], record["redelivered"], record["max_us"]) == (4, 3, 0)


def test_what_a_dead_process_had_in_its_hands_is_a_redelivery(sim: Sim) -> None:
    """Also what it did not fail at, as far as is known, and may have: the suspects."""
    sim.store.publish_many("t", numbered(6))
    sim.store.subscribe("t", "g", concurrency=3).get_many(5, 0)
    sim.store.flush()
    sim.kill()
    sim.store.publish("t", b"new")
    sim.clock.advance(60)
    consumer = sim.store.subscribe("t", "g")
    attempts = []
    while (message := consumer.get(timeout=0)) is not None:
        attempts.append(message.attempt)
        message.ack()
    stats = sim.store.stats().topics["t"].groups["g"]
    sim.clock.advance(WINDOW_S)
    write(sim)
    [record] = records(sim)
    assert sorted(attempts) == [1, 1, 1, 1, 2, 2, 2]
    assert (record["delivered"], record["redelivered"]) == (1, 6)
    assert (stats.delivered, stats.redelivered) == (7, 6)


def test_what_nobody_got_after_all_is_not_counted(sim: Sim) -> None:
    """A server takes what may not fit into its answer, and gives it back unseen."""
    sim.store.publish_many("t", numbered(5))
    sim.clock.advance(3)
    consumer = sim.store.subscribe("t", "g")
    messages = take(consumer)
    for message in messages[2:]:
        sim.group().give_back(message, delivered=False)
    sim.clock.advance(1)
    assert len(take(consumer)) == 3
    sim.clock.advance(WINDOW_S)
    write(sim)
    [record] = records(sim)
    assert waits_ms(record) == near([3000, 3000, 4000, 4000, 4000])


def test_a_clock_that_is_set_back_makes_no_wait_negative_and_its_windows_are_all_written(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g")
    one(consumer)
    sim.clock.jump_wall(-25)
    one(consumer)
    sim.clock.jump_wall(100)
    one(consumer)
    sim.clock.advance(WINDOW_S)
    assert write(sim) == 3
    found = records(sim)
    assert [(one["window_start_us"] - 1_700_000_000_000_000) // WINDOW_US for one in found] == [-3, 0, 7]
    assert [one["max_us"] for one in found] == [0, 0, 75_000_000]


@pytest.mark.parametrize("settings", [{"priorities": True}, {"ttl": 3600}, {"partitions": 3}])
def test_topics_of_every_kind_count_each_message_once(settings: dict[str, Any]) -> None:
    sim = Sim()
    sim.store.create_topic("t", record_deliveries=True, **settings)
    sim.store.publish_many("t", numbered(30), keys=numbered(30))
    sim.clock.advance(0.5)
    first, second = (sim.store.subscribe("t", "g", prefetch=8) for _ in range(2))
    seen = 0
    while found := [*first.get_many(3, 0), *second.get_many(5, 0)]:
        for message in found:
            message.ack()
        seen += len(found)
    assert seen == 30
    sim.clock.advance(WINDOW_S)
    write(sim)
    [record] = records(sim)
    assert waits_ms(record) == near([500] * 30)


# -- windows ------------------------------------------------------------------------------------------------------------


def test_a_window_is_written_when_it_is_over_and_once(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(2))
    one(consumer)
    assert write(sim) == 0
    sim.clock.advance(WINDOW_S)
    one(consumer)
    assert write(sim) == 1
    assert write(sim) == 0
    sim.clock.advance(WINDOW_S)
    assert write(sim) == 1
    assert [record["delivered"] for record in records(sim)] == [1, 1]


def test_a_second_consumer_of_a_group_changes_nothing(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(2))
    one(sim.store.subscribe("t", "g", prefetch=1))
    one(sim.store.subscribe("t", "g", prefetch=1))
    sim.clock.advance(WINDOW_S)
    assert write(sim) == 1
    assert records(sim)[0]["delivered"] == 2


def test_every_group_has_a_record_of_its_own(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(2))
    for name in ("b", "a"):
        take(sim.store.subscribe("t", name))
    sim.clock.advance(WINDOW_S)
    assert write(sim) == 2
    assert sorted(record["group"] for record in records(sim)) == ["a", "b"]


def test_closing_writes_what_is_left_and_a_window_that_it_cut_adds_up(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(5))
    sim.store.subscribe("t", "g").get_many(2, 0)
    sim.restart()
    sim.store.subscribe("t", "g").get_many(4, 0)
    sim.restart()
    found = records(sim)
    assert [record["delivered"] for record in found] == [2, 4]
    assert found[0]["window_start_us"] == found[1]["window_start_us"]


def test_a_crash_loses_the_windows_that_were_not_written_and_no_other(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(2))
    one(consumer)
    sim.clock.advance(WINDOW_S)
    write(sim)
    one(consumer)
    for crash in (sim.kill, sim.lose_power):
        crash()
        assert [record["delivered"] for record in records(sim)] == [1]


def test_a_group_that_is_deleted_leaves_its_last_window(sim: Sim) -> None:
    sim.store.publish("t", b"x")
    one(sim.store.subscribe("t", "g"))
    sim.store.delete_group("t", "g")
    assert write(sim) == 1
    assert sim.store._deliveries._recorded == {}


def test_windows_that_cannot_be_written_wait_and_the_oldest_are_dropped(
    sim: Sim, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = sim.store.subscribe("t", "g")
    sim.store.publish_many("t", numbered(WINDOWS_MAX + 5))
    space = sim.store._volume._space
    monkeypatch.setattr(space, "_floor_bytes", 1 << 60)
    space.left = 0
    for _ in range(WINDOWS_MAX + 5):
        one(consumer)
        sim.clock.advance(WINDOW_S)
        assert write(sim) == 0
    assert caplog.text.count("could not be recorded") == 1
    monkeypatch.undo()
    assert write(sim) == WINDOWS_MAX
    assert [record["delivered"] for record in records(sim)] == [1] * WINDOWS_MAX


def test_a_record_whose_outcome_is_not_known_is_not_written_again(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    sim.store.publish("t", b"x")
    one(sim.store.subscribe("t", "g"))
    sim.clock.advance(WINDOW_S)
    plain = Topic.publish_many

    def stored_and_not_known(self: Topic, *columns: Any) -> Any:
        plain(self, *columns)
        raise OutcomeUnknown("a record", "the answer is lost")

    monkeypatch.setattr(Topic, "publish_many", stored_and_not_known)
    assert write(sim) == 0
    monkeypatch.undo()
    assert write(sim) == 0
    assert [record["delivered"] for record in records(sim)] == [1]


# -- the topics ---------------------------------------------------------------------------------------------------------


def test_without_the_setting_a_group_runs_the_plain_code_and_nothing_is_written(sim: Sim) -> None:
    sim.store.create_topic("plain")
    sim.store.publish("plain", b"x")
    one(sim.store.subscribe("plain", "g"))
    assert type(sim.group("plain")._leasing) is Leasing
    assert "take" not in vars(sim.group("plain"))
    sim.restart()
    assert [topic.name for topic in sim.store.topics()] == ["plain", "t"]


def test_measuring_and_recording_do_not_undo_each_other(sim: Sim) -> None:
    sim.store.publish_many("t", numbered(3))
    consumer = sim.store.subscribe("t", "g")
    sim.store.measure()
    one(consumer)
    sim.store.measure(on=False)
    take(consumer)
    sim.restart()
    assert records(sim)[0]["delivered"] == 3


def test_records_are_penstocks_own_are_kept_for_a_day_and_go_with_their_topic(sim: Sim) -> None:
    sim.store.publish("t", b"x")
    one(sim.store.subscribe("t", "g"))
    sim.clock.advance(WINDOW_S)
    write(sim)
    settings = sim.store.topic("t.deliveries").settings
    assert (settings.retention_age_ms, settings.retain, settings.record_deliveries) == (86_400_000, "always", False)
    for call in (sim.store.delete_topic, sim.store.create_topic, lambda name: sim.store.publish(name, b"x")):
        with pytest.raises(ReservedName, match=r"\.deliveries are for records of deliveries"):
            call("t.deliveries")
    reader = one(sim.store.subscribe("t.deliveries", "reader"))
    reader.reject("dead letters of records go too")
    assert [topic.name for topic in sim.store.topics()] == ["t", "t.deliveries", "t.deliveries.dlq"]
    sim.clock.advance(WINDOW_S)
    sim.store.delete_topic("t")
    assert write(sim) == 0
    assert sim.store.topics() == []


def test_a_record_that_is_due_while_its_topic_is_deleted_does_not_bring_its_own_topic_back(
    sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    sim.store.publish("t", b"x")
    one(sim.store.subscribe("t", "g"))
    plain = Catalog.delete

    def delete(self: Catalog, name: str) -> Topic:
        if name == "t":  # what is its own is gone already
            sim.clock.advance(WINDOW_S)
            assert write(sim) == 0
        return plain(self, name)

    monkeypatch.setattr(Catalog, "delete", delete)
    sim.store.delete_topic("t")
    assert sim.store.topics() == []


def test_records_are_removed_when_they_are_old(sim: Sim) -> None:
    consumer = sim.store.subscribe("t", "g")
    for _ in range(72):
        sim.store.publish("t", b"x")
        one(consumer).ack()
        sim.clock.advance(3_600)
        assert write(sim) == 1
    sim.store.retain()
    oldest = next(iter(sim.store.read("t.deliveries")))
    assert 24 <= (sim.clock.now_us() - oldest.append_time_us) / 3.6e9 <= 31


def test_names_leave_room_for_the_records_and_long_ones_without_can_be_deleted(sim: Sim) -> None:
    with pytest.raises(ReservedName, match="more than 181 characters"):
        sim.store.create_topic("n" * 182, record_deliveries=True)
    sim.store.create_topic("n" * 181, record_deliveries=True)
    sim.store.create_topic("n" * 192)
    sim.store.delete_topic("n" * 192)
    sim.store.delete_topic("n" * 181)
    with pytest.raises(BadSetting, match="must be True or False"):
        sim.store.create_topic("x", record_deliveries=1)  # type: ignore[arg-type]


def test_a_store_with_threads_writes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where retention looks only once a day."""
    monkeypatch.setattr("penstock.store.store.WRITE_SECONDS", 0.01)
    clock = FakeClock()
    settings = StoreSettings(retention_interval_ms=86_400_000, free_bytes_floor=0, reserve_bytes=0)
    with Store.open(tmp_path / "s", clock=clock, settings=settings) as store:
        store.create_topic("t", record_deliveries=True)
        store.publish("t", b"x")
        with store.subscribe("t", "g") as consumer:
            one(consumer).ack()
        written = threading.Event()
        plain = DeliveryRecords._write

        def told(self: Any, topic: Any, some: Any) -> int:
            count = plain(self, topic, some)
            written.set()
            return count

        monkeypatch.setattr(DeliveryRecords, "_write", told)
        clock.advance(WINDOW_S)
        assert written.wait(60)
        [message] = store.read("t.deliveries")
        assert json.loads(message.value or b"")["delivered"] == 1
