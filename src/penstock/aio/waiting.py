"""Waiting for a ticket of the commit cycle from a task."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.journal.ticket import Ticket


Result = TypeVar("Result")


async def finished_or_undone(work: Callable[[], Result], undo: Callable[[Result], None]) -> Result:
    """Do *work* in a thread. If the task is cancelled meanwhile nobody gets the result, so *undo* is called with it."""
    future = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:

        def done(ended: asyncio.Future[Result]) -> None:
            if not ended.cancelled() and ended.exception() is None:
                threading.Thread(target=undo, args=(ended.result(),), name="penstock-undo", daemon=True).start()

        future.add_done_callback(done)
        raise


async def committed(ticket: Ticket) -> None:
    """Return when *ticket* is committed; raises its error. A cancelled task changes nothing: the commit goes on."""
    if not ticket.done:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def done(_: Ticket) -> None:
            try:
                loop.call_soon_threadsafe(wake)
            except RuntimeError:
                return  # the loop has ended

        ticket.on_done(done)
        await future
    if ticket.error is not None:
        raise ticket.error
