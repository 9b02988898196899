"""`penstock consume`."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.cli import consume as consuming
from penstock.cli import output

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    """A store with five messages, the last of them no UTF-8."""
    with penstock.open(path) as store:
        store.publish("orders", b"one", key="ada", headers={"source": b"web"})
        store.publish_many("orders", [b"two", b"three\n", None, b"\xff"])
    return path


def lag(path: str, group: str = "g") -> int:
    with penstock.open(path) as store:
        return store.stats().topics["orders"].groups[group].lag


def attempts(path: str, group: str = "g") -> list[int]:
    """Which delivery the next one of each message would be."""
    with penstock.open(path) as store, store.subscribe("orders", group) as consumer:
        return [message.attempt for message in consumer.get_many(100, timeout=0)]


def test_messages_are_printed_and_acked(run: Commands, orders: str) -> None:
    """It ends when nothing is ready; a second run has nothing left."""
    lines = run.text("consume", orders, "orders", "--group", "g").splitlines()
    assert [line.split("\t")[0] for line in lines] == ["0/0", "0/1", "0/2", "0/3", "0/4"]
    assert [line.split("\t")[-1] for line in lines] == ["one", "two", r"three\n", r"\N", r"\xff"]
    assert lines[0].split("\t")[2:4] == ["key=ada", "source=web"]
    assert lag(orders) == 0
    assert run.text("consume", orders, "orders", "--group", "g") == ""


def test_values_are_the_bytes_themselves(run: Commands, orders: str) -> None:
    result = run("consume", orders, "orders", "--group", "g", "--format", "value")
    assert result.stdout_bytes == b"one\ntwo\nthree\n\n\n\xff\n"


def test_json_says_everything(run: Commands, orders: str) -> None:
    first, *_, tombstone, last = run.json("consume", orders, "orders", "--group", "g")
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "topic": "orders", "partition": 0, "offset": 0, "key": "ada", "value": "one",
        "headers": [{"name": "source", "value": "web"}], "attempt": 1,
    }  # fmt: skip
    assert tombstone["value"] is None
    assert last["value_base64"] == "/w=="
    assert "value" not in last


def test_count_takes_no_more(run: Commands, orders: str) -> None:
    assert run.text("consume", orders, "orders", "--group", "g", "--count", 2, "--format", "escaped") == "one\ntwo\n"
    assert lag(orders) == 3
    assert attempts(orders) == [1, 1, 1]


def test_count_goes_over_several_batches(run: Commands, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "TOGETHER", 2)
    assert len(run.text("consume", orders, "orders", "--group", "g", "--count", 5).splitlines()) == 5
    assert lag(orders) == 0


def test_no_ack_gives_everything_back_uncounted(run: Commands, orders: str) -> None:
    for _ in range(2):
        assert len(run.text("consume", orders, "orders", "--group", "g", "--no-ack").splitlines()) == 5
    assert attempts(orders) == [1] * 5


def test_no_ack_looks_at_as_many_as_it_is_told(run: Commands, path: str) -> None:
    with penstock.open(path) as store:
        store.publish_many("orders", [b"x"] * 300)
    assert len(run.text("consume", path, "orders", "--group", "g", "--no-ack").splitlines()) == consuming.LOOK_DEFAULT
    assert len(run.text("consume", path, "orders", "--group", "g", "--no-ack", "--count", 250).splitlines()) == 250


def test_no_ack_does_not_wait_while_it_holds_messages(run: Commands, orders: str) -> None:
    """A lease that ended while it waits would count as a failure."""
    begun = time.monotonic()
    run.text("consume", orders, "orders", "--group", "g", "--no-ack", "--timeout", "1h")
    assert time.monotonic() - begun < 60


def test_nack_counts_as_failed(run: Commands, orders: str) -> None:
    run.text("consume", orders, "orders", "--group", "g", "--nack", "--delay", "0", "--count", 1)
    assert attempts(orders) == [2, 1, 1, 1, 1]
    text = run.text("consume", orders, "orders", "--group", "g", "--count", 1)
    assert "\t(delivery 2)\tone" in text


def test_reject_makes_dead_letters_with_the_reason(run: Commands, orders: str) -> None:
    run.text("consume", orders, "orders", "--group", "g", "--reject", "--reason", "no such address", "--count", 2)
    with penstock.open(orders) as store:
        letters = store.dead_letters("orders").list()
        assert [letter.value for letter in letters] == [b"one", b"two"]
        assert letters[0].headers["x-dlq-reason"] == b"no such address"
    assert lag(orders) == 3


def test_timeout_waits_for_what_comes(run: Commands, orders: str) -> None:
    """A message that comes again in a fifth of a second is waited for."""
    run.text("consume", orders, "orders", "--group", "g", "--nack", "--delay", "200ms", "--count", 5)
    assert len(run.text("consume", orders, "orders", "--group", "g", "--timeout", "30s", "--count", 5).splitlines()) == 5


def test_timeout_ends_when_nothing_comes(run: Commands, orders: str) -> None:
    run.text("consume", orders, "orders", "--group", "g")
    begun = time.monotonic()
    assert run.text("consume", orders, "orders", "--group", "g", "--timeout", "300ms") == ""
    assert time.monotonic() - begun >= 0.3


def test_start_is_where_a_new_group_begins(run: Commands, orders: str) -> None:
    assert run.text("consume", orders, "orders", "--group", "g", "--start", "latest") == ""
    assert len(run.text("consume", orders, "orders", "--group", "h", "--start", 3).splitlines()) == 2
    assert len(run.text("consume", orders, "orders", "--group", "i", "--start", "1h").splitlines()) == 5


def test_ordered_makes_the_group_ordered(run: Commands, orders: str) -> None:
    run.text("consume", orders, "orders", "--group", "g", "--ordered", "--count", 1)
    run.text("consume", orders, "orders", "--group", "g", "--count", 1)
    with penstock.open(orders) as store:
        assert store.groups("orders")[0].ordered


def test_what_could_not_be_written_is_not_acked(run: Commands, orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ack comes after the flush: a full disk behind stdout loses nothing, and is no failure of the message."""

    def full() -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("penstock.cli.output.flush", full)
    assert "No space left" in run.fails(1, "consume", orders, "orders", "--group", "g")
    assert attempts(orders) == [1] * 5


def test_an_ack_that_comes_too_late_is_told_and_the_rest_goes_on(
    run: Commands, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads the output took longer than the lease: the message comes again."""
    with penstock.open(path) as store:
        store.publish("orders", b"one")
        store.subscribe("orders", "g", lease=0.05)
    late = iter([0.2])
    flush = output.flush

    def slow() -> None:
        flush()
        time.sleep(next(late, 0))

    monkeypatch.setattr("penstock.cli.output.flush", slow)
    result = run("consume", path, "orders", "--group", "g")
    assert result.exit_code == 0
    assert result.stderr.startswith("warning: ")
    assert [line.split("\t")[-2:] for line in result.stdout.splitlines()][1] == ["(delivery 2)", "one"]


@pytest.mark.parametrize(
    "given",
    [["--no-ack", "--follow"], ["--delay", "1"], ["--reason", "x"], ["--no-ack", "--reason", "x"], ["--reject", "--delay", "1"],
     ["--count", "0"], ["--timeout", "soon"], ["--start", "2026-01-31T08:00"], ["--format", "xml"]],
)  # fmt: skip
def test_options_that_do_not_fit_are_refused(run: Commands, orders: str, given: list[str]) -> None:
    run.fails(2, "consume", orders, "orders", "--group", "g", *given)


def test_a_group_is_needed(run: Commands, orders: str) -> None:
    assert "--group" in run.fails(2, "consume", orders, "orders")


def test_what_is_not_there_is_not_made(run: Commands, path: str) -> None:
    assert "STORE_NOT_FOUND" in run.fails(3, "consume", path, "orders", "--group", "g")
    run.text("topics", "create", path, "orders")
    assert "TOPIC_NOT_FOUND" in run.fails(3, "consume", path, "other", "--group", "g")


def test_a_topic_that_is_not_there_is_an_error_where_nothing_is_waited_for(run: Commands, orders: str) -> None:
    result = run("consume", orders, "ordesr", "--group", "g")
    assert result.exit_code == 3
    assert "ordesr" in result.stderr
    with penstock.open(orders) as store:
        assert [info.name for info in store.topics()] == ["orders"]


def test_a_topic_that_is_not_there_is_made_where_that_is_asked_for(run: Commands, path: str) -> None:
    """Also the store. Where the group begins, what is published later comes."""
    assert run.text("consume", path, "orders", "--group", "g", "--create", "--start", "latest") == ""
    with penstock.open(path) as store:
        store.publish("orders", b"one")
    assert run.text("consume", path, "orders", "--group", "g", "--format", "value") == "one\n"


def test_a_topic_is_waited_for(run: Commands, path: str) -> None:
    """It says so, and gets all that is published to it, also where it wants to begin at the end."""
    with penstock.open(path) as store:

        def publish() -> None:
            time.sleep(0.5)
            store.publish("orders", b"one")

        publisher = threading.Thread(target=publish)
        publisher.start()
        result = run(
            "consume",
            path,
            "orders",
            "--group",
            "g",
            "--timeout",
            "60s",
            "--count",
            "1",
            "--start",
            "latest",
            "--format",
            "value",
        )
        publisher.join()
    assert (result.exit_code, result.stdout) == (0, "one\n")
    assert "note: there is no topic 'orders' yet" in result.stderr


def test_a_topic_is_waited_for_no_longer_than_the_timeout(run: Commands, orders: str) -> None:
    result = run("consume", orders, "later", "--group", "g", "--timeout", "300ms")
    assert result.exit_code == 3
    assert "there is no topic 'later'" in result.stderr
