"""`penstock groups`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import ConsumerEvicted
from penstock.server.running import RunningServer

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    """Ten messages in two partitions; one group has finished three of them and failed at one."""
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        for partition in range(2):
            store.publish_many("orders", [b"x"] * 5, partition=partition)
        with store.subscribe("orders", "billing", ordered=True) as consumer:
            messages = consumer.get_many(4, timeout=1)
            consumer.ack(messages[:3])
            messages[3].nack(delay=3600)
        store.publish("mails", b"y")
        store.subscribe("mails", "sender").close()
    return path


def test_groups_are_listed(run: Commands, orders: str) -> None:
    assert run.text("groups", "list", orders) == (
        "TOPIC   GROUP    LAG  RETRYING  ORDERED\n"
        "mails   sender     1         0  no\n"
        "orders  billing    7         1  yes\n"
    )  # fmt: skip


def test_groups_of_one_topic_as_json(run: Commands, orders: str) -> None:
    (group,) = run.json("groups", "list", orders, "orders")
    assert (group["topic"], group["name"], group["lag"], group["retrying"]) == ("orders", "billing", 7, 1)
    assert group["settings"]["ordered"]
    assert run.json("groups", "describe", orders, "orders", "billing") == [group]


def test_a_group_is_described(run: Commands, orders: str) -> None:
    text = run.text("groups", "describe", orders, "orders", "billing")
    assert "max_deliveries: 5\n" in text
    assert text.splitlines()[-3] == "PARTITION  POSITION  END"


def test_seek_moves_all_partitions(run: Commands, orders: str) -> None:
    run.text("groups", "seek", orders, "orders", "billing", "--to", "latest")
    assert run.json("groups", "list", orders, "orders")[0]["lag"] == 0
    (moved,) = run.json("groups", "seek", orders, "orders", "billing", "--to", "1h")
    assert moved["positions"] == {"0": 0, "1": 0}


def test_seek_moves_one_partition(run: Commands, orders: str) -> None:
    run.text("groups", "seek", orders, "orders", "billing", "--to", "earliest")
    (moved,) = run.json("groups", "seek", orders, "orders", "billing", "--to", "4", "--partition", 1)
    assert moved["positions"] == {"0": 0, "1": 4}


def test_seek_needs_a_place_that_is_there(run: Commands, orders: str) -> None:
    assert "--to" in run.fails(2, "groups", "seek", orders, "orders", "billing")
    assert "OFFSET_OUT_OF_RANGE" in run.fails(3, "groups", "seek", orders, "orders", "billing", "--to", "6")


def test_delete_asks_first(run: Commands, orders: str) -> None:
    """Without a terminal to ask at, it must be told --yes."""
    assert "7 unfinished" in run.fails(2, "groups", "delete", orders, "orders", "billing")
    assert len(run.json("groups", "list", orders)) == 2
    assert run.text("groups", "delete", orders, "orders", "billing", "--yes") == ""
    assert [group["name"] for group in run.json("groups", "list", orders)] == ["sender"]


@pytest.mark.parametrize("command", [["describe"], ["seek", "--to", "earliest"], ["delete", "--yes"]])
def test_what_is_not_there(run: Commands, orders: str, command: list[str]) -> None:
    name, *options = command
    line = run.fails(3, "groups", name, orders, "orders", "nobody", *options)
    assert "GROUP_NOT_FOUND" in line
    assert "groups list" in line
    assert "TOPIC_NOT_FOUND" in run.fails(3, "groups", name, orders, "nothing", "billing", *options)
    assert "STORE_NOT_FOUND" in run.fails(3, "groups", name, orders + "x", "orders", "billing", *options)


def test_listing_the_groups_of_no_topic(run: Commands, orders: str) -> None:
    assert "TOPIC_NOT_FOUND" in run.fails(3, "groups", "list", orders, "nothing")


@pytest.mark.parametrize("kind", ["folder", "server"])
def test_members_are_listed_and_one_is_evicted(run: Commands, path: str, kind: str) -> None:
    """Through the program that has the folder open, or that serves it."""
    with penstock.open(path) as store, RunningServer(store) as server:
        path = path if kind == "folder" else server.address
        store.publish_many("orders", [b"one", b"two"])
        with store.subscribe("orders", "billing", name="worker-3") as consumer:
            assert consumer.get(timeout=10) is not None
            [member] = run.json("groups", "members", path, "orders", "billing")
            assert (member["name"], member["interface"], member["in_flight"]) == ("worker-3", "embedded", 1)
            assert "worker-3" in run.text("groups", "members", path, "orders", "billing")
            assert run("groups", "evict", path, "orders", "billing", "123", "--yes").exit_code == 3
            assert run.json("groups", "evict", path, "orders", "billing", member["id"], "--yes") == [
                {"topic": "orders", "group": "billing", "member": member["id"], "messages": 2}
            ]
            with pytest.raises(ConsumerEvicted):
                consumer.get(timeout=0)


@pytest.mark.parametrize("group", ["groups", "dlq"])
def test_the_help_tells_that_an_owner_is_no_hindrance(run: Commands, group: str) -> None:
    text = " ".join(run.text(group, "--help").split())
    assert "must not be owned" not in text
    assert "reached through that program" in text
