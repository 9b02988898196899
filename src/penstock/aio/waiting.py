"""Waiting for a ticket of the commit cycle from a task."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.journal.ticket import Ticket


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
