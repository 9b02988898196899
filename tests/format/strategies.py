"""What the tests of this folder share: random columns, and what a batch of them must say message by message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from hypothesis import strategies as st

from penstock.format.batch import Batch, EncodedBatch, encode_batch
from penstock.format.batch_header import Producer, Transaction
from penstock.format.compression import Codec

if TYPE_CHECKING:
    from collections.abc import Callable

APPEND_TIME_US = 1_700_000_000_000_000
U32 = (1 << 32) - 1
U64 = (1 << 64) - 1

times = st.integers(-(1 << 50), 1 << 50)
# Small pieces, repeated, so that compression has something to do.
byte_strings = st.one_of(
    st.binary(max_size=12), st.builds(lambda piece, n: piece * n, st.binary(max_size=4), st.integers(0, 700))
)
header_lists = st.lists(st.tuples(st.text(max_size=4), st.binary(max_size=6)), max_size=3)
producers = st.builds(Producer, st.integers(0, U64), st.integers(0, U32), st.integers(0, U64))
transactions = st.builds(Transaction, st.integers(0, U64), st.integers(0, U32))


class Message(NamedTuple):
    """A message as the columns say it, or as it is read back."""

    value: bytes | None
    key: bytes | None
    headers: list[tuple[str, bytes]]
    time_us: int
    expires_us: int | None
    deliver_us: int | None
    priority: int
    dedup_key: bytes | None
    offset: int


def optional_bytes(view: memoryview | None) -> bytes | None:
    return None if view is None else bytes(view)


def message(batch: Batch, index: int) -> Message:
    """Message *index* as it is read."""
    return Message(
        value=optional_bytes(batch.value(index)),
        key=optional_bytes(batch.key(index)),
        headers=batch.headers(index),
        time_us=batch.time_us(index),
        expires_us=batch.expires_us(index),
        deliver_us=batch.deliver_us(index),
        priority=batch.priority(index),
        dedup_key=optional_bytes(batch.dedup_key(index)),
        offset=batch.offset(index),
    )


def messages(batch: Batch) -> list[Message]:
    """All messages of a batch as they are read."""
    return [message(batch, index) for index in range(len(batch))]


def stamped(encoded: EncodedBatch, first_offset: int = 0, append_time_us: int = APPEND_TIME_US) -> Batch:
    """The batch as a log would store it, read back."""
    encoded.stamp(first_offset, append_time_us, append_time_us, 0xABCDEF, 0, 1)
    return Batch(encoded.data)


class Columns(NamedTuple):
    """Arguments of `encode_batch`, and what must be read from the batch that it makes."""

    arguments: dict[str, Any]
    first_offset: int
    append_time_us: int

    def encode(self, **changes: Any) -> EncodedBatch:
        return encode_batch(**{**self.arguments, **changes})

    def stored(self, **changes: Any) -> Batch:
        return stamped(self.encode(**changes), self.first_offset, self.append_time_us)

    def messages(self) -> list[Message]:
        """What the arguments say, message by message."""
        arguments, count = self.arguments, len(self.arguments["values"])

        def column(name: str, default: Any) -> list[Any]:
            return arguments.get(name) or [default] * count

        def moments(name: str, flag: str) -> list[int | None]:
            base = self.append_time_us if arguments.get(flag) else 0
            return [None if moment is None else moment + base for moment in column(name, None)]

        deltas = arguments.get("offset_deltas") or range(count)
        return [
            Message(
                value=value,
                key=key,
                headers=list(headers or []),
                time_us=self.append_time_us if time is None else time,
                expires_us=expires,
                deliver_us=deliver,
                priority=priority,
                dedup_key=dedup_key,
                offset=self.first_offset + delta,
            )
            for value, key, headers, time, expires, deliver, priority, dedup_key, delta in zip(
                arguments["values"],
                column("keys", None),
                column("headers", None),
                column("times_us", None),
                moments("expires_us", "expires_relative"),
                moments("deliver_us", "deliver_relative"),
                column("priorities", 0),
                column("dedup_keys", None),
                deltas,
                strict=True,
            )
        ]


@st.composite
def columns(
    draw: Callable[[st.SearchStrategy[Any]], Any], *, dense: bool | None = None, codecs: tuple[Codec, ...] = tuple(Codec)
) -> Columns:
    """Any columns that an encoder takes; *dense* says whether offsets are listed."""
    count = draw(st.integers(1, 9))

    def column_of(element: st.SearchStrategy[Any]) -> Any:
        return draw(st.none() | st.lists(element, min_size=count, max_size=count))

    arguments: dict[str, Any] = {
        "values": draw(st.lists(st.none() | byte_strings, min_size=count, max_size=count)),
        "keys": column_of(st.none() | st.binary(max_size=5)),
        "headers": column_of(st.none() | header_lists),
        "times_us": column_of(st.none() | times),
        "expires_us": column_of(st.none() | times),
        "expires_relative": draw(st.booleans()),
        "deliver_us": column_of(st.none() | times),
        "deliver_relative": draw(st.booleans()),
        "priorities": column_of(st.integers(0, 255)),
        "dedup_keys": column_of(st.none() | st.binary(max_size=5)),
        "producer": draw(st.none() | producers),
        "transaction": draw(st.none() | transactions),
        "schema_id": draw(st.none() | st.integers(0, U64)),
        "codec": draw(st.sampled_from(codecs)),
    }
    if draw(st.booleans()) if dense is None else not dense:
        deltas = sorted(draw(st.sets(st.integers(0, 1000), min_size=count, max_size=count)))
        arguments["offset_deltas"] = deltas
        arguments["offset_span"] = deltas[-1] + 1 + draw(st.integers(0, 50))
    return Columns(arguments, draw(st.integers(0, 1 << 40)), draw(times))
