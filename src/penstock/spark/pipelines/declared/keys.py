"""Every table and key that a pipeline file may have: what it takes, what it is without it, what it means. The reference is this table."""

from __future__ import annotations

import datetime as dt
from typing import NamedTuple


class Key(NamedTuple):
    """One key of a table."""

    name: str
    takes: str
    """What its value is, in the words of `KINDS`."""
    default: str
    """`required`, or what is meant without it, as a person would write it; may be empty."""
    help: str


class Table(NamedTuple):
    """One table of the file. NAME stands for a name that the writer chooses."""

    title: str
    help: str
    keys: tuple[Key, ...]

    def key(self, name: str) -> Key | None:
        """The key of that name, if there is one."""
        return next((key for key in self.keys if key.name == name), None)


KINDS: dict[str, tuple[type, ...]] = {
    "text": (str,),
    "number": (int,),
    "true or false": (bool,),
    "text or list of texts": (str, list),
    "list of texts": (list,),
    "table": (dict,),
    "text or time": (str, dt.datetime),
}
"""What values there are, by how the reference names them, and Python's types of them."""

_FROM = Key("from", "text", "required", "the source or step whose rows it writes")
_WATERMARK = Key(
    "watermark", "table", "",
    '`{ column = "timestamp", delay = "10 minutes" }`: how late rows may be; aggregating into a topic or Parquet needs one',
)  # fmt: skip
_SOURCE_KIND = Key("kind", "text", "required", '`"topic"` or `"parquet"`')
_SINK_KIND = Key("kind", "text", "required", '`"topic"`, `"parquet"` or `"console"`')

PIPELINE = Table("[pipeline]", "The pipeline as a whole.", (
    Key("name", "text", "required", "the name that Spark shows: A-Z a-z 0-9 . _ -"),
    Key("checkpoint", "text", "required", "the folder where Spark keeps each sink's position; one for each pipeline, never shared"),
    Key("store", "text", "", "the store of the sources and sinks that do not name one: a folder, or `penstock://host:port`"),
    Key(
        "trigger", "text", '`"available-now"`',
        '`"available-now"`: process what is there now, in batches, then end; `"once"`: the same in one batch; '
        'or how often to look, `"500ms"`, `"10s"`, `"5m"`: run until it is stopped',
    ),
))  # fmt: skip
SPARK = Table("[spark]", "The Spark that runs the pipeline.", (
    Key("master", "text", "Spark's own configuration, else all cores here", 'where it runs: `"local[2]"`, `"spark://host:7077"`'),
    Key("settings", "table", "", 'Spark settings, as texts: `{ "spark.sql.shuffle.partitions" = "4" }`'),
))  # fmt: skip
TOPIC_SOURCE = Table("[sources.NAME] of a topic", "A stream of the messages of one or more topics, with the columns of the data source.", (
    _SOURCE_KIND,
    Key("topic", "text or list of texts", "this or `pattern`", "the topic, or a list of topics"),
    Key("pattern", "text", "this or `topic`", "a Python regular expression for whole names; topics that appear later are read too"),
    Key("store", "text", "that of `[pipeline]`", "a folder, or `penstock://host:port`"),
    Key(
        "start", "text or time", '`"earliest"`',
        '`"earliest"`, `"latest"`, or a time with its zone, such as `2026-01-31T08:00:00Z`; applies to the first run only',
    ),
    Key("max_per_batch", "number", "all there are", "the most messages that a batch may have"),
    Key("headers", "true or false", "`false`", "whether there is a column `headers`"),
    _WATERMARK,
    Key("options", "table", "", "other options of the [data source](../spark.md#reading), as texts"),
))  # fmt: skip
PARQUET_SOURCE = Table("[sources.NAME] of Parquet", "The rows of Parquet files.", (
    _SOURCE_KIND,
    Key("path", "text", "required", "the folder"),
    Key("stream", "true or false", "`false`", "`true`: a stream of files, read as they appear; `false`: a table to look things up in"),
    Key("max_files_per_batch", "number", "all there are", "the most files that a batch may have; only with `stream`"),
    _WATERMARK,
))  # fmt: skip
STEP = Table("[steps.NAME]", "Rows made from other rows. A step may use sources and the steps above it.", (
    Key("from", "text or list of texts", "required", "the sources and steps that it uses"),
    Key("sql", "text", "this or `function`", "a query; the names in `from` are its tables"),
    Key(
        "function", "text", "this or `sql`",
        '`"module:function"`: called with the DataFrames of `from` in order, returns a DataFrame; the module is also looked for '
        "next to the file",
    ),
))  # fmt: skip
TOPIC_SINK = Table("[sinks.NAME] to a topic", "Rows become messages, exactly once. The columns are those that the data source takes.", (
    _SINK_KIND, _FROM,
    Key("topic", "text", "the column `topic`", "the topic; created if it does not exist"),
    Key("store", "text", "that of `[pipeline]`", "a folder, or `penstock://host:port`"),
    Key("options", "table", "", "other options of the [data source](../spark.md#writing), as texts"),
))  # fmt: skip
PARQUET_SINK = Table("[sinks.NAME] to Parquet", "Rows become files, exactly once, through Spark's own file sink.", (
    _SINK_KIND, _FROM,
    Key("path", "text", "required", "the folder"),
    Key("partition_by", "list of texts", "", "columns whose values become folders"),
))  # fmt: skip
CONSOLE_SINK = Table("[sinks.NAME] to the console", "Prints each batch, to look at. A batch that is run again is printed again.", (
    _SINK_KIND, _FROM,
    Key("mode", "text", '`"append"`', '`"append"`: new rows; `"update"`: changed rows of an aggregate; `"complete"`: all rows each time'),
    Key("rows", "number", "`20`", "how many rows of a batch are printed"),
))  # fmt: skip

TABLES = (PIPELINE, SPARK, TOPIC_SOURCE, PARQUET_SOURCE, STEP, TOPIC_SINK, PARQUET_SINK, CONSOLE_SINK)
"""In the order of the reference."""
SOURCES = {"topic": TOPIC_SOURCE, "parquet": PARQUET_SOURCE}
SINKS = {"topic": TOPIC_SINK, "parquet": PARQUET_SINK, "console": CONSOLE_SINK}
