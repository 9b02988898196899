"""What a caller wants to publish, checked and brought into the form that batches are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.arguments import shown
from penstock.errors import BadArgument, MessageTooLarge
from penstock.values import HEADER_NAME_BYTES_MAX, HEADERS_MAX, KEY_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

BYTES_LIKE = (bytes, bytearray, memoryview)
DEDUP_KEY_BYTES_MAX = 1024


def value_bytes(value: object) -> bytes | None:
    """A message's value: bytes, or None for a tombstone."""
    if value is None or type(value) is bytes:
        return value
    if isinstance(value, BYTES_LIKE):
        return bytes(value)
    hint = "text.encode()" if isinstance(value, str) else "json.dumps(value).encode()"
    raise BadArgument(
        "value", shown(value), f"must be bytes or None, not {type(value).__name__}; encode it first, as in {hint}"
    )


def key_bytes(key: object) -> bytes | None:
    """A message's key: bytes, text (as UTF-8) or None."""
    if key is None:
        return None
    if isinstance(key, str):
        data = _utf8("key", key)
    elif isinstance(key, BYTES_LIKE):
        data = bytes(key)
    else:
        raise BadArgument("key", shown(key), f"must be bytes, str or None, not {type(key).__name__}; use str(key), for example")
    if len(data) > KEY_BYTES_MAX:
        raise MessageTooLarge("a key", len(data), KEY_BYTES_MAX)
    return data


def dedup_key_bytes(key: object) -> bytes | None:
    """A deduplication key: bytes or text, not empty; or None."""
    if key is None:
        return None
    if isinstance(key, str):
        data = _utf8("dedup_key", key)
    elif isinstance(key, BYTES_LIKE):
        data = bytes(key)
    else:
        raise BadArgument("dedup_key", shown(key), f"must be bytes, str or None, not {type(key).__name__}")
    if not data:
        raise BadArgument("dedup_key", shown(key), "must not be empty")
    if len(data) > DEDUP_KEY_BYTES_MAX:
        raise MessageTooLarge("a dedup_key", len(data), DEDUP_KEY_BYTES_MAX)
    return data


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise BadArgument(name, shown(text), f"cannot be written as UTF-8 ({error.reason})") from None


def header_pairs(headers: object) -> list[tuple[str, bytes]] | None:
    """A message's headers: a mapping, or pairs, of str to bytes."""
    if headers is None:
        return None
    if isinstance(headers, (str, *BYTES_LIKE)):
        raise BadArgument("headers", shown(headers), "must be a mapping or a list of pairs of str and bytes")
    try:
        items = getattr(headers, "items", None)
        source: Any = headers if items is None else items()
        pairs: list[Any] = list(source)
    except TypeError:
        raise BadArgument("headers", shown(headers), "must be a mapping or a list of pairs of str and bytes") from None
    if len(pairs) > HEADERS_MAX:
        raise MessageTooLarge("the number of headers of a message", len(pairs), HEADERS_MAX)
    return [_header(pair) for pair in pairs]


def _header(pair: object) -> tuple[str, bytes]:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        raise BadArgument("headers", shown(pair), "must be pairs of a name and a value")
    name, value = pair
    if not isinstance(name, str):
        raise BadArgument("headers", shown(name), f"a header's name must be str, not {type(name).__name__}")
    if not isinstance(value, BYTES_LIKE):
        reason = f"the value of the header {shown(name)} must be bytes, not {type(value).__name__}; encode it first"
        raise BadArgument("headers", shown(value), reason)
    if len(_utf8("headers", name)) > HEADER_NAME_BYTES_MAX:
        raise MessageTooLarge("a header name", len(name.encode()), HEADER_NAME_BYTES_MAX)
    return name, bytes(value)


def message_bytes(value: bytes | None, key: bytes | None, headers: Sequence[tuple[str, bytes]] | None) -> int:
    """How much of its topic's limit a message takes."""
    size = 0 if value is None else len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += sum([len(name.encode()) + len(text) for name, text in headers])
    return size
