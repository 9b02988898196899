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
