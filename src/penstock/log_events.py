"""
What a line of the log is about, for programs: `record.penstock`, a dict with the event's name and its fields.

Lines are for people and may change; events and their fields are in docs/observability.md. Loggers are those of Python, below
``penstock``, so whoever wants them elsewhere adds a handler, a filter or a formatter there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging
    from collections.abc import Hashable


def event(name: str, **fields: object) -> dict[str, dict[str, object]]:
    """The *extra* of a call of a logger."""
    return {"penstock": {"event": name, **fields}}


class Troubles:
    """What goes wrong in the background: told once, until it goes well or goes wrong otherwise. Safe to call from any thread."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: dict[Hashable, str] = {}

    def tell(self, what: Hashable, text: str, about: str, error: Exception, **fields: object) -> None:
        """
        *what* went wrong with *error*: a warning with *text*, unless the same was told of it already.

        *about* is the name of the event, *fields* those of its fields that are not the error's.
        """
        said = f"{type(error).__name__}: {error}"
        if self._told.get(what) != said:
            self._told[what] = said
            self._logger.warning("%s: %s", text, error, extra=event(about, **fields, error=type(error).__name__))

    def end(self, what: Hashable) -> None:
        """*what* went well."""
        if self._told:
            self._told.pop(what, None)
