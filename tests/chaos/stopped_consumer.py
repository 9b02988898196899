"""A consumer in a process of its own, to be stopped: takes one message, says so, and acks it when it is told to."""

from __future__ import annotations

import sys
import time

from tests.chaos.clients import CLIENTS, Addresses, Got


def main() -> None:
    """Arguments: which client, the addresses, the group."""
    kind, native, http, grpc, group = sys.argv[1:]
    client = CLIENTS[kind](Addresses(native, http, grpc), "stopped")
    client.subscribe(group)
    got: list[Got] = []
    while not got:
        asked_s = time.monotonic()
        got = client.receive()
    print(f"got {len(got)} {got[0].value.decode()} {got[0].attempt} {asked_s}", flush=True)
    sys.stdin.readline()
    print("taken" if client.ack(got[0], durable=True) else "refused", flush=True)
    client.close()


if __name__ == "__main__":
    main()
