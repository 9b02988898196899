"""Watching what one log is asked, among all that a test has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


def replace_of(monkeypatch: pytest.MonkeyPatch, log: Any, name: str, method: Callable[..., Any]) -> None:
    """Let *method* answer calls of *log*'s method *name*; those of other logs are answered as before. A log takes no attributes itself."""
    plain = getattr(type(log), name)

    def answer(self: Any, *arguments: Any, **options: Any) -> Any:
        return method(*arguments, **options) if self is log else plain(self, *arguments, **options)

    monkeypatch.setattr(type(log), name, answer)
