"""Fields of a call, checked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.arguments import shown
from penstock.errors import BadArgument

if TYPE_CHECKING:
    from penstock.wire.frame import Frame


def texts(frame: Frame, name: str) -> list[str]:
    """A list of texts. Raises `BadArgument`."""
    values = frame.fields.get(name)
    if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
        raise BadArgument(name, shown(values), "must be a list of texts")
    return values


def table(frame: Frame, name: str) -> dict[str, Any]:
    """An object, empty if it is not there. Raises `BadArgument`."""
    values = frame.fields.get(name, {})
    if not isinstance(values, dict):
        raise BadArgument(name, shown(values), "must be an object")
    return values


def named_parts(fields: dict[str, Any]) -> list[tuple[str, Any]]:
    """
    Topic and partition for each of the *parts* of a call; the topic is a name, or a number of one of *topics*. Raises `BadArgument`.

    The partitions are not checked.
    """
    parts, topics = fields.get("parts", []), fields.get("topics", [])
    names = topics if isinstance(topics, list) and all(isinstance(one, str) for one in topics) else []
    found: list[tuple[str, Any]] = []
    for part in parts if isinstance(parts, list) else [None]:
        if isinstance(part, list) and len(part) == 2:
            name, partition = part
            if type(name) is int and 0 <= name < len(names):
                name = names[name]
            if isinstance(name, str):
                found.append((name, partition))
                continue
        raise BadArgument("parts", shown(part), "must be a list of [topic, partition]")
    return found
