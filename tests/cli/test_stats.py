"""`penstock stats`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.cli import stats as showing
from penstock.server.running import RunningServer
from penstock.store.store import Store

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        store.publish_many("orders", [b"x"] * 5)
    return path


def test_numbers_are_shown(run: Commands, orders: str) -> None:
    heading, row = run.text("stats", orders).splitlines()
    assert heading == "TOPIC   PARTITIONS  MESSAGES  BYTES  EVER  DEAD LETTERS"
    name, partitions, messages, size, ever, dead = row.split()
    assert (name, partitions, messages, ever, dead) == ("orders", "2", "5", "5", "0")
    assert int(size) == sum(file.stat().st_size for file in Path(orders, "topics", "orders").glob("*/*.log")) > 0


def test_numbers_as_json(run: Commands, orders: str) -> None:
    (numbers,) = run.json("stats", orders)
    assert numbers["path"] == orders
    assert numbers["topics"]["orders"]["messages"] == 5


def test_watching_shows_them_again_with_rates(run: Commands, orders: str) -> None:
    first, second = run.json("stats", orders, "--watch", "--interval", "10ms", "--count", 2)
    assert "rates" not in first
    assert second["rates"] == {"orders": 0}
    text = run.text("stats", orders, "--watch", "--interval", "10ms", "--count", 2)
    assert text.splitlines()[2].split() == [
        "TOPIC", "PARTITIONS", "MESSAGES", "BYTES", "EVER", "DEAD", "LETTERS", "PER", "SECOND",
    ]  # fmt: skip


def fail_one_and_finish_one(store: Store) -> None:
    """Five messages, of which one is acked, one is a dead letter, and one waits to be tried again."""
    store.publish_many("orders", [b"x"] * 5)
    with store.subscribe("orders", "billing", backoff=3_600) as consumer:
        first, second, third = consumer.get_many(3, timeout=30)
        first.reject("bad")
        second.ack()
        third.nack()
        consumer.flush()


def test_groups_and_dead_letters_of_a_folder_that_nobody_has_open(run: Commands, path: str) -> None:
    """As the last checkpoint has them; nothing is changed by looking."""
    with penstock.open(path) as store:
        fail_one_and_finish_one(store)
    before = {file: file.read_bytes() for file in Path(path).rglob("*") if file.is_file()}
    (numbers,) = run.json("stats", path)
    group = numbers["topics"]["orders"]["groups"]["billing"]
    assert (group["lag"], group["retrying"], group["dead_lettered"], group["members"]) == (3, 1, 1, 0)
    assert group["lag_s"] > 0
    assert numbers["topics"]["orders"]["dead_letters"] == 1
    assert numbers["topics"]["orders"]["dead_letter_age_s"] > 0
    text = run.text("stats", path)
    assert ["orders", "billing", "3"] in [line.split()[:3] for line in text.splitlines()]
    assert {file: file.read_bytes() for file in Path(path).rglob("*") if file.is_file()} == before


def test_groups_of_a_folder_that_a_program_has_open(run: Commands, path: str) -> None:
    """Through that program: with members and what they hold, at this moment."""
    with penstock.open(path) as store:
        fail_one_and_finish_one(store)
        with store.subscribe("orders", "billing") as consumer:
            assert consumer.get(timeout=30) is not None
            (numbers,) = run.json("stats", path)
    group = numbers["topics"]["orders"]["groups"]["billing"]
    assert (group["lag"], group["in_flight"], group["retrying"], group["members"]) == (3, 1, 1, 1)
    assert numbers["topics"]["orders"]["dead_letters"] == 1


def test_groups_of_a_folder_that_a_program_has_for_itself(run: Commands, path: str) -> None:
    """It is not asked: what it last stored is shown."""
    with penstock.open(path, share=False) as store:
        fail_one_and_finish_one(store)
        store._volume.checkpoint()
        (numbers,) = run.json("stats", path)
    assert numbers["topics"]["orders"]["groups"]["billing"]["lag"] == 3


def test_groups_are_shown_where_they_are_known(path: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """With lag in seconds, and what is in flight."""
    with penstock.open(path) as store:
        store.publish("orders", b"x")
        store.subscribe("orders", "billing")
        showing._write(showing.look(store), {}, as_json=False)  # type: ignore[arg-type]
    printed = [line.split() for line in capsysbinary.readouterr().out.decode().splitlines()]
    assert printed[0][-2:] == ["DEAD", "LETTERS"]
    assert printed[2:4] == [
        ["groups:"],
        ["TOPIC", "GROUP", "LAG", "LAG", "IN", "SECONDS", "IN", "FLIGHT", "RETRYING", "MEMBERS"],
    ]
    (row,) = printed[4:]
    assert (row[:3], row[4:]) == (["orders", "billing", "1"], ["0", "0", "1"])
    assert 0 <= float(row[3]) < 60


def test_a_server_tells_how_long_things_take(run: Commands, path: str) -> None:
    with Store.open(path) as owner, RunningServer(owner) as server:
        owner.measure()
        owner.publish_many("orders", [b"x", b"y"])
        with owner.subscribe("orders", "billing") as consumer:
            consumer.get(30).reject("bad")  # type: ignore[union-attr]
            consumer.get(30).ack(wait=True)  # type: ignore[union-attr]
        text = run.text("stats", server.address)
        (numbers,) = run.json("stats", server.address)
    rows = [line.split() for line in text.partition("milliseconds:")[2].splitlines()[1:]]
    assert rows[0] == ["WHAT", "TOPIC", "GROUP", "COUNT", "P50", "P95", "P99"]
    assert [row[:3] for row in rows[1:] if row[0] != "publish"] == [["fsync", "-", "-"], ["deliver", "to", "ack"]]
    assert ["publish", "orders", "-", "1"] in [row[:4] for row in rows]
    orders = numbers["topics"]["orders"]
    assert orders["publish"]["count"] == 1
    assert orders["publish"]["p50_s"] <= orders["publish"]["p99_s"] < 60
    assert orders["groups"]["billing"]["deliver_to_ack"]["count"] == 1
    assert orders["dead_letters"] == 1
    assert orders["dead_letter_age_s"] > 0
    assert numbers["fsync"]["count"] > 0


def test_a_count_needs_watching(run: Commands, orders: str) -> None:
    assert "--watch" in run.fails(2, "stats", orders, "--count", 2)


def test_no_store(run: Commands, path: str) -> None:
    assert "STORE_NOT_FOUND" in run.fails(3, "stats", path)
