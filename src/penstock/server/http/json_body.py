"""JSON from strangers: its depth and its number of values are counted before anything is made of it."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from penstock.server.http.problems import HttpProblem

DIGITS_MAX = 30
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NOT_STRUCTURE = bytes(set(range(256)) - set(b"[]{},"))


def parse(body: bytes, depth_max: int, items_max: int) -> Any:
    """What *body* says. Raises `HttpProblem`."""
    _check_structure(body, depth_max, items_max)
    try:
        return json.loads(
            body.decode(), object_pairs_hook=_object, parse_constant=_constant, parse_float=_real, parse_int=_whole
        )
    except UnicodeDecodeError:
        raise HttpProblem("BAD_JSON", "the body is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise HttpProblem("BAD_JSON", f"the body is no JSON: {error.msg} at character {error.pos:,}") from None
    except RecursionError:
        raise HttpProblem("BAD_JSON", "the body is nested too deep") from None


def _check_structure(body: bytes, depth_max: int, items_max: int) -> None:
    """Count brackets and commas outside of strings; neither step makes an object for each."""
    structure = _STRINGS.sub(b"", body).translate(None, _NOT_STRUCTURE)
    if len(structure) > items_max:
        raise HttpProblem("BAD_JSON", f"the body holds more than {items_max:,} values")
    depth = 0
    for character in structure.replace(b",", b""):
        if character in b"[{":
            depth += 1
            if depth > depth_max:
                raise HttpProblem("BAD_JSON", f"the body is nested deeper than {depth_max} levels")
        else:
            depth -= 1


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise HttpProblem("BAD_JSON", "an object has the same field twice")
    return found


def _constant(name: str) -> Any:
    raise HttpProblem("BAD_JSON", f"{name} is no JSON")


def _whole(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise HttpProblem("BAD_JSON", f"a number has more than {DIGITS_MAX} digits")
    return int(digits)


def _real(digits: str) -> float:
    number = float(digits) if len(digits) <= 400 else math.inf
    if not math.isfinite(number):
        raise HttpProblem("BAD_JSON", "a number is too large")
    return number
