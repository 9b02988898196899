"""Database consumers where messages do not come in the order of the log: delays, expiry, compaction, priorities, retention."""

from __future__ import annotations

import contextlib
import importlib
import sqlite3
import time
from typing import TYPE_CHECKING, Any

import pytest

from penstock import database as databases
from penstock.database import following
from penstock.errors import PositionLost, TakenOver
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.conformance.backends import SETTINGS
from tests.faces import open_face

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.client.store import RemoteStore
    from tests.database.databases import Database

JOBS, GROUP = "jobs", "ledger"


class World:
    """A store that can be killed, a database that survives it, and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.files, self.clock = SimulatedFileSystem(), FakeClock()
        self.ledger = sqlite3.connect(":memory:")
        self.ledger.execute("CREATE TABLE effects (id INTEGER PRIMARY KEY, what TEXT, at_us INTEGER)")
        self.open()

    def open(self) -> None:
        self.store = Store.open("/s", settings=SETTINGS, files=self.files, clock=self.clock, background=False)

    def kill(self) -> None:
        """The process of the store ends, and with it what was not written."""
        self.files = self.files.kill()
        self.ledger.rollback()
        self.open()

    def publish(self, value: str, **options: Any) -> int:
        return int(self.store.publish(JOBS, value.encode(), **options).offset)

    def consumer(self, **options: Any) -> databases.DatabaseConsumer:
        return databases.consumer(self.store, JOBS, GROUP, connection=self.ledger, **{"backoff": 0.01, **options})

    def handle(self, batch: databases.Batch) -> None:
        with batch as cursor:
            for message in batch:
                cursor.execute("INSERT INTO effects (what, at_us) VALUES (?, ?)", (text_of(message), self.clock.now_us()))

    def drain(self, found: databases.DatabaseConsumer) -> None:
        found._look_at_s = 0
        for batch in found.batches(0):
            self.handle(batch)

    def effects(self) -> list[str]:
        return [row[0] for row in self.ledger.execute("SELECT what FROM effects ORDER BY id")]

    def position(self) -> databases.Position:
        return databases.positions(self.ledger, JOBS, GROUP)[0]


def text_of(message: Any) -> str:
    return str(message.value.decode())


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(following, "_now_us", lambda _: made.clock.now_us())
    yield made
    made.store.close()
    made.ledger.close()


def test_delayed_messages_are_overtaken_and_have_their_effect_when_they_are_due(world: World) -> None:
    world.publish("later", delay=60)
    world.publish("now")
    with world.consumer() as found:
        world.drain(found)
        assert world.effects() == ["now"]
        assert (world.position().offset, world.position().end) == (0, 2)
        world.clock.advance(61)
        world.drain(found)
    assert world.effects() == ["now", "later"]
    assert (world.position().offset, world.position().end) == (2, 2)


def test_a_delayed_message_survives_death_and_what_overtook_it_does_not_come_twice(world: World) -> None:
    world.publish("later", delay=60)
    for number in range(5):
        world.publish(str(number))
    found = world.consumer()
    found._consumer.ack = lambda messages: None  # they are lost
    world.drain(found)
    world.kill()
    world.clock.advance(61)
    with world.consumer() as found:
        world.drain(found)
    assert world.effects() == ["0", "1", "2", "3", "4", "later"]


@pytest.fixture(params=["path", "url"])
def clocked(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Store | RemoteStore, FakeClock]]:
    """Both faces of a store whose clock is moved by hand."""
    clock = FakeClock()
    monkeypatch.setattr(following, "_now_us", lambda _: clock.now_us())
    with open_face(tmp_path, served=request.param == "url", clock=clock) as found:
        yield found, clock


def test_a_delayed_message_over_a_server(clocked: Any, database: Database) -> None:
    store, clock = clocked
    for value, delay in [(b"later", 60), (b"now", None), (b"then", None)]:
        store.publish(JOBS, value, delay=delay)

    def handle(count: int) -> None:
        end = time.monotonic() + 60
        while len(database.effects()) < count and time.monotonic() < end:
            batch = found.get(0)
            if batch is not None:
                with batch as cursor:
                    for message in batch:
                        database.insert(cursor, text_of(message))

    with databases.consumer(store, JOBS, GROUP, connection=database.connect) as found:
        handle(2)
        assert found.get(0) is None
        assert database.effects() == ["now", "then"]
        clock.advance(61)
        handle(3)
    assert database.effects() == ["now", "then", "later"]
    assert databases.positions(database.connect(), JOBS, GROUP)[0].offset == 3


def test_a_group_that_finished_a_delayed_message_of_this_database_goes_back_when_there_is_nothing_else_to_do(
    world: World,
) -> None:
    """Somebody else acked it in the same group."""
    world.publish("later", delay=60)
    world.publish("now")
    with world.consumer() as found:
        world.drain(found)
    world.clock.advance(61)
    with world.store.subscribe(JOBS, GROUP) as other:
        other.ack(other.get_many(1, 0))
    with world.consumer() as found:
        world.drain(found)
    assert world.effects() == ["now", "later"]


def test_expired_messages_are_left_out_and_counted_and_the_position_goes_past_them(world: World) -> None:
    world.publish("kept")
    for _ in range(3):
        world.publish("short", ttl=5)
    world.clock.advance(6)
    with world.consumer() as found:
        world.drain(found)
        assert found.expired == 3
    assert world.effects() == ["kept"]
    assert world.position().offset == 4


def test_an_expired_tail_that_retention_took_is_not_a_loss(world: World) -> None:
    world.store.create_topic(JOBS, segment_messages=2, retention_bytes=1)
    for _ in range(6):
        world.publish("short", ttl=5)
    world.clock.advance(6)
    with world.consumer() as found:
        world.drain(found)
    world.store.flush()
    world.publish("end")
    world.store.retain()
    assert world.store.positions([JOBS])[JOBS].starts[0] > 0
    with world.consumer() as found:
        world.drain(found)
        assert found.skipped == 0
    assert world.effects() == ["end"]


def test_what_expired_in_the_middle_is_no_reason_to_seek(world: World) -> None:
    world.publish("first")
    world.publish("short", ttl=5)
    world.publish("last")
    world.clock.advance(6)
    with world.consumer() as found:
        world.store.seek = None  # type: ignore[assignment]
        world.drain(found)
        assert found.expired == 1
    assert world.effects() == ["first", "last"]
    del world.store.__dict__["seek"]


def test_a_message_that_has_expired_by_the_clock_of_the_store_only_is_left_out_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "_now_us", lambda _: 0)
    world.publish("first")
    world.publish("short", ttl=5)
    world.publish("last")
    world.clock.advance(6)
    with world.consumer() as found:
        for _ in range(3):  # found to be missing, asked for again, passed over
            world.drain(found)
        assert found.expired == 1
    assert world.effects() == ["first", "last"]
    assert world.position().offset == 3


def test_messages_that_compaction_took_are_not_waited_for(world: World) -> None:
    world.store.create_topic(JOBS, compaction=True, segment_messages=2)
    for number in range(8):
        world.publish(str(number), key="the same")
    world.store.compact()
    with world.consumer() as found:
        world.drain(found)
        assert found.expired == found.skipped == 0
    effects = world.effects()
    assert effects[-1] == "7"
    assert len(effects) < 8
    assert world.position().offset == 8


def test_the_most_urgent_come_first_and_all_have_their_effect_once(world: World) -> None:
    world.store.create_topic(JOBS, priorities=True)
    for number in range(9):
        world.publish(str(number), priority=("low", "medium", "high")[number % 3])
    with world.consumer(batch_messages=2) as found:
        batch = found.get(0)
        assert batch is not None
        world.handle(batch)
        assert world.effects() == ["2", "5"]
    world.kill()
    with world.consumer(batch_messages=2) as found:
        world.drain(found)
    assert world.effects() == ["2", "5", "8", "1", "4", "7", "0", "3", "6"]
    assert world.position().offset == 9


def test_a_failing_message_among_urgent_ones_is_dead_lettered_and_the_others_are_not(world: World) -> None:
    world.store.create_topic(JOBS, priorities=True)
    for number in range(6):
        world.publish(str(number), priority=("low", "high")[number % 2])
    with world.consumer(max_deliveries=2) as found:
        for _ in range(40):
            world.clock.advance(1)
            batch = found.get(0)
            if batch is not None:
                try:
                    with batch as cursor:
                        for message in batch:
                            cursor.execute("INSERT INTO effects (what) VALUES (?)", (text_of(message),))
                            if message.value == b"3":
                                raise ValueError("three is poison")
                except ValueError:
                    pass
    assert sorted(world.effects()) == ["0", "1", "2", "4", "5"]
    assert [letter.value for letter in world.store.dead_letters(JOBS)] == [b"3"]


@pytest.mark.long
@pytest.mark.xdist_group("postgres")
def test_two_consumers_of_a_topic_with_priorities_share_a_partition(store: Any, postgres: Database) -> None:
    """Whoever commits second is told, and his messages come again."""
    store.create_topic(JOBS, priorities=True)
    values = [str(number) for number in range(8)]
    store.publish_many(JOBS, [value.encode() for value in values])
    options: dict[str, Any] = {"connection": postgres.connect, "batch_messages": 2, "backoff": 0.001, "max_deliveries": 1}
    with databases.consumer(store, JOBS, GROUP, **options) as one, databases.consumer(store, JOBS, GROUP, **options) as other:
        first, second = one.get(60), other.get(60)
        assert first is not None
        assert second is not None
        with first as cursor:
            for message in first:
                postgres.insert(cursor, text_of(message))
        with pytest.raises(TakenOver), second as cursor:
            for message in second:
                postgres.insert(cursor, text_of(message))
        end = time.monotonic() + 60
        while len(postgres.effects()) < len(values):
            assert time.monotonic() < end, f"only {postgres.effects()} had their effect"
            for found in (one, other):
                # Each may hold what the other one does not get, and may be told again that it was second.
                batch = found.get(0.1)
                if batch is not None:
                    with contextlib.suppress(TakenOver), batch as cursor:
                        for message in batch:
                            postgres.insert(cursor, text_of(message))
        store.flush()
        for found in (one, other):
            assert found.get(0) is None
    assert sorted(postgres.effects()) == values
    assert len(store.dead_letters(JOBS)) == 0


def test_delayed_messages_that_retention_took_are_told_with_a_way_to_go_on(world: World) -> None:
    world.store.create_topic(JOBS, segment_messages=2, retention_bytes=1, retain="always")
    world.publish("later", delay=60)
    for number in range(6):
        world.publish(str(number))
    with world.consumer() as found:
        world.drain(found)
    world.store.retain()
    assert world.store.positions([JOBS])[JOBS].starts[0] > 0
    with pytest.raises(PositionLost, match='reset="earliest" goes on'):
        world.consumer()
    world.publish("6")
    with world.consumer(reset="earliest") as found:
        world.drain(found)
        assert found.skipped == 1
    assert world.effects() == ["0", "1", "2", "3", "4", "5", "6"]
    assert world.position().offset == 8


def test_too_much_that_overtakes_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("penstock.database.positions"), "FINISHED_BYTES_MAX", 40)
    for number in range(40):
        world.publish(f"delayed {number}", delay=60)
        world.publish(str(number))
    with world.consumer(batch_messages=2) as found:
        world.drain(found)
        assert 0 < len(world.effects()) < 40
        for _ in range(60):
            world.clock.advance(2)
            world.drain(found)
    assert len(world.effects()) == 80
    plain = [int(what) for what in world.effects() if what.isdigit()]
    assert plain == list(range(40))
    assert world.position().offset == 80


def test_a_dead_letter_that_was_decided_and_not_written_is_written_though_others_came_before_it(world: World) -> None:
    """What comes due after the restart has its effect first, and must not take the note away."""
    world.publish("later", delay=60)
    world.publish("poison")
    found = world.consumer(max_deliveries=1)
    found._consumer.reject = lambda message, reason: None  # killed before that
    batch = found.get(0)
    assert batch is not None
    with pytest.raises(ValueError, match="poison"), batch:
        raise ValueError("poison")
    world.clock.advance(61)
    world.kill()
    with world.consumer(batch_messages=1) as found:
        world.drain(found)
    assert world.effects() == ["later"]
    assert [letter.value for letter in world.store.dead_letters(JOBS)] == [b"poison"]
    with world.consumer():
        assert world.position().rejected == {}


class Poison(Exception):
    """What the handler of the random test raises."""


@pytest.mark.parametrize("lanes", [False, True])
@pytest.mark.parametrize("part", range(3))
def test_any_mixture_has_each_effect_once(world: World, rng: random.Random, lanes: bool, part: int) -> None:
    """
    Messages of all kinds, deaths at any place, and a simple model: what has no time limit has its effect once, or is a dead letter.

    What expires may have none, and what another message of its key replaced; nobody has one before it is due.
    """
    compacts = part == 2
    options: dict[str, Any] = {"compaction": True} if compacts else {}
    world.store.create_topic(JOBS, segment_messages=5, retention_bytes=1, priorities=lanes, **options)
    world.consumer().close()  # retention waits for groups, and takes what it likes before there is one
    due: dict[str, int] = {}
    ends: dict[str, int | None] = {}
    keys: dict[str, str | None] = {}
    poison: set[str] = set()
    delayed: set[str] = set()
    found: databases.DatabaseConsumer | None = None

    def publish() -> None:
        what = str(len(due))
        delay = rng.choice((None, None, 0.5, 3, 20))
        ttl = rng.choice((None, None, 1, 10))
        key = f"k{rng.randrange(4)}" if compacts else None
        more = {"priority": rng.choice(("low", "medium", "high"))} if lanes else {}
        now_us = world.clock.now_us()
        due[what] = now_us + int((delay or 0) * 1e6)
        ends[what] = None if ttl is None else now_us + int(ttl * 1e6)
        keys[what] = key
        if delay is not None:
            delayed.add(what)
        if rng.random() < 0.1:
            poison.add(what)
        world.publish(what, delay=delay, ttl=ttl, key=key, **more)

    def step(consumer: databases.DatabaseConsumer) -> None:
        batch = consumer.get(0)
        if batch is None:
            return
        try:
            with batch as cursor:
                for message in batch:
                    what = text_of(message)
                    cursor.execute("INSERT INTO effects (what, at_us) VALUES (?, ?)", (what, world.clock.now_us()))
                    if what in poison or rng.random() < 0.02:
                        raise Poison
        except Poison:
            pass

    def consumer() -> databases.DatabaseConsumer:
        given: dict[str, Any] = {"batch_messages": rng.choice((1, 3, 8)), "max_deliveries": 3, "lease": 1000, "prefetch": 20}
        try:
            return world.consumer(**given)
        except PositionLost:
            # It died right after messages had expired, and retention took them: nobody can tell any more why they are gone.
            return world.consumer(**given, reset="earliest")

    for _ in range(250):
        chance = rng.random()
        if chance < 0.35:
            publish()
        elif chance < 0.75:
            found = found or consumer()
            found._look_at_s = rng.choice((0, 1e12))
            step(found)
        elif chance < 0.85:
            world.clock.advance(rng.choice((0.02, 0.3, 2)))
        elif chance < 0.9:
            if found is not None:
                found.close()
            found = None
        elif chance < 0.95:
            world.kill()
            found = None
        elif chance < 0.97 and compacts:
            world.store.compact()
        else:
            world.store.retain()
    found = found or consumer()
    for _ in range(400):
        world.clock.advance(1)
        found._look_at_s = 0
        step(found)
    for _ in range(30):
        world.clock.advance(1)
        world.drain(found)
    found.close()

    effects = world.ledger.execute("SELECT what, at_us FROM effects").fetchall()
    done = [what for what, _ in effects]
    dead = [(letter.value or b"").decode() for letter in world.store.dead_letters(JOBS)]
    assert len(set(done + dead)) == len(done + dead), "nothing twice"
    assert all(at_us >= due[what] for what, at_us in effects), "nothing before it is due"
    for what in due:
        if what not in done and what not in dead:
            replaced = keys[what] is not None and any(int(one) > int(what) and keys[one] == keys[what] for one in keys)
            assert ends[what] is not None or replaced, f"{what} is lost"
    if not lanes:
        plain = [int(what) for what in done if what not in delayed]
        assert plain == sorted(plain), "in order"
    assert world.position().offset == world.store.ends(JOBS)[0]
    assert not world.position().finished
