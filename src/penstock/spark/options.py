"""
The options of the data source, checked before a job starts. Names and meanings are those of Spark's Kafka connector where it has them.

Spark hands them over as a dict of text with lower-case keys.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from penstock.client.address import is_url, parse_address
from penstock.errors import BadArgument, BadSetting, DataLost
from penstock.store.store import MEMORY
from penstock.values import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST, LATEST = -2, -1
"""The offsets that mean a place, in the JSON of `startingOffsets` and `endingOffsets`."""
_I64_MAX = (1 << 63) - 1

_STORE = ("store", "token", "tls.ca", "tls.cert", "tls.key", "retryTimeoutMs")
READ_OPTIONS = (
    *_STORE, "subscribe", "subscribePattern", "assign", "startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp",
    "startingOffsetsByTimestampStrategy", "maxOffsetsPerTrigger", "minPartitions", "maxPartitions", "failOnDataLoss", "includeHeaders",
    "includeDelivery",
)  # fmt: skip
WRITE_OPTIONS = (*_STORE, "topic", "txnAppId", "txnVersion", "failOnChangedBatch")
_FROM_SPARK = {"checkpointlocation", "queryname"}
LOSS_ADVICE = "lossAdvice"
"""For our own pipelines: what `DataLost` says can be done. No option of users."""


class StorePlace(NamedTuple):
    """Where the store is: a folder, or a server as a URL with its token. Printing it shows no token."""

    path: str
    is_server: bool
    retry_ms: int

    def __repr__(self) -> str:
        return parse_address(self.path).url if self.is_server else self.path


class Selection(NamedTuple):
    """Which topics: a list of names, a pattern, or partitions of topics. Exactly one of them is not None."""

    names: tuple[str, ...] | None
    pattern: str | None
    partitions: dict[str, tuple[int, ...]] | None


class Bound(NamedTuple):
    """One end of what is read: a place (`EARLIEST`, `LATEST`), offsets by topic and partition, or a time in milliseconds."""

    place: int | None = None
    offsets: dict[str, dict[int, int]] | None = None
    time_ms: int | None = None


class ReadOptions(NamedTuple):
    """What a read asks for."""

    place: StorePlace
    selection: Selection
    start: Bound | None
    end: Bound | None
    fail_without_time: bool
    """Whether a starting time after the last message is an error."""
    offsets_per_trigger_max: int | None
    partitions_min: int | None
    partitions_max: int | None
    fail_on_data_loss: bool
    include_headers: bool
    include_delivery: bool
    loss_advice: str = DataLost.ADVICE

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """All that holds for batch and stream alike. Raises `BadSetting`."""
        given = _Given(options, READ_OPTIONS)
        start = _one_bound(given, "startingOffsets", "startingTimestamp")
        end = _one_bound(given, "endingOffsets", "endingTimestamp")
        if end is not None and (end.place == EARLIEST or _has(end.offsets, EARLIEST)):
            raise BadSetting("endingOffsets", given.text("endingOffsets"), "earliest (-2) is no place to end")
        least, most = given.number("minPartitions", 1, 1_000_000), given.number("maxPartitions", 1, 1_000_000)
        if least is not None and most is not None and least > most:
            raise BadSetting("minPartitions", least, f"must not be more than maxPartitions, which is {most}")
        strategy = given.one_of("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
        return cls(
            place=_store_place(given),
            selection=_selection(given),
            start=start,
            end=end,
            fail_without_time=strategy == "error",
            offsets_per_trigger_max=given.number("maxOffsetsPerTrigger", 1),
            partitions_min=least,
            partitions_max=most,
            fail_on_data_loss=given.flag("failOnDataLoss", default=True),
            include_headers=given.flag("includeHeaders", default=False),
            include_delivery=given.flag("includeDelivery", default=False),
            loss_advice=given.text(LOSS_ADVICE) or DataLost.ADVICE,
        )

    def for_batch(self) -> ReadOptions:
        """The same with what a batch starts and ends at by default. Raises `BadSetting`."""
        if self.start is not None and (self.start.place == LATEST or _has(self.start.offsets, LATEST)):
            raise BadSetting("startingOffsets", "latest", "a batch that begins at the end has nothing to read; use earliest")
        return self._replace(start=self.start or Bound(EARLIEST), end=self.end or Bound(LATEST))

    def for_stream(self) -> ReadOptions:
        """The same with what a stream starts at by default. Raises `BadSetting`."""
        if self.end is not None:
            name = "endingOffsets" if self.end.time_ms is None else "endingTimestamp"
            raise BadSetting(name, "given", "a stream has no end; leave it out, or read with spark.read")
        return self._replace(start=self.start or Bound(LATEST))


class WriteOptions(NamedTuple):
    """What a write asks for."""

    place: StorePlace
    topic: str | None
    txn_app_id: str | None
    txn_version: int | None
    fail_on_changed_batch: bool
    """Whether a batch that was committed before must have the same rows when it comes again."""
    checkpoint: str | None
    """Where the checkpoint of a query is, as far as Spark tells."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> WriteOptions:
        """Raises `BadSetting`."""
        given = _Given(options, WRITE_OPTIONS)
        topic = given.text("topic")
        if topic is not None and not is_name(topic):
            raise BadSetting("topic", topic, "is no name of a topic: use 1 to 196 of A-Z a-z 0-9 . _ -")
        app, version = given.text("txnAppId"), given.number("txnVersion", 0)
        if (app is None) != (version is None):
            raise BadSetting("txnAppId" if app else "txnVersion", app or version, "txnAppId and txnVersion go together")
        if app is not None and not is_name(f"spark-txn.{app}"):
            raise BadSetting("txnAppId", app, "use up to 186 of A-Z a-z 0-9 . _ -")
        if app is not None and streaming:
            raise BadSetting("txnAppId", app, "a stream numbers its batches itself; leave it out")
        return cls(
            _store_place(given), topic, app, version, given.flag("failOnChangedBatch", default=True),
            given.text("checkpointLocation") if streaming else None,
        )  # fmt: skip


class _Given:
    """The options as they came; every name must be known."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._values = {key.lower(): str(value) for key, value in options.items()}
        spelled = {name.lower(): name for name in known}
        for key, value in self._values.items():
            if key in spelled or key in _FROM_SPARK or key == LOSS_ADVICE.lower():
                continue
            if key == "path":
                raise BadSetting(
                    "path", value, 'load() and start() take no path: give the folder or URL as option("store", ...)'
                )
            close = difflib.get_close_matches(key, spelled, 1)
            hint = f"did you mean {spelled[close[0]]}?" if close else f"there are {', '.join(known)}"
            shown = "..." if "token" in key or "password" in key or "secret" in key else value
            raise BadSetting(key, shown, f"there is no such option; {hint}")

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower())

    def number(self, name: str, least: int, most: int = _I64_MAX) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if re.fullmatch(r"\s*[0-9]{1,19}\s*", text) is None or not least <= int(text) <= most:
            raise BadSetting(
                name, text, f"must be a whole number from {least} on" + ("" if most == _I64_MAX else f" to {most}")
            )
        return int(text)

    def flag(self, name: str, *, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), "true" if default else "false") == "true"

    def one_of(self, name: str, choices: tuple[str, ...], default: str) -> str:
        text = self.text(name)
        found = default if text is None else text.strip().lower()
        if found not in choices:
            raise BadSetting(name, text, f"use {' or '.join(choices)}")
        return found

    def json(self, name: str, example: str) -> Any:
        text = self.text(name)
        assert text is not None
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict) or not found:
            raise BadSetting(name, text, f"must be JSON such as {example}")
        for topic in found:
            if not is_name(topic):
                raise BadSetting(name, text, f"{topic!r} is no name of a topic")
        return found


def _store_place(given: _Given) -> StorePlace:
    store = given.text("store")
    if not store:
        raise BadSetting("store", store, "give the folder of a store, or the URL of a server such as penstock://host:7420")
    retry_ms = given.number("retryTimeoutMs", 0, 86_400_000)
    credentials = {name: given.text(option) for name, option in
                   (("token", "token"), ("ca", "tls.ca"), ("cert", "tls.cert"), ("key", "tls.key"))}  # fmt: skip
    chosen = {name: value for name, value in credentials.items() if value is not None}
    if store == MEMORY:
        raise BadSetting(
            "store", store, "a store in memory belongs to one process, and Spark has many; use a folder or a server"
        )
    if not is_url(store):
        if chosen:
            raise BadSetting("store", store, "token and tls.* are for servers, and this is a folder")
        return StorePlace(os.path.abspath(store), False, 30_000 if retry_ms is None else retry_ms)
    added = "&".join(f"{name}={quote(value, safe='')}" for name, value in chosen.items())
    url = f"{store}{'&' if '?' in store else '?'}{added}" if added else store
    try:
        parse_address(url)
    except BadArgument as error:
        raise BadSetting("store", error.value, error.reason) from None
    return StorePlace(url, True, 30_000 if retry_ms is None else retry_ms)


def _selection(given: _Given) -> Selection:
    names = ("subscribe", "subscribePattern", "assign")
    chosen = [name for name in names if given.text(name) is not None]
    if not chosen:
        raise BadSetting("subscribe", None, f"nothing says which topics to read: give exactly one of {', '.join(names)}")
    if len(chosen) > 1:
        others = " and ".join(chosen[:-1])
        raise BadSetting(chosen[-1], given.text(chosen[-1]), f"there is {others} too: give exactly one of {', '.join(names)}")
    [name] = chosen
    text = given.text(name)
    assert text is not None
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        for topic in topics:
            if not is_name(topic):
                raise BadSetting(name, text, f"{topic!r} is no name of a topic; give them as a,b,c")
        return Selection(topics, None, None)
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise BadSetting(name, text, f"is no regular expression: {error}") from None
        return Selection(None, text, None)
    found = given.json(name, '{"orders": [0, 1]}')
    partitions = {}
    for topic, numbers in found.items():
        if not isinstance(numbers, list) or not numbers or not all(type(one) is int and 0 <= one < 1 << 31 for one in numbers):
            raise BadSetting(name, text, f"the partitions of {topic!r} must be a list such as [0, 1]")
        partitions[topic] = tuple(sorted(set(numbers)))
    return Selection(None, None, partitions)


def _one_bound(given: _Given, offsets: str, timestamp: str) -> Bound | None:
    """A time counts more than offsets, as in the Kafka connector; the offsets are checked all the same."""
    found = _bound(given, offsets)
    time_ms = given.number(timestamp, 0, 253_402_300_799_999)
    return found if time_ms is None else Bound(time_ms=time_ms)


def _bound(given: _Given, name: str) -> Bound | None:
    text = given.text(name)
    if text is None:
        return None
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(EARLIEST if word == "earliest" else LATEST)
    found = given.json(name, 'earliest, latest or {"orders": {"0": 23, "1": -2}}')
    offsets: dict[str, dict[int, int]] = {}
    for topic, numbers in found.items():
        if not isinstance(numbers, dict) or not numbers:
            raise BadSetting(name, text, f'the offsets of {topic!r} must be given as {{"0": 23}}')
        for partition, offset in numbers.items():
            if re.fullmatch(r"[0-9]{1,9}", partition) is None:
                raise BadSetting(name, text, f"{partition!r} is no partition of {topic!r}")
            if type(offset) is not int or not EARLIEST <= offset <= _I64_MAX:
                raise BadSetting(
                    name, text, f"the offset of {topic}/{partition} must be from 0 on, -1 (latest) or -2 (earliest)"
                )
            offsets.setdefault(topic, {})[int(partition)] = offset
    return Bound(offsets=offsets)


def _has(offsets: dict[str, dict[int, int]] | None, place: int) -> bool:
    return offsets is not None and any(place in partitions.values() for partitions in offsets.values())
