"""
What a pipeline file asks for, checked as far as it can be without Spark: names, types, values, what refers to what, functions.

Everything that is wrong is told at once, each with its line, its table and key, and what is allowed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import difflib
import functools
import importlib
import inspect
import os
import re
import sys
import tomllib
from typing import TYPE_CHECKING, Any

from penstock.client.address import is_url, parse_address
from penstock.errors import BadArgument, BadPipeline, BadSetting
from penstock.spark.options import ReadOptions, WriteOptions
from penstock.spark.pipelines.declared import keys
from penstock.spark.pipelines.declared.lines import Lines
from penstock.store.store import MEMORY
from penstock.values import is_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType

    from penstock.spark.options import StorePlace

FILE_BYTES_MAX = 1024 * 1024
_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)
_INTERVAL = re.compile(r"([0-9]{1,6})(ms|s|m|h)")
_DELAY = re.compile(r"[0-9]{1,9} (?:millisecond|second|minute|hour|day|week)s?")
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NOT_OPTIONS = {
    "store": "store", "subscribe": "topic", "subscribepattern": "pattern", "startingoffsets": "start", "startingtimestamp": "start",
    "maxoffsetspertrigger": "max_per_batch", "includeheaders": "headers", "topic": "topic",
}  # fmt: skip
"""Options of the data source that have keys of their own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may be."""

    column: str
    delay: str


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Rows from outside. Of a topic *options* are all of the data source's, of Parquet those of Spark's."""

    name: str
    kind: str
    path: str
    options: Mapping[str, str]
    stream: bool
    watermark: Watermark | None


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """Rows made of others: by SQL or by a function, one of which is None."""

    name: str
    inputs: tuple[str, ...]
    sql: str | None
    function: Callable[..., Any] | None
    module: ModuleType | None
    """The function's module, if it stands beside the pipeline's file: Spark's workers may not find it by themselves."""
    line: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Sink:
    """Where rows go. *checkpoint* is its own."""

    name: str
    kind: str
    input: str
    path: str
    options: Mapping[str, str]
    mode: str
    partition_by: tuple[str, ...]
    checkpoint: str


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline that can be run. *interval_ms* is None for a trigger that ends."""

    path: str
    name: str
    trigger: str
    interval_ms: int | None
    master: str | None
    settings: Mapping[str, str]
    sources: tuple[Source, ...]
    steps: tuple[Step, ...]
    sinks: tuple[Sink, ...]


def read_plan(path: str) -> Plan:
    """
    The plan in the file *path*. Modules of its functions are imported; Spark is not.

    Raises `BadPipeline` with all that is wrong, `OSError`.
    """
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise BadPipeline(path, f"has more than {FILE_BYTES_MAX:,} bytes: it is no pipeline file")
    try:
        text = data.decode()
        content = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise BadPipeline(path, f"is no UTF-8 text at byte {error.start}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadPipeline(path, f"is no TOML: {error}") from None
    except RecursionError:
        raise BadPipeline(path, "is no TOML: it is nested too deeply") from None
    reading = _Reading(path, content, Lines(text))
    plan = reading.plan()
    if reading.problems:
        raise BadPipeline(path, "\n".join(reading.problems))
    return plan


class _Reading:
    """One file being read. What is wrong is gathered; values that are wrong have a stand-in, so that the rest can be looked at."""

    def __init__(self, path: str, content: dict[str, Any], lines: Lines) -> None:
        self.problems: list[str] = []
        self._path = path
        self._folder = os.path.dirname(os.path.abspath(path))
        self._content = content
        self._lines = lines

    def plan(self) -> Plan:
        for name in self._content:
            if name not in ("pipeline", "spark", "sources", "steps", "sinks"):
                self._wrong((name,), f"there is no such table{_near(name, ('pipeline', 'spark', 'sources', 'steps', 'sinks'))}")
        pipeline = self._table(("pipeline",), keys.PIPELINE)
        spark = self._table(("spark",), keys.SPARK, wanted=False)
        name = pipeline.get("name", "-")
        if "name" in pipeline and not is_name(name):
            self._wrong(("pipeline", "name"), "use 1 to 196 of A-Z a-z 0-9 . _ - and begin with a letter or a digit")
        trigger, interval_ms = self._trigger(pipeline.get("trigger", "available-now"))
        store = pipeline.get("store")
        sources = tuple(self._sources(store))
        steps = tuple(self._steps({source.name for source in sources}))
        sinks = tuple(self._sinks(store, self._place(pipeline.get("checkpoint", "-")), sources, steps))
        self._loops(sources, sinks)
        return Plan(
            self._path, name, trigger, interval_ms, spark.get("master"), self._texts(("spark", "settings"), spark.get("settings", {})),
            sources, steps, sinks,
        )  # fmt: skip

    # -- what is wrong ----------------------------------------------------------------------------------------------

    def _wrong(self, path: tuple[str, ...], reason: str) -> None:
        line = self._lines.of(path)
        depth = 2 if path[0] in ("sources", "steps", "sinks") else 1
        table, key = ".".join(path[:depth]), ".".join(path[depth:])
        where = "" if line is None else f"line {line}: "
        self.problems.append(f"{where}[{table}]{f' {key}' if key else ''}: {reason}")

    # -- tables and values ------------------------------------------------------------------------------------------

    def _table(self, path: tuple[str, ...], table: keys.Table, *, wanted: bool = True) -> dict[str, Any]:
        """The keys of a table that are known and of the right type."""
        given: Any = self._content
        for part in path:
            given = given.get(part, None if wanted else {})
            if given is None:
                break
        if not isinstance(given, dict):
            self._wrong(path, "is missing" if given is None else "must be a table")
            if given is not None:
                return {}
            given = {}
        known = tuple(key.name for key in table.keys)
        found = {}
        for name, value in given.items():
            key = table.key(name)
            if key is None:
                self._wrong((*path, name), f"there is no such key{_near(name, known)}")
            elif not _fits(key.takes, value):
                self._wrong((*path, name), f"must be {_article(key.takes)}, not {value!r:.60}")
            else:
                found[name] = value
        for key in table.keys:
            if key.default == "required" and key.name not in given:
                self._wrong((*path, key.name), f"is missing: {key.help.replace('`', '')}")
        return found

    def _named(self, group: str, kinds: Mapping[str, keys.Table]) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
        """(path, kind, keys) of the tables [group.NAME]."""
        tables = self._content.get(group, {})
        if not isinstance(tables, dict) or not all(isinstance(one, dict) for one in tables.values()):
            self._wrong((group,), f"must be tables with names: [{group}.NAME]")
            return
        for name, given in tables.items():
            path = (group, name)
            if _VIEW.fullmatch(name) is None:
                self._wrong(path, f"{name!r} is no name: use a letter or _, then up to 63 of A-Z a-z 0-9 _")
            kind = given.get("kind", "") if len(kinds) > 1 else ""
            if not isinstance(kind, str) or kind not in kinds:
                choices = " or ".join(f'"{one}"' for one in kinds)
                self._wrong((*path, "kind"), f"use {choices}" if "kind" in given else f"is missing: use {choices}")
                continue
            yield path, kind, self._table(path, kinds[kind])

    def _one_of(self, path: tuple[str, ...], first: str, second: str) -> None:
        written = self._content[path[0]][path[1]]
        if (first in written) == (second in written):
            self._wrong(path, f"give exactly one of {first} and {second}")

    def _texts(self, path: tuple[str, ...], table: Mapping[str, Any]) -> dict[str, str]:
        found = {}
        for name, value in table.items():
            if isinstance(value, str):
                found[name] = value
            else:
                self._wrong((*path, name), f"must be a text, in quotes, not {value!r:.60}")
        return found

    def _number(self, path: tuple[str, ...], value: int) -> str:
        if not 1 <= value <= 1_000_000_000:
            self._wrong(path, f"must be from 1 to 1000000000, not {value}")
        return str(value)

    def _place(self, path: str) -> str:
        """A folder as seen from the file; an address of another file system as it is."""
        return path if _SCHEME.match(path) else os.path.join(self._folder, path)

    def _store(self, path: tuple[str, ...], given: dict[str, Any], default: object) -> str | None:
        store = given.get("store", default)
        if not isinstance(store, str):
            self._wrong((*path, "store"), "is missing: give it here or in [pipeline]")
            return None
        return store if is_url(store) or store == MEMORY else os.path.join(self._folder, store)

    # -- parts ------------------------------------------------------------------------------------------------------

    def _trigger(self, value: str) -> tuple[str, int | None]:
        interval = _INTERVAL.fullmatch(value)
        if interval is not None:
            return "interval", int(interval[1]) * _UNITS_MS[interval[2]]
        if value not in ("available-now", "once"):
            self._wrong(
                ("pipeline", "trigger"),
                f'use "available-now", "once", or an interval such as "500ms", "10s", "5m", not {value!r}',
            )
        return value, None

    def _watermark(self, path: tuple[str, ...], given: object) -> Watermark | None:
        if given is None:
            return None
        example = 'must be as { column = "timestamp", delay = "10 minutes" }'
        if (
            not isinstance(given, dict)
            or given.keys() != {"column", "delay"}
            or not all(isinstance(one, str) for one in given.values())
        ):
            self._wrong((*path, "watermark"), example)
            return None
        if _DELAY.fullmatch(given["delay"]) is None:
            self._wrong((*path, "watermark"), f"{given['delay']!r} is no delay; it {example}")
        return Watermark(given["column"], given["delay"])

    def _sources(self, store: object) -> Iterator[Source]:
        if not self._content.get("sources"):
            self._wrong(("sources",), "is missing: a pipeline needs at least one [sources.NAME]")
        for path, kind, given in self._named("sources", keys.SOURCES):
            watermark = self._watermark(path, given.get("watermark"))
            if kind == "topic":
                yield Source(path[1], kind, "", self._topic_options(path, given, store), True, watermark)
                continue
            place = self._place(given.get("path", ""))
            if "path" in given and not _SCHEME.match(place) and not os.path.isdir(place):
                self._wrong((*path, "path"), f"there is no folder {place}")
            stream = given.get("stream", False)
            options = {}
            if "max_files_per_batch" in given:
                options["maxFilesPerTrigger"] = self._number((*path, "max_files_per_batch"), given["max_files_per_batch"])
            for name in ("max_files_per_batch", "watermark"):
                if name in given and not stream:
                    self._wrong((*path, name), "is for streams: add stream = true, or leave it out")
            yield Source(path[1], kind, place, options, stream, watermark)

    def _topic_options(self, path: tuple[str, ...], given: dict[str, Any], default_store: object) -> dict[str, str]:
        store = self._store(path, given, default_store)
        options = self._more_options(path, given)
        self._one_of(path, "topic", "pattern")
        if "pattern" in given:
            options["subscribePattern"] = given["pattern"]
        elif "topic" in given:
            topics = _list(given["topic"])
            if not topics or any("," in topic for topic in topics):
                self._wrong((*path, "topic"), 'give a name, or a list of names: ["a", "b"]')
            options["subscribe"] = ",".join(topics)
        start = given.get("start", "earliest")
        if isinstance(start, dt.datetime) and start.tzinfo is not None:
            options["startingTimestamp"] = str(round(start.timestamp() * 1000))
            options.setdefault("startingOffsetsByTimestampStrategy", "latest")
        elif start in ("earliest", "latest"):
            options["startingOffsets"] = start
        else:
            self._wrong(
                (*path, "start"), 'use "earliest", "latest", or a time with its zone such as 2026-01-31T08:00:00Z (no quotes)'
            )
        if "max_per_batch" in given:
            options["maxOffsetsPerTrigger"] = self._number((*path, "max_per_batch"), given["max_per_batch"])
        if given.get("headers"):
            options["includeHeaders"] = "true"
        if store is not None:
            options["store"] = store
            _add_token(options)
            if ("topic" in given) != ("pattern" in given):
                self._check_options(path, lambda: ReadOptions.parse(options).for_stream())
        return options

    def _more_options(self, path: tuple[str, ...], given: dict[str, Any]) -> dict[str, str]:
        options = self._texts((*path, "options"), given.get("options", {}))
        for name in list(options):
            key = _NOT_OPTIONS.get(name.lower())
            if key is not None:
                self._wrong((*path, "options", name), f"has a key of its own: use {key}")
                del options[name]
        return options

    def _check_options(self, path: tuple[str, ...], parse: Callable[[], object]) -> None:
        try:
            parse()
        except BadSetting as error:
            key = _NOT_OPTIONS.get(error.name.lower())
            self._wrong((*path, key) if key else (*path, "options", error.name), f"{error.value!r}: {error.reason}")

    def _steps(self, known: set[str]) -> Iterator[Step]:
        for path, _, given in self._named("steps", {"": keys.STEP}):
            inputs = tuple(_list(given.get("from", [])))
            if "from" in given and not inputs:
                self._wrong((*path, "from"), "name at least one source or step")
            for name in inputs:
                self._known((*path, "from"), name, known)
            function, module = None, None
            self._one_of(path, "sql", "function")
            if "function" in given:
                function, module = self._function((*path, "function"), given["function"], len(inputs))
            elif not given.get("sql", "-").strip():
                self._wrong((*path, "sql"), "is empty")
            if path[1] in known:
                self._wrong(path, "has the name of a source; each needs its own")
            known.add(path[1])
            yield Step(path[1], inputs, given.get("sql"), function, module, self._lines.of((*path, "sql")))

    def _known(self, path: tuple[str, ...], name: str, known: set[str]) -> None:
        if name not in known:
            later = name in self._content.get("steps", {})
            hint = ": it stands below; put it above" if later else _near(name, sorted(known))
            self._wrong(path, f"there is no source or step {name!r} above{hint}")

    def _function(self, path: tuple[str, ...], text: str, count: int) -> tuple[Callable[..., Any] | None, ModuleType | None]:
        if _FUNCTION.fullmatch(text) is None:
            self._wrong(path, f'{text!r} must be "module:function"')
            return None, None
        module_name, _, name = text.partition(":")
        if self._folder not in sys.path:
            sys.path.insert(0, self._folder)
        importlib.invalidate_caches()
        try:
            module = importlib.import_module(module_name)
        except Exception as error:  # noqa: BLE001 - whatever a user's module raises is told as what is wrong with the file
            self._wrong(path, f"module {module_name!r} cannot be imported: {type(error).__name__}: {error}")
            return None, None
        function = getattr(module, name, None)
        if not callable(function):
            self._wrong(path, f"module {module_name!r} has no function {name!r}")
            return None, None
        try:
            inspect.signature(function).bind(*[None] * count)
        except TypeError as error:
            self._wrong(path, f"{text} cannot be called with the {count} DataFrames of from: {error}")
        except ValueError:
            pass  # It tells no signature.
        file = getattr(module, "__file__", None)
        beside = file is not None and os.path.dirname(os.path.abspath(file)) == self._folder
        return function, module if beside else None

    def _sinks(self, store: object, checkpoint: str, sources: tuple[Source, ...], steps: tuple[Step, ...]) -> Iterator[Sink]:
        if not self._content.get("sinks"):
            self._wrong(("sinks",), "is missing: a pipeline needs at least one [sinks.NAME]")
        streams = {source.name for source in sources if source.stream}
        known = {source.name for source in sources}
        for step in steps:
            known.add(step.name)
            if streams & set(step.inputs):
                streams.add(step.name)
        for path, kind, given in self._named("sinks", keys.SINKS):
            name, origin = path[1], given.get("from", "")
            if "from" in given:
                self._known((*path, "from"), origin, known)
                if origin in known and origin not in streams:
                    self._wrong(
                        (*path, "from"),
                        f"{origin!r} is no stream: it needs a source of a topic, or of Parquet with stream = true",
                    )
            options: dict[str, str] = {}
            if kind == "topic":
                options = self._more_options(path, given)
                if "topic" in given:
                    options["topic"] = given["topic"]
                place = self._store(path, given, store)
                if place is not None:
                    options["store"] = place
                    _add_token(options)
                    self._check_options(path, functools.partial(WriteOptions.parse, options, streaming=True))
            mode = given.get("mode", "append")
            if mode not in ("append", "update", "complete"):
                self._wrong((*path, "mode"), f'use "append", "update" or "complete", not {mode!r}')
            if kind == "console":
                options = {"rows": self._number((*path, "rows"), given.get("rows", 20))}
            partition_by = tuple(given.get("partition_by", ()))
            yield Sink(
                name, kind, origin, self._place(given.get("path", "")), options, mode, partition_by,
                os.path.join(checkpoint, name),
            )  # fmt: skip

    def _loops(self, sources: tuple[Source, ...], sinks: tuple[Sink, ...]) -> None:
        """A pipeline that reads what it writes never ends."""
        for sink in sinks:
            topic = sink.options.get("topic")
            for source in sources:
                names, pattern = source.options.get("subscribe", "").split(","), source.options.get("subscribePattern")
                if sink.kind != "topic" or topic is None or sink.options.get("store") != source.options.get("store"):
                    continue
                try:
                    matched = pattern is not None and re.fullmatch(pattern, topic) is not None
                except re.error:
                    matched = False
                if topic in names or matched:
                    self._wrong(
                        ("sinks", sink.name, "topic"),
                        f"source {source.name!r} reads it: the pipeline would read what it writes",
                    )


def _add_token(options: dict[str, str]) -> None:
    """The token of the environment goes with the options: Spark's workers may be where the variable is not."""
    token, store = os.environ.get("PENSTOCK_TOKEN"), options["store"]
    if token and is_url(store) and "token" not in {name.lower() for name in options}:
        with contextlib.suppress(BadArgument):  # told when the options are checked
            if "token" not in parse_address(store).options:
                options["token"] = token


def _near(name: str, known: tuple[str, ...] | list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known)}" if known else ""


def _list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def _article(takes: str) -> str:
    return f"a {takes}" if takes[0] in "tnl" and takes != "true or false" else takes


def _fits(takes: str, value: object) -> bool:
    if isinstance(value, bool):
        return takes == "true or false"
    if isinstance(value, list):
        return list in keys.KINDS[takes] and all(isinstance(one, str) for one in value)
    return isinstance(value, keys.KINDS[takes])


def places(plan: Plan) -> Iterator[tuple[StorePlace, ReadOptions]]:
    """Where the topics of the sources are, with what is asked of them."""
    for source in plan.sources:
        if source.kind == "topic":
            options = ReadOptions.parse(source.options)
            yield options.place, options
