"""Publishing messages again."""

from __future__ import annotations

import datetime as dt
import json
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from penstock.cli.program import program
from penstock.errors import BadArgument, BadName, Conflict, DataLost, NotFound, PipelineFailed, TopicNotFound, UsageError
from penstock.server.running import RunningServer
from penstock.spark.pipelines.archive import archive
from penstock.spark.pipelines.replay import Replay, replay
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from pyspark.sql import SparkSession

    from penstock.topics.message import Message

DAY = dt.datetime(2026, 1, 31, tzinfo=dt.UTC)


def fill(path: str, rng: random.Random, count: int) -> list[Message]:
    """Messages of five users over some hours; the first message is at `DAY`. Returns all of the topic."""
    with open_store(path) as store:
        if not store.topics():
            store.create_topic("orders", partitions=2, segment_messages=20, retention_bytes=1)
        for number in range(count):
            store.publish(
                "orders", rng.choice([None, b"", b"%d %d" % (number, rng.randrange(100))]), key=b"user-%d" % rng.randrange(5),
                headers=[("kind", b"new"), ("kind", b"old")] if rng.random() < 0.5 else None, timestamp=DAY + dt.timedelta(minutes=number),
            )  # fmt: skip
        return list(store.read("orders"))


def plain(messages: list[Message]) -> dict[bytes | None, list[tuple[Any, ...]]]:
    """What a replay keeps, in the order of each key."""
    found: dict[bytes | None, list[tuple[Any, ...]]] = {}
    for one in messages:
        found.setdefault(one.key, []).append((one.value, list(one.headers), one.timestamp))
    return found


def read(path: str, topic: str) -> list[Message]:
    with open_store(path) as store:
        return list(store.read(topic))


def test_what_a_condition_and_a_range_choose_is_published_once(
    spark: SparkSession, path: str, tmp_path: Path, rng: random.Random
) -> None:
    """From the log, and from an archive and the log; a named run is not repeated."""
    messages = fill(path, rng, 60)
    where = "text like '% %' and header['kind'] = 'new'"
    chosen = [one for one in messages if b" " in (one.value or b"") and one.headers.get("kind") == b"new"]
    done = replay(spark, path, "orders", "chosen", where=where, run="first")
    assert (done.offsets, done.messages, done.already, done.parts) == (60, len(chosen), 0, 1)
    assert plain(read(path, "chosen")) == plain(chosen)
    again = replay(spark, path, "orders", "chosen", where=where, run="first")
    assert (again.messages, again.already, done.repeated, again.repeated) == (len(chosen), len(chosen), False, True)
    assert len(read(path, "chosen")) == len(chosen)

    archive(spark, path, "orders", tmp_path / "archive")
    with open_store(path) as store:
        assert store.retain("orders").segments > 0
    messages += [
        one for one in fill(path, rng, 10) if (one.partition, one.offset) not in {(m.partition, m.offset) for m in messages}
    ]
    start, end = DAY + dt.timedelta(minutes=5), DAY + dt.timedelta(minutes=50)
    replay(spark, path, "orders", "timed", archive=tmp_path / "archive", start=start, end=end)
    assert plain(read(path, "timed")) == plain([one for one in messages if start <= one.timestamp < end])
    replay(spark, path, "orders", "ranged", archive=tmp_path / "archive", start=3, end=20)
    assert plain(read(path, "ranged")) == plain([one for one in messages if 3 <= one.offset < 20])


def test_a_run_at_a_rate_goes_on_after_a_crash(spark: SparkSession, path: str, tmp_path: Path, rng: random.Random) -> None:
    """Cut after a part was published and before that was noted, and between two parts; meanwhile more messages come."""
    messages = fill(path, rng, 45)
    checkpoint = tmp_path / "run"
    options: dict[str, Any] = {"rate": 10.0, "checkpoint": checkpoint}

    class Cut(BaseException):
        pass

    def cut(*_: object) -> None:
        raise Cut

    run = Replay(path, "orders", "again", **options)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Cut):
        patch.setattr(run, "_save", lambda saved: cut() if saved.done else Replay._save(run, saved))
        run.run(spark)
    assert len(read(path, "again")) == 20, "a part is what comes in two seconds"
    fill(path, rng, 5)
    with pytest.raises(Cut):
        replay(spark, path, "orders", "again", report=cut, **options)
    assert len(read(path, "again")) == 20
    began = time.monotonic()
    done = replay(spark, path, "orders", "again", **options)
    assert time.monotonic() - began >= 2.0, "20 messages at 10 a second, then the last 5"
    assert (done.messages, done.already, done.parts) == (45, 20, 3)
    assert plain(read(path, "again")) == plain(messages)
    done = replay(spark, path, "orders", "again", **options)
    assert (done.messages, done.already, done.repeated) == (45, 45, True)
    assert len(read(path, "again")) == 45
    with pytest.raises(Conflict, match="where differ"):
        Replay(path, "orders", "again", where="true", **options)
    with pytest.raises(Conflict, match="another checkpoint"):
        replay(spark, path, "orders", "again", rate=10, checkpoint=tmp_path / "lost", run=done.run)


def test_dead_letters_are_replayed_and_taken_out(spark: SparkSession, path: str, rng: random.Random) -> None:
    """Those that are still there, by their reason, through a server, as a command."""
    fill(path, rng, 12)
    with open_store(path) as store:
        with store.subscribe("orders", "billing", max_deliveries=1) as consumer:
            for number, message in enumerate(consumer.get_many(12, timeout=5)):
                message.reject("a timeout" if number % 2 else "bad")
        letters = store.dead_letters("orders").list()
        assert len(letters) == 12
        store.dead_letters("orders").discard(offsets=[letters[1].offset])
        wanted = [one for one in letters if one.headers["x-dlq-reason"] == b"a timeout" and one.offset != letters[1].offset]
        server = RunningServer(store)
        result = CliRunner().invoke(
            program,
            ["pipeline", "replay", server.address, "orders", "--to", "back", "--dead-letters", "--discard", "--json",
             "--where", "header['x-dlq-reason'] like '%timeout%'"],
        )  # fmt: skip
        assert result.exit_code == 0, result.output
        summary = json.loads(result.stdout)
        assert (summary["messages"], summary["discarded"]) == (len(wanted), len(wanted))
        assert len(store.dead_letters("orders")) == 12 - 1 - len(wanted)
        found = list(store.read("back"))
        server.close()
    assert len(found) == len(wanted)
    assert {(one.key, one.value, one.timestamp) for one in found} == {(one.key, one.value, one.timestamp) for one in wanted}
    assert {name for one in found for name, _ in one.headers} <= {"kind"}


def test_a_name_that_was_used_is_told_and_throws_nothing_away(spark: SparkSession, path: str, rng: random.Random) -> None:
    """Whatever is chosen now: neither what the condition chooses newly nor what came since was published under it."""
    fill(path, rng, 4)

    def reject(reason: str) -> None:
        with open_store(path) as store, store.subscribe("orders", "billing", max_deliveries=1) as consumer:
            for message in consumer.get_many(4, timeout=5):
                message.reject(reason)

    def run(reason: str) -> tuple[dict[str, Any], str]:
        command = [
            "pipeline",
            "replay",
            path,
            "orders",
            "--to",
            "back",
            "--dead-letters",
            "--discard",
            "--run",
            "friday",
            "--json",
        ]
        result = CliRunner().invoke(program, [*command, "--where", f"header['x-dlq-reason'] = '{reason}'"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout), result.stderr

    reject("bad")
    summary, told = run("bad")
    assert (summary["messages"], summary["discarded"], summary["repeated"], told) == (4, 4, False, "")
    fill(path, rng, 4)
    reject("late")
    for reason in ("late", "bad"):
        summary, told = run(reason)
        assert (summary["messages"], summary["already"], summary["discarded"], summary["repeated"]) == (4, 4, 0, True)
        assert told.startswith(
            "note: run friday was published before, 4 messages: nothing was published now, and no dead letter"
        )
    assert len(read(path, "back")) == 4
    with open_store(path) as store:
        assert len(store.dead_letters("orders")) == 4


def test_a_condition_that_spark_does_not_understand_is_told_before_anything_is_published(
    spark: SparkSession, path: str, rng: random.Random
) -> None:
    """Bad SQL, and a column that there is not; a condition that fails on a row publishes nothing."""
    fill(path, rng, 5)
    for where in ("value like", "nothing = 1"):
        with pytest.raises(BadArgument, match="Spark does not understand it"):
            replay(spark, path, "orders", "again", where=where)
    with pytest.raises(PipelineFailed, match="USER_RAISED_EXCEPTION"):
        replay(spark, path, "orders", "again", where="offset < 0 or raise_error('no')")
    with open_store(path) as store:
        assert store.ends("again") == {0: 0}


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"to": "bad name"}, BadName, "bad name"),
        ({"to": "orders.dlq"}, BadArgument, "dead letters come from groups"),
        ({"to": "orders.deliveries"}, BadArgument, "records of deliveries come from groups"),
        ({"topic": "nothing"}, TopicNotFound, "nothing"),
        ({"topic": "orders.dlq", "dead_letters": True}, BadArgument, "name the topic"),
        ({"dead_letters": True}, NotFound, "has no dead letters"),
        ({"dead_letters": True, "archive": "x"}, UsageError, "leave one of the two out"),
        ({"archive": "no-such-archive"}, NotFound, "holds no archive"),
        ({"discard": True}, UsageError, "only dead letters"),
        ({"rate": 10.0}, UsageError, "give a checkpoint"),
        ({"rate": 0.0, "checkpoint": "x"}, BadArgument, "more than 0"),
        ({"rate": float("nan"), "checkpoint": "x"}, BadArgument, "more than 0"),
        ({"run": "a/b"}, BadArgument, "use up to 100"),
        ({"where": " "}, BadArgument, "no condition"),
        ({"start": "soon"}, BadArgument, "use earliest"),
        ({"end": -1}, BadArgument, "use earliest"),
        ({"start": dt.datetime(2026, 1, 1)}, BadArgument, "time zone"),
    ],
)
def test_a_wrong_call_is_told_before_spark_starts(path: str, options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with open_store(path) as store:
        store.create_topic("orders")
    with pytest.raises(kind, match=text):
        Replay(path, **{"topic": "orders", "to": "again", **options})


def test_parts_are_the_same_however_often_they_are_planned(path: str, rng: random.Random) -> None:
    """They tile the range of the run."""
    fill(path, rng, 50)
    wanted = Replay(path, "orders", "again")
    run = wanted._begin()._replace(part_rows=7)
    edges = [wanted._part(run, number) for number in range(9)]
    assert [sum(end.values()) - sum(begin.values()) for begin, end in edges] == [7] * 7 + [1, 0]
    assert all(first[1] == second[0] for first, second in pairwise(edges))


def test_a_run_needs_nothing_of_what_it_is_done_with(path: str, tmp_path: Path) -> None:
    """Retention has gone beyond the end of one partition, then of all."""
    with open_store(path) as store:
        store.create_topic("orders", partitions=2, segment_messages=5, retention_bytes=1, retain="always")
        store.publish_many("orders", [b"x"] * 2, partition=0)
        store.publish_many("orders", [b"x"] * 4, partition=1)
    options: dict[str, Any] = {"start": 2, "rate": 1, "checkpoint": tmp_path / "run"}
    (tmp_path / "run").mkdir()
    begun = Replay(path, "orders", "again", **options)
    run = begun._begin()
    assert run.offsets.topics == {"orders": {0: 2, 1: 4}}
    for number in range(2):
        with open_store(path) as store:
            for _ in range(20):
                store.publish("orders", b"y", partition=number)
            assert store.retain("orders").segments > 1
        goes_on = Replay(path, "orders", "again", **options)
        left = goes_on._history(goes_on._known())
        assert left.messages == 2 - 2 * number
        assert left.between({0: 2, 1: 2}, {0: 2, 1: 4}).messages == left.messages
        begun._save(run._replace(done=1, messages=2))
    begun._save(run)
    with pytest.raises(DataLost, match=r"orders/1: .* in no archive"):
        Replay(path, "orders", "again", **options)
