"""
A consumer that is a process of its own: `python -m penstock.cli.demo.actor OPTIONS`, started by a `Stage`.

It writes a line for each message that it got, and one when it is done with it. It ends when its stdin does, so it does not
outlive the demonstration.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.client.opening import open_store
from penstock.errors import LeaseExpired, Unavailable

if TYPE_CHECKING:
    from penstock.store.store import Store

BEGIN_SECONDS = 60.0


def _tell(*words: object) -> None:
    # One call a line, which a pipe takes whole.
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _leave_with_stdin() -> None:
    while sys.stdin.readline():
        pass
    os._exit(0)


def _open(url: str) -> Store:
    """The store, when its server has begun."""
    end = time.monotonic() + BEGIN_SECONDS
    while True:
        try:
            return open_store(url)
        except Unavailable:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


def play(
    *,
    url: str,
    topic: str,
    group: str,
    handle_ms: float = 0,
    hang_at: int | None = None,
    wait: bool = False,
    durable: bool = False,
    **options: Any,
) -> None:
    """
    Handle messages until it is ended: each takes *handle_ms*. In the message number *hang_at*, counted from 0, it hangs for ever.

    With *wait* it subscribes when a line comes in. With *durable* it is done with a message when its ack is on disk. *options* are
    those of `Store.subscribe`.
    """
    with _open(url) as store:
        store.create_topic(topic)
        if wait:
            _tell("ready")
            sys.stdin.readline()
        with store.subscribe(topic, group, **options) as consumer:
            if not wait:
                _tell("ready")
            threading.Thread(target=_leave_with_stdin, daemon=True).start()
            for number, message in enumerate(consumer):
                _tell("got", message.partition, message.offset, message.attempt)
                if number == hang_at:
                    threading.Event().wait()
                time.sleep(handle_ms / 1000)
                try:
                    message.ack(wait=durable)
                except LeaseExpired:
                    continue  # it went back to its group, and comes again
                _tell("done", message.partition, message.offset, message.attempt)


if __name__ == "__main__":
    play(**json.loads(sys.argv[1]))
