"""
Two faults of Spark that tests meet on a slow machine, and nothing else: how they are told from what a test is about, and what helps.

Spark gives up on a Python that took more than its ten seconds to start. Trying again helps.

Now and then two queries or jobs of one session that begin at once leave a collection inside Spark whose size is not what it holds, and from
then on no task of the session can be sent. Nothing but another Java helps.

A test with the fixture `spark` that meets one of them is run again from its beginning, see `conftest.py`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

BROKEN = 75
"""With this a driver ends then. It is to be started again."""
LATE = "failed to connect back"
USELESS = "Task serialization failed"
TRIES = 4

T = TypeVar("T")


def patiently(work: Callable[[], T], again: Callable[[Exception], None] = lambda _error: None) -> T:
    """What *work* gives; again, behind *again*, where one of the two faults ended it. It must be something that may be done again."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except Exception as error:
            if not says(error, LATE, USELESS):
                raise
            again(error)
    return work()


def end_if_broken(error: BaseException | None, *faults: str) -> None:
    """End this process if *error*, or what it comes from, tells that its Spark is of no use any more, or one of *faults*."""
    if says(error, USELESS, *faults):
        os._exit(BROKEN)


def says(error: BaseException | None, *texts: str) -> bool:
    """Whether *error*, or what it comes from, has one of *texts*."""
    while error is not None:
        if any(text in str(error) for text in texts):
            return True
        error = error.__cause__ or error.__context__
    return False
