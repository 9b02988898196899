"""`penstock dlq`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import DeadLetters
from penstock.cli import dlq
from penstock.errors import StorageFull

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    """A topic with four dead letters, of two groups and for two reasons, and one without any."""
    with penstock.open(path) as store:
        store.publish_many("orders", [b"one", b"two \xff"], keys=["ada", None])
        for group, reason in (("billing", "timeout of bank"), ("mailing", "no such address")):
            with store.subscribe("orders", group) as consumer:
                for message in consumer.get_many(2, timeout=1):
                    message.reject(reason)
        store.publish("quiet", b"x")
    return path


def offsets(run: Commands, path: str) -> list[int]:
    return [letter["offset"] for letter in run.json("dlq", "list", path, "orders")]


def test_topics_with_dead_letters_are_counted(run: Commands, orders: str) -> None:
    assert run.text("dlq", "list", orders) == "TOPIC   DEAD LETTERS\norders             4\n"
    assert run.json("dlq", "list", orders) == [{"topic": "orders", "dead_letters": 4}]


def test_a_count_needs_a_topic(run: Commands, orders: str) -> None:
    assert "TOPIC" in run.fails(2, "dlq", "list", orders, "--count", 2)


def test_dead_letters_are_listed(run: Commands, orders: str) -> None:
    heading, first, second, *_ = run.text("dlq", "list", orders, "orders").splitlines()
    assert heading.split() == ["OFFSET", "GROUP", "DELIVERIES", "LAST", "FAILURE", "REASON", "KEY", "VALUE"]
    assert first.split()[:3] == ["0", "billing", "1"]
    assert first.endswith("timeout of bank  ada  one")
    assert second.endswith(r"timeout of bank  -    two \xff")


def test_long_values_are_cut_in_the_list(run: Commands, path: str) -> None:
    with penstock.open(path) as store:
        store.publish("orders", b"x" * 1000)
        with store.subscribe("orders", "g") as consumer:
            for message in consumer.get_many(1, timeout=1):
                message.reject()
    assert run.text("dlq", "list", path, "orders").splitlines()[1].endswith(" " + "x" * 37 + "...")


def test_dead_letters_as_json(run: Commands, orders: str) -> None:
    letters = run.json("dlq", "list", orders, "orders", "--count", 2)
    assert [letter["offset"] for letter in letters] == [0, 1]
    assert {"name": "x-dlq-reason", "value": "timeout of bank"} in letters[0]["headers"]
    assert letters[1]["value_base64"] == "dHdvIP8="


def test_one_is_shown(run: Commands, orders: str) -> None:
    text = run.text("dlq", "show", orders, "orders", 3)
    assert "x-dlq-group:            mailing\n" in text
    assert "x-dlq-reason:           no such address\n" in text
    assert text.endswith("value:                  two \\xff\n")
    assert run("dlq", "show", orders, "orders", 3, "--format", "value").stdout_bytes == b"two \xff\n"
    assert run.json("dlq", "show", orders, "orders", 3)[0]["offset"] == 3


def test_some_are_replayed(run: Commands, orders: str) -> None:
    """They leave the dead letters and are new messages of their topic."""
    assert run.text("dlq", "replay", orders, "orders", 0, 3) == "replayed 2\n"
    assert offsets(run, orders) == [1, 2]
    assert run.text("read", orders, "orders", "--format", "escaped").splitlines() == ["one", r"two \xff"] * 2


@pytest.mark.parametrize(
    ("given", "left"),
    [(["--all"], []), (["--group", "billing"], [2, 3]), (["--reason", "address"], [0, 1]),
     (["--reason", "a", "--group", "mailing"], [0, 1]), (["1", "2", "--group", "billing"], [0, 2, 3]),
     (["--reason", "unheard of"], [0, 1, 2, 3])],
)  # fmt: skip
@pytest.mark.parametrize("command", ["replay", "discard"])
def test_they_can_be_chosen(run: Commands, orders: str, command: str, given: list[str], left: list[int]) -> None:
    answer = run.json("dlq", command, orders, "orders", *given, *(["--yes"] if command == "discard" else []))
    assert answer == [{{"replay": "replayed", "discard": "discarded"}[command]: 4 - len(left)}]
    assert offsets(run, orders) == left


def test_discard_asks_first(run: Commands, orders: str) -> None:
    assert "4 dead letters" in run.fails(2, "dlq", "discard", orders, "orders", "--all")
    assert len(offsets(run, orders)) == 4
    assert run.text("dlq", "discard", orders, "orders", "--all", "--yes") == "discarded 4\n"
    assert run.text("dlq", "discard", orders, "orders", "--all") == "discarded 0\n"


def test_many_are_done_in_parts_and_a_failure_says_how_far_it_came(
    run: Commands, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that a bar can move; few parts, since each looks at all of them."""
    monkeypatch.setattr(dlq, "PART", 1)
    monkeypatch.setattr(dlq, "PARTS", 2)
    parts: list[list[int]] = []
    take_out = DeadLetters._take_out

    def broken(self, choose, offsets, *, republish):
        parts.append(offsets)
        if len(parts) == 2:
            raise StorageFull(orders, 0, 1)
        return take_out(self, choose, offsets, republish=republish)

    monkeypatch.setattr(DeadLetters, "_take_out", broken)
    result = run("dlq", "replay", orders, "orders", "--all")
    assert result.exit_code == 4
    assert "note: 2 dead letters were done before this" in result.stderr
    assert run.text("dlq", "replay", orders, "orders", "--all") == "replayed 2\n"
    assert parts == [[0, 1], [2, 3], [2], [3]]


@pytest.mark.parametrize("command", ["replay", "discard"])
def test_it_must_be_said_which(run: Commands, orders: str, command: str) -> None:
    assert "say which" in run.fails(2, "dlq", command, orders, "orders")
    assert "--all" in run.fails(2, "dlq", command, orders, "orders", "1", "--all")
    assert len(offsets(run, orders)) == 4


@pytest.mark.parametrize("command", [["replay", "0", "7"], ["discard", "0", "7", "--yes"], ["show", "7"]])
def test_one_that_is_not_there_is_named_and_nothing_done(run: Commands, orders: str, command: list[str]) -> None:
    name, *given = command
    assert "offset 7;" in run.fails(3, "dlq", name, orders, "orders", *given)
    assert len(offsets(run, orders)) == 4


def test_a_topic_without_any(run: Commands, orders: str) -> None:
    assert run.json("dlq", "list", orders, "quiet") == []
    assert run.text("dlq", "replay", orders, "quiet", "--all") == "replayed 0\n"


@pytest.mark.parametrize("command", [["list"], ["show", "0"], ["replay", "--all"], ["discard", "--all"]])
def test_the_source_is_named_and_must_be_there(run: Commands, orders: str, command: list[str]) -> None:
    name, *given = command
    assert "come from: orders [" in run.fails(2, "dlq", name, orders, "orders.dlq", *given)
    assert "TOPIC_NOT_FOUND" in run.fails(3, "dlq", name, orders, "nothing", *given)
    assert "STORE_NOT_FOUND" in run.fails(3, "dlq", name, orders + "x", "orders", *given)
