"""
A worker in a process of its own, with the loop that a user writes, over one of the interfaces; it says which messages it has finished.

It never ends by itself: that a message was taken from it, while it stood still or was cut off, is no reason to.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import grpc

import penstock
import penstock.aio
from penstock.errors import Closed, LeaseExpired, PenstockError
from tests.conformance.over_http import HttpStore
from tests.grpc.store import GrpcStore

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC, GROUP = "t", "g"


def _say(word: str, message: Any) -> None:
    print(word, message.partition, message.offset, message.attempt, flush=True)


def native(address: str, pace_s: float) -> None:
    """The README's loop; the address is one of a server, or a folder that another process owns."""
    options: dict[str, Any] = {"give_up": 600} if "://" in address else {}
    with penstock.open(address, **options) as store, store.subscribe(TOPIC, GROUP) as consumer:
        print("ready", flush=True)
        for message in consumer:
            try:
                with message:
                    time.sleep(pace_s)
            except LeaseExpired:
                _say("late", message)
            else:
                _say("done", message)


def plain(address: str, pace_s: float) -> None:
    """The same without blocks."""
    with penstock.open(address, give_up=600) as store, store.subscribe(TOPIC, GROUP) as consumer:
        print("ready", flush=True)
        for message in consumer:
            time.sleep(pace_s)
            try:
                message.ack(wait=True)
            except LeaseExpired:
                _say("late", message)
            else:
                _say("done", message)


def aio(address: str, pace_s: float) -> None:
    """`async for`."""

    async def main() -> None:
        async with penstock.aio.open(address, give_up=600) as store, store.subscribe(TOPIC, GROUP) as consumer:
            print("ready", flush=True)
            async for message in consumer:
                try:
                    async with message:
                        await asyncio.sleep(pace_s)
                except LeaseExpired:
                    _say("late", message)
                else:
                    _say("done", message)

    asyncio.run(main())


def over_grpc(address: str, pace_s: float) -> None:
    """Credit and pushes; when a stream ends, another one is begun."""
    said = False
    while True:
        with contextlib.suppress(PenstockError, grpc.RpcError, Closed):
            store = GrpcStore(address.rpartition("://")[2])
            consumer = store.subscribe(TOPIC, GROUP)
            if not said:
                print("ready", flush=True)
                said = True
            for message in consumer:
                time.sleep(pace_s)
                try:
                    message.ack(wait=True)
                except LeaseExpired:
                    _say("late", message)
                else:
                    _say("done", message)
        time.sleep(0.05)


def over_http(address: str, pace_s: float) -> None:
    """Requests for one message at a time."""
    parts = urlsplit(address)
    said = False
    while True:
        with contextlib.suppress(PenstockError, OSError, AssertionError):
            server: Any = SimpleNamespace(port=parts.port)
            store = HttpStore(server)
            consumer = store.subscribe(TOPIC, GROUP)
            if not said:
                print("ready", flush=True)
                said = True
            for message in consumer:
                time.sleep(pace_s)
                try:
                    message.ack(wait=True)
                except LeaseExpired:
                    _say("late", message)
                else:
                    _say("done", message)
        time.sleep(0.05)


WORKERS: dict[str, Callable[[str, float], None]] = {
    "native": native, "plain": plain, "aio": aio, "shared": native, "grpc": over_grpc, "http": over_http,
}  # fmt: skip


if __name__ == "__main__":
    WORKERS[sys.argv[1]](sys.argv[2], float(sys.argv[3]))
