"""`penstock publish`."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.cli import publish as publishing

if TYPE_CHECKING:
    from pathlib import Path

    from penstock import Message
    from tests.cli.conftest import Commands


def stored(path: str, topic: str = "orders") -> list[Message]:
    with penstock.open(path, read_only=True) as store:
        return list(store.read(topic))


def values(path: str, topic: str = "orders") -> list[bytes | None]:
    return [message.value for message in stored(path, topic)]


def test_values_are_published_and_their_receipts_printed(run: Commands, path: str) -> None:
    """The store and the topic are made on the way."""
    assert run.text("publish", path, "orders", "one", "two") == "orders/0 offset 0\norders/0 offset 1\n"
    assert values(path) == [b"one", b"two"]


def test_receipts_as_json(run: Commands, path: str) -> None:
    assert run.json("publish", path, "orders", "one") == [{"topic": "orders", "partition": 0, "offset": 0, "duplicate": False}]


def test_quiet_prints_nothing(run: Commands, path: str) -> None:
    assert run.text("publish", path, "orders", "one", "--quiet") == ""
    assert values(path) == [b"one"]


def test_each_line_of_stdin_is_a_message(run: Commands, path: str) -> None:
    """Bytes stay as they are; an empty line is an empty message; the last line needs no newline."""
    run.text("publish", path, "orders", stdin=b"one\n\n\xff\xfe\r\nlast")
    assert values(path) == [b"one", b"", b"\xff\xfe\r", b"last"]


def test_empty_input_publishes_nothing(run: Commands, path: str) -> None:
    assert run.text("publish", path, "orders") == ""


def test_a_file_is_one_message(run: Commands, path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"\x00\n\xff")
    run.text("publish", path, "orders", "--file", tmp_path / "file", "--file", "-", stdin=b"a\nb\n")
    assert values(path) == [b"\x00\n\xff", b"a\nb\n"]


def test_key_and_headers_are_those_of_each_message(run: Commands, path: str) -> None:
    run.text("publish", path, "orders", "a", "b", "--key", "ada", "--header", "source=web", "--header", "source=a=b")
    for message in stored(path):
        assert message.key == b"ada"
        assert list(message.headers) == [("source", b"web"), ("source", b"a=b")]


def test_a_partition_can_be_chosen(run: Commands, path: str) -> None:
    run.text("topics", "create", path, "orders", "--partitions", 3)
    assert run.json("publish", path, "orders", "one", "--partition", 2)[0]["partition"] == 2
    assert "has no partition 3" in run.fails(3, "publish", path, "orders", "one", "--partition", 3)


def test_a_dedup_key_stores_a_message_once(run: Commands, path: str) -> None:
    assert run.text("publish", path, "orders", "one", "--dedup-key", "17") == "orders/0 offset 0\n"
    assert run.text("publish", path, "orders", "one", "--dedup-key", "17") == "orders/0 offset 0 duplicate\n"
    assert values(path) == [b"one"]


@pytest.mark.parametrize("more", [["one", "two"], []])
def test_a_dedup_key_is_for_one_message(run: Commands, path: str, more: list[str]) -> None:
    """With several the second would silently be dropped."""
    assert "one message" in run.fails(2, "publish", path, "orders", *more, "--dedup-key", "17", stdin=b"a\nb\n")


def test_batches_print_a_summary(run: Commands, path: str) -> None:
    printed = run.text("publish", path, "orders", "--batch", 2, stdin=b"a\nb\nc\nd\ne\n")
    assert printed == "5 messages\norders/0 offsets [0, 5)\n"
    assert values(path) == [b"a", b"b", b"c", b"d", b"e"]


def test_batches_are_committed_at_once(run: Commands, path: str) -> None:
    """Three messages in one batch have one append time."""
    run.text("publish", path, "orders", "--batch", 3, stdin=b"a\nb\nc\nd\n")
    times = [message.append_time_us for message in stored(path)]
    assert times[0] == times[1] == times[2] != times[3]


def test_batches_as_json_print_every_receipt(run: Commands, path: str) -> None:
    assert [one["offset"] for one in run.json("publish", path, "orders", "--batch", 2, stdin=b"a\nb\nc\n")] == [0, 1, 2]


def test_a_batch_never_grows_over_what_the_engine_takes(run: Commands, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lines are committed in several parts, whatever --batch says; keys and headers count too."""
    monkeypatch.setattr(publishing, "BATCH_BYTES", 300)
    given = ["--batch", 1000, "--key", "k" * 40, "--header", "h=" + "v" * 40]
    run.text("publish", path, "orders", *given, stdin=b"".join([b"x" * 30 + b"\n"] * 3))
    times = {message.append_time_us for message in stored(path)}
    assert len(times) == 3


def test_batches_of_long_messages_are_stored(run: Commands, path: str) -> None:
    run.text("publish", path, "orders", "--batch", 100, stdin=(b"x" * 1_000_000 + b"\n") * 20)
    assert len(values(path)) == 20


def test_batches_of_many_small_messages_are_stored(run: Commands, path: str) -> None:
    """What the engine needs for each message beside its bytes counts too."""
    given = ["--batch", 100_000, "--key", "k", *["--header", "h=v"] * 9]
    assert run.text("publish", path, "orders", *given, stdin=b"x\n" * 100_000).startswith("100,000 messages\n")


def test_the_summary_tells_duplicates_apart(run: Commands, path: str) -> None:
    lines = "".join(json.dumps({"value": key, "dedup_key": key}) + "\n" for key in "abc")
    run.text("publish", path, "orders", "--format", "json", "--batch", 5, stdin=lines)
    printed = run.text("publish", path, "orders", "--format", "json", "--batch", 5, stdin=lines + '{"value": "new"}')
    assert printed == "4 messages, 3 of them were there already\norders/0 offsets [3, 4)\n"


def test_escaped_values_stand_for_any_bytes(run: Commands, path: str) -> None:
    run.text("publish", path, "orders", r"a\nb\xff\\", r"\N", "--format", "escaped", "--key", r"\x00", "--header", r"h=\t")
    first, second = stored(path)
    assert (first.value, first.key, first.headers["h"]) == (b"a\nb\xff\\", b"\0", b"\t")
    assert second.value is None


def test_a_wrong_escape_is_refused_before_anything_is_published(run: Commands, path: str) -> None:
    assert r"VALUE 2: \q" in run.fails(2, "publish", path, "orders", "fine", r"\q", "--format", "escaped")
    assert not os.path.exists(path)


def test_json_lines_bring_their_own_keys_and_headers(run: Commands, path: str) -> None:
    lines = [
        {"value": "one", "key": "ada", "headers": [{"name": "h", "value": "v"}], "dedup_key": "d", "timestamp": "2026-01-31T08:00:00Z"},
        {"value_base64": "/w==", "headers": {"h": "w"}},
        {"value": None, "offset": 700, "topic": "elsewhere"},
    ]  # fmt: skip
    text = "\n".join(map(json.dumps, lines))
    run.text("publish", path, "orders", "--format", "json", "--key", "default", "--header", "x=y", stdin=text)
    one, two, three = stored(path)
    assert (one.value, one.key, one.dedup_key, one.headers["h"]) == (b"one", b"ada", b"d", b"v")
    assert one.timestamp.isoformat() == "2026-01-31T08:00:00+00:00"
    assert (two.value, two.key, two.headers["h"]) == (b"\xff", b"default", b"w")
    assert (three.value, three.offset, list(three.headers)) == (None, 2, [("x", b"y")])


@pytest.mark.parametrize(
    "line",
    [
        "{", "[]", '"text"', "{}", '{"value": 1}', '{"value": "a", "headers": 7}', '{"value": "a", "headers": [1]}',
        '{"value": "a", "headers": [{"name": "h"}]}', '{"value": "a", "timestamp": "2026-01-31T08:00"}',
        '{"value": "a", "timestamp": "soon"}', '{"value": "a", "timestamp": 5}',
    ],
)  # fmt: skip
def test_a_line_that_is_no_message_is_named(run: Commands, path: str, line: str) -> None:
    """What came before it is published, and that is said."""
    result = run("publish", path, "orders", "--format", "json", stdin='{"value": "good"}\n' + line)
    assert result.exit_code == 2
    assert "note: 1 messages were published before this\nerror: line 2: " in result.stderr
    assert values(path) == [b"good"]


@pytest.mark.parametrize(
    "given",
    [["a", "--file", __file__], ["a", "--header", "none"], ["a", "--header", "=v"], ["--file", __file__, "--format", "json"]],
)
def test_arguments_that_do_not_fit_together_are_refused(run: Commands, path: str, given: list[str]) -> None:
    run.fails(2, "publish", path, "orders", *given)
    assert not os.path.exists(path)


def test_no_create_makes_nothing(run: Commands, path: str) -> None:
    assert "STORE_NOT_FOUND" in run.fails(3, "publish", path, "orders", "one", "--no-create")
    assert not os.path.exists(path)
    run.text("topics", "create", path, "orders")
    assert "TOPIC_NOT_FOUND" in run.fails(3, "publish", path, "other", "one", "--no-create")
    assert run.text("publish", path, "orders", "one", "--no-create") == "orders/0 offset 0\n"


def test_a_message_over_the_limit_is_refused(run: Commands, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic's limit by the engine; a line or a file that no topic would take before it is read to its end."""
    assert "MESSAGE_TOO_LARGE" in run.fails(2, "publish", path, "orders", stdin=b"x" * 1_100_000)
    monkeypatch.setattr(publishing, "MESSAGE_BYTES_MAX", 10)
    assert "line 2 is over" in run.fails(2, "publish", path, "orders", stdin=b"x" * 10 + b"\n" + b"x" * 13)
    assert "over the limit" in run.fails(2, "publish", path, "orders", "--file", "-", stdin=b"x" * 11)


def test_a_file_that_is_not_there_is_named(run: Commands, path: str) -> None:
    assert "nowhere" in run.fails(2, "publish", path, "orders", "--file", "nowhere")


def test_ttl_delay_priority_and_compression(run: Commands, path: str) -> None:
    """They come back from read, and the JSON of a line brings its own."""
    run.text(
        "topics", "create", path, "orders", "--priorities", "--ttl", "1h", "--expired", "dead_letter", "--compression", "gzip:9"
    )
    run.text("publish", path, "orders", "a", "--ttl", "1m", "--delay", "5s", "--priority", "high")
    run.text("publish", path, "orders", "b", "--delay", "2031-01-31T08:00Z", "--compression", "none")
    lines = b'{"value": "c", "ttl": 2, "priority": "medium"}\n{"value": "d", "deliver_at": "2031-02-01T00:00:00Z"}\n'
    run.text("publish", path, "orders", "--format", "json", "--priority", "high", "--batch", "10", stdin=lines)
    found = stored(path)
    assert [message.priority for message in found] == ["high", "low", "medium", "high"]
    assert [(message.expires_at - message.timestamp).total_seconds() for message in found if message.expires_at] == [
        60,
        3600,
        2,
        3600,
    ]
    read = run.json("read", path, "orders")
    assert [one.get("priority") for one in read] == ["high", None, "medium", "high"]
    assert [one.get("deliver_at") for one in read][1:] == ["2031-01-31T08:00:00.000000Z", None, "2031-02-01T00:00:00.000000Z"]
    assert all("expires_at" in one for one in read)
    assert "(high)\t(expires 20" in run.text("read", path, "orders")
    [described] = run.json("topics", "describe", path, "orders")
    assert {name: described["settings"][name] for name in ("priorities", "ttl_ms", "expired", "compression")} == {
        "priorities": True, "ttl_ms": 3_600_000, "expired": "dead_letter", "compression": "gzip:9",
    }  # fmt: skip


@pytest.mark.parametrize("given", [["--ttl", "0"], ["--ttl", "-1"], ["--delay", "soon"], ["--delay", "2031-01-31T08:00"],
                                   ["--priority", "high"],
                                   ["--priority", "urgent"], ["--compression", "brotli"]], ids=" ".join)  # fmt: skip
def test_bad_options_are_refused(run: Commands, path: str, given: list[str]) -> None:
    """A topic that was not made with priorities has none."""
    run.fails(2, "publish", path, "orders", "x", *given)
    assert not os.path.exists(path) or penstock.open(path, read_only=True).topics() == []
