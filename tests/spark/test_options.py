"""Options: every bad value is one clear error, before anything is read or written."""

from __future__ import annotations

import re

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType, TimestampType

from penstock.errors import BadColumn, BadSetting
from penstock.spark.options import EARLIEST, LATEST, READ_OPTIONS, WRITE_OPTIONS, Bound, ReadOptions, WriteOptions
from penstock.spark.schema import check_write
from penstock.spark.source import PenstockDataSource
from tests.docs.pages import ROOT

READ = {"store": "/s", "subscribe": "orders"}


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse({**READ, **options})


def test_what_is_not_given_has_its_default() -> None:
    """Those of the Kafka connector: a batch begins at the earliest, a stream at the latest message."""
    options = parse()
    assert options.fail_on_data_loss
    assert not options.include_headers
    assert (options.for_batch().start, options.for_batch().end) == (Bound(EARLIEST), Bound(LATEST))
    assert options.for_stream().start == Bound(LATEST)
    assert (options.offsets_per_trigger_max, options.partitions_min) == (None, None)
    assert options.place.retry_ms == 30_000


def test_names_are_read_in_any_case() -> None:
    """Spark makes them lower-case."""
    options = ReadOptions.parse({"STORE": "/s", "subscribepattern": "a.*", "MaxOffsetsPerTrigger": "7", "minpartitions": "3"})
    assert options.selection.pattern == "a.*"
    assert (options.offsets_per_trigger_max, options.partitions_min) == (7, 3)


def test_a_selection_is_names_a_pattern_or_partitions() -> None:
    """As text, a regular expression, or JSON."""
    assert parse(subscribe="a, b,a").selection.names == ("a", "b")
    assigned = ReadOptions.parse({"store": "/s", "assign": '{"a": [1, 0, 1]}'})
    assert assigned.selection.partitions == {"a": (0, 1)}


def test_a_time_counts_more_than_offsets() -> None:
    """As in the Kafka connector."""
    assert parse(startingOffsets="earliest", startingTimestamp="5").start == Bound(time_ms=5)
    assert parse(startingOffsets='{"orders": {"0": -2, "1": 7}}').start == Bound(offsets={"orders": {0: -2, 1: 7}})


BAD_READS = [
    ({"store": ""}, "store"),
    ({"store": "memory:"}, "memory"),
    ({"store": "http://host"}, "penstock://"),
    ({"store": "penstock://host/folder"}, "penstock://host:port"),
    ({"token": "t"}, "folder"),
    ({"subscribe": "a,,b"}, "no name"),
    ({"subscribe": "../etc"}, "no name"),
    ({"subscribePattern": "a"}, "exactly one"),
    ({"assign": '{"a": [0]}'}, "exactly one"),
    ({"startingOffsets": "first"}, "startingOffsets"),
    ({"startingOffsets": "[1]"}, "JSON"),
    ({"startingOffsets": '{"orders": 5}'}, "orders"),
    ({"startingOffsets": '{"orders": {"x": 5}}'}, "no partition"),
    ({"startingOffsets": '{"orders": {"0": -3}}'}, "orders/0"),
    ({"startingOffsets": '{"orders": {"0": 1.5}}'}, "orders/0"),
    ({"startingOffsets": '{"orders": {"0": true}}'}, "orders/0"),
    ({"startingOffsets": "[" * 100_000}, "JSON"),
    ({"endingOffsets": "earliest"}, "no place to end"),
    ({"endingOffsets": '{"orders": {"0": -2}}'}, "no place to end"),
    ({"startingTimestamp": "yesterday"}, "startingTimestamp"),
    ({"startingTimestamp": "-1"}, "startingTimestamp"),
    ({"endingTimestamp": "1e9"}, "endingTimestamp"),
    ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
    ({"maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger"),
    ({"maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger"),
    ({"minPartitions": "-1"}, "minPartitions"),
    ({"failOnDataLoss": "maybe"}, "true or false"),
    ({"includeHeaders": "1"}, "true or false"),
    ({"includeDelivery": "1"}, "true or false"),
    ({"retryTimeoutMs": "soon"}, "retryTimeoutMs"),
    ({"path": "/s"}, "store"),
    ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
    ({"kafka.bootstrap.servers": "host"}, "no such option"),
]


@pytest.mark.parametrize(("options", "text"), BAD_READS, ids=[str(one)[:60] for one, _ in BAD_READS])
def test_a_bad_option_of_a_read_is_told(options: dict[str, str], text: str) -> None:
    """With its name, and what to do."""
    with pytest.raises(BadSetting) as told:
        parse(**options)
    assert text in str(told.value)


@pytest.mark.parametrize("assign", ["[]", "{}", '{"a": []}', '{"a": ["0"]}', '{"a": [-1]}', '{"a/b": [0]}'])
def test_a_bad_assignment_is_told(assign: str) -> None:
    """Names and numbers are checked."""
    with pytest.raises(BadSetting, match="assign"):
        ReadOptions.parse({"store": "/s", "assign": assign})


def test_a_bad_pattern_is_told() -> None:
    """As Python's regular expressions see it."""
    with pytest.raises(BadSetting, match="regular expression"):
        ReadOptions.parse({"store": "/s", "subscribePattern": "a("})


def test_a_batch_does_not_begin_at_the_end_and_a_stream_has_no_end() -> None:
    """These depend on how it is read."""
    for latest in ("latest", '{"orders": {"0": -1}}'):
        with pytest.raises(BadSetting, match="earliest"):
            parse(startingOffsets=latest).for_batch()
    with pytest.raises(BadSetting, match="stream has no end"):
        parse(endingOffsets="latest").for_stream()
    with pytest.raises(BadSetting, match="endingTimestamp"):
        parse(endingTimestamp="5").for_stream()


def test_a_token_is_shown_nowhere() -> None:
    """Not in what a place prints, and not in an error."""
    options = ReadOptions.parse({"store": "penstocks://host:1", "subscribe": "a", "token": "s3cret&x", "tls.ca": "/ca.pem"})
    assert "s3cret" not in repr(options)
    assert options.place.path == "penstocks://host:1?token=s3cret%26x&ca=%2Fca.pem"
    with pytest.raises(BadSetting) as told:
        parse(tokn="s3cret")
    assert "did you mean token" in str(told.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topic": "a/b"}, "topic"),
        ({"txnAppId": "job"}, "go together"),
        ({"txnVersion": "3"}, "go together"),
        ({"txnAppId": "job", "txnVersion": "-3"}, "txnVersion"),
        ({"txnAppId": "my job", "txnVersion": "3"}, "txnAppId"),
        ({"subscribe": "a"}, "no such option"),
    ],
)
def test_a_bad_option_of_a_write_is_told(options: dict[str, str], text: str) -> None:
    """With its name, and what to do."""
    with pytest.raises(BadSetting, match=text):
        WriteOptions.parse({"store": "/s", **options}, streaming=False)


def test_a_stream_numbers_its_batches_itself() -> None:
    """So the ids of batch writes are refused."""
    with pytest.raises(BadSetting, match="stream"):
        WriteOptions.parse({"store": "/s", "txnAppId": "a", "txnVersion": "1"}, streaming=True)


def schema(text: str) -> StructType:
    fields = []
    for part in text.split(";"):
        name, kind = part.split(" ", 1)
        kinds = {
            "headers": {"type": "array", "containsNull": True, "elementType": {"type": "struct", "fields": [
                {"name": "key", "type": "string", "nullable": True, "metadata": {}},
                {"name": "value", "type": "binary", "nullable": True, "metadata": {}}]}},
        }  # fmt: skip
        fields.append({"name": name, "type": kinds.get(kind, kind), "nullable": True, "metadata": {}})
    return StructType.fromJson({"type": "struct", "fields": fields})


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ("key binary", "value: is missing"),
        ("value long", "binary or string"),
        ("value binary;key long", "binary or string"),
        ("value binary;partition string", "partition"),
        ("value binary;timestamp long", "timestamp"),
        ("value binary;headers string", "headers"),
        ("value binary;priority string", "priority"),
        ("value binary;expires_at long", "expires_at"),
        ("value binary;deliver_at string", "deliver_at"),
        ("value binary;color string", "no part of a message"),
    ],
)
def test_columns_that_are_no_part_of_a_message_are_told(columns: str, text: str) -> None:
    """By name, before a job starts."""
    with pytest.raises(BadColumn, match=text):
        check_write(schema(columns), "t")


def test_what_was_read_can_be_written() -> None:
    """Offset and timestampType are given anew; a topic is needed, as an option or a column."""
    whole = schema(
        "key binary;value binary;topic string;partition integer;offset long;timestamp timestamp;timestampType integer;"
        "headers headers"
    )
    assert check_write(whole, None) == ("key", "value", "topic", "partition", "timestamp", "headers")
    with pytest.raises(BadColumn, match="topic"):
        check_write(schema("value string"), None)


@pytest.mark.parametrize(
    ("columns", "text"), [("value string", "CAST"), ("colour string", "no such column"), ("offset long;offset long", "twice")]
)
def test_a_schema_of_other_columns_or_types_is_told(columns: str, text: str) -> None:
    """Columns are left out by a schema, not made."""
    with pytest.raises(BadColumn, match=text):
        PenstockDataSource(READ).reader(schema(columns))


def test_a_schema_that_says_not_null_of_what_can_be_null_is_told() -> None:
    """Spark would believe it, and find no tombstones."""
    for name, kind in (("value", BinaryType()), ("key", BinaryType()), ("expires_at", TimestampType())):
        with pytest.raises(BadColumn, match="can be null"):
            PenstockDataSource(READ).reader(StructType([StructField(name, kind, nullable=False)]))
    PenstockDataSource(READ).reader(StructType([StructField("offset", LongType(), nullable=False)]))


def test_the_page_about_spark_names_every_option() -> None:
    """And no other."""
    page = (ROOT / "docs" / "spark.md").read_text()
    [reading, writing] = re.findall(r"^\| option \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    servers = {"token", "tls.ca", "tls.cert", "tls.key"}
    for table, known in ((reading, READ_OPTIONS), (writing, WRITE_OPTIONS)):
        named = {name for row in table.strip().splitlines() for name in re.findall(r"`([\w.*]+)`", row.split("|")[1])}
        if "tls.*" in named:
            named = (named - {"tls.*"}) | servers
        assert named == set(known)


def test_messages_are_never_replaced() -> None:
    """Overwriting, and streams in complete mode, are refused."""
    source = PenstockDataSource({"store": "/s", "topic": "t"})
    for make in (source.writer, source.streamWriter):
        with pytest.raises(BadSetting, match="append"):
            make(schema("value string"), True)
