"""
Consumers of clients that come and go with each request, and the receipts by which they finish what they were handed.

A group knows members that stay; an HTTP client is one for each (topic, group, who asks, the name it gives itself). It is opened when the
client first asks or joins, and closed when it leaves, or has asked for nothing and held nothing for a while: then what it had leased goes
back. A stream has a consumer of its own, which ends with it.

A receipt is a number and 128 random bits, kept here with the delivery that it is for. It works for the same topic, group and principal
only, and once: a copy of it is late.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import itertools
import secrets
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import Closed, LeaseExpired, PenstockError, Unavailable
from penstock.groups.delivery import is_valid
from penstock.groups.member import Origin
from penstock.log_events import get_logger
from penstock.server.auth import tell_client

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penstock.aio import AsyncConsumer, AsyncDelivery, AsyncStore
    from penstock.clock import Clock
    from penstock.groups.delivery import Delivery
    from penstock.server.http.settings import HttpSettings

_log = get_logger("penstock")

SWEEP_S = 1.0
KEPT_AFTER_LEASE_S = 60.0
"""A receipt is remembered a little longer than its lease: the group, not this table, says when a lease has ended."""
STREAM_MESSAGES = 100
"""How many messages a stream may send ahead at most, if its client does not say it."""
STREAM_RECEIPTS = 1_000
"""So many receipts of a stream are remembered as long as it lasts."""
STREAM_BYTES_MAX = 1024 * 1024
"""About how much a stream may hold: a client that does not read costs no more. One message always fits."""
_RECEIPT = struct.Struct(">Q16s")


class Place(NamedTuple):
    """Whose consumer it is."""

    topic: str
    group: str
    principal: str
    consumer: str


@dataclass(slots=True, eq=False)
class ClientConsumer:
    """A consumer of one client."""

    place: Place
    consumer: AsyncConsumer
    last_used: float
    origin: Origin
    waiting: int = 0
    has_left: bool = False
    """Its client said that it is going: whoever still waits for it gets nothing, and opens it no more."""
    held: set[int] = field(default_factory=set)


class _Elsewhere:
    """The client of a member, which is heard when it makes a request. See `groups.member.Client`."""

    beats = False
    recalls = False

    def recall(self, count: int) -> None:
        """It cannot be asked."""

    def revoked(self, deliveries: Sequence[Delivery]) -> None:
        """It is told when it uses a receipt."""


_ELSEWHERE = _Elsewhere()


class _Held(NamedTuple):
    secret: bytes
    client: ClientConsumer
    delivery: AsyncDelivery
    until: float


def give_back(deliveries: Sequence[AsyncDelivery]) -> None:
    """Nobody got them: they are ready for others at once, and nobody failed. Last ones first, so that order is kept."""
    for delivery in reversed(deliveries):
        plain = delivery._delivery  # noqa: SLF001 - there is no public word for it
        plain._lot.member.group.give_back(plain)  # noqa: SLF001


def _hear(consumer: AsyncConsumer) -> None:
    """Its client has made a request."""
    member = consumer.sync._member  # noqa: SLF001
    member.group.heard(member)
    _take_turns(consumer)


def _take_turns(consumer: AsyncConsumer) -> None:
    member = consumer.sync._member  # noqa: SLF001
    member.group.begin_turns(member)


class Consumers:
    """All consumers and receipts of the listener. Used in one event loop."""

    def __init__(self, store: AsyncStore, settings: HttpSettings, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._clients: dict[Place, asyncio.Task[ClientConsumer]] = {}
        self._streams: set[ClientConsumer] = set()
        self._receipts: dict[int, _Held] = {}
        self._numbers = itertools.count(1)
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """Receipts that were given out, and not used."""
        return len(self._receipts)

    @property
    def in_flight(self) -> int:
        """Those of them whose messages are still their clients': a lease may have ended."""
        return sum(is_valid(held.delivery._delivery) for held in self._receipts.values())  # noqa: SLF001

    @property
    def open(self) -> int:
        """Consumers that there are."""
        return len(self._clients) + len(self._streams)

    # -- consumers --------------------------------------------------------------------------------------------------

    def has(self, place: Place) -> bool:
        """Whether the client's consumer is open, or being opened."""
        return place in self._clients

    async def get(
        self, place: Place, in_flight_max: int | None = None, *, create: bool = False, peer: str = ""
    ) -> ClientConsumer:
        """
        The client's consumer, opened now if it is not, to hold *in_flight_max* messages at most.

        With *create* the topic may be made for it. Raises what `AsyncStore.subscribe` raises, and `Unavailable`.
        """
        task = self._clients.get(place)
        if task is None:
            self._check_room()
            # One opening for all requests of the client that come meanwhile; it goes on if one of them is cancelled.
            settings = self._settings
            most = min(in_flight_max or settings.in_flight_max, settings.in_flight_max)
            task = asyncio.create_task(self._open(place, most, settings.in_flight_bytes_max, create=create, peer=peer))
            self._clients[place] = task
        try:
            client = await asyncio.shield(task)
        except Exception:
            if self._clients.get(place) is task:
                del self._clients[place]
            raise
        client.last_used = client.origin.heard = self._clock.monotonic()
        _hear(client.consumer)
        return client

    async def open_stream(
        self, place: Place, in_flight_max: int | None, concurrency: int, lease_s: float | None, peer: str = ""
    ) -> ClientConsumer:
        """
        A consumer for one stream; close it by `close`.

        Without *in_flight_max* what its client finishes in a while is sent ahead. A lease, of *lease_s*, runs when the client is at its
        message.
        """
        self._check_room()
        most, bytes_max = in_flight_max or STREAM_MESSAGES, min(STREAM_BYTES_MAX, self._settings.in_flight_bytes_max)
        client = await self._open(place, max(most, concurrency), bytes_max, create=True, peer=peer, concurrency=concurrency)
        member = client.consumer.sync._member  # noqa: SLF001
        member.group.watch(member, _ELSEWHERE, lease_s=lease_s, window_always=in_flight_max is None)
        # What a stream sends waits for its turn at the client.
        client.consumer._pushed = True  # noqa: SLF001
        self._streams.add(client)
        return client

    def _check_room(self) -> None:
        if self.open >= self._settings.consumers_max:
            raise Unavailable("the server has as many consumers as it may; nothing was changed, try again later")

    async def _open(
        self, place: Place, in_flight_max: int, bytes_max: int, *, create: bool, peer: str, concurrency: int = 1
    ) -> ClientConsumer:
        consumer = await self._store.subscribe(
            place.topic, place.group, prefetch=in_flight_max, prefetch_bytes=bytes_max, name=place.consumer or None,
            concurrency=concurrency, create=None if create else False,
        )  # fmt: skip
        # It may hold much and asks for little at a time. What is leased when a server dies is suspected of its death, and comes one by one.
        member = consumer.sync._member  # noqa: SLF001
        member.ahead = 0
        now = self._clock.monotonic()
        member.origin = origin = Origin("http", peer, place.principal, now)
        member.group.watch(member, _ELSEWHERE)
        tell_client(came=True, interface="http", peer=peer, principal=place.principal)
        return ClientConsumer(place, consumer, now, origin)

    @contextlib.contextmanager
    def waiting(self, client: ClientConsumer) -> Iterator[None]:
        """While the block runs the consumer is in use."""
        client.waiting += 1
        try:
            yield
        finally:
            client.waiting -= 1
            client.last_used = client.origin.heard = self._clock.monotonic()

    async def leave(self, place: Place) -> None:
        """The client goes, if it was there: see `close`. Its requests that wait get nothing."""
        task = self._clients.get(place)
        if task is None:
            return
        try:
            client = await asyncio.shield(task)
        except PenstockError:
            return  # it could not be opened, and who asked for it was told
        client.has_left = True
        await self.close(client)

    async def close(self, client: ClientConsumer) -> None:
        """It is gone: what it holds is ready for others at once, and its receipts are void."""
        self._streams.discard(client)
        task = self._clients.get(client.place)
        if task is not None and task.done() and not task.exception() and task.result() is client:
            del self._clients[client.place]
        for number in list(client.held):
            self._forget(number)
        origin = client.origin
        tell_client(came=False, interface="http", peer=origin.peer, principal=origin.principal)
        await client.consumer.close()

    # -- receipts ---------------------------------------------------------------------------------------------------

    def hand(
        self, client: ClientConsumer, deliveries: Sequence[AsyncDelivery], lease_s: float | None
    ) -> list[tuple[AsyncDelivery, str]]:
        """
        Each of them with its receipt, but for those whose lease has ended already.

        With *lease_s* they are kept so long, instead of the group's lease. What a stream sends waits for its turn without a lease.
        """
        until = self._until(client, lease_s)
        waits = client in self._streams
        handed = []
        for delivery in deliveries:
            if lease_s is not None and not waits:
                try:
                    delivery._delivery.extend(lease_s)  # noqa: SLF001 - awaiting it would let others in between
                except LeaseExpired:
                    continue
            number, secret = next(self._numbers), secrets.token_bytes(16)
            self._receipts[number] = _Held(secret, client, delivery, until)
            client.held.add(number)
            handed.append((delivery, base64.urlsafe_b64encode(_RECEIPT.pack(number, secret)).decode()))
        return handed

    def holds_any(self, client: ClientConsumer) -> bool:
        """Whether it was given messages that it may still finish."""
        return any(is_valid(self._receipts[number].delivery._delivery) for number in client.held)  # noqa: SLF001

    def find(self, place: Place, receipt: str) -> tuple[int, AsyncDelivery] | None:
        """The delivery of a receipt, and its number; None if it is not one of this topic, group and principal."""
        try:
            number, secret = _RECEIPT.unpack(base64.b64decode(receipt, b"-_", validate=True))
        except (binascii.Error, ValueError, struct.error):
            return None
        held = self._receipts.get(number)
        if held is None or not hmac.compare_digest(held.secret, secret) or held.client.place[:3] != place[:3]:
            return None
        held.client.last_used = held.client.origin.heard = self._clock.monotonic()
        _hear(held.client.consumer)
        return number, held.delivery

    def finished(self, number: int) -> None:
        """The receipt is used."""
        held = self._receipts.get(number)
        self._forget(number)
        if held is not None:
            _take_turns(held.client.consumer)

    def extended(self, number: int, lease_s: float | None) -> None:
        """Its lease has begun anew."""
        held = self._receipts[number]
        self._receipts[number] = held._replace(until=self._until(held.client, lease_s))

    def _until(self, client: ClientConsumer, lease_s: float | None) -> float:
        if lease_s is None:
            lease_s = client.consumer.sync._group.settings.lease_ms / 1000  # noqa: SLF001 - no public name tells it
        return self._clock.monotonic() + lease_s + KEPT_AFTER_LEASE_S

    def _forget(self, number: int) -> None:
        held = self._receipts.pop(number, None)
        if held is not None:
            held.client.held.discard(number)

    # -- sweeping ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to forget what is not used."""
        self._sweeper = asyncio.create_task(self._sweep_forever())

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(min(SWEEP_S, self._settings.consumer_idle_s))
            try:
                await self.sweep()
            except PenstockError as error:
                _log.warning("consumers of HTTP clients could not be closed, trying again: %s", error)

    async def sweep(self) -> None:
        """
        Forget receipts whose leases have ended long ago, and close consumers that hold nothing and do not ask.

        What a stream has sent may wait for its turn much longer than a lease. And a receipt, though it is late, is the only sign that the
        client of a stream is there: one that was suspended because it stood still would else never be heard again.
        """
        now = self._clock.monotonic()
        for number, held in list(self._receipts.items()):
            is_over = held.until <= now
            if is_over and held.client in self._streams:
                is_over = len(held.client.held) > STREAM_RECEIPTS and not is_valid(held.delivery._delivery)  # noqa: SLF001
            if is_over:
                self._forget(number)
        idle = now - self._settings.consumer_idle_s
        for client in self._ready():
            if client.waiting or client.last_used > idle:
                continue
            with contextlib.suppress(Closed):
                if client.consumer.in_flight:
                    # Leases end when somebody asks: do that for a client that does not come back. Paused, it gets nothing.
                    client.consumer.pause()
                    await client.consumer.get_many(1, 0)
                    client.consumer.resume()
                if not client.consumer.in_flight and not client.waiting:
                    await self.close(client)

    def _ready(self) -> list[ClientConsumer]:
        return [
            task.result() for task in self._clients.values() if task.done() and not task.cancelled() and not task.exception()
        ]

    async def stop(self) -> None:
        """Close all consumers: what they hold is ready again at once."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        await asyncio.gather(*self._clients.values(), return_exceptions=True)
        for client in [*self._ready(), *self._streams]:
            # A disk that has failed does not keep the server from stopping.
            with contextlib.suppress(PenstockError):
                await self.close(client)
