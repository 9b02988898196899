"""A log that nobody reads, a full pipe for one, keeps no commit waiting."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import penstock

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60.0


class BlockedHandler(logging.Handler):
    """Takes a line, and does not return before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.reached, self.may_go_on = threading.Event(), threading.Event()
        self.threads: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "penstock", {}).get("event") == "dead_lettered":
            self.threads.append(threading.current_thread().name)
            self.reached.set()
            assert self.may_go_on.wait(PATIENCE_S)


def test_publishing_goes_on_while_the_line_about_a_dead_letter_cannot_be_written(tmp_path: Path) -> None:
    logger, handler = logging.getLogger("penstock"), BlockedHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        with penstock.open(tmp_path / "data", share=False) as store:
            store.publish("t", b"poison")
            with store.subscribe("t", "g") as consumer:
                message = consumer.get(timeout=PATIENCE_S)
                assert message is not None
                message.reject("no good")
                assert handler.reached.wait(PATIENCE_S)
                done = threading.Event()

                def work() -> None:
                    store.publish("t", b"behind it")
                    store.flush()
                    done.set()

                threading.Thread(target=work, daemon=True).start()
                assert done.wait(PATIENCE_S), "a publish waits for the log"
                handler.may_go_on.set()
            assert len(store.dead_letters("t")) == 1
    finally:
        handler.may_go_on.set()
        logger.removeHandler(handler)
        logger.setLevel(level)
    assert handler.threads == ["penstock-leases"]
