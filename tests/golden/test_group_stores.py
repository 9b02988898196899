"""
Whole stores with groups, producers and stages as version 0.1 wrote them through the public API: one closed in order, one killed.

Their bytes depend on random numbers, so they are not compared: they are opened, and what comes out of them is.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from penstock import Committed, GroupSettings, Store
from penstock.format.checkpoint import Checkpoint
from penstock.format.frame import ENTRY_OTHER
from penstock.groups import operations as ops
from penstock.groups.registry import GROUPS_OWNER
from penstock.journal.journal import Journal
from penstock.settings import StoreSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.topics.producers import PRODUCERS_OWNER
from tests.golden.files import FOLDER, REGENERATE_VARIABLE, may_write, write_files

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import Consumer

CONDITIONS = ("closed", "killed")
BEGAN_US = 1_700_000_000_000_000
OPENED_US = BEGAN_US + 7_200_000_000
"""Two hours later: what was to be delivered again after one hour is due."""
SETTINGS = StoreSettings(
    journal_file_bytes=16_384, frame_bytes=4096, reference_bytes=400, checkpoint_bytes=1024, free_bytes_floor=0, reserve_bytes=0
)


def open_store(path: str, files: SimulatedFileSystem | None, clock: FakeClock) -> Store:
    return Store.open(path, settings=SETTINGS, files=files, clock=clock, background=False)


def write_store(folder: Path, *, killed: bool) -> None:
    """Make a golden store, on a simulated disk. Its first process is killed in any case, so that the second one finds suspects."""
    files, clock = SimulatedFileSystem(), FakeClock(now_us=BEGAN_US)
    store = open_store("/store", files, clock)
    store.create_topic("orders", partitions=2)
    store.create_topic("bills")
    store.publish_many("orders", [b"a0", b"a1", b"a2", b"a3", b"a4", b"a5"], partition=0)
    store.publish_many("orders", [b"b0", b"b1", b"b2"], partition=1)
    with store.producer("bills", linger=0, name="loader") as producer:
        producer.send(b"by the loader")
    store.subscribe("orders", "gone").close()
    store.delete_group("orders", "gone")
    store.subscribe("orders", "audit", ordered=True, max_deliveries=0, reset="fail", lease=5).close()
    store.seek("orders", "audit", {0: 4, 1: 1})
    clock.advance(1)
    first, second, third, _, _ = store.subscribe("orders", "billing", max_deliveries=3, prefetch=5).get_many(5)
    first.ack()
    second.nack(delay=3600, reason="not yet")
    third.reject(reason=ValueError("never"))
    with store.stage("job") as stage:
        stage.publish("bills", b"staged")
    store.commit("job", 1, [stage.identity])
    store.flush()

    files = files.kill()
    clock.advance(10)
    store = open_store("/store", files, clock)
    consumer = store.subscribe("orders", "billing", lease=20, prefetch=4)
    suspect = consumer.get(timeout=0)
    assert suspect is not None
    assert suspect.offset == 3
    with store.transaction() as transaction:
        transaction.publish("bills", b"in a transaction")
        transaction.ack(suspect)
    while (suspect := consumer.get(timeout=0)) is not None and suspect.offset != 4:
        pass  # What comes before it is held, too.
    assert suspect is not None
    mirror = store.subscribe("orders", "mirror", start="latest")
    store.seek("orders", "mirror", "earliest")
    mirror.commit(2, partition=1)
    taken = mirror.get(timeout=0)
    assert taken is not None
    taken.nack(delay=0)
    mirror.close()
    with store.stage("job") as stage:
        stage.publish("bills", b"staged and not committed")
    with store.producer("bills", linger=0, name="loader") as producer:
        producer.send(b"by the loader again")
    store.seek("orders", "audit", "earliest", partition=0)
    store.flush()
    if not killed:
        store.close()
    write_files(folder, files)


@pytest.fixture(params=CONDITIONS)
def condition(request: pytest.FixtureRequest) -> str:
    """How the last process ended; its golden store is there."""
    folder = FOLDER / f"group-store-{request.param}"
    if not folder.exists():
        assert may_write(), f"{folder} is missing; {REGENERATE_VARIABLE}=1 writes it"
        write_store(folder, killed=request.param == "killed")
    return str(request.param)


@pytest.fixture
def path(condition: str, tmp_path: Path) -> Path:
    """A copy of a golden store."""
    return shutil.copytree(FOLDER / f"group-store-{condition}", tmp_path / "store")


def take(consumer: Consumer) -> list[tuple[int, int, int]]:
    """(partition, offset, attempt) of all that is ready, in any order; all of it is acked."""
    found = []
    while (message := consumer.get(timeout=0)) is not None:
        found.append((message.partition, message.offset, message.attempt))
        message.ack()
    return sorted(found)


def billing(condition: str) -> list[tuple[int, int, int]]:
    """
    What the group "billing" gets, written out by hand.

    Offset 0 was acked, 1 nacked, 2 dead-lettered, 3 acked by a transaction. A process that was killed had begun to handle offset 4.
    """
    return [(0, 1, 2), (0, 4, 2 if condition == "killed" else 1), (0, 5, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1)]


def test_a_golden_store_with_groups_is_read_and_written_on(path: Path, condition: str) -> None:
    """Groups go on where they were, with their settings and failures, and nothing comes again after that."""
    with open_store(str(path), None, FakeClock(now_us=OPENED_US)) as store:
        assert [(group.name, group.settings) for group in store.groups("orders")] == [
            ("audit", GroupSettings(ordered=True, max_deliveries=0, reset="fail", lease_ms=5000)),
            ("billing", GroupSettings(max_deliveries=3, lease_ms=20_000)),
            ("mirror", GroupSettings()),
        ]
        groups = store.stats().topics["orders"].groups
        assert {name: group.positions for name, group in groups.items()} == {
            "audit": {0: 0, 1: 1}, "billing": {0: 1, 1: 0}, "mirror": {0: 0, 1: 2},
        }  # fmt: skip
        assert {name: group.lag for name, group in groups.items()} == {"audit": 8, "billing": 6, "mirror": 7}
        assert take(store.subscribe("orders", "billing")) == billing(condition)
        assert take(store.subscribe("orders", "mirror")) == [(0, 0, 2), *[(0, at, 1) for at in range(1, 6)], (1, 2, 1)]
        assert take(store.subscribe("orders", "audit")) == [*[(0, at, 1) for at in range(6)], (1, 1, 1), (1, 2, 1)]
        store.publish("orders", b"new", partition=1)
    with open_store(str(path), None, FakeClock(now_us=OPENED_US)) as store:
        for name in ("audit", "billing", "mirror"):
            assert take(store.subscribe("orders", name)) == [(1, 3, 1)]


def test_the_dead_letters_of_a_golden_store(path: Path) -> None:
    """With what is told about them, and they can be sent back."""
    with open_store(str(path), None, FakeClock(now_us=OPENED_US)) as store:
        (letter,) = store.dead_letters("orders").list()
        assert (letter.value, dict(letter.headers)) == (
            b"a2",
            {
                "x-dlq-source-topic": b"orders",
                "x-dlq-source-partition": b"0",
                "x-dlq-source-offset": b"2",
                "x-dlq-group": b"billing",
                "x-dlq-deliveries": b"1",
                "x-dlq-reason": b"ValueError: never",
                "x-dlq-first-failure": b"2023-11-14T22:13:21Z",
                "x-dlq-last-failure": b"2023-11-14T22:13:21Z",
            },
        )
        assert store.dead_letters("orders").replay() == 1
    with open_store(str(path), None, FakeClock(now_us=OPENED_US)) as store:
        assert not store.dead_letters("orders").list()
        assert store.stats().topics["orders"].ends == {0: 7, 1: 3}


def test_the_producers_and_stages_of_a_golden_store(path: Path) -> None:
    """The third producer of a name gets the next number, a repeated commit its first answer, and the stage that was left can be used."""
    values = [b"by the loader", b"staged", b"in a transaction", b"by the loader again"]
    (left,) = [stage.name.removesuffix(".stage") for stage in (path / "staging").iterdir()]
    with open_store(str(path), None, FakeClock(now_us=OPENED_US)) as store:
        assert [message.value for message in store.read("bills", 0)] == values
        with store.producer("bills", linger=0, name="loader") as producer:
            identity = producer._outlet.identity(0)
            assert identity is not None
            assert identity.incarnation == 2
            sent = producer.send(b"by the third")
        assert sent.result().offset == 4
        assert store.commit("job", 1, []) == Committed("job", 1, 1, duplicate=True, newest=1)
        assert store.commit("job", 2, [left]) == Committed("job", 2, 1, duplicate=False, newest=2)
    with open_store(str(path), None, FakeClock(now_us=OPENED_US)) as store:
        assert [message.value for message in store.read("bills", 0)] == [*values, b"by the third", b"staged and not committed"]


def test_a_golden_store_has_every_kind_of_operation(condition: str) -> None:
    """Both checkpoints and the journal together: so that opening the stores reads every kind that there is."""
    folder = FOLDER / f"group-store-{condition}"
    checkpoints = [Checkpoint.decode((folder / f"checkpoint-{number}").read_bytes()) for number in range(2)]
    latest = max(checkpoints, key=lambda checkpoint: checkpoint.generation)
    sections = dict(latest.sections)
    assert sorted(sections) == [GROUPS_OWNER, PRODUCERS_OWNER]
    snapshot = {operation.kind for operation in ops.operations(sections[GROUPS_OWNER])}
    assert snapshot == {ops.MADE, ops.SOUGHT, ops.POSITION, ops.SUSPECTS, ops.FAILED_ALL, ops.NEXT_ID}
    assert latest.clean == (condition == "closed")
    if condition == "closed":
        return
    files = SimulatedFileSystem()
    files.make_directory("/journal")
    for file in (folder / "journal").iterdir():
        files.replace(f"/journal/{file.name}", file.read_bytes())
    journal = Journal(files, "/journal", latest.store_id, SETTINGS.journal_file_bytes)
    frames = journal.replay(latest.journal_sequence, latest.frame_number)
    others = [entry for frame in frames for entry in frame.entries if entry.kind == ENTRY_OTHER]
    assert {entry.owner for entry in others} == {GROUPS_OWNER, PRODUCERS_OWNER}
    found = {operation.kind for entry in others if entry.owner == GROUPS_OWNER for operation in ops.operations(entry.body)}
    assert found == {*range(ops.MADE, ops.LEFT + 1)} - {ops.DELETED, ops.RETURNED}
