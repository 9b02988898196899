"""Spark's errors as ours: the text that matters is the last cause, deep inside a Java stack trace."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from penstock import errors
from penstock.errors import DataLost, PenstockError, PipelineFailed

if TYPE_CHECKING:
    from collections.abc import Iterator

_OURS = re.compile(r"penstock\.errors\.(\w+): (.*)")
_CHARACTERS_MAX = 500


@contextlib.contextmanager
def told_as_ours(lost: str = "run it again") -> Iterator[None]:
    """
    What Spark raises in this block is raised as `PipelineFailed`, with the code and the text of an error of ours if one is the cause.

    *lost* is what can be done about `DataLost`: who runs a pipeline has no options of the data source.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        code, told = _cause(str(error))
        raise PipelineFailed(code, told.replace(DataLost.ADVICE, lost)) from error


def _cause(text: str) -> tuple[str, str]:
    """(code, what happened) of the last error of ours in *text*, else of its first line."""
    for name, told in reversed(_OURS.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, PenstockError):
            return kind.code, told.strip()[:_CHARACTERS_MAX]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return PipelineFailed.code, (lines[0] if lines else "Spark did not say why")[:_CHARACTERS_MAX]
