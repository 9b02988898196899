"""A transaction on a server: gathered here, committed there in one frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from penstock.arguments import shown
from penstock.client.consumer import ranges_of
from penstock.client.delivery import RemoteDelivery
from penstock.client.gathering import place_message, place_messages
from penstock.client.pending import ConnectionLost, NotBegun
from penstock.errors import BadArgument, LeaseExpired, OutcomeUnknown, PenstockError, UsageError
from penstock.topics.options import options
from penstock.topics.receipt import Receipt
from penstock.wire.answers import numbers
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from penstock.client.connection import Connection
    from penstock.client.consumer import RemoteConsumer
    from penstock.client.gathering import Placed, Target
    from penstock.wire.frame import Frame

NAMED_PARTS_MAX = 1_000
"""More parts of a call than this name their topics once."""


def parts_of(parts: list[tuple[str, int]]) -> dict[str, Any]:
    """Where each batch of a call goes, as it travels: of many batches by the number of their topic in a list of names."""
    if len(parts) <= NAMED_PARTS_MAX:
        return {"parts": [[name, number] for name, number in parts]}
    names = {name: at for at, name in enumerate(dict.fromkeys(name for name, _ in parts))}
    return {"topics": list(names), "parts": [[names[name], number] for name, number in parts]}


class RemoteTransaction:
    """Gathers changes and commits them on the server at once; for one thread. See `penstock.Transaction`."""

    def __init__(self, connection: Connection, to_publish: Target, check_open: Callable[[], None]) -> None:
        self._connection = connection
        self._to_publish = to_publish
        self._check_open = check_open
        self._batches: list[Placed] = []
        self._acks: dict[RemoteConsumer, dict[RemoteDelivery, None]] = {}
        self._ended = False
        self._receipts: list[Receipt] = []

    def publish(self, topic: str, value: object, *, key: object = None, headers: object = None, partition: object = None,
                timestamp: object = None, ttl: object = None, delay: object = None, priority: object = None,
                compression: object = None) -> None:  # fmt: skip
        """Publish a message when the transaction commits."""
        self._check()
        chosen = options(ttl, delay, priority, compression)
        self._batches.append(place_message(self._to_publish, topic, value, key, headers, partition, timestamp, chosen))

    def publish_many(self, topic: str, values: object, *, keys: object = None, headers: object = None, partition: object = None,
                     timestamps: object = None, ttls: object = None, delays: object = None, priorities: object = None,
                     compression: object = None) -> None:  # fmt: skip
        """Publish messages when the transaction commits."""
        self._check()
        chosen = options(ttls, delays, priorities, compression)
        self._batches += place_messages(self._to_publish, topic, values, keys, headers, partition, timestamps, chosen)

    def ack(self, message: RemoteDelivery) -> None:
        """Finish *message* when the transaction commits. Raises `LeaseExpired` then if it is not its consumer's any more."""
        self._check()
        if not isinstance(message, RemoteDelivery):
            raise BadArgument("message", shown(message), "must be a message that a group delivered")
        self._acks.setdefault(message.consumer, {})[message] = None

    @property
    def ended(self) -> bool:
        """Whether it was committed or dropped."""
        return self._ended

    def _check(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended; begin another one")
        self._check_open()

    def _generation(self) -> int | None:
        """That of the deliveries that it acks: their tags mean nothing on another connection."""
        return next((message.generation for chosen in self._acks.values() for message in chosen), None)

    def commit(self) -> list[Receipt]:
        """Make everything durable and visible at once; returns the receipts. See `Transaction.commit`."""
        request = self._end()
        if request is None:
            return self._receipts
        fields, payload = request
        try:
            answer = self._connection.call(
                Call.TRANSACT, fields, payload, resend=False, lost=ConnectionLost("lost"), generation=self._generation()
            )
        except (ConnectionLost, LeaseExpired) as error:
            raise self._failure(error) from None
        return self._committed(answer)

    def _end(self) -> tuple[dict[str, Any], list[bytearray]] | None:
        """What the server is asked to do; None: nothing. Raises `LeaseExpired`."""
        self._check()
        self._ended = True
        acks: list[Any] = []
        for consumer, chosen in self._acks.items():
            for message in chosen:
                if message.generation != consumer._generation:  # noqa: SLF001
                    raise LeaseExpired(message.topic, message.partition, message.offset)
            acks.append([consumer._handle, ranges_of([message.tag for message in chosen])])  # noqa: SLF001
        if not self._batches and not acks:
            return None
        payload = []
        for _, _, batch in self._batches:
            batch.stamp(0, 0, 0, 0, 0, 0)
            payload.append(batch.data)
        return {**parts_of([(target.name, number) for target, number, _ in self._batches]), "acks": acks}, payload

    def _failure(self, error: PenstockError) -> PenstockError:
        """What the caller is told of an *error* of the call."""
        if isinstance(error, (LeaseExpired, NotBegun)):
            # What it acks went back, with the connection or by itself; nothing was changed.
            held = [message for chosen in self._acks.values() for message in chosen]
            late = error.messages if isinstance(error, LeaseExpired) else len(held)
            return LeaseExpired(held[0].topic, held[0].partition, held[0].offset, late)
        return OutcomeUnknown("the transaction", f"the connection to {self._connection.address.url} was lost")

    def _committed(self, answer: Frame) -> list[Receipt]:
        for (target, number, batch), offset in zip(
            self._batches, numbers(answer.fields, "offsets", len(self._batches)), strict=True
        ):
            self._receipts += [Receipt(target.name, number, offset + at) for at in range(batch.count)]
        return self._receipts

    @property
    def receipts(self) -> list[Receipt]:
        """The places of its messages, in order, after the commit."""
        return self._receipts

    def abort(self) -> None:
        """Drop everything."""
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if self._ended:
            return
        if error is None:
            self.commit()
        else:
            self.abort()
