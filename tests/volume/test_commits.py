"""Commits: one sync for many, nothing visible before it, tickets and blocking callers, and what a commit refuses."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import BadBytes, BatchTooLarge, Closed, OffsetOutOfRange, StorageFailed, WaitTimeout
from penstock.format.batch import EncodedBatch, encode_batch, encode_single
from penstock.log.segment import Segment
from penstock.settings import StoreSettings, TopicSettings
from penstock.testing import SimulatedFileSystem
from penstock.values import SyncMode
from penstock.volume.tickets import Append, Change, MoveLogStart, Other
from penstock.volume.volume import Volume
from tests.volume.gated_files import GatedFileSystem
from tests.volume.simulated import LARGE, PATH, new_volume, open_volume, power_loss
from tests.volume.simulated import SETTINGS as SMALL_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.journal.ticket import Ticket

SETTINGS = StoreSettings(
    journal_file_bytes=1024 * 1024, frame_bytes=256 * 1024, reference_bytes=64 * 1024, free_bytes_floor=0, reserve_bytes=0
)
PATIENCE_S = 60.0
"""Seconds that a test waits for something that must happen; a sync may take many of them where others use the disk."""


@pytest.fixture
def files() -> GatedFileSystem:
    """A real file system with a gate before the journal's syncs."""
    return GatedFileSystem()


@pytest.fixture
def volume(tmp_path: Path, files: GatedFileSystem) -> Iterator[Volume]:
    """An open store with two topics."""
    with Volume.open(tmp_path / "store", settings=SETTINGS, files=files) as volume:
        volume.create_topic("t", 4)
        volume.create_topic("weak", 1, TopicSettings(sync=SyncMode.OS))
        yield volume
        files.gate.set()


def test_a_message_is_invisible_and_its_publish_unreturned_until_the_sync(volume: Volume, files: GatedFileSystem) -> None:
    """I3, I6: while the sync is held back nobody sees the message and nobody is answered."""
    log = volume.log("t")
    files.gate.clear()
    files.at_gate.clear()
    ticket = volume.submit(log, encode_single(b"one"))
    assert files.at_gate.wait(PATIENCE_S)
    assert not ticket.done
    assert log.committed_end == 0
    with pytest.raises(OffsetOutOfRange):
        log.read(1)
    assert log.read(0) == []
    files.gate.set()
    ticket.wait(PATIENCE_S)
    assert ticket.first_offset == 0
    assert bytes(log.read(0)[0].value(0) or b"") == b"one"


def test_many_publishes_share_one_sync(volume: Volume, files: GatedFileSystem) -> None:
    """What gathers while one sync runs is committed by the next one."""
    log = volume.log("t")
    files.gate.clear()
    files.at_gate.clear()
    first = volume.submit(log, encode_single(b"first"))
    assert files.at_gate.wait(PATIENCE_S)
    before = files.journal_syncs
    others = [volume.submit(volume.log("t", number % 4), encode_single(b"more")) for number in range(200)]
    files.gate.set()
    for ticket in [first, *others]:
        ticket.wait(PATIENCE_S)
    assert files.journal_syncs - before <= 3


def test_blocking_threads_share_syncs_and_get_dense_offsets(volume: Volume, files: GatedFileSystem) -> None:
    """Sixteen threads on one log: each gets its own offsets, together they are dense, and there are fewer syncs than publishes."""
    log = volume.log("t")
    offsets: list[int] = []
    before = files.journal_syncs

    def publish() -> None:
        offsets.extend([volume.append(log, encode_single(b"%d" % number)) for number in range(50)])

    threads = [threading.Thread(target=publish) for _ in range(16)]
    # The first sync is held back until all others wait behind it: where a sync takes no time they might never meet.
    files.gate.clear()
    files.at_gate.clear()
    threads[0].start()
    assert files.at_gate.wait(PATIENCE_S)
    for thread in threads[1:]:
        thread.start()
    paused, end = threading.Event(), time.monotonic() + PATIENCE_S
    while len(volume._committer._pending) < 15:
        assert time.monotonic() < end, "they do not wait"
        paused.wait(0.001)
    files.gate.set()
    for thread in threads:
        thread.join(2 * PATIENCE_S)
    assert sorted(offsets) == list(range(800))
    assert log.committed_end == 800
    assert files.journal_syncs - before < 800 - 10


def test_order_of_one_publisher_is_kept(volume: Volume) -> None:
    """I7: tickets of one thread to one log are committed in the order of their submission."""
    log = volume.log("t")
    tickets = [volume.submit(log, encode_single(b"%d" % number)) for number in range(500)]
    for ticket in tickets:
        ticket.wait(PATIENCE_S)
    assert [ticket.first_offset for ticket in tickets] == list(range(500))


def test_a_ticket_that_nobody_waits_for_is_committed(volume: Volume) -> None:
    """The background thread carries it out, and the callback tells."""
    done = threading.Event()
    seen: list[Ticket] = []

    def note(ticket: Ticket) -> None:
        seen.append(ticket)
        done.set()

    ticket = volume.submit(volume.log("t"), encode_single(b"x"))
    ticket.on_done(note)
    assert done.wait(PATIENCE_S)
    assert seen == [ticket]


def test_waiting_too_long_is_a_timeout_and_the_commit_goes_on(volume: Volume, files: GatedFileSystem) -> None:
    """`WaitTimeout` is a `TimeoutError`; the ticket is still good."""
    files.gate.clear()
    files.at_gate.clear()
    ticket = volume.submit(volume.log("t"), encode_single(b"x"))
    assert files.at_gate.wait(PATIENCE_S)
    with pytest.raises(WaitTimeout) as caught:
        ticket.wait(0.01)
    assert isinstance(caught.value, TimeoutError)
    files.gate.set()
    ticket.wait(PATIENCE_S)
    assert ticket.first_offset == 0


def test_a_waiting_reader_is_woken_by_the_commit(volume: Volume) -> None:
    """`wait_for` sleeps until the offset is committed."""
    log = volume.log("t")
    woken = threading.Event()

    def wait() -> None:
        if log.wait_for(0, timeout=PATIENCE_S):
            woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    volume.append(log, encode_single(b"x"))
    assert woken.wait(PATIENCE_S)
    thread.join()
    assert not log.wait_for(5, timeout=0.01)
    assert log.wait_for(0, timeout=0)


def test_listeners_hear_of_commits_until_they_are_removed(volume: Volume) -> None:
    """For event loops: a callback after each commit."""
    log = volume.log("t")
    heard: list[int] = []
    remove = log.add_listener(lambda: heard.append(log.committed_end))
    volume.append(log, encode_single(b"x"))
    remove()
    volume.append(log, encode_single(b"y"))
    assert heard == [1]


def test_a_change_to_several_logs_is_one_frame(volume: Volume) -> None:
    """All of it is committed together; other layers' entries travel with it."""
    applied: list[bytes] = []
    volume.on_other(9, applied.append)
    logs = [volume.log("t", partition) for partition in range(3)]
    changes: list[Change] = [*[Append(log, encode_batch([b"a", b"b"])) for log in logs], Other(9, b"done")]
    ticket = volume.submit_changes(changes)
    ticket.wait(PATIENCE_S)
    assert ticket.first_offsets == [0, 0, 0]
    assert volume.ends(logs) == [2, 2, 2]
    assert applied == [b"done"]


def test_a_weak_topic_can_publish_strictly(volume: Volume) -> None:
    """sync=always on one publish to a topic with sync=os goes through the journal by reference."""
    log = volume.log("weak")
    assert volume.append(log, encode_single(b"weak")) == 0
    assert volume.append(log, encode_single(b"strict"), sync=SyncMode.ALWAYS) == 1
    assert volume.append(log, encode_single(b"weak again")) == 2
    assert [bytes(batch.value(0) or b"") for batch in log.read(0)] == [b"weak", b"strict", b"weak again"]


def test_a_batch_over_the_limit_is_refused_and_changes_nothing(volume: Volume) -> None:
    """R10: the limit is checked before anything is planned."""
    log = volume.log("t")
    with pytest.raises(BatchTooLarge):
        volume.append(log, encode_batch([bytes(9 * 1024 * 1024)]))
    with pytest.raises(BatchTooLarge):
        volume.submit_changes([Append(log, encode_batch([bytes(9 * 1024 * 1024)]))])
    assert log.committed_end == 0
    assert volume.append(log, encode_single(b"x")) == 0


def test_closing_commits_what_waits_and_refuses_the_rest(tmp_path: Path) -> None:
    """Close flushes; afterwards nothing is taken."""
    volume = Volume.open(tmp_path / "store", settings=SETTINGS)
    volume.create_topic("t")
    tickets = [volume.submit(volume.log("t"), encode_single(b"%d" % number)) for number in range(50)]
    volume.close()
    assert all(ticket.done and ticket.error is None for ticket in tickets)
    with pytest.raises(Closed):
        volume.append(volume.log("t"), encode_single(b"late"))
    volume.close()
    with Volume.open(tmp_path / "store", settings=SETTINGS) as again:
        assert again.log("t").committed_end == 50


def test_the_interval_mode_syncs_within_its_interval(tmp_path: Path) -> None:
    """sync=interval: what was written is durable in the log's own files soon after, without anybody asking."""
    settings = StoreSettings(sync_interval_ms=5, free_bytes_floor=0, reserve_bytes=0)
    with Volume.open(tmp_path / "store", settings=settings) as volume:
        volume.create_topic("t", 1, TopicSettings(sync=SyncMode.INTERVAL))
        log = volume.log("t")
        volume.append(log, encode_single(b"x"))
        waited = threading.Event()
        for _ in range(12_000):
            if log.durable_end == 1:
                break
            waited.wait(0.005)
        assert log.durable_end == 1


@pytest.mark.parametrize("topic", ["t", "weak"])
def test_an_interrupt_in_the_middle_of_an_append_never_gives_an_offset_twice(
    volume: Volume, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    An exception between the write and the book-keeping, and reopening finds one batch an offset.

    A weak append finishes its book-keeping, and the store goes on. In a commit signals are held back, so it was something else: the store
    takes no more writes.
    """
    log = volume.log(topic)
    volume.append(log, encode_single(b"before"))
    write, write_one = Segment.write, Segment.write_one

    def interrupted(*arguments: Any) -> None:
        (write if len(arguments) == 3 else write_one)(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(Segment, "write", interrupted)
    monkeypatch.setattr(Segment, "write_one", interrupted)
    with pytest.raises(KeyboardInterrupt):
        volume.append(log, encode_single(b"interrupted"))
    monkeypatch.undo()
    if topic == "weak":
        assert volume.append(log, encode_single(b"after")) == 2
    else:
        with pytest.raises(StorageFailed):
            volume.append(log, encode_single(b"after"))
    volume.close()
    with Volume.open(volume.path, settings=SETTINGS) as again:
        found = [(batch.first_offset, bytes(batch.value(0) or b"")) for batch in again.log(topic).read(0)]
        if topic == "weak":
            assert found == [(0, b"before"), (1, b"interrupted"), (2, b"after")]
        else:
            assert found in ([(0, b"before")], [(0, b"before"), (1, b"interrupted")])
        assert again.append(again.log(topic), encode_single(b"next")) == len(found)


def test_a_commit_that_races_close_is_refused_and_not_acknowledged_behind_the_last_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would be missing from a store that says it was closed in order."""
    files, volume, log = new_volume()
    volume.append(log, encode_single(b"1"))
    late = volume._ticket(log, encode_single(b"late"))
    sync = Segment.sync
    errors: list[Exception] = []

    def wait() -> None:
        try:
            late.wait()
        except Closed as error:
            errors.append(error)

    def sync_with_a_late_comer(segment: Segment) -> None:
        if volume._committer._closing and not errors:
            volume._committer._pending.append(late)
            thread = threading.Thread(target=wait)
            thread.start()
            thread.join(PATIENCE_S)
        sync(segment)

    monkeypatch.setattr(Segment, "sync", sync_with_a_late_comer)
    volume.close()
    assert len(errors) == 1
    assert open_volume(files.kill()).log("a").committed_end == 1
    assert open_volume(power_loss(files)).log("a").committed_end == 1


def test_a_batch_that_is_published_again_is_not_taken_for_one_that_waits_for_its_frame() -> None:
    """What the owner of one log noted in a batch means nothing in another."""
    files, volume, log = new_volume()
    volume.create_topic("weak", 1, TopicSettings(sync=SyncMode.INTERVAL))
    weak = volume.log("weak")
    original = encode_single(LARGE)
    volume.append(log, original)
    volume.append(weak, EncodedBatch.adopt(log.read(0)[0].buffer))
    volume.append(weak, original)
    volume.append(weak, encode_single(b"after"))
    volume.sync_interval_logs()
    for disk in (files.kill(), power_loss(files)):
        assert open_volume(disk).log("weak").committed_end == 3


def test_a_batch_from_outside_cannot_use_up_the_offsets() -> None:
    """Only the owner of a log leaves offsets out."""
    batch = encode_single(b"1")
    batch.data[32:40] = ((1 << 63) - 2).to_bytes(8, "little")
    batch.stamp(0, 0, 0, 0, 0, 0)
    with pytest.raises(BadBytes):
        EncodedBatch.adopt(batch.data)


def test_changes_that_do_not_fit_into_a_frame_are_refused() -> None:
    """Their sum counts, not each one; and a log's start cannot be moved behind its end."""
    _, volume, log = new_volume()
    with pytest.raises(BatchTooLarge):
        volume.submit_changes([Other(1, b"z" * 10_000)] * 10)
    with pytest.raises(OffsetOutOfRange):
        volume.submit_changes([MoveLogStart(log, 1)])
    assert volume.append(log, encode_single(b"1")) == 0


def test_an_os_topic_can_ask_for_the_interval() -> None:
    """The stricter of the topic's and the call's mode counts."""
    _, volume, log = new_volume(TopicSettings(sync=SyncMode.OS))
    volume.append(log, encode_single(b"1"), sync=SyncMode.INTERVAL)
    volume.sync_interval_logs()
    assert log.durable_end == 1


def test_a_callback_that_fails_costs_nobody_else_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged; the other tickets are answered, and the committing thread goes on."""

    def fail(_: Ticket) -> None:
        raise ZeroDivisionError

    files = SimulatedFileSystem()
    with Volume.open(PATH, settings=SMALL_SETTINGS, files=files) as volume:
        volume.create_topic("a")
        log = volume.log("a")
        with volume._committer.quiesce():
            first = volume.submit(log, encode_single(b"1"))
            first.on_done(fail)
            second = volume.submit(log, encode_single(b"2"))
        second.wait(PATIENCE_S)
        volume.submit(log, encode_single(b"3")).wait(PATIENCE_S)
    assert "callback" in caplog.text
