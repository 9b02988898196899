"""
A Spark that is of no use any more: how the drivers of tests notice, and tell.

Now and then two queries or jobs of one session that begin at once leave a collection inside Spark whose size is not what it holds, and from
then on no task of the session can be sent. Nothing but another driver helps.
"""

from __future__ import annotations

import os

BROKEN = 75
"""With this a driver ends then. It is to be started again."""


def end_if_broken(error: BaseException | None) -> None:
    """End this process if that is what *error*, or what it comes from, tells."""
    while error is not None:
        if "Task serialization failed" in str(error):
            os._exit(BROKEN)
        error = error.__cause__ or error.__context__
