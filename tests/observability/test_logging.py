"""Lines of the log carry what they are about, and a handler that raises changes nothing."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Any

import penstock
from tests.docs.pages import ROOT, rows

if TYPE_CHECKING:
    import pytest


def fail_once(store: Any) -> None:
    store.publish("orders", b"1")

    @store.worker("orders", group="billing", max_deliveries=1)
    def handle(message: Any) -> None:
        store.stop()
        raise ValueError("no")

    store.run()


def test_a_failed_handler_is_an_event_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="penstock")
    with penstock.open("memory:") as store:
        fail_once(store)
    [found] = [record.penstock for record in caplog.records if hasattr(record, "penstock")]
    assert found == {
        "event": "handler_failed", "topic": "orders", "group": "billing", "partition": 0, "offset": 0, "messages": 1,
        "key": None, "attempt": 1, "max_deliveries": 1, "outcome": "dead_letter", "retry_s": None,
        "error": "ValueError",
    }  # fmt: skip


def test_a_handler_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Down(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                raise RuntimeError("down")
            except RuntimeError:
                self.handleError(record)

    monkeypatch.setattr(logging, "raiseExceptions", False)
    handler = Down()
    logging.getLogger("penstock").addHandler(handler)
    try:
        with penstock.open("memory:") as store:
            fail_once(store)
            store.flush()
            assert len(store.dead_letters("orders")) == 1
    finally:
        logging.getLogger("penstock").removeHandler(handler)


def test_every_event_is_on_the_page() -> None:
    source = "".join(path.read_text() for path in (ROOT / "src" / "penstock").rglob("*.py"))
    events = set(re.findall(r'extra=event\(\s*"([a-z_]+)"', source))
    # What goes wrong in the background again and again is told by `Troubles`.
    events |= set(re.findall(r'"((?!penstock_)[a-z_]+_failed)"', source))
    page = (ROOT / "docs" / "observability.md").read_text()
    assert events == {row[0].strip("`") for row in rows(page, "event")}
