"""Errors on the wire: their stable code and their arguments, so that the other side raises the same."""

from __future__ import annotations

from typing import Any

from penstock import errors as tree
from penstock.errors import PenstockError, Unavailable


def _all(base: type[PenstockError]) -> dict[str, type[PenstockError]]:
    found = {base.code: base}
    for child in base.__subclasses__():
        # Others, which have the code of their base, never leave the part that defines them.
        if child.__module__ == tree.__name__:
            found |= _all(child)
    return found


_BY_CODE = _all(PenstockError)


def encode_error(error: PenstockError) -> dict[str, Any]:
    """The fields of an error frame."""
    arguments = [one if isinstance(one, (str, int, float, bool, type(None))) else str(one) for one in error.args]
    return {"code": error.code, "arguments": arguments, "text": str(error)}


def decode_error(fields: dict[str, Any]) -> PenstockError:
    """The error that an error frame tells of. One that this version does not know is an `Unavailable` with its text."""
    kind = _BY_CODE.get(str(fields.get("code")))
    arguments = fields.get("arguments")
    text = str(fields.get("text"))
    if kind is None or not isinstance(arguments, list):
        return Unavailable(text)
    try:
        error = kind(*arguments)
        str(error)
    except Exception:  # noqa: BLE001 - the other side may send anything, and an error that cannot be printed helps nobody
        return Unavailable(text)
    return error
