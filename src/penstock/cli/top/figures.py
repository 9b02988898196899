"""Numbers as people read them, in few cells: each function says how many it takes at most."""

from __future__ import annotations

from penstock.values import KIB, MIB

NOTHING = "-"
"""What is not known."""
_SIZES = (("KiB", KIB), ("MiB", MIB), ("GiB", KIB * MIB), ("TiB", MIB * MIB))
_AGES = (("s", 1, 120), ("m", 60, 120), ("h", 3600, 48), ("d", 86_400, 100_000))


def count(number: int | None) -> str:
    """``1,234`` or ``12.3M``: 7 cells."""
    if number is None:
        return NOTHING
    return f"{number:,}" if number < 1_000_000 else _short(number)


def rate(per_second: float | None) -> str:
    """``0.5``, ``123``, ``1.2k``: 6 cells."""
    if per_second is None:
        return NOTHING
    if per_second < 9.95:
        return f"{per_second:.1f}" if per_second else "0"
    return str(round(per_second)) if per_second < 999.5 else _short(per_second)


def _short(number: float) -> str:
    for unit in "kMGT":
        number /= 1000
        if number < 999.5 or unit == "T":
            break
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f}{unit}"


def size(number: int) -> str:
    """``512 B``, ``1.5 KiB``: 8 cells."""
    if number < KIB:
        return f"{number} B"
    unit, bytes_each = next((one for one in _SIZES if number < one[1] * 1023.5), _SIZES[-1])
    shown = number / bytes_each
    return f"{shown:.1f} {unit}" if shown < 9.95 else f"{shown:.0f} {unit}"


def age(seconds: float | None) -> str:
    """``3.2s``, ``45s``, ``119m``, ``47h``, ``12d``: 6 cells."""
    if seconds is None:
        return NOTHING
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds else "0s"
    unit, each_s, _ = next((one for one in _AGES if round(seconds / one[1]) < one[2]), _AGES[-1])
    return f"{seconds / each_s:.0f}{unit}"


def milliseconds(seconds: float) -> str:
    """``0.05``, ``12.3``, ``60000``: 6 cells."""
    shown = seconds * 1000
    return f"{shown:.2f}" if shown < 9.995 else f"{shown:.1f}" if shown < 99.95 else f"{shown:.0f}"
