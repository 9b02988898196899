"""Something that is being opened: await it, or use it in ``async with``, which closes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from penstock.aio.waiting import finished_or_undone

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


class Closing(Protocol):
    """What can be closed."""

    async def close(self) -> None:
        """Close it."""
        ...

    def close_now(self) -> None:
        """Close it in the calling thread."""
        ...


Opened = TypeVar("Opened", bound=Closing)


class Opening(Generic[Opened]):
    """The promise of an open store, consumer or producer; it is opened in a thread, since that may wait for the disk."""

    def __init__(self, open_now: Callable[[], Opened]) -> None:
        self._open_now = open_now
        self._opened: Opened | None = None

    async def _open(self) -> Opened:
        return await finished_or_undone(self._open_now, lambda opened: opened.close_now())

    def __await__(self) -> Generator[Any, None, Opened]:
        return self._open().__await__()

    async def __aenter__(self) -> Opened:
        self._opened = await self._open()
        return self._opened

    async def __aexit__(self, *error: object) -> None:
        assert self._opened is not None
        await self._opened.close()
