"""
What a line of the log is about, for programs: `record.penstock`, a dict with the event's name and its fields.

Lines are for people and may change; events and their fields are in docs/observability.md. Loggers are those of Python, below
``penstock``, so whoever wants them elsewhere adds a handler, a filter or a formatter there.
"""

from __future__ import annotations


def event(name: str, **fields: object) -> dict[str, dict[str, object]]:
    """The *extra* of a call of a logger."""
    return {"penstock": {"event": name, **fields}}
