"""
Bugs that real queues shipped: one test for each row of the list of pitfalls that applies to an embedded queue.

A test is named after its row. `ELSEWHERE` says which tests have the other rows, `LATER` which issue will bring them, `NEVER` why a row
asks for nothing. The last test checks that no row is forgotten and that every test named here exists.
"""

from __future__ import annotations

import asyncio
import errno
import random
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.errors import (
    LeaseExpired,
    OffsetOutOfRange,
    OutcomeUnknown,
    PenstockError,
    ReservedName,
    StorageFailed,
    StorageFull,
)
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import SETTINGS, DirectoryBackend, skip_unless
from tests.conformance.helpers import PATIENCE, all_of, drain, numbered, offsets, one, position, state_of, stored, take, values

if TYPE_CHECKING:
    from tests.conformance.backends import Backend

ELSEWHERE = {
    "B7": "tests/conformance/test_publishing.py::test_threads_get_dense_offsets_and_keep_their_own_order",
    "B11": "tests/conformance/test_restart.py::test_messages_come_back_with_all_they_had",
    "B12": "tests/conformance/test_publishing.py::test_any_bytes_come_back_as_they_are",
    "B13": "tests/conformance/test_restart.py::test_every_mode_survives_the_end_of_the_process",
    "B14": "tests/conformance/test_fifteen.py::test_3_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after",
    "B15": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "B17": "tests/bad_bytes/test_damaged_files.py::test_caches_may_hold_anything",
    "B18": "tests/conformance/test_delivery.py::test_waiting_ends_with_nothing_when_its_time_is_over",
    "B19": "tests/conformance/test_bad_input.py::test_a_partition_that_is_none_is_refused",
    "B20": "tests/conformance/test_producers.py::test_a_full_batch_goes_without_waiting",
    "B21": "tests/conformance/test_producers.py::test_sending_beside_closing_never_hangs",
    "B31": "tests/bad_bytes/test_readers.py::test_a_reader_misses_what_was_cut_off",
    "C1": "tests/bad_bytes/test_damaged_files.py::test_an_overwritten_sector_is_reported_or_not_needed",
    "C2": "tests/crash/test_crash_states.py::test_every_acknowledged_message_survives_every_crash_state",
    "C4": "tests/crash/test_damage.py::test_torn_tail_is_truncated_and_the_second_reopening_keeps_what_came_after",
    "C5": "tests/crash/test_damage.py::test_damage_below_the_durable_end_is_reported_with_its_place",
    "C8": "tests/conformance/test_topics.py::test_the_first_publish_makes_the_topic",
    "C16": "tests/conformance/test_fifteen.py::test_13_rotation_by_bytes",
    "C17": "tests/golden/test_formats.py::test_a_data_batch",
    "C18": "tests/golden/test_formats.py::test_a_data_batch",
    "C22": "tests/conformance/test_deduplication.py::test_keys_over_the_limit_are_forgotten_oldest_first",
    "C24": "tests/conformance/test_restart.py::test_a_store_has_one_owner",
    "C26": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "C29": "tests/real_disk/test_kill_at_every_syscall.py::test_a_kill_at_any_system_call_loses_and_tears_nothing",
    "D3": "tests/conformance/test_fifteen.py::test_6_many_publishers_share_a_sync",
    "D13": "tests/conformance/test_bad_input.py::test_names_stay_inside_the_folder",
    "D17": "tests/real_disk/test_syscall_order.py::test_no_step_of_a_single_thread_comes_before_the_sync_it_needs",
    "D19": "tests/conformance/test_delivery.py::test_a_get_that_waits_ends_when_the_consumer_is_closed",
    "E1": "tests/conformance/test_fifteen.py::test_3_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after",
    "E16": "tests/conformance/test_delivery.py::test_a_waiting_consumer_is_woken_by_an_ack_that_makes_room",
}
LATER = {
    "B25": "the HTTP server",
    "B27": "compaction",
    "B28": "compaction",
    "C10": "priorities (issue 6)",
    "C11": "priorities (issue 6)",
    "C13": "priorities (issue 6)",
    "C23": "the reference of settings: tests/docs checks that each one is documented",
    "D11": "the native protocol",
    "D12": "the native protocol",
    "D14": "the client",
    "E5": "the gRPC server",
    "E8": "the server's shutdown",
}
NEVER = {
    "B24": "a lock on the fast path costs speed and no result: benchmarks",
    "C9": "dead letters have no path of their own",
    "C15": "the cost of draining: benchmarks",
    "C21": "the cost of an ack: benchmarks",
    "C27": "a figure in a text",
    "C28": "a benchmark of another project",
    "D20": "Python has no exhaustive match; the registry of commands comes with the command line",
    "D21": "texts of another project",
    "E10": "memory for a backlog: benchmarks",
    "E11": "a format of another project",
    "E15": "a scenario that asserts nothing",
}


# -- B --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("partitions", [1, 2, 4, 8])
def test_b1_every_message_of_every_partition_is_consumed(store: Store, partitions: int) -> None:
    """A backlog of two thousand, round robin, taken ten at a time: none is skipped."""
    store.create_topic("t", partitions=partitions)
    for partition in range(partitions):
        store.publish_many("t", numbered(2_000)[partition::partitions], partition=partition)
    seen = []
    with store.subscribe("t", "g") as consumer:
        while batch := consumer.get_many(10, timeout=0):
            consumer.ack(batch)
            seen += values(batch)
    assert sorted(seen, key=lambda value: int(value or b"")) == numbered(2_000)


def test_b2_a_message_that_always_fails_is_buried_and_not_called_handled(store: Store) -> None:
    """The error of the last try is the one that is told."""
    store.publish("t", b"poison")
    with store.subscribe("t", "g", max_deliveries=3, backoff=0) as consumer:
        for attempt in range(1, 4):
            with pytest.raises(ValueError, match="broken"), one(consumer):
                raise ValueError(f"broken {attempt}")
        assert consumer.get(timeout=0) is None
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.acked, numbers.dead_lettered) == (0, 1)
    (letter,) = store.dead_letters("t").list()
    assert letter.headers["x-dlq-reason"] == b"ValueError: broken 3"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_b3_a_shutdown_is_no_failure(store: Store, error: type[BaseException]) -> None:
    """A healthy message that was interrupted comes again at once, uncounted, and is never buried for it."""
    store.publish("t", b"healthy")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for _ in range(5):
            message = one(consumer)
            assert message.attempt == 1
            with pytest.raises(error), message:
                raise error
        with one(consumer):
            pass
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.acked, numbers.nacked, numbers.dead_lettered) == (1, 0, 0)
    assert len(store.dead_letters("t")) == 0


@pytest.mark.parametrize("allowed", [1, 2, 3, 4])
def test_b4_as_many_tries_as_were_allowed(store: Store, allowed: int) -> None:
    """Not one more."""
    store.publish("t", b"x")
    tries = 0
    with store.subscribe("t", "g", max_deliveries=allowed) as consumer:
        while (message := consumer.get(timeout=0)) is not None:
            tries += 1
            message.nack(delay=0)
    assert tries == allowed
    assert store.dead_letters("t").list()[0].headers["x-dlq-deliveries"] == b"%d" % allowed


def test_b5_a_dead_letter_that_cannot_be_written_is_no_loss() -> None:
    """The disk is full when the message is to be buried: it stays with its group, and is buried when there is room."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = _open(files, clock)
    store.publish("t", bytes(3_000))
    consumer = store.subscribe("t", "g", max_deliveries=1)
    message = one(consumer)
    files.capacity_bytes = sum(map(len, files.files().values()))
    message.nack(reason="bad")
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.lag, numbers.dead_lettered) == (1, 0)
    files.capacity_bytes = None
    for _ in range(10):
        clock.advance(10)
        assert consumer.get(timeout=0) is None
    assert values(store.dead_letters("t").list()) == [bytes(3_000)]
    assert position(store, "t", "g") == 1
    store.close()


def test_b6_what_one_group_does_to_a_message_no_other_sees(store: Store) -> None:
    """Attempts, reasons and headers belong to a delivery; the message is the same for all."""
    store.publish("t", b"x", headers={"h": b"1"})
    with store.subscribe("t", "a", max_deliveries=10) as a, store.subscribe("t", "b") as b:
        for _ in range(4):
            one(a).nack(delay=0, reason="a's own trouble")
        mine, theirs = one(a), one(b)
        (read,) = store.read("t")
        assert (mine.attempt, theirs.attempt) == (5, 1)
        assert list(mine.headers) == list(theirs.headers) == list(read.headers) == [("h", b"1")]


GOLDEN_PLACES = {b"": 0, b"a": 14, b"user-1": 4, b"user-2": 8, "é".encode(): 6, bytes(range(256)): 14}
"""Of sixteen partitions. They are part of the data's meaning: a change here breaks the order of every key that is stored."""


def test_b8_any_key_finds_a_partition_and_always_the_same(store: Store) -> None:
    """Ten thousand keys, and the places of some written down: they hold for every process and every version."""
    store.create_topic("t", partitions=16)
    keys = [b"key-%d" % number for number in range(10_000)]
    receipts = store.publish_many("t", [b""] * 10_000, keys=keys)
    assert {receipt.partition for receipt in receipts} == set(range(16))
    assert {key: store.publish("t", b"", key=key).partition for key in GOLDEN_PLACES} == GOLDEN_PLACES


def test_b9_old_segments_are_found_and_offsets_go_on(lasting: Backend) -> None:
    """Many segments, several restarts: nothing is hidden, nothing overwritten."""
    store = lasting.open()
    store.create_topic("t", segment_messages=5)
    for turn in range(6):
        assert [store.publish("t", value).offset for value in numbered(13, turn * 13)] == list(range(turn * 13, turn * 13 + 13))
        store = lasting.reopen() if turn % 2 else lasting.kill()
        assert stored(store, "t") == numbered(turn * 13 + 13)


def test_b10_offsets_stay_when_older_ones_go(backend: Backend) -> None:
    """Retention removes the first segments: what is left is still found under its own offset."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=60, retain="always")
    for value in numbered(45):
        store.publish("t", value)
    backend.advance(3_600)
    store.publish("t", b"45")
    store.retain("t")
    found = {message.offset: message.value for message in store.read("t")}
    assert min(found) > 0
    assert found == {offset: b"%d" % offset for offset in range(min(found), 46)}
    with store.subscribe("t", "g") as consumer:
        assert {message.offset: message.value for message in drain(consumer)} == found


def test_b16_reading_goes_on_into_the_next_segment(store: Store) -> None:
    """From every offset to the end, and in one delivery after the other."""
    store.create_topic("t", segment_messages=3)
    for value in numbered(20):
        store.publish("t", value)
    for start in range(21):
        assert offsets(store.read("t", 0, start=start)) == list(range(start, 20))
    with store.subscribe("t", "g", prefetch=20) as consumer:
        assert offsets(consumer.get_many(20, timeout=0)) == list(range(20))


def test_b22_positions_survive_restart(lasting: Backend) -> None:
    """Of every group of every topic, whatever their names look like when joined."""
    store = lasting.open()
    names = [("a", "b.c"), ("a.b", "c"), ("a-b", "c"), ("a", "b-c")]
    for number, (topic, group) in enumerate(names):
        if topic not in [info.name for info in store.topics()]:
            store.publish_many(topic, numbered(10))
        with store.subscribe(topic, group) as consumer:
            drain(consumer, number + 1)
    store = lasting.reopen()
    assert [position(store, topic, group) for topic, group in names] == [1, 2, 3, 4]
    store = lasting.kill()
    assert [position(store, topic, group) for topic, group in names] == [1, 2, 3, 4]


def test_b23_a_commit_never_rewinds(store: Store) -> None:
    """Only seek does."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        consumer.commit(8)
        consumer.commit(2)
        assert position(store, "t", "g") == 8
        store.seek("t", "g", 2)
        assert position(store, "t", "g") == 2


@pytest.mark.parametrize("ordered", [False, True])
def test_b26_two_members_do_not_both_read_everything(store: Store, ordered: bool) -> None:
    """Each message goes to one of them."""
    store.create_topic("t", partitions=4)
    for value in numbered(40):
        store.publish("t", value, partition=int(value) % 4)
    with (
        store.subscribe("t", "g", ordered=ordered, prefetch=5) as a,
        store.subscribe("t", "g", ordered=ordered, prefetch=5) as b,
    ):
        seen: list[Any] = []
        while got := a.get_many(3, timeout=0) + b.get_many(3, timeout=0):
            for message in got:
                message.ack()
                seen.append((message.partition, message.offset))
    assert sorted(seen) == [(partition, offset) for partition in range(4) for offset in range(10)]


def test_b29_a_named_producer_after_a_restart_is_new_and_the_old_one_fenced(lasting_live: Backend) -> None:
    """The sequence begins anew with a new epoch: new messages are not taken for old ones."""
    store = lasting_live.open()
    places = []
    for _ in range(4):
        with store.producer("t", name="p") as producer:
            futures = [producer.send(b"same") for _ in range(5)]
        places += [future.result(PATIENCE).offset for future in futures]
        store = lasting_live.reopen()
    assert places == list(range(20))


def test_b30_the_same_offset_in_two_partitions_is_two_messages(lasting: Backend) -> None:
    """Finishing one of them does not finish the other, nor the same offset of another topic."""
    store = lasting.open()
    store.create_topic("t", partitions=2)
    store.create_topic("u")
    for topic, partition in (("t", 0), ("t", 1), ("u", 0)):
        store.publish(topic, b"x", partition=partition)
    consumer = store.subscribe("t", "g")
    next(message for message in take(consumer) if message.partition == 1).ack(wait=True)
    store.subscribe("u", "g").close()
    store = lasting.kill()
    lasting.advance(60)
    with store.subscribe("t", "g") as consumer:
        assert [(message.partition, message.offset) for message in take(consumer)] == [(0, 0)]
    assert position(store, "u", "g") == 0


# -- C --------------------------------------------------------------------------------------------------------------


def test_c3_the_next_offset_comes_from_the_log(lasting: Backend) -> None:
    """Open and close without publishing, again and again: the next offset is still the next."""
    store = lasting.open()
    store.publish_many("t", numbered(7))
    for _ in range(5):
        store = lasting.reopen()
    store = lasting.kill()
    assert store.publish("t", b"7").offset == 7


def test_c6_retention_keeps_what_nobody_has_read(backend: Backend) -> None:
    """Sixty messages that are older than the topic keeps them, and a group that has read none: all are delivered."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=60)
    store.subscribe("t", "g").close()
    for value in numbered(60):
        store.publish("t", value)
    backend.advance(86_400)
    store.retain("t")
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == numbered(60)
        consumer.flush()
    store.retain("t")
    assert len(stored(store, "t")) < 60


def test_c7_a_topic_without_retention_keeps_everything(backend: Backend) -> None:
    """No hidden default takes its messages."""
    store = backend.open()
    store.create_topic("t", segment_messages=10, retention_age=0, retain="always")
    for value in numbered(50):
        store.publish("t", value)
    backend.advance(20 * 365 * 86_400)
    assert store.retain().segments == 0
    assert stored(store, "t") == numbered(50)


def test_c12_what_a_seek_skipped_does_not_come_back(backend: Backend) -> None:
    """Nor what was taken in batches before it."""
    store = backend.open()
    store.publish_many("t", numbered(30))
    with store.subscribe("t", "g", lease=10) as consumer:
        consumer.ack(consumer.get_many(5, timeout=0))
        consumer.get_many(5, timeout=0)
        store.seek("t", "g", 20)
        assert offsets(drain(consumer)) == list(range(20, 30))
        backend.advance(3_600)
        assert drain(consumer) == []


def test_c14_iterating_hands_out_all_that_is_there(live_store: Store) -> None:
    """Fifty messages are fifty steps of one loop, with nobody publishing in between."""
    live_store.publish_many("t", numbered(50))
    seen = []
    with live_store.subscribe("t", "g") as consumer:
        for message in consumer:
            message.ack()
            seen.append(message.value)
            if len(seen) == 50:
                break
    assert seen == numbered(50)


def test_c19_a_dead_letter_has_the_bytes_of_its_message(store: Store) -> None:
    """Also of one that lies in a batch with others, with columns that the others have not."""
    payload = b"a" * 5_000
    store.publish_many("t", [b"x", payload, None], keys=[None, b"key", None], headers=[None, {"h": b"\0"}, None])
    with store.subscribe("t", "g") as consumer:
        for message in take(consumer):
            message.reject()
    plain, full, tombstone = store.dead_letters("t").list()
    assert (full.value, full.key, full.headers["h"]) == (payload, b"key", b"\0")
    assert (plain.value, plain.key) == (b"x", None)
    assert (tombstone.value, tombstone.key) == (None, None)


def test_c20_every_way_of_publishing_takes_every_field(live_store: Store) -> None:
    """One message by each: they differ in nothing but their offsets."""
    fields: dict[str, Any] = {"key": b"k", "headers": [("h", b"1"), ("h", b"2")], "timestamp": 12.5}
    live_store.publish("t", b"v", **fields)
    live_store.publish_many("t", [b"v"], keys=[b"k"], headers=[fields["headers"]], timestamps=[12.5])
    with live_store.producer("t") as producer:
        producer.send(b"v", **fields).result(PATIENCE)
    with live_store.transaction() as t:
        t.publish("t", b"v", **fields)
        t.publish_many("t", [b"v"], keys=[b"k"], headers=[fields["headers"]], timestamps=[12.5])
    found = [(m.value, m.key, tuple(m.headers), m.timestamp_us) for m in live_store.read("t")]
    assert found == [(b"v", b"k", (("h", b"1"), ("h", b"2")), 12_500_000)] * 5


def test_c25_looking_changes_no_file(shared: Backend) -> None:
    """A reader lists, reads, counts: every file stays as it is, and none is added."""
    skip_unless(isinstance(shared, DirectoryBackend), "looks at the store's files")
    assert isinstance(shared, DirectoryBackend)
    owner = shared.open()
    owner.publish_many("t", numbered(10))
    owner.subscribe("t", "g").close()
    owner.close()

    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in sorted(shared.folder.rglob("*")) if path.is_file()}

    before = content()
    reader = shared.reader()
    assert stored(reader, "t") == numbered(10)
    reader.topics()
    reader.topic("t")
    reader.close()
    assert content() == before


# -- D --------------------------------------------------------------------------------------------------------------


def _open(files: SimulatedFileSystem, clock: FakeClock, **settings: Any) -> Store:
    """A store on a disk that can fail."""
    return Store.open("/store", settings=replace(SETTINGS, **settings), files=files, clock=clock, background=False)


def test_d1_a_full_disk_loses_nothing_and_consuming_goes_on() -> None:
    """Publishing is refused, whole; delivery and acks go on; with room publishing goes on; after a crash all is there."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = _open(files, clock, reserve_bytes=64 * 1024)
    store.create_topic("t")
    consumer = store.subscribe("t", "g", prefetch=10)
    files.capacity_bytes = sum(map(len, files.files().values())) + 100_000
    count = 0
    with pytest.raises(StorageFull):
        while True:
            store.publish("t", b"%d " % count + bytes(500))
            count += 1
    assert count > 10
    assert len(stored(store, "t")) == count
    for _ in range(10):
        one(consumer).ack(wait=True)
    assert position(store, "t", "g") == 10
    files.capacity_bytes = None
    assert store.publish("t", b"room").offset == count
    again = _open(files.crash(random.Random(1), keep="nothing"), clock)
    assert len(stored(again, "t")) == count + 1
    assert position(again, "t", "g") == 10


def test_d2_after_a_failed_sync_nothing_is_called_stored() -> None:
    """The publish is of unknown outcome, every later one is refused, acks too; what was stored before is there after reopening."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = _open(files, clock)
    store.publish_many("t", numbered(5))
    consumer = store.subscribe("t", "g")
    held = take(consumer)
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises((OutcomeUnknown, StorageFailed)):
        store.publish("t", b"lost?")
    for call in (
        lambda: store.publish("t", b"x"),
        lambda: store.publish_many("t", [b"x"]),
        lambda: held[0].ack(wait=True),
        lambda: store.seek("t", "g", "earliest"),
        lambda: store.create_topic("new"),
    ):
        with pytest.raises(PenstockError):
            call()
    assert stored(store, "t")[:5] == numbered(5)
    again = _open(files.crash(random.Random(1), keep="nothing"), clock)
    assert stored(again, "t")[:5] == numbered(5)
    assert len(stored(again, "t")) <= 6
    assert position(again, "t", "g") == 0


def test_d4_a_dead_letter_does_not_hold_the_position_back(lasting: Backend) -> None:
    """Its offset is finished like any: the position passes it, and a restart does not bring it back."""
    store = lasting.open()
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        one(consumer).nack(delay=0)
        drain(consumer)
        assert position(store, "t", "g") == 5
        consumer.flush()
    for restart in (lasting.kill, lasting.reopen):
        store = restart()
        assert position(store, "t", "g") == 5
        assert len(store.dead_letters("t")) == 1


@pytest.mark.parametrize("keep", ["nothing", "random", "everything"])
def test_d5_a_crash_anywhere_in_a_burial_leaves_one_of_source_and_grave(keep: Any, seed: int) -> None:
    """At every operation of the disk, power fails: the message is with its group or among the dead letters, never both, never neither."""
    print("seed", seed)
    files, clock = SimulatedFileSystem(), FakeClock()
    store = _open(files, clock)
    store.publish_many("t", numbered(3))
    consumer = store.subscribe("t", "g", max_deliveries=1)
    held = take(consumer)
    held[0].ack(wait=True)
    states: list[SimulatedFileSystem] = []
    rng = random.Random(seed)
    files.on_operation = lambda _: states.append(files.crash(rng, keep=keep))
    held[1].nack(reason="bad")
    states.append(files.crash(rng, keep=keep))
    files.on_operation = None
    assert len(states) > 3
    graves = set()
    for state in states:
        again = _open(state, clock)
        dead = values(again.dead_letters("t").list())
        clock.advance(3_600)
        consumer = again.subscribe("t", "g", max_deliveries=3)
        alive = values(drain(consumer))
        assert sorted(alive + dead, key=lambda value: value or b"") == [b"1", b"2"]
        graves.add(tuple(dead))
        again.close()
    assert graves == {(), (b"1",)}


def test_d6_a_fresh_group_behind_the_floor_makes_durable_progress(lasting: Backend) -> None:
    """Its first ack is of an offset that is not 0, and it stays."""
    store = lasting.open()
    store.create_topic("t", segment_messages=5, retention_age=60, retain="always")
    for value in numbered(12):
        store.publish("t", value)
    lasting.advance(3_600)
    store.publish("t", b"12")
    store.retain("t")
    floor = next(iter(store.read("t"))).offset
    assert floor > 0
    for turn in range(2):
        with store.subscribe("t", "fresh") as consumer:
            message = one(consumer)
            assert message.offset == floor + turn
            message.ack()
        store = lasting.reopen()
        assert position(store, "t", "fresh") == floor + turn + 1


def test_d7_what_was_acked_above_a_gap_does_not_come_again(lasting: Backend) -> None:
    """Every other message acked, restart: the others come, and only they; twice."""
    store = lasting.open()
    store.publish_many("t", numbered(100))
    for restart in (lasting.kill, lasting.reopen, lasting.kill):
        consumer = store.subscribe("t", "g")
        consumer.ack([message for message in take(consumer) if message.offset % 2], wait=True)
        store = restart()
        lasting.advance(60)
    with store.subscribe("t", "g", max_deliveries=0) as consumer:
        assert sorted(offsets(drain(consumer))) == list(range(0, 100, 2))


def test_d8_nobody_is_delivered_to_who_is_not_there(backend: Backend) -> None:
    """A group without members for a week: nothing is counted, nothing is buried unseen."""
    store = backend.open()
    store.publish_many("t", numbered(5))
    with store.subscribe("t", "g", lease=10, max_deliveries=2) as consumer:
        take(consumer)
    for _ in range(100):
        backend.advance(6_000)
    assert len(store.dead_letters("t")) == 0
    with store.subscribe("t", "g", lease=10, max_deliveries=2) as consumer:
        assert {message.attempt for message in take(consumer)} <= {1, 2}
    numbers = store.stats().topics["t"].groups["g"]
    assert (numbers.dead_lettered, numbers.expired_leases) == (0, 0)


def test_d9_a_new_member_has_a_window_of_its_own(store: Store) -> None:
    """What the one before it held does not stand in its way."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g", prefetch=4) as consumer:
        assert len(take(consumer)) == 4
    with store.subscribe("t", "g", prefetch=4) as consumer:
        assert offsets(take(consumer)) == [0, 1, 2, 3]


def test_d10_attempts_are_not_forgotten(lasting: Backend) -> None:
    """Neither by leaving and coming, nor by a restart."""
    store = lasting.open()
    store.publish("t", b"x")
    expected = 1
    for restart in (None, lasting.reopen, lasting.kill):
        with store.subscribe("t", "g", max_deliveries=10) as consumer:
            message = one(consumer)
            assert message.attempt == expected
            message.nack(delay=0)
            expected += 1
            consumer.flush()
        if restart is not None:
            store = restart()


def test_d15_a_backlog_larger_than_the_window_with_acks_that_wait(live_store: Store) -> None:
    """Each ack waits for the disk while the window is full: no deadlock."""
    live_store.publish_many("t", numbered(300))
    seen = []
    with live_store.subscribe("t", "g", prefetch=8) as consumer:
        for message in consumer:
            message.ack(wait=True)
            seen.append(message.offset)
            if len(seen) == 300:
                break
    assert seen == list(range(300))


def test_d16_an_ack_that_could_not_be_stored_is_told() -> None:
    """The caller that waits gets the error, and after a restart the message comes again."""
    files, clock = SimulatedFileSystem(), FakeClock()
    store = _open(files, clock)
    store.publish_many("t", numbered(2))
    consumer = store.subscribe("t", "g")
    message = one(consumer)
    consumer.flush()
    files.fail("sync_data", 1, errno.EIO)
    with pytest.raises((OutcomeUnknown, StorageFailed)):
        message.ack(wait=True)
    again = _open(files.crash(random.Random(1), keep="nothing"), clock)
    clock.advance(60)
    assert offsets(drain(again.subscribe("t", "g"))) == [0, 1]


def test_d18_a_consumer_that_cannot_read_says_so(backend: Backend) -> None:
    """It does not hang and does not pass over: the error comes from get, each time."""
    store = backend.open()
    store.create_topic("t", segment_messages=5, retention_age=60, retain="always")
    consumer = store.subscribe("t", "g", reset="fail")
    for value in numbered(12):
        store.publish("t", value)
    backend.advance(3_600)
    store.publish("t", b"12")
    store.retain("t")
    for _ in range(3):
        with pytest.raises(OffsetOutOfRange):
            consumer.get(timeout=0)
    assert position(store, "t", "g") == 0


def test_d22_a_message_that_waits_does_not_hold_up_those_behind_it(store: Store) -> None:
    """Here one that was nacked with a delay; delays at publishing come with issue 6."""
    store.publish_many("t", numbered(10))
    with store.subscribe("t", "g") as consumer:
        one(consumer).nack(delay=3_600)
        assert offsets(drain(consumer)) == list(range(1, 10))


# -- E --------------------------------------------------------------------------------------------------------------


def test_e2_a_message_that_was_retried_comes_back_once(lasting: Backend) -> None:
    """Nacked five times, then a restart: one delivery, not six."""
    store = lasting.open()
    store.publish("t", b"x")
    for restart in (lasting.reopen, lasting.kill):
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            for _ in range(5):
                one(consumer).nack(delay=0)
            consumer.flush()
        store = restart()
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            assert offsets(take(consumer)) == [0]
    assert stored(store, "t") == [b"x"]


def test_e3_the_dead_stay_dead(lasting: Backend) -> None:
    """After a restart they are not delivered again, and not buried again."""
    store = lasting.open()
    store.publish_many("t", numbered(4))
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for message in take(consumer)[:2]:
            message.nack()
        consumer.flush()
    for restart in (lasting.kill, lasting.reopen, lasting.kill):
        store = restart()
        lasting.advance(3_600)
        with store.subscribe("t", "g", max_deliveries=1) as consumer:
            assert sorted(offsets(take(consumer))) == [2, 3]
        assert values(store.dead_letters("t").list()) == [b"0", b"1"]


def test_e4_an_ack_that_was_answered_is_stored(lasting: Backend) -> None:
    """`wait=True` returns after the disk has it, each time: a kill right behind it brings nothing back."""
    store = lasting.open()
    store.publish_many("t", numbered(5))
    for offset in range(5):
        consumer = store.subscribe("t", "g")
        message = one(consumer)
        assert message.offset == offset
        message.ack(wait=True)
        store = lasting.kill()
        assert position(store, "t", "g") == offset + 1
        lasting.advance(60)


def test_e6_a_late_ack_of_one_does_not_settle_the_delivery_of_another(backend: Backend) -> None:
    """The same message, the same group: the tag decides."""
    store = backend.open()
    store.publish("t", b"x")
    with store.subscribe("t", "g", lease=10) as a, store.subscribe("t", "g", lease=10) as b:
        late = one(a)
        backend.advance(11)
        current = one(b)
        before = state_of(store)
        with pytest.raises(LeaseExpired):
            late.ack()
        assert state_of(store) == before
        assert current.attempt == 2
        current.nack(delay=0)
        assert one(b).attempt == 3


def test_e7_a_consumer_that_comes_and_goes_buries_nothing(store: Store) -> None:
    """What was fetched for it and never handed out was never delivered."""
    store.publish_many("t", numbered(20))
    for _ in range(30):
        with store.subscribe("t", "g", max_deliveries=2, prefetch=20) as consumer:
            one(consumer).ack()
            store.publish("t", b"more")
    assert len(store.dead_letters("t")) == 0
    with store.subscribe("t", "g", max_deliveries=2) as consumer:
        got = drain(consumer)
    assert len(got) == 20
    assert {message.attempt for message in got} == {1}


def test_e9_a_queue_that_is_emptied_does_not_grow_for_ever(backend: Backend) -> None:
    """Published, acked, retained, a hundred times over: what is kept stays small."""
    store = backend.open()
    store.create_topic("t", segment_messages=20, retention_age=60)
    most = 0
    with store.subscribe("t", "g") as consumer:
        for turn in range(100):
            for value in numbered(10, turn * 10):
                store.publish("t", value)
            drain(consumer)
            consumer.flush()
            backend.advance(100)
            store.retain()
            most = max(most, store.stats().topics["t"].messages)
    assert most <= 60
    assert store.publish("t", b"x").offset == 1_000


def test_e12_the_order_after_a_restart_is_the_order_before(lasting_live: Backend) -> None:
    """Many threads publish at once: consumers before and after the restart see one order."""
    store = lasting_live.open()
    all_of(lambda name: [store.publish("t", b"%d %d" % (name, at)) for at in range(30)], range(6))
    with store.subscribe("t", "before") as consumer:
        before = values(drain(consumer))
    store = lasting_live.reopen()
    with store.subscribe("t", "after") as consumer:
        assert values(drain(consumer)) == before
    assert len(before) == 180


def test_e13_graves_have_no_graves_and_nobody_digs_by_hand(store: Store) -> None:
    """No `x.dlq.dlq` by failing, none by creating, none by publishing."""
    store.publish("t", b"x")
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        one(consumer).nack()
    with store.subscribe("t.dlq", "g", max_deliveries=1) as consumer:
        for _ in range(3):
            one(consumer).nack(delay=0)
    for name in ("t.dlq", "t.dlq.dlq", "x.dlq"):
        with pytest.raises(ReservedName):
            store.publish(name, b"x")
    assert [info.name for info in store.topics()] == ["t", "t.dlq"]
    assert len(store.dead_letters("t")) == 1


def test_e14_a_failed_message_waits_before_it_comes_again(backend: Backend) -> None:
    """No hot loop: within its backoff it does not come, and its place in the log stays its own."""
    store = backend.open()
    store.publish_many("t", numbered(3))
    with store.subscribe("t", "g", backoff=10, max_deliveries=0) as consumer:
        one(consumer).nack()
        tries = 1
        drain(consumer)
        for _ in range(100):
            backend.advance(1)
            message = consumer.get(timeout=0)
            if message is not None:
                assert message.offset == 0
                tries += 1
                message.nack()
    assert 3 <= tries <= 5


# -- the table ------------------------------------------------------------------------------------------------------


def test_no_row_is_forgotten() -> None:
    """B1 to B31, C1 to C29, D1 to D22, E1 to E16: each has a test here, a test elsewhere, or a reason; and those tests exist."""
    rows = {
        f"{letter}{number}" for letter, last in (("B", 31), ("C", 29), ("D", 22), ("E", 16)) for number in range(1, last + 1)
    }
    here: dict[str, list[str]] = defaultdict(list)
    for name in globals():
        found = re.match(r"test_([bcde]\d+)_", name)
        if found:
            here[found[1].upper()].append(name)
    told = [set(here), set(ELSEWHERE), set(LATER), set(NEVER)]
    assert set().union(*told) == rows
    assert sum(map(len, told)) == len(rows), "a row is told twice"
    root = Path(__file__).parents[2]
    for place in ELSEWHERE.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (root / path).read_text(), place
