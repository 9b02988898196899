"""`penstock stats`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.cli import stats as showing

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        store.publish_many("orders", [b"x"] * 5)
    return path


def test_numbers_are_shown(run: Commands, orders: str) -> None:
    assert run.text("stats", orders) == "TOPIC   PARTITIONS  MESSAGES  EVER\norders           2         5     5\n"


def test_numbers_as_json(run: Commands, orders: str) -> None:
    (numbers,) = run.json("stats", orders)
    assert numbers["path"] == orders
    assert numbers["topics"]["orders"]["messages"] == 5


def test_watching_shows_them_again_with_rates(run: Commands, orders: str) -> None:
    first, second = run.json("stats", orders, "--watch", "--interval", "10ms", "--count", 2)
    assert "rates" not in first
    assert second["rates"] == {"orders": 0}
    text = run.text("stats", orders, "--watch", "--interval", "10ms", "--count", 2)
    assert text.splitlines()[2].split() == ["TOPIC", "PARTITIONS", "MESSAGES", "EVER", "PER", "SECOND"]


def test_groups_are_shown_where_they_are_known(path: str, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """A reader of files knows none; an owner does."""
    with penstock.open(path) as store:
        store.publish("orders", b"x")
        store.subscribe("orders", "billing")
        showing._write(store.stats(), {}, as_json=False)
    printed = capsysbinary.readouterr().out.decode().splitlines()
    assert [line.split() for line in printed[2:]] == [
        ["groups:"], ["TOPIC", "GROUP", "LAG", "IN", "FLIGHT", "RETRYING", "MEMBERS"], ["orders", "billing", "1", "0", "0", "1"],
    ]  # fmt: skip


def test_a_count_needs_watching(run: Commands, orders: str) -> None:
    assert "--watch" in run.fails(2, "stats", orders, "--count", 2)


def test_no_store(run: Commands, path: str) -> None:
    assert "STORE_NOT_FOUND" in run.fails(3, "stats", path)
