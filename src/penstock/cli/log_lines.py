"""How `penstock serve` writes its log to stderr: lines for people, or JSON."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """One object a line: time, level, logger, text, the fields of the event (docs/observability.md), and what was raised."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        told = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": record.getMessage(),
            **getattr(record, "penstock", {}),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def write(level: str, form: str) -> None:
    """From now on write what the whole process logs from *level* on."""
    own = logging.getLogger("penstock")
    for handler in list(own.handlers):
        own.removeHandler(handler)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else logging.Formatter(_TEXT))
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(handler)
    # Of others, like asyncio and grpc, whoever looks for trouble here wants no more than before.
    root.setLevel(max(logging.INFO, logging.getLevelName(level.upper())))
    own.setLevel(level.upper())
