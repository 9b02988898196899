r"""
Bytes as text, and back again without loss.

Escaped text is UTF-8 in which a backslash, what cannot be printed and what is no UTF-8 are written as ``\\``, ``\t``, ``\n``, ``\r``
or ``\xNN``, one for each byte. So it is one line, and never moves a terminal's cursor. ``\N`` stands for no value at all, as in
PostgreSQL's COPY.

In JSON the field ``value`` holds text, or else ``value_base64`` holds the bytes that are no UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

from penstock.errors import UsageError

NOTHING = r"\N"
_SHORT = {"\\": r"\\", "\t": r"\t", "\n": r"\n", "\r": r"\r"}
_LONG = {short: character.encode() for character, short in _SHORT.items()}
_UNSAFE = re.compile("[\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""What JSON may hold as it is, but a terminal could obey, or take for the end of a line."""
_ESCAPE = re.compile(rb"\\(x[0-9a-fA-F]{2}|.?)", re.DOTALL)


def escape(data: bytes | None) -> str:
    """The bytes as one line of text that can be printed."""
    if data is None:
        return NOTHING
    text = data.decode("utf-8", "surrogateescape")
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if character.isprintable():
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def printable(text: str) -> str:
    """Text from elsewhere (an error, a path) as one line that does nothing to a terminal; backslashes stay."""
    return "".join(one if one == "\\" else _escaped(one) for one in text)


def unescape(text: bytes) -> bytes | None:
    r"""The bytes that escaped text stands for; None for ``\N``. Raises `UsageError`."""
    if text == NOTHING.encode():
        return None
    return _ESCAPE.sub(_meant, text)


def _meant(found: re.Match[bytes]) -> bytes:
    escaped = found[0].decode("ascii", "replace")
    if escaped in _LONG:
        return _LONG[escaped]
    if len(escaped) == 4:
        return bytes.fromhex(escaped[2:])
    raise UsageError(rf"{escaped} is no escape; there are \\ \t \n \r and \xNN, and \N alone for no value")


def json_line(value: object) -> bytes:
    """A value as one line of JSON, which can be printed."""
    text = json.dumps(value, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text).encode("utf-8", "backslashreplace")


def to_json(name: str, data: bytes | None) -> dict[str, str | None]:
    """The field for *data*: under *name* as text, or under *name* with ``_base64``."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode()}


def from_json(name: str, fields: dict[str, Any]) -> bytes | None:
    """The bytes that `to_json` wrote; None if neither field is there. Raises `UsageError`."""
    coded = fields.get(f"{name}_base64")
    if coded is not None:
        if fields.get(name) is not None:
            raise UsageError(f"{name} and {name}_base64 are both given")
        if not isinstance(coded, str):
            raise UsageError(f"{name}_base64 must be text")
        try:
            return base64.b64decode(coded, validate=True)
        except (binascii.Error, ValueError):
            raise UsageError(f"{name}_base64 is no base64") from None
    text = fields.get(name)
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{name} must be text; other JSON goes in as text too")
    try:
        return None if text is None else text.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name} holds half of a character (a lone surrogate)") from None
