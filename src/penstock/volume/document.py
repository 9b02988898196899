"""Small JSON files with a checksum: `store.json` and `topic.json`."""

from __future__ import annotations

import json
from typing import Any

from penstock.errors import BadBytes
from penstock.format.checksum import crc32c


def encode_document(values: dict[str, Any]) -> bytes:
    """JSON text, easy to read by people, with a CRC-32C over its canonical form."""
    text = json.dumps({**values, "crc32c": _checksum(values)}, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def decode_document(what: str, data: bytes) -> dict[str, Any]:
    """Read such a file. Raises `BadBytes`."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadBytes(what, f"is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise BadBytes(what, "is not a JSON object")
    checksum = values.pop("crc32c", None)
    try:
        matches = checksum == _checksum(values)
    except (ValueError, RecursionError) as error:
        raise BadBytes(what, f"is not plain JSON ({error})") from None
    if not matches:
        raise BadBytes(what, "checksum does not match")
    return values


def _checksum(values: dict[str, Any]) -> str:
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=True)
    return f"{crc32c(canonical.encode()):08x}"
