"""
The fifteen tests that a new implementation should pass (section 4 of the list of pitfalls), on the public face.

Number 4, the classes of frames, is below the public face: `BELOW` names its tests.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections import defaultdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Store
from penstock.errors import OffsetOutOfRange, TopicExists, TopicNotFound, UsageError
from tests.conformance.backends import SETTINGS, Backend, DirectoryBackend, HttpBackend, skip_unless
from tests.conformance.helpers import (
    PATIENCE,
    Running,
    all_of,
    drain,
    numbered,
    offsets,
    one,
    position,
    stored,
    take,
    uncommitted,
    until,
    values,
)

if TYPE_CHECKING:
    from tests.volume.gated_files import GatedFileSystem


@pytest.fixture
def folder(lasting: Backend) -> DirectoryBackend:
    """A backend whose files can be looked at."""
    skip_unless(isinstance(lasting, DirectoryBackend), "looks at the store's files")
    assert isinstance(lasting, DirectoryBackend)
    return lasting


def segments(backend: DirectoryBackend, topic: str = "t") -> list[Path]:
    """The segment files of a topic's first partition."""
    return sorted((backend.path / "topics" / topic / "0").glob("*.log"))


def test_1_the_ack_of_the_first_message_survives_a_restart(lasting: Backend) -> None:
    """Publish offset 0, receive, ack, restart, subscribe again: nothing arrives, neither now nor after the lease."""
    store = lasting.open()
    assert store.publish("t", b"x").offset == 0
    with store.subscribe("t", "g") as consumer:
        one(consumer).ack()
    for restart in (lasting.reopen, lasting.kill):
        store = restart()
        with store.subscribe("t", "g") as consumer:
            assert consumer.get(timeout=0) is None
            lasting.advance(3_600)
            assert consumer.get(timeout=0) is None


def test_2_half_of_a_thousand(lasting: Backend) -> None:
    """Receive a thousand, ack the first half, restart: exactly the other half comes, with its payloads."""
    store = lasting.open()
    store.publish_many("t", numbered(1_000))
    consumer = store.subscribe("t", "g", prefetch=1_000)
    messages = take(consumer)
    assert len(messages) == 1_000
    consumer.ack(messages[:500])
    store = lasting.reopen()
    with store.subscribe("t", "g") as consumer:
        got = drain(consumer)
    assert offsets(got) == list(range(500, 1_000))
    assert values(got) == numbered(500, 500)


def test_3_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after(folder: DirectoryBackend) -> None:
    """Five messages, seven bytes of garbage behind them, restart: the size of before, offset 5 is next; restart again: all six."""
    store = folder.open()
    store.create_topic("t", sync="os")
    for number in range(5):
        store.publish("t", b"%d" % number)
    folder.die()
    (segment,) = segments(folder)
    size = segment.stat().st_size
    with segment.open("ab") as file:
        file.write(b"garbage")
    store = folder.open()
    assert segment.stat().st_size == size
    assert stored(store, "t") == numbered(5)
    assert store.publish("t", b"5").offset == 5
    for restart in (folder.kill, folder.reopen, folder.kill):
        assert stored(restart(), "t") == numbered(6)


SOAK = """
import json, os, sys, threading
import penstock

folder, sync = sys.argv[1:]
store = penstock.open(os.path.join(folder, "store"), free_bytes_floor=0, reserve_bytes=0, journal_file_bytes=1 << 20, frame_bytes=1 << 18,
                      reference_bytes=1 << 16)
store.create_topic("t", sync=sync, dedup_window=3600, segment_messages=500)

def consume():
    seen = open(os.path.join(folder, "seen"), "ab", buffering=0)
    with store.subscribe("t", "g", max_deliveries=0) as consumer:
        for message in consumer:
            seen.write(message.value + b"\\n")
            message.ack()

threading.Thread(target=consume, daemon=True).start()
answered = open(os.path.join(folder, "answered"), "ab", buffering=0)
number = int(open(os.path.join(folder, "next")).read()) if os.path.exists(os.path.join(folder, "next")) else 0
while True:
    # A producer that keeps its keys: what was in doubt when the process died is published again under the same key.
    receipt = store.publish("t", b"%d" % number, dedup_key=b"%d" % number)
    answered.write(b"%d %d\\n" % (number, receipt.offset))
    number += 1
"""


@pytest.mark.parametrize("sync", ["always", "interval", "os"])
def test_5_a_soak_of_kills(live: Backend, tmp_path: Path, sync: str) -> None:
    """Producer and consumer are killed again and again; every message that was answered is stored once and seen at least once."""
    skip_unless(isinstance(live, DirectoryBackend), "kills a process that owns a folder")
    skip_unless(not isinstance(live, HttpBackend), "there is no HTTP in it")
    script = tmp_path / "soak.py"
    script.write_text(SOAK)
    for _ in range(3):
        process = subprocess.Popen([sys.executable, str(script), str(tmp_path), sync])
        _wait_for_answers(process, tmp_path / "answered", 40)
        process.send_signal(signal.SIGKILL)
        process.wait()
        answered = [line.split() for line in _lines(tmp_path / "answered")]
        (tmp_path / "next").write_text(str(int(answered[-1][0]) + 1))
    store = Store.open(str(tmp_path / "store"), settings=SETTINGS)
    try:
        place = {int(message.value or b""): message.offset for message in store.read("t")}
        assert len(place) == len(list(store.read("t"))), "a message is stored twice"
        assert {int(number): int(offset) for number, offset in answered} == {
            number: offset for number, offset in place.items() if number <= int(answered[-1][0])
        }
        seen = {int(line) for line in _lines(tmp_path / "seen")}
        with store.subscribe("t", "g", max_deliveries=0) as consumer:
            while (message := consumer.get(timeout=1)) is not None:
                seen.add(int(message.value or b""))
                message.ack()
        assert {int(number) for number, _ in answered} <= seen
    finally:
        store.close()


def _wait_for_answers(process: subprocess.Popen[bytes], path: Path, count: int) -> None:
    """Until *process* has written so many lines more."""
    enough = len(_lines(path)) + count
    assert until(lambda: process.poll() is not None or len(_lines(path)) >= enough, 2 * PATIENCE)
    assert process.poll() is None


def _lines(path: Path) -> list[bytes]:
    """The whole lines of a file; the last may be cut off by a kill."""
    if not path.exists():
        return []
    return path.read_bytes().split(b"\n")[:-1]


def test_6_a_message_is_invisible_and_unanswered_until_the_sync(gated: tuple[Store, GatedFileSystem]) -> None:
    """Through publish, a producer and a transaction; readers and consumers see nothing while the sync is held back."""
    store, files = gated
    consumer = store.subscribe("t", "g")
    store.flush()
    files.gate.clear()
    files.at_gate.clear()
    publishing = Running(lambda: store.publish("t", b"x", partition=0))
    assert files.at_gate.wait(PATIENCE)
    assert list(store.read("t")) == []
    assert consumer.get(timeout=0.1) is None
    producer = store.producer("t")
    future = producer.send(b"y", partition=1)

    def transact() -> None:
        with store.transaction() as t:
            t.publish("t", b"z", partition=2)

    transacting = Running(transact)
    assert not future.done()
    files.gate.set()
    assert publishing.result().offset == 0
    assert future.result(PATIENCE).offset == 0
    transacting.result()
    assert stored(store, "t") == [b"x", b"y", b"z"]
    assert len([consumer.get(timeout=PATIENCE) for _ in range(3)]) == 3
    consumer.close()
    producer.close()


def test_6_many_publishers_share_a_sync(gated: tuple[Store, GatedFileSystem]) -> None:
    """What gathers while one sync is held back is committed by the next few, not by one each; on any partitions."""
    store, files = gated
    files.gate.clear()
    files.at_gate.clear()
    first = Running(lambda: store.publish("t", b"first", partition=0))
    assert files.at_gate.wait(PATIENCE)
    before = files.journal_syncs
    others = [Running(lambda number=number: store.publish("t", b"x", partition=number % 4)) for number in range(40)]
    assert until(lambda: uncommitted(store) == 40)
    files.gate.set()
    for running in [first, *others]:
        running.result()
    assert files.journal_syncs - before < 10
    assert len(stored(store, "t")) == 41


def test_6_closing_commits_what_waits(live: Backend, tmp_path: Path) -> None:
    """A message that a producer holds is there after the store was closed and opened."""
    skip_unless(live.keeps_data, "opens the store again")
    store = live.open()
    producer = store.producer("t", linger=60)
    future = producer.send(b"x")
    store.close()
    assert future.exception(PATIENCE) is None
    assert stored(live.open(), "t") == [b"x"]


def test_7_deduplication_over_a_restart(lasting: Backend) -> None:
    """Same key, other payload, after a kill: the first place, one delivery, the first payload."""
    store = lasting.open()
    first = store.publish("t", b"first", dedup_key="k")
    store = lasting.kill()
    again = store.publish("t", b"second", dedup_key="k")
    assert (again.offset, again.duplicate) == (first.offset, True)
    with store.subscribe("t", "g") as consumer:
        assert values(drain(consumer)) == [b"first"]


def test_7_a_full_table_keeps_the_newest_keys_over_a_restart(lasting: Backend) -> None:
    """110,000 keys in one window: after the restart the newest 100,000 are known."""
    store = lasting.open()
    for part in range(11):
        keys = [b"%d" % number for number in range(part * 10_000, part * 10_000 + 10_000)]
        store.publish_many("t", [b""] * 10_000, dedup_keys=keys)
    store = lasting.reopen()
    for number in (109_999, 60_000, 10_002):
        receipt = store.publish("t", b"", dedup_key=b"%d" % number)
        assert (receipt.offset, receipt.duplicate) == (number, True)
    assert not store.publish("t", b"", dedup_key=b"0").duplicate


def test_8_visibility_and_nack(backend: Backend) -> None:
    """Unacked: back after the lease with attempt 2. Nacked: back when its delay is over. Member gone: back at once."""
    store = backend.open()
    store.publish("t", b"x")
    consumer = store.subscribe("t", "g", lease=30)
    assert one(consumer).attempt == 1
    backend.advance(29)
    assert consumer.get(timeout=0) is None
    backend.advance(2)
    message = one(consumer)
    assert message.attempt == 2
    message.nack(delay=0)
    assert one(consumer).attempt == 3
    consumer.close()
    with store.subscribe("t", "g") as consumer:
        assert values([one(consumer)]) == [b"x"]


def test_8_a_nack_wakes_a_consumer_that_waits(live_store: Store) -> None:
    """Nothing is swept by an interval: the nack itself is the event."""
    live_store.publish("t", b"x")
    with live_store.subscribe("t", "g", lease=600) as consumer:
        message = consumer.get(timeout=PATIENCE)
        assert message is not None
        waiting = Running(lambda: consumer.get(timeout=PATIENCE))
        message.nack(delay=0)
        assert waiting.result().attempt == 2


def test_9_acks_out_of_order(lasting: Backend) -> None:
    """Receive 0 and 1, ack 1 then 0: position 2. Ack only 1, restart: 0 comes again and 1 does not."""
    store = lasting.open()
    store.publish_many("t", numbered(2))
    for group, order, expected in (("both", (1, 0), []), ("one", (1,), [0])):
        consumer = store.subscribe("t", group)
        messages = take(consumer)
        for index in order:
            messages[index].ack()
        consumer.flush()
        assert position(store, "t", group) == (2 if group == "both" else 0)
        store = lasting.kill()
        lasting.advance(60)
        with store.subscribe("t", group) as consumer:
            assert offsets(take(consumer)) == expected
        store = lasting.reopen()


def test_10_the_window_bounds_what_is_in_flight(store: Store) -> None:
    """Window 4, 20 messages, no acks: exactly 4 arrive, one ack releases one; paused holds even then, resumed releases."""
    store.publish_many("t", numbered(20))
    with store.subscribe("t", "g", prefetch=4) as consumer:
        held = take(consumer)
        assert offsets(held) == [0, 1, 2, 3]
        held[0].ack()
        assert offsets(take(consumer)) == [4]
        consumer.pause()
        held[1].ack()
        assert take(consumer) == []
        consumer.resume()
        assert offsets(take(consumer)) == [5]
        assert consumer.in_flight == 4


def test_11_partitions_fan_in(backend: Backend) -> None:
    """4 partitions of 25: offsets rise in each, order is that of publishing, exact counts, no leakage; keys stay; bad ones are errors."""
    store = backend.open()
    store.create_topic("t", partitions=4)
    store.create_topic("other", partitions=4)
    for number in range(100):
        store.publish("t", b"%d" % number, partition=number % 4)
        store.publish("other", b"leak", partition=number % 4)
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    with store.subscribe("t", "g") as consumer:
        for message in drain(consumer):
            seen[message.partition].append((message.offset, int(message.value or b"")))
    assert dict(seen) == {partition: [(at, at * 4 + partition) for at in range(25)] for partition in range(4)}
    with pytest.raises((TopicNotFound, UsageError)):
        store.publish("t", b"x", partition=4)
    with pytest.raises((TopicNotFound, UsageError)):
        store.publish("t", b"x", partition=-1)
    with pytest.raises(TopicExists):
        store.create_topic("t", partitions=5)
    before = [store.publish("t", b"", key=b"user-%d" % number).partition for number in range(50)]
    if backend.keeps_data:
        store = backend.reopen()
        assert [store.publish("t", b"", key=b"user-%d" % number).partition for number in range(50)] == before


def test_12_retention_with_consumers(lasting: Backend) -> None:
    """Below the floor is out of range; a fresh group begins at the floor and its acks stay; unread segments are kept in queue mode."""
    store = lasting.open()
    for topic, retain in (("stream", "always"), ("queue", "until_acked")):
        store.create_topic(topic, segment_messages=10, retention_age=60, retain=retain)
        for value in numbered(25):
            store.publish(topic, value)
    for topic in ("stream", "queue"):
        with store.subscribe(topic, "strict", reset="fail") as consumer:
            consumer.ack(take(consumer, 3), wait=True)
    lasting.advance(3_600)
    for topic in ("stream", "queue"):
        store.publish(topic, b"25")
    store.retain()
    # Queue mode: the group is in the first segment, so nothing goes.
    assert stored(store, "queue") == numbered(26)
    # Stream mode: the sealed segments are gone, the active one is not.
    floor = next(iter(store.read("stream"))).offset
    assert floor == 20
    with pytest.raises(OffsetOutOfRange) as caught, store.subscribe("stream", "strict", reset="fail") as consumer:
        consumer.get(timeout=0)
    assert caught.value.first == floor
    with store.subscribe("stream", "fresh") as consumer:
        one(consumer).ack(wait=True)
    store = lasting.kill()
    assert position(store, "stream", "fresh") == floor + 1


def test_12_a_delayed_message_keeps_its_segment(lasting: Backend) -> None:
    """In queue mode: what is acked around it goes only when it was delivered; it comes in its time, also after a restart."""
    store = lasting.open()
    store.create_topic("t", segment_messages=10, retention_age=60)
    for number in range(35):
        store.publish("t", b"%d" % number, delay=10_000 if number == 14 else None)
    with store.subscribe("t", "g") as consumer:
        assert len(drain(consumer)) == 34
        consumer.flush()
    lasting.advance(3_600)
    store.publish("t", b"35")
    store.retain()
    assert next(iter(store.read("t"))).offset == 10
    store = lasting.kill()
    lasting.advance(10_000)
    store.retain()
    with store.subscribe("t", "g") as consumer:
        assert sorted(offsets(drain(consumer))) == [14, 35]
        consumer.flush()
    store.retain()
    assert offsets(store.read("t")) == []


def test_13_rotation_by_bytes(folder: DirectoryBackend) -> None:
    """Room for two and a half messages, five of them: segments begin at 0, 2, 4; a larger message gets a segment of its own, whole."""
    store = folder.open()
    options: dict[str, Any] = {"sync": "os", "coalesce_below_bytes": 0}
    store.create_topic("probe", **options)
    sizes = []
    for _ in range(2):
        store.publish("probe", bytes(1_000))
        sizes.append(segments(folder, "probe")[0].stat().st_size)
    each = sizes[1] - sizes[0]
    cap = sizes[0] - each + round(2.5 * each)
    store.create_topic("t", segment_bytes=cap, **options)
    assert [store.publish("t", bytes(1_000)).offset for _ in range(5)] == [0, 1, 2, 3, 4]
    assert [int(path.stem) for path in segments(folder)] == [0, 2, 4]
    large = bytes(cap * 3)
    assert store.publish("t", large).offset == 5
    assert store.publish("t", bytes(1_000)).offset == 6
    assert [int(path.stem) for path in segments(folder)] == [0, 2, 4, 5, 6]
    assert stored(store, "t")[5] == large
    assert len(stored(folder.reopen(), "t")) == 7


def test_13_rotation_by_number(backend: Backend) -> None:
    """Fifty messages in segments of ten are read back in order, and again after a restart."""
    store = backend.open()
    store.create_topic("t", segment_messages=10)
    for value in numbered(50):
        store.publish("t", value)
    assert stored(store, "t") == numbered(50)
    if isinstance(backend, DirectoryBackend):
        assert [int(path.stem) for path in segments(backend)][:5] == [0, 10, 20, 30, 40]
        assert stored(backend.reopen(), "t") == numbered(50)


def test_13_rotation_beside_concurrent_publishers(live: Backend) -> None:
    """Two hundred publishes from eight threads over many segments: offsets dense, all there, also after a restart."""
    store = live.open()
    store.create_topic("t", segment_messages=7)

    def publish(name: int) -> list[int]:
        return [store.publish("t", b"%d %d" % (name, number)).offset for number in range(25)]

    places = [offset for thread in all_of(publish, range(8)) for offset in thread]
    assert sorted(places) == list(range(200))
    if live.keeps_data:
        store = live.reopen()
    assert sorted(stored(store, "t"), key=lambda value: value or b"") == sorted(
        b"%d %d" % (name, number) for name in range(8) for number in range(25)
    )


def test_14_dead_letters(backend: Backend) -> None:
    """One copy after the last allowed failure, byte-equal, described; not delivered again after a restart; replay counts anew."""
    store = backend.open()
    payload = bytes(range(256)) * 20
    store.publish("t", payload, key=b"k", headers={"mine": b"1"}, timestamp=5)
    with store.subscribe("t", "g", max_deliveries=3) as consumer:
        for attempt in (1, 2, 3):
            message = one(consumer)
            assert message.attempt == attempt
            message.nack(delay=0, reason="broken")
        assert consumer.get(timeout=0) is None
    if backend.keeps_data:
        for restart in (backend.reopen, backend.kill):
            store = restart()
            with store.subscribe("t", "g", max_deliveries=3) as consumer:
                backend.advance(3_600)
                assert consumer.get(timeout=0) is None
    (letter,) = store.dead_letters("t").list()
    assert (letter.value, letter.key, letter.timestamp_us, letter.headers["mine"]) == (payload, b"k", 5_000_000, b"1")
    assert [letter.headers["x-dlq-" + name] for name in ("source-topic", "source-partition", "source-offset", "group", "deliveries")] == [
        b"t", b"0", b"0", b"g", b"3",
    ]  # fmt: skip
    assert letter.headers["x-dlq-reason"] == b"broken"
    with store.subscribe("t.dlq", "g", max_deliveries=1) as consumer:
        one(consumer).nack(delay=0)
    assert [info.name for info in store.topics()] == ["t", "t.dlq"]
    assert store.dead_letters("t").replay() == 1
    if backend.keeps_data:
        store = backend.kill()
    assert store.dead_letters("t").list() == []
    with store.subscribe("t", "g", max_deliveries=3) as consumer:
        message = one(consumer)
    assert (message.value, message.attempt, list(message.headers)) == (payload, 1, [("mine", b"1")])


@pytest.mark.parametrize("compression", ["gzip", "zstd", "lz4"])
def test_14_a_dead_letter_of_a_compressed_source(backend: Backend, compression: str) -> None:
    """Byte-equal, and so is what is sent back, from among others in one batch."""
    store = backend.open()
    store.create_topic("t", compression=compression)
    payload = bytes(range(256)) * 20
    store.publish_many("t", [b"before", payload, b"after"], keys=["a", "b", "c"])
    with store.subscribe("t", "g", max_deliveries=1) as consumer:
        for message in take(consumer, 3):
            if message.value == payload:
                message.nack(delay=0, reason="broken")
            else:
                message.ack(wait=True)
    if backend.keeps_data:
        store = backend.kill()
    (letter,) = store.dead_letters("t").list()
    assert (letter.value, letter.key) == (payload, b"b")
    assert store.dead_letters("t").replay() == 1
    with store.subscribe("t", "g") as consumer:
        assert [(message.value, message.key, message.attempt) for message in drain(consumer)] == [(payload, b"b", 1)]


def test_15_seeking(backend: Backend) -> None:
    """To an offset, to a time, not beyond the end; the place persists."""
    store = backend.open()
    store.create_topic("t", segment_messages=7)
    times = []
    for value in numbered(20):
        times.append(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=backend.clock.now_us()))
        store.publish("t", value)
        backend.advance(60)
    with store.subscribe("t", "g") as consumer:
        drain(consumer)
        store.seek("t", "g", 12)
        assert offsets(drain(consumer)) == list(range(12, 20))
        store.seek("t", "g", times[5])
        assert offsets(drain(consumer, 3)) == [5, 6, 7]
        with pytest.raises(OffsetOutOfRange):
            store.seek("t", "g", 21)
        consumer.flush()
    if backend.keeps_data:
        store = backend.kill()
    assert position(store, "t", "g") == 8
    with store.subscribe("t", "g") as consumer:
        assert offsets(drain(consumer)) == list(range(8, 20))


def test_15_seeking_back_among_priorities_and_what_has_expired(backend: Backend) -> None:
    """What was done comes again, the most urgent first; what has expired meanwhile does not, and is not in the way."""
    store = backend.open()
    store.create_topic("t", priorities=True, aging=3_600)
    lanes = ["low", "high", "medium", "high", "low", "medium"]
    for number, lane in enumerate(lanes):
        store.publish("t", b"%d" % number, priority=lane, ttl=60 if number in (1, 4) else None)
    first = [1, 3, 2, 5, 0, 4]
    with store.subscribe("t", "g") as consumer:
        taken = [one(consumer) for _ in lanes]
        assert offsets(taken) == first
        consumer.ack(taken, wait=True)
        store.seek("t", "g", "earliest")
        again = [one(consumer) for _ in lanes]
        assert offsets(again) == first
        consumer.ack(again, wait=True)
        backend.advance(61)
        store.seek("t", "g", "earliest")
    if backend.keeps_data:
        store = backend.kill()
    with store.subscribe("t", "g") as consumer:
        left = []
        while (message := consumer.get(timeout=0)) is not None:
            left.append(message.offset)
            message.ack(wait=True)
        assert left == [3, 2, 5, 0]
    assert store.stats().topics["t"].groups["g"].lag == 0


BELOW = {
    "a torn batch": "tests/format/test_batch.py::test_a_batch_cut_at_any_byte_is_refused",
    "a torn frame": "tests/format/test_frame.py::test_a_frame_cut_at_any_byte_is_refused",
    "a torn frame on the wire": "tests/wire/test_frame.py::test_a_frame_that_is_cut_off_is_refused",
    "a flipped bit in a frame": "tests/format/test_frame.py::test_each_flipped_bit_of_a_frame_is_noticed",
    "a flipped bit in any file": "tests/bad_bytes/test_flipped_bits.py::test_a_flipped_bit_in_each_byte_is_harmless_or_reported",
    "a forged length": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "a forged length on the wire": "tests/wire/test_frame.py::test_a_long_frame_that_has_not_come_allocates_nothing",
    "random bytes": "tests/bad_bytes/test_decoders.py::test_random_bytes_are_refused_with_a_typed_error",
    "random bytes on the wire": "tests/wire/test_fuzzing.py::test_random_bytes_are_no_frame",
}
"""Number 4, by class of frame: the tests below the public face."""


def test_4_the_classes_of_frames_have_their_tests() -> None:
    """And none of the fifteen is forgotten."""
    root = Path(__file__).parents[2]
    for place in BELOW.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (root / path).read_text(), place
    names = re.findall(r"^def test_(\d+)_", Path(__file__).read_text(), re.MULTILINE)
    assert {int(number) for number in names} == set(range(1, 16))


def test_4_an_empty_log_ends_cleanly(folder: DirectoryBackend) -> None:
    """Nothing in it is nothing to read, and no damage; nor is what lies behind the last whole frame."""
    store = folder.open()
    store.create_topic("t")
    for restart in (folder.reopen, folder.kill):
        store = restart()
        assert stored(store, "t") == []
    assert store.publish("t", b"x").offset == 0
