"""`penstock publish`: messages from arguments, files or stdin into a topic."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.escapes import unescape
from penstock.cli.messages import NewMessage, parse, receipt_fields
from penstock.cli.target import open_target
from penstock.errors import PenstockError, UsageError
from penstock.values import BATCH_MESSAGES_MAX, MESSAGE_BYTES_MAX, MIB

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from penstock.store.store import Store
    from penstock.topics.receipt import Receipt

    Publish = Callable[[list[NewMessage]], Sequence[Receipt]]

BATCH_BYTES = 4 * MIB
"""A batch is published when it has so many bytes, however few messages these are: half of what the engine takes at once."""
MESSAGE_OVERHEAD_BYTES = 32
"""About what a batch needs for a message, and for a header, beside their bytes."""


@click.command(
    epilog=parameters.examples(
        "penstock publish data orders 'one order' 'and another' --key ada",
        "penstock publish data orders --header source=web --dedup-key order-17 'the order'",
        "penstock publish data orders --delay 10m --ttl 1d 'call back'",
        "penstock publish data lines --batch 1000 < access.log",
        "penstock publish data pictures --file cat.png",
        "penstock read data orders --json | penstock publish copy orders --format json",
    )
)
@parameters.target
@parameters.topic
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option("--file", "files", type=click.Path(exists=True, dir_okay=False, allow_dash=True), multiple=True,
              help="Publish the whole of a file as one message; - is stdin. May be given several times.")  # fmt: skip
@click.option("--key", help="The key of the messages: those of one key go to one partition and keep their order.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header. May be given several times.")
@click.option("--partition", type=click.IntRange(min=0), metavar="NUMBER", help="Put them into this partition.")
@click.option("--dedup-key", help="Store the message only if none with this key was stored lately. For one message.")
@click.option("--ttl", type=parameters.duration, help="How long the messages live from when they are stored.")
@click.option(
    "--delay", type=parameters.delay, help="Groups are not given them before: so long after they are stored, or a time."
)
@click.option(
    "--priority", type=click.Choice(["low", "medium", "high"]), help="How urgent they are, in a topic with priorities."
)
@click.option("--compression", metavar="NAME", help="Instead of the topic's: none, gzip, zstd, lz4, or with a level gzip:9.")
@click.option("--format", "form", type=click.Choice(["value", "escaped", "json"]), default="value", show_default=True,
              help="How values are written: as they are, with escapes, or as the JSON that consume and read print.")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, BATCH_MESSAGES_MAX), default=1, show_default=True, metavar="COUNT",
              help="Commit so many messages at once. Above 1 a summary is printed instead of receipts.")  # fmt: skip
@click.option("--no-create", is_flag=True, help="Fail if the store or the topic is not there, instead of making it.")
@click.option("--quiet", "-q", is_flag=True, help="Print no receipts.")
@parameters.json_output
def publish(*, target: str, topic: str, as_json: bool, quiet: bool, no_create: bool, batch: int, **given: Any) -> None:
    """
    Publish messages to TOPIC and print where they lie.

    Without VALUE and --file each line of stdin is a message. A receipt is printed when its message is committed.
    """
    source = _input(**given)
    show = _Receipts(as_json=as_json, quiet=quiet, summary=batch > 1)
    with (
        open_target(target, create=not no_create) as store,
        output.progress(f"publishing ({source.unit})", source.total, wanted=batch > 1 and not as_json) as move,
    ):
        try:
            for part in _batches(source.messages, batch):
                show.add(_publish(store, topic, part, given["partition"], given["compression"]))
                move(show.count if source.tell is None else source.tell())
                interrupts.check()
        except (PenstockError, OSError, output.ReaderGone, interrupts.Interrupted):
            if show.count:
                output.say("note", f"{show.count:,} messages were published before this")
            raise
        show.end(topic)


def _publish(
    store: Store, topic: str, part: list[NewMessage], partition: int | None, compression: str | None
) -> Sequence[Receipt]:
    if len(part) == 1:
        one = part[0]
        receipt = store.publish(
            topic, one.value, key=one.key, headers=one.headers, partition=partition, timestamp=one.timestamp, dedup_key=one.dedup_key,
            ttl=one.ttl, delay=one.delay, priority=one.priority, compression=compression,
        )  # fmt: skip
        return [receipt]

    def column(name: str) -> list[Any] | None:
        found = [getattr(one, name) for one in part]
        return None if all(one is None for one in found) else found

    return store.publish_many(
        topic, [one.value for one in part], keys=column("key"), headers=column("headers"), partition=partition,
        timestamps=column("timestamp"), dedup_keys=column("dedup_key"), ttls=column("ttl"), delays=column("delay"),
        priorities=column("priority"), compression=compression,
    )  # fmt: skip


class _Receipts:
    """Shows where messages lie: each, or in short at the end."""

    def __init__(self, *, as_json: bool, quiet: bool, summary: bool) -> None:
        self._as_json, self._quiet, self._summary = as_json, quiet, summary and not as_json
        self.count = self._duplicates = 0
        self._ranges: dict[int, tuple[int, int]] = {}

    def add(self, receipts: Sequence[Receipt]) -> None:
        self.count += len(receipts)
        if self._quiet:
            return
        for receipt in receipts:
            if self._as_json:
                output.write_json(receipt_fields(receipt))
            elif self._summary and receipt.duplicate:
                self._duplicates += 1
            elif self._summary:
                first, end = self._ranges.get(receipt.partition, (receipt.offset, receipt.offset))
                self._ranges[receipt.partition] = min(first, receipt.offset), max(end, receipt.offset + 1)
            else:
                output.write_line(
                    f"{receipt.topic}/{receipt.partition} offset {receipt.offset}{' duplicate' * receipt.duplicate}"
                )
        if not self._summary:
            output.flush()

    def end(self, topic: str) -> None:
        """All are published."""
        if self._quiet or not self._summary:
            return
        twice = f", {self._duplicates:,} of them were there already" if self._duplicates else ""
        output.write_line(f"{self.count:,} messages{twice}")
        for partition, (first, end) in sorted(self._ranges.items()):
            output.write_line(f"{topic}/{partition} offsets [{first}, {end})")


# -- where messages come from ---------------------------------------------------------------------------------------


class _Source(NamedTuple):
    """The messages, and what a bar can show of how far they are."""

    messages: Iterator[NewMessage]
    total: int | None = None
    unit: str = "messages"
    tell: Callable[[], int] | None = None


def _input(
    *, values: tuple[str, ...], files: tuple[str, ...], key: str | None, headers: tuple[str, ...], dedup_key: str | None,
    form: str, ttl: float | None, delay: float | dt.datetime | None, priority: str | None, **_: Any,
) -> _Source:  # fmt: skip
    """What the arguments say. Raises `UsageError`."""
    if values and files:
        raise UsageError("give VALUE or --file, not both")
    if dedup_key is not None and len(values) + len(files) != 1:
        raise UsageError("--dedup-key is for one message: give one VALUE or one --file")
    if files and form == "json":
        raise UsageError("--file takes the bytes of a file as they are; for lines of JSON write: --format json < FILE")
    default = NewMessage(
        None, None if key is None else _bytes(key, form), tuple(_header(one, form) for one in headers) or None,
        None if dedup_key is None else _bytes(dedup_key, form), None, ttl, delay, priority,
    )  # fmt: skip
    if files:
        return _Source((default._replace(value=_whole(path)) for path in files), len(files))
    if values:
        # All are read before any is published.
        given = [_message(os.fsencode(value), form, default, f"VALUE {at}") for at, value in enumerate(values, 1)]
        return _Source(iter(given), len(given))
    if sys.stdin is None:
        raise UsageError("there is no stdin; give VALUE or --file")
    lines = _lines(sys.stdin.buffer, form, default)
    length = _file_bytes()
    return (
        _Source(lines)
        if length is None
        else _Source(lines, length, "bytes", lambda: os.lseek(sys.stdin.fileno(), 0, os.SEEK_CUR))
    )


def _file_bytes() -> int | None:
    """How long stdin is, if it is a file."""
    with contextlib.suppress(OSError, ValueError):
        found = os.fstat(sys.stdin.fileno())
        return found.st_size if stat.S_ISREG(found.st_mode) else None
    return None


def _bytes(text: str, form: str) -> bytes | None:
    """What an option stands for: it has escapes where values have them."""
    data = os.fsencode(text)
    return unescape(data) if form == "escaped" else data


def _header(text: str, form: str) -> tuple[str, bytes]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise UsageError(f"--header {text!r} is not NAME=VALUE")
    return name, _bytes(value, form) or b""


def _whole(path: str) -> bytes:
    """The content of a file, if it can be a message."""
    with interrupts.allowed(), click.open_file(path, "rb") as file:
        data: bytes = file.read(MESSAGE_BYTES_MAX + 1)
    if len(data) > MESSAGE_BYTES_MAX:
        raise UsageError(f"{path} is over the limit of a message, {MESSAGE_BYTES_MAX:,} bytes; publish it in parts")
    return data


def _lines(stream: IO[bytes], form: str, default: NewMessage) -> Iterator[NewMessage]:
    if sys.stdin.isatty():
        output.say("note", "each line is a message; Ctrl-D ends the input")
    number = 0
    while True:
        with interrupts.allowed():
            line = stream.readline(MESSAGE_BYTES_MAX + 2)
        if not line:
            return
        number += 1
        if len(line) > MESSAGE_BYTES_MAX and not line.endswith(b"\n"):
            raise UsageError(f"line {number:,} is over the limit of a message, {MESSAGE_BYTES_MAX:,} bytes")
        yield _message(line.removesuffix(b"\n"), form, default, f"line {number:,}")


def _message(data: bytes, form: str, default: NewMessage, where: str) -> NewMessage:
    try:
        if form == "value":
            return default._replace(value=data)
        if form == "escaped":
            return default._replace(value=unescape(data))
        found = parse(data)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return found._replace(
        key=default.key if found.key is None else found.key,
        headers=found.headers or default.headers,
        dedup_key=default.dedup_key if found.dedup_key is None else found.dedup_key,
        ttl=default.ttl if found.ttl is None else found.ttl,
        delay=default.delay if found.delay is None else found.delay,
        priority=default.priority if found.priority is None else found.priority,
    )


def _batches(messages: Iterable[NewMessage], count: int) -> Iterator[list[NewMessage]]:
    part: list[NewMessage] = []
    size = 0
    for message in messages:
        length = MESSAGE_OVERHEAD_BYTES + len(message.value or b"") + len(message.key or b"")
        length += sum(MESSAGE_OVERHEAD_BYTES + len(name) + len(value) for name, value in message.headers or ())
        if part and size + length > BATCH_BYTES:
            yield part
            part, size = [], 0
        part.append(message)
        size += length
        if len(part) >= count:
            yield part
            part, size = [], 0
    if part:
        yield part
