"""`penstock topics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


def test_a_topic_is_created_with_its_settings(run: Commands, path: str) -> None:
    given = [
        "--partitions", 3, "--sync", "interval", "--segment-bytes", "16MiB", "--segment-messages", 500, "--segment-age", "2h",
        "--max-message-bytes", "64KiB", "--dedup-window", "5m", "--retain", "always", "--retention-age", "1.5d",
        "--retention-bytes", "1GiB", "--set", "coalesce_below_bytes=0",
    ]  # fmt: skip
    run.text("topics", "create", path, "orders", *given)
    with penstock.open(path, read_only=True) as store:
        topic = store.topic("orders")
    assert topic.partitions == 3
    settings = topic.settings
    assert (settings.sync.value, settings.segment_bytes, settings.segment_messages) == ("interval", 16 * 1024 * 1024, 500)
    assert (settings.segment_age_ms, settings.max_message_bytes, settings.dedup_window_ms) == (7_200_000, 65_536, 300_000)
    assert (settings.retain, settings.retention_age_ms, settings.retention_bytes) == ("always", 129_600_000, 1024**3)
    assert settings.coalesce_below_bytes == 0


def test_creating_again_is_no_error_unless_settings_differ(run: Commands, path: str) -> None:
    assert run.json("topics", "create", path, "orders") == run.json("topics", "create", path, "orders")
    assert "TOPIC_EXISTS" in run.fails(2, "topics", "create", path, "orders", "--partitions", 2)


@pytest.mark.parametrize(
    ("given", "code"),
    [(["--partitions", "0"], 2), (["--segment-bytes", "1TB"], 2), (["--segment-age", "long"], 2), (["--set", "sync=1"], 2),
     (["--set", "nothing=1"], 2), (["--set", "coalesce_below_bytes=x"], 2), (["--set", "index_interval_bytes=1"], 2)],
)  # fmt: skip
def test_wrong_settings_are_refused(run: Commands, path: str, given: list[str], code: int) -> None:
    run.fails(code, "topics", "create", path, "orders", *given)
    assert run("topics", "list", path).stdout in {"", "TOPIC  PARTITIONS  MESSAGES  SYNC\n"}


def test_a_bad_name_is_refused(run: Commands, path: str) -> None:
    assert "BAD_NAME" in run.fails(2, "topics", "create", path, "../orders")
    assert "RESERVED_NAME" in run.fails(2, "topics", "create", path, "orders.dlq")


@pytest.fixture
def two(path: str) -> str:
    """A store with two topics."""
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        store.publish_many("orders", [b"x"] * 1234, partition=1)
        store.create_topic("metrics", sync="os")
    return path


def test_topics_are_listed(run: Commands, two: str) -> None:
    """In a pipe: aligned columns, and numbers without commas."""
    assert run.text("topics", "list", two) == (
        "TOPIC    PARTITIONS  MESSAGES  SYNC\n"
        "metrics           1         0  os\n"
        "orders            2      1234  always\n"
    )  # fmt: skip


def test_topics_as_json(run: Commands, two: str) -> None:
    metrics, orders = run.json("topics", "list", two)
    assert (metrics["name"], metrics["settings"]["sync"]) == ("metrics", "os")
    assert orders["partitions"] == [{"partition": 0, "start": 0, "end": 0}, {"partition": 1, "start": 0, "end": 1234}]
    assert orders["messages"] == 1234
    assert run.json("topics", "describe", two, "orders") == [orders]


def test_a_topic_is_described(run: Commands, two: str) -> None:
    text = run.text("topics", "describe", two, "orders")
    assert "topic:                    orders\n" in text
    assert "retain:                   until_acked\n" in text
    assert text.endswith("PARTITION  START   END\n        0      0     0\n        1      0  1234\n")


def test_what_is_not_there(run: Commands, two: str) -> None:
    assert "TOPIC_NOT_FOUND" in run.fails(3, "topics", "describe", two, "nothing")
    assert "STORE_NOT_FOUND" in run.fails(3, "topics", "list", two + "x")
    assert "STORE_NOT_FOUND" in run.fails(3, "topics", "describe", two + "x", "orders")
