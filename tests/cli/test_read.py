"""`penstock read`."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    """A store with ten messages in each of two partitions."""
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        for partition in range(2):
            store.publish_many("orders", [b"%d of %d" % (number, partition) for number in range(10)], partition=partition)
    return path


def values(run: Commands, *arguments: object) -> list[str]:
    return run.text("read", *arguments, "--format", "value").splitlines()


def test_all_partitions_are_read_one_after_the_other(run: Commands, orders: str) -> None:
    found = values(run, orders, "orders")
    assert found == [f"{number} of {partition}" for partition in range(2) for number in range(10)]


def test_reading_takes_nothing(run: Commands, orders: str) -> None:
    assert values(run, orders, "orders") == values(run, orders, "orders")


def test_a_range_of_one_partition(run: Commands, orders: str) -> None:
    assert values(run, orders, "orders", "--partition", 1, "--start", 7, "--end", 9) == ["7 of 1", "8 of 1"]


@pytest.mark.parametrize(("given", "count"), [([], 20), (["--count", 3], 3), (["--count", 15], 15), (["--start", "latest"], 0)])
def test_count_and_start(run: Commands, orders: str, given: list[object], count: int) -> None:
    assert len(values(run, orders, "orders", *given)) == count


def test_times_are_those_of_appending(run: Commands, orders: str) -> None:
    with penstock.open(orders) as store:
        now = dt.datetime.now(dt.UTC)
        store.publish("orders", b"later", partition=0)
    assert values(run, orders, "orders", "--start", now.isoformat()) == ["later"]
    assert len(values(run, orders, "orders", "--end", now.isoformat())) == 20
    assert len(values(run, orders, "orders", "--start", "2h")) == 21


def test_json_can_be_published_again_without_loss(run: Commands, path: str, tmp_path) -> None:
    """Bytes of any kind, tombstones, keys, headers, times: what is read, published and read again is the same."""
    copy = str(tmp_path / "copy")
    with penstock.open(path) as store:
        for value in (None, b"", b"text", b"\xff\x00\n", "é\u2028".encode()):
            store.publish("orders", value, key=b"\xfe", headers=[("a", b"\xff"), ("a", b""), ("é", b"x")], timestamp=1.25)
        store.publish("orders", b"plain", dedup_key=b"\xff")
    lines = run.text("read", path, "orders", "--json")
    run.text("publish", copy, "orders", "--format", "json", "--batch", 4, stdin=lines)
    assert run.text("read", copy, "orders", "--json") == lines


def test_escaped_values_can_be_published_again_without_loss(run: Commands, path: str, tmp_path) -> None:
    copy = str(tmp_path / "copy")
    values = [None, b"", b"\\N", b"a\nb", bytes(range(256))]
    with penstock.open(path) as store:
        store.publish_many("orders", values)
    run.text("publish", copy, "orders", "--format", "escaped", stdin=run.text("read", path, "orders", "--format", "escaped"))
    with penstock.open(copy, read_only=True) as store:
        assert [message.value for message in store.read("orders")] == values


@pytest.mark.parametrize(
    "given",
    [["--follow", "--end", "5"], ["--start", "soon"], ["--start", "-1"], ["--start", "1.5"], ["--start", "2026-01-31T08:00"],
     ["--start", "5y"], ["--start", "9999999999d"], ["--start", ""], ["--count", "x"]],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(run: Commands, orders: str, given: list[str]) -> None:
    run.fails(2, "read", orders, "orders", *given)


@pytest.mark.parametrize("follow", [[], ["--follow"]])
def test_what_is_not_there(run: Commands, orders: str, follow: list[str]) -> None:
    assert "TOPIC_NOT_FOUND" in run.fails(3, "read", orders, "other", *follow)
    assert "has no partition 2" in run.fails(3, "read", orders, "orders", "--partition", 2, *follow)
    assert "OFFSET_OUT_OF_RANGE" in run.fails(3, "read", orders, "orders", "--start", 11, *follow)
    assert "STORE_NOT_FOUND" in run.fails(3, "read", orders + "x", "orders", *follow)


def test_follow_stops_at_its_count(run: Commands, orders: str) -> None:
    assert values(run, orders, "orders", "--follow", "--count", 11)[-1] == "0 of 1"
    assert values(run, orders, "orders", "--follow", "--partition", 1, "--start", 8, "--count", 2) == ["8 of 1", "9 of 1"]
