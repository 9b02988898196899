"""
A helper: a process that owns a store for the processes that share it, and does nothing else.

`python -m penstock.server.helper FOLDER DESCRIPTOR OPTIONS`, started by `sharing/starting.py`. It opens the store, says on its output that
it did (an empty JSON object) or why not (an error as on the wire), lets go of the lock behind DESCRIPTOR, and serves. It ends in order when
nobody is connected for `LINGER_SECONDS`, on SIGTERM, or when the disk failed: the next owner recovers.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from penstock.errors import PenstockError, Unavailable
from penstock.files import let_go
from penstock.log_events import get_logger
from penstock.settings import StoreSettings
from penstock.sharing.door import SocketDoor
from penstock.store.store import Store
from penstock.wire.failures import encode_error

if TYPE_CHECKING:
    from types import FrameType

LINGER_SECONDS = 3.0
LOOK_SECONDS = 0.25


def main(folder: str, descriptor: int, options: str) -> int:
    """Own the store in *folder*; returns when nobody needs that any more."""
    if os.fork():
        os._exit(0)  # who started it need not wait for its end
    logging.basicConfig(level=logging.WARNING, format=f"%(asctime)s {os.getpid()} %(levelname)s %(name)s: %(message)s")
    stop = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    given = json.loads(options)
    door = SocketDoor()
    try:
        store = Store.open(folder, create=given["create"], settings=StoreSettings(**given["settings"]), door=door)
    except PenstockError as error:
        _say(encode_error(error))
        return 1
    except OSError as error:
        _say(encode_error(Unavailable(f"{folder} cannot be opened: {error}")))
        return 1
    _say({})
    os.close(descriptor)
    _serve(store, door, stop)
    store.close()
    return 0


def _say(reply: dict[str, object]) -> None:
    """Tell who waits for it, if he still does."""
    try:
        os.write(sys.stdout.fileno(), json.dumps(reply).encode() + b"\n")
    except OSError:
        get_logger("penstock.sharing").info("nobody waits for this helper")
    let_go(sys.stdout.fileno())


def _serve(store: Store, door: SocketDoor, stop: threading.Event) -> None:
    last_seen = time.monotonic()
    while not stop.wait(LOOK_SECONDS):
        now = time.monotonic()
        if door.connections:
            last_seen = now
        elif now - last_seen > LINGER_SECONDS:
            return
        if store._volume.failure is not None:  # noqa: SLF001
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
