"""Small nouns and limits that every layer shares. Limits are the same on disk and on the wire; each stands here once."""

from __future__ import annotations

import enum
import re

from penstock.errors import BadName, BadSetting

KIB = 1024
MIB = 1024 * 1024

MESSAGE_BYTES_DEFAULT = 1 * MIB
"""The limit of one message (value, key and headers) unless a topic says otherwise."""
MESSAGE_BYTES_MAX = 64 * MIB
"""The most that a topic may set as its message limit."""
KEY_BYTES_MAX = 64 * KIB
HEADER_NAME_BYTES_MAX = 64 * KIB
HEADERS_MAX = 1_000
"""Headers of one message that is published."""
HEADERS_STORED_MAX = HEADERS_MAX + 24
"""Headers of one message that is stored: dead-lettering adds some."""
BATCH_MESSAGES_MAX = 100_000
BATCH_BYTES_FLOOR = 8 * MIB
BATCH_OVERHEAD_BYTES = 64 * KIB
BATCH_BYTES_MAX = MESSAGE_BYTES_MAX + BATCH_OVERHEAD_BYTES
"""No batch is longer than this, so that no decoder ever believes a larger length."""

NAME_CHARACTERS_MAX = 196
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,195}", re.ASCII)


def batch_bytes_limit(message_bytes_max: int) -> int:
    """The limit of a batch in a topic whose messages may have *message_bytes_max* bytes."""
    return max(BATCH_BYTES_FLOOR, message_bytes_max + BATCH_OVERHEAD_BYTES)


def is_name(name: object) -> bool:
    """Whether *name* may be used in a path."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_name(kind: str, name: str) -> str:
    """Return *name* if it may be used in a path, else raise `BadName`."""
    if not is_name(name):
        raise BadName(kind, str(name))
    return name


_LEVELS = {"none": 0, "gzip": 9, "zstd": 19, "lz4": 0}
"""The codecs of columns, and the highest level that each takes."""


def compression_text(value: object) -> str:
    """A setting of compression such as ``"zstd"`` or ``"gzip:9"``, as it is stored; None means none. Raises `BadSetting`."""
    if value is None:
        return "none"
    text = value.lower() if isinstance(value, str) else ""
    name, colon, level = text.partition(":")
    most = _LEVELS.get(name)
    if most is None:
        given = value if isinstance(value, str) else type(value).__name__
        raise BadSetting("compression", given, "use none, gzip, zstd or lz4, with a level as in gzip:9")
    if colon and not (level.isascii() and level.isdecimal() and len(level) < 3 and 1 <= int(level) <= most):
        raise BadSetting("compression", value, f"the level must be a number from 1 to {most}" if most else "it takes no level")
    return f"{name}:{int(level)}" if colon else name


class SyncMode(enum.Enum):
    """When a publish counts as committed, named by how much is lost when power fails."""

    ALWAYS = "always"
    """After an fsync covers it: nothing is lost."""
    INTERVAL = "interval"
    """When the kernel has it; an fsync follows within the sync interval: at most that interval is lost."""
    OS = "os"
    """When the kernel has it: power loss loses what the kernel had not written; the death of the process loses nothing."""

    @classmethod
    def of(cls, value: SyncMode | str) -> SyncMode:
        """Turn a setting's text into the mode."""
        try:
            return cls(value)
        except ValueError:
            raise BadSetting("sync", value, "use always, interval or os") from None
