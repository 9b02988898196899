"""A file system whose every call is a switch point of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.files import FileSystem
    from penstock.testing.interleaving.scheduler import Interleaving

_OPENING = frozenset(["open", "create", "lock", "map_shared"])


class _Switching:
    """Hands each call to *inner*, after a switch point; what is opened is handed out behind the same."""

    __slots__ = ("_inner", "_known", "_run")

    def __init__(self, inner: Any, run: Interleaving) -> None:
        self._inner = inner
        self._run = run
        self._known: dict[str, Callable[..., Any]] = {}

    def __getattr__(self, name: str) -> Any:
        known = self._known.get(name)
        if known is not None:
            return known
        value = getattr(self._inner, name)
        if not callable(value):
            return value
        switch, opens = self._run.switch, name in _OPENING

        def call(*arguments: Any, **options: Any) -> Any:
            switch()
            result = value(*arguments, **options)
            return _Switching(result, self._run) if opens else result

        self._known[name] = call
        return call


def switching_files(files: FileSystem, run: Interleaving) -> Any:
    """*files*, with a switch point of *run* before each call. The switch comes first: no lock of *files* is held meanwhile."""
    return _Switching(files, run)
