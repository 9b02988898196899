"""
A worker in a process of its own, with the loop that a user writes, over one of the interfaces; it says which messages it has finished.

It never ends by itself: that a message was taken from it, while it stood still or was cut off, is no reason to.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import grpc

import penstock
import penstock.aio
from penstock.errors import LeaseExpired, PenstockError, Unavailable
from tests.conformance.over_http import HttpStore, HttpStreamStore
from tests.grpc.store import GrpcStore, PlainGrpcStore

if TYPE_CHECKING:
    from collections.abc import Callable

TOPIC, GROUP = "t", "g"
GIVE_UP_S = 10.0
"""So long a server that says nothing is waited for, and one that is away."""


def _say(word: str, message: Any) -> None:
    print(word, message.partition, message.offset, message.attempt, flush=True)


def _restarted(run: Callable[[], None]) -> None:
    """A program that ends when its server is away for too long, and that is started again then."""
    while True:
        with contextlib.suppress(Unavailable):
            run()
        time.sleep(0.05)


def native(address: str, pace_s: float) -> None:
    """The README's loop; the address is one of a server, or a folder that another process owns."""
    options: dict[str, Any] = {"give_up": GIVE_UP_S} if "://" in address else {}

    def run() -> None:
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

    _restarted(run)


def plain(address: str, pace_s: float) -> None:
    """The same without blocks."""

    def run() -> None:
        with penstock.open(address, give_up=GIVE_UP_S) as store, store.subscribe(TOPIC, GROUP) as consumer:
            print("ready", flush=True)
            for message in consumer:
                time.sleep(pace_s)
                try:
                    message.ack(wait=True)
                except LeaseExpired:
                    _say("late", message)
                else:
                    _say("done", message)

    _restarted(run)


def aio(address: str, pace_s: float) -> None:
    """`async for`."""

    async def main() -> None:
        async with penstock.aio.open(address, give_up=GIVE_UP_S) as store, store.subscribe(TOPIC, GROUP) as consumer:
            print("ready", flush=True)
            async for message in consumer:
                try:
                    async with message:
                        await asyncio.sleep(pace_s)
                except LeaseExpired:
                    _say("late", message)
                else:
                    _say("done", message)

    _restarted(lambda: asyncio.run(main()))


def _loop(open_store: Callable[[], Any], pace_s: float) -> None:
    """A careful client of an interface without a library of ours: when its stream or connection breaks it begins anew."""
    said = False
    while True:
        with contextlib.suppress(PenstockError, grpc.RpcError, http.client.HTTPException, OSError, AssertionError):
            consumer = open_store().subscribe(TOPIC, GROUP)
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


def over_grpc(address: str, pace_s: float) -> None:
    """Credit and pushes; what it has not begun can be asked back."""
    _loop(lambda: GrpcStore(address.rpartition("://")[2]), pace_s)


def over_plain_grpc(address: str, pace_s: float) -> None:
    """The same, and it cannot be asked."""
    _loop(lambda: PlainGrpcStore(address.rpartition("://")[2]), pace_s)


def over_http(address: str, pace_s: float) -> None:
    """Requests for one message at a time."""
    server: Any = SimpleNamespace(port=urlsplit(address).port)
    _loop(lambda: HttpStore(server), pace_s)


def over_stream(address: str, pace_s: float) -> None:
    """An event stream over HTTP, and requests that ack."""
    server: Any = SimpleNamespace(port=urlsplit(address).port)
    _loop(lambda: HttpStreamStore(server), pace_s)


class Worker(NamedTuple):
    """A kind of worker."""

    run: Callable[[str, float], None]
    interface: str
    """The name of the backend that consumes in the same way."""
    door: str | None = "native"
    """The listener that it connects to; None: it opens a folder."""
    gives_back: bool = True
    """Whether what it was pushed, and has not begun, can be had by others."""


WORKERS = {
    "native": Worker(native, "server"),
    "plain": Worker(plain, "server"),
    "aio": Worker(aio, "asyncio"),
    "shared": Worker(native, "shared", None),
    "grpc": Worker(over_grpc, "grpc", "grpc"),
    "plain_grpc": Worker(over_plain_grpc, "plain_grpc", "grpc", gives_back=False),
    "http": Worker(over_http, "http", "http"),
    "stream": Worker(over_stream, "stream", "http", gives_back=False),
}


if __name__ == "__main__":
    WORKERS[sys.argv[1]].run(sys.argv[2], float(sys.argv[3]))
