"""Bytes become text and JSON, and come back as they were."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cli.escapes import escape, from_json, json_line, printable, to_json, unescape
from penstock.errors import UsageError

BYTES = st.binary() | st.text().map(str.encode) | st.text(alphabet="\\nx0N\n").map(str.encode)


@given(BYTES)
@example(b"\\N")
@example(b"\\x41")
@example(b"\x00\x1b[2J\x7f")
@example("\u202e\u0085\u2028".encode())
@example("é".encode() + b"\xff")
def test_escaped_bytes_come_back(data: bytes) -> None:
    """Whatever the bytes are, their escaped text is one printable line, and stands for them alone."""
    text = escape(data)
    assert text.isprintable()
    assert unescape(text.encode()) == data


def test_readable_text_is_not_escaped() -> None:
    assert escape("Grüße, 世界 {}".encode()) == "Grüße, 世界 {}"


def test_no_value_differs_from_every_value() -> None:
    """A tombstone is told by an escape that no bytes have."""
    assert escape(None) == r"\N"
    assert unescape(rb"\N") is None
    assert escape(b"\\N") == r"\\N"


@pytest.mark.parametrize("text", [rb"\q", rb"\x4", rb"\xzz", b"\\", rb"a\N", "\\é".encode(), b"\\\n"])
def test_an_unknown_escape_is_refused(text: bytes) -> None:
    """It is never guessed what was meant."""
    with pytest.raises(UsageError, match="is no escape"):
        unescape(text)


@given(st.none() | BYTES)
def test_bytes_in_json_come_back(data: bytes | None) -> None:
    fields = json.loads(json.dumps(to_json("value", data)))
    assert from_json("value", fields) == data


@given(st.text() | st.text(alphabet="a\x1b\x7f\x9b\u2028\u202e\n"))
def test_a_line_of_json_moves_no_cursor_and_is_one_line(text: str) -> None:
    line = json_line({"value": text})
    assert json.loads(line) == {"value": text}
    shown = line.decode()
    assert len(shown.splitlines()) == 1
    assert not set(shown) & set("\x1b\x7f\x9b\u202e")


@pytest.mark.parametrize(
    "fields",
    [
        {"value": 1}, {"value": ["a"]}, {"value_base64": "not base64"}, {"value_base64": 7}, {"value_base64": "é"},
        {"value": "a", "value_base64": "YQ=="}, {"value": "\ud800"},
    ],
)  # fmt: skip
def test_fields_that_stand_for_no_bytes_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        from_json("value", fields)


def test_what_is_shown_to_people_moves_no_cursor() -> None:
    """Paths and errors may hold control characters; their backslashes stay."""
    assert printable("a\x1b[2J\nb\\c\udcff") == r"a\x1b[2J\nb\c\xff"
