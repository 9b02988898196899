"""What a process uses, as its system tells."""

from __future__ import annotations

import os

MB = 1_000_000
_TICKS_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def rss_bytes(pid: int) -> int:
    """Its memory that is in use now."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * _PAGE_BYTES


def descriptors(pid: int) -> int:
    """How many it has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid: int) -> int:
    """How many it runs."""
    return len(os.listdir(f"/proc/{pid}/task"))


def cpu_s(pid: int) -> float:
    """Processor time that it has used: on a machine that others use too the only time that says something."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_S
