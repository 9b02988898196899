"""
A program that acks messages and waits for nothing: `python -m tests.real_disk.acking PATH COUNT`.

It says ``acked`` when the calls have returned, and ``journaled`` when what they noted went into a frame that is committed. Nobody asks
for that: no flush, no publish, no `ack(wait=True)`, no other consumer. Then it stands still, and is killed.
"""

from __future__ import annotations

import sys
import time

from penstock.settings import StoreSettings
from penstock.store.store import Store
from tests.real_disk.writer import STORE

PROMPT_S = 20.0
"""Far more than the 5 ms and the one sync of the promise, for a machine that is busy."""


def main(path: str, count: int) -> None:
    store = Store.open(path, settings=StoreSettings(**STORE))
    consumer = store.subscribe("t", "g", prefetch=count)
    messages = consumer.get_many(count, timeout=PROMPT_S)
    assert len(messages) == count

    def wait_for_commits(behind: int) -> None:
        deadline = time.monotonic() + PROMPT_S
        while store._groups.pending or store._volume.commits < behind:
            assert time.monotonic() < deadline, "what was noted is not committed by itself"
            time.sleep(0.001)

    # The leases are noted too: what is committed next is to be the acks.
    wait_for_commits(0)
    time.sleep(0.05)
    wait_for_commits(0)
    before = store._volume.commits
    for message in messages[::2]:
        message.ack()
    print("acked", flush=True)
    wait_for_commits(before + 1)
    print("journaled", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
