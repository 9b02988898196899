"""Ctrl-C for a pipeline's command at a moment that a test chooses."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import pytest

from penstock.cli import interrupts
from penstock.cli.pipeline import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.spark.pipelines.progress import Progress


@contextlib.contextmanager
def interrupted_at(rows: int) -> Iterator[None]:
    """In this block commands get the signal when they tell that they have so many messages."""
    live = running.live

    @contextlib.contextmanager
    def interrupting(what: str) -> Iterator[Callable[[Progress], None]]:
        with live(what) as report:

            def watch(progress: Progress) -> None:
                if progress.rows == rows:
                    os.kill(os.getpid(), signal.SIGINT)
                report(progress)

            yield watch

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    interrupts.install()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running, "live", interrupting)
            yield
    finally:
        interrupts.forget()
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
