"""The columns of a topic as a Spark table, and of a DataFrame that is written to one. Names and types are those of the Kafka connector."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.errors import BadColumn

if TYPE_CHECKING:
    from collections.abc import Sequence

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
BASIC: dict[str, DataType] = {
    "key": BinaryType(), "value": BinaryType(), "topic": StringType(), "partition": IntegerType(), "offset": LongType(),
    "timestamp": TimestampType(), "timestampType": IntegerType(),
}  # fmt: skip
DELIVERY: dict[str, DataType] = {"priority": IntegerType(), "expires_at": TimestampType(), "deliver_at": TimestampType()}
ALL: dict[str, DataType] = {**BASIC, "headers": HEADERS, **DELIVERY, "appended_at": TimestampType()}
"""What a schema may name. When a message was appended is given only where it is named: the Kafka connector has no such column."""

_MAY_BE_NULL = ("key", "value", "headers", "expires_at", "deliver_at")
WRITTEN = ("value", "key", "topic", "partition", "headers", "timestamp", *DELIVERY)
_IGNORED = ("offset", "timestampType", "appended_at")
"""What a topic has and a message is given when it is stored: a DataFrame that was read can be written as it is."""


def read_schema(*, include_headers: bool, include_delivery: bool) -> StructType:
    """The columns that a read has by default."""
    chosen = dict(BASIC)
    if include_headers:
        chosen["headers"] = HEADERS
    if include_delivery:
        chosen.update(DELIVERY)
    return StructType([StructField(name, kind) for name, kind in chosen.items()])


def check_read(schema: StructType) -> None:
    """Whether a user's schema asks for columns that there are. Raises `BadColumn`."""
    if not schema.fields:
        raise BadColumn("schema", f"has no columns; choose some of {', '.join(ALL)}")
    for field in schema.fields:
        kind = ALL.get(field.name)
        if kind is None:
            raise BadColumn(field.name, f"a topic has no such column; choose some of {', '.join(ALL)}")
        if field.dataType.simpleString() != kind.simpleString():
            hint = ", read it so and CAST it afterwards" if isinstance(kind, BinaryType) else ""
            raise BadColumn(field.name, f"is {kind.simpleString()}, not {field.dataType.simpleString()}{hint}")
        if field.name in _MAY_BE_NULL and not field.nullable:
            # Spark would believe it: it finds no nulls then, or fails where one is.
            raise BadColumn(field.name, "can be null: leave NOT NULL out of the schema, and filter afterwards")
    if len(set(schema.names)) != len(schema.names):
        raise BadColumn("schema", "names a column twice")


def check_write(schema: StructType, topic: str | None) -> tuple[str, ...]:
    """The columns of a DataFrame that are written. Raises `BadColumn`."""
    names = schema.names
    if "value" not in names:
        raise BadColumn("value", f"is missing; the DataFrame has {', '.join(names) or 'no columns'}")
    if topic is None and "topic" not in names:
        raise BadColumn("topic", "is missing: give the option topic, or a column of that name")
    for field in schema.fields:
        name, kind = field.name, field.dataType
        if name in _IGNORED:
            continue
        if name not in WRITTEN:
            raise BadColumn(name, f"is no part of a message; drop it, or choose some of {', '.join(WRITTEN)}")
        allowed = _allowed(name)
        if not isinstance(kind, tuple(type(one) for one in allowed)) or (
            name == "headers" and kind.simpleString() != HEADERS.simpleString()
        ):
            raise BadColumn(name, f"must be {' or '.join(one.simpleString() for one in allowed)}, not {kind.simpleString()}")
    if len(set(names)) != len(names):
        raise BadColumn("schema", "names a column twice")
    return tuple(name for name in names if name in WRITTEN)


def _allowed(name: str) -> Sequence[DataType]:
    if name in ("value", "key"):
        return (BinaryType(), StringType())
    if name == "topic":
        return (StringType(),)
    if name in ("partition", "priority"):
        return (IntegerType(), ShortType(), ByteType(), LongType())
    if name in ("timestamp", "expires_at", "deliver_at"):
        return (TimestampType(), TimestampNTZType())
    return (HEADERS,)
