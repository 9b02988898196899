"""
How errors reach the user through Spark: as the one line that says what to do, and not below a traceback of our code.

What Spark calls beside the driver runs in Python processes that format what is raised, hand it to Java and end. They leave the traceback
out where the environment says so, which is read at that moment. Errors that hint at a defect keep theirs, and so do those of tasks.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from penstock.errors import Conflict, NotFound, PermissionDenied, Unauthenticated, Unavailable, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")
_CLEAR = (UsageError, NotFound, Unavailable, Conflict, Unauthenticated, PermissionDenied)
_HIDE = "SPARK_HIDE_TRACEBACK"


def in_one_line(call: Callable[P, T]) -> Callable[P, T]:
    """What *call* raises comes without a traceback where its text says all."""

    @functools.wraps(call)
    def wrapped(*arguments: P.args, **named: P.kwargs) -> T:
        try:
            return call(*arguments, **named)
        except _CLEAR:
            if _is_beside_the_driver():
                os.environ[_HIDE] = "1"
            raise

    return wrapped


def _is_beside_the_driver() -> bool:
    """Whether this is a process of Spark's, which ends with the first error."""
    found = getattr(sys.modules.get("__main__"), "__spec__", None)
    return found is not None and found.name.startswith("pyspark.")
