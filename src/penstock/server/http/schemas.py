"""
What requests and answers look like, as JSON Schema: the OpenAPI document shows these, and `check` checks requests by the same ones.

Only the part of JSON Schema that `check` knows is used for requests. Unknown fields are always refused.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

from penstock.arguments import shown
from penstock.errors import BadArgument, BadName
from penstock.values import HEADERS_MAX, KEY_BYTES_MAX, MESSAGE_BYTES_MAX, is_name

Schema = dict[str, Any]

OFFSET_MAX = (1 << 63) - 1
SECONDS_MAX = 86_400
REASON_CHARACTERS_MAX = 64 * 1024
"""Much more than is kept: who sends a whole traceback still gives his message back."""
PUBLISH_MESSAGES_MAX = 10_000
RECEIPTS_MAX = 1_000
RECEIVE_MAX = 1_000
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"


def text(characters_max: int, description: str = "", **more: Any) -> Schema:
    """A string."""
    return {"type": "string", "maxLength": characters_max, **({"description": description} if description else {}), **more}


def whole(least: int, most: int, description: str = "", **more: Any) -> Schema:
    """A whole number."""
    return {
        "type": "integer",
        "minimum": least,
        "maximum": most,
        **({"description": description} if description else {}),
        **more,
    }


def seconds(least: float, most: float, description: str, **more: Any) -> Schema:
    """A length of time."""
    return {"type": "number", "minimum": least, "maximum": most, "description": description, **more}


def record(properties: dict[str, Schema], required: tuple[str, ...] = (), **more: Any) -> Schema:
    """An object that has no other fields than these."""
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False, **more}


def answer(properties: dict[str, Schema], *optional: str) -> Schema:
    """An object of ours; later versions may add fields."""
    return {"type": "object", "properties": properties, "required": [name for name in properties if name not in optional]}


def list_of(items: Schema, most: int | None = None, least: int = 0) -> Schema:
    """An array."""
    return {
        "type": "array",
        "items": items,
        **({} if most is None else {"maxItems": most}),
        **({"minItems": least} if least else {}),
    }


def or_null(schema: Schema) -> Schema:
    """The same, or null."""
    return {**schema, "type": [schema["type"], "null"]}


def ref(name: str) -> Schema:
    """One of `COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def _not_both(*names: str) -> Schema:
    return {"not": {"required": list(names)}}


NAME: Schema = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,195}$"}
PARTITION = whole(0, (1 << 31) - 1)
OFFSET = whole(0, OFFSET_MAX)
BASE64 = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_VALUE_TEXT = or_null(text(MESSAGE_BYTES_MAX, "text, stored as UTF-8; null is a tombstone"))
_KEY_TEXT = or_null(text(KEY_BYTES_MAX, "text, stored as UTF-8"))
_FIELDS: dict[str, Schema] = {
    "value": _VALUE_TEXT,
    "value_base64": text(MESSAGE_BYTES_MAX * 2, "any bytes", pattern=BASE64, contentEncoding="base64"),
    "key": _KEY_TEXT,
    "key_base64": text(KEY_BYTES_MAX * 2, "any bytes", pattern=BASE64, contentEncoding="base64"),
}
_HEADER: Schema = record(
    {
        "name": text(128 * 1024, "64 KiB at most"),
        "value": text(MESSAGE_BYTES_MAX, "text, stored as UTF-8"),
        "value_base64": _FIELDS["value_base64"],
    },
    ("name",),
    oneOf=[{"required": ["value"]}, {"required": ["value_base64"]}],
)
TIME: Schema = text(40, "ISO 8601 with a zone", format="date-time")
OPTION_SECONDS_MAX = 1_000_000_000
TTL = seconds(0.000_001, OPTION_SECONDS_MAX, "seconds from when it is stored that it lives, instead of the topic's")
DELAY = seconds(0, OPTION_SECONDS_MAX, "seconds from when it is stored; not delivered to groups before")
PRIORITY: Schema = {"type": "string", "enum": ["low", "medium", "high"], "description": "in a topic that has priorities"}
COMPRESSION: Schema = text(
    7, "none, gzip, zstd, lz4, or with a level gzip:9", pattern="^(none|lz4|gzip(:[1-9])?|zstd(:([1-9]|1[0-9]))?)$"
)
SYNC: Schema = {"type": "string", "enum": ["always", "interval", "os"], "description": "where it is stricter than the topic's"}
PLACE: Schema = text(
    40,
    "earliest, latest, an offset or a time",
    anyOf=[{"enum": ["earliest", "latest"]}, {"pattern": "^[0-9]{1,19}$"}, {"format": "date-time"}],
)


def _new_message(**more: Schema) -> Schema:
    fields = {
        **_FIELDS,
        "headers": list_of(ref("Header"), HEADERS_MAX),
        "timestamp": TIME,
        "dedup_key": text(1_024, "publishing it again within the topic's window stores nothing", minLength=1),
        "dedup_key_base64": text(2_048, "the same, any bytes", minLength=1, pattern=BASE64, contentEncoding="base64"),
        "ttl": TTL,
        "delay": DELAY,
        "deliver_at": {**TIME, "description": "not delivered to groups before"},
        "priority": PRIORITY,
        **more,
    }
    has_value = {"anyOf": [{"required": ["value"]}, {"required": ["value_base64"]}]}
    pairs = [*((name, f"{name}_base64") for name in ("value", "key", "dedup_key")), ("delay", "deliver_at")]
    return record(fields, allOf=[has_value, *(_not_both(*names) for names in pairs)])


COMPONENTS: dict[str, Schema] = {
    "NewMessage": _new_message(partition=PARTITION, compression=COMPRESSION, sync=SYNC),
    "NewMessageOfMany": _new_message(),
    "Header": _HEADER,
    "Receipt": answer({"topic": {"type": "string"}, "partition": PARTITION, "offset": OFFSET, "duplicate": {"type": "boolean"}}),
    "Receipts": answer({"receipts": list_of(ref("Receipt"))}),
    "Message": answer(
        {
            "topic": {"type": "string"}, "partition": PARTITION, "offset": OFFSET, "timestamp": text(40, "ISO 8601, UTC"),
            "key": or_null({"type": "string"}), "key_base64": {"type": "string", "contentEncoding": "base64"},
            "value": or_null({"type": "string"}), "value_base64": {"type": "string", "contentEncoding": "base64"},
            "headers": list_of(ref("Header")), "dedup_key": {"type": "string"}, "dedup_key_base64": {"type": "string"},
            "expires_at": text(40, "ISO 8601, UTC; absent: never"),
            "deliver_at": text(40, "ISO 8601, UTC; absent: it was due at once"),
            "priority": {"type": "string", "enum": ["medium", "high"], "description": "absent: low"},
        },
        "key", "key_base64", "value", "value_base64", "dedup_key", "dedup_key_base64", "expires_at", "deliver_at", "priority",
    ),
    "Delivery": {
        "allOf": [
            ref("Message"),
            answer({"attempt": whole(1, OFFSET_MAX, "1 for the first delivery"),
                    "receipt": text(64, "shows that this delivery is yours, for ack, nack, reject and extend")}),
        ]
    },
    "Deliveries": answer({"messages": list_of(ref("Delivery"))}),
    "Page": answer(
        {"uuid": text(32, "the topic's"), "messages": list_of(ref("Message")), "next": whole(0, OFFSET_MAX, "where to go on"),
         "end": whole(0, OFFSET_MAX, "the offset after the last message")}
    ),
    "Finished": answer({"done": whole(0, RECEIPTS_MAX)}),
    "Topic": answer(
        {"name": {"type": "string"}, "uuid": {"type": "string"}, "partitions": whole(1, 10_000), "settings": {"type": "object"}}
    ),
    "TopicDetails": {"allOf": [ref("Topic"), answer({"messages": OFFSET, "starts": list_of(OFFSET), "ends": list_of(OFFSET)})]},
    "Rewritten": answer(dict.fromkeys(("segments", "messages", "tombstones", "bytes"), OFFSET)),
    "Retained": answer(dict.fromkeys(("segments", "bytes"), OFFSET)),
    "Topics": answer({"topics": list_of(ref("Topic"))}),
    "Group": answer({"topic": {"type": "string"}, "name": {"type": "string"}, "settings": {"type": "object"}}),
    "GroupDetails": {
        "allOf": [
            ref("Group"),
            answer(dict.fromkeys(("lag", "in_flight", "retrying", "members"), OFFSET) | {"positions": list_of(OFFSET)}),
        ]
    },
    "Groups": answer({"groups": list_of(ref("Group"))}),
    "Member": answer(
        {
            "id": {"type": "string"}, "name": {"type": ["string", "null"]},
            "interface": {"type": "string", "enum": ["embedded", "native", "folder", "grpc", "http"]},
            "peer": {"type": "string"}, "principal": {"type": "string"}, "since": TIME, "last_heard": TIME,
            **dict.fromkeys(("in_flight", "buffered", "bytes", "prefetch"), OFFSET), "paused": {"type": "boolean"},
            "partitions": list_of(OFFSET),
        }
    ),
    "Members": answer({"members": list_of(ref("Member"))}),
    "Evicted": answer({"messages": whole(0, OFFSET_MAX, "that it held, and others may have now")}),
    "DeadLetter": {
        "allOf": [
            answer({"id": whole(0, OFFSET_MAX, "names it in the paths of one dead letter; it is its offset")}),
            ref("Message"),
        ]
    },
    "DeadLetters": answer(
        {"messages": list_of(ref("DeadLetter")), "count": whole(0, OFFSET_MAX, "all that are there, fitting or not"),
         "now_us": whole(0, OFFSET_MAX, "when it was made; as until_us it leaves out what came later; microseconds since 1970"),
         "next": whole(0, OFFSET_MAX, "the id to go on from; absent: there are no more")},
        "next",
    ),
    "Count": answer({"count": OFFSET}),
    "Stats": answer(
        {"commits": OFFSET, "failed": {"type": "boolean"},
         "is_full": {"type": "boolean", "description": "whether publishing is refused for want of disk space"},
         "free_bytes": whole(0, OFFSET_MAX, "what is free on the store's file system"),
         "free_bytes_floor": whole(0, OFFSET_MAX, "of which publishing leaves so much"),
         "refused": whole(0, OFFSET_MAX, "publishes that were refused for want of disk space"),
         "topics": {"type": "object"}}
    ),
    "Metrics": answer(
        {
            "now_us": whole(0, OFFSET_MAX, "the moment they are of, up to a second ago; microseconds since 1970"),
            "version": {"type": "string"},
            "ready": {"type": "boolean", "description": "whether the store takes work"},
            "bounds_s": list_of({"type": "number"}),
            "store": {"type": "object", "description": "absent without the right read on all topics; path and failure need admin"},
            "topics": {"type": "object"},
        },
        "store",
    ),
    "Problem": {
        "type": "object", "description": "RFC 9457",
        "properties": {
            "type": {"type": "string"}, "title": {"type": "string"}, "status": {"type": "integer"}, "detail": {"type": "string"},
            "code": {"type": "string", "description": "never changes; see docs/reference/errors.md and docs/reference/http.md"},
            "late": {"type": "array", "items": {"type": "string"}, "description": "receipts that changed nothing (LEASE_EXPIRED)"},
            "done": {"type": "integer", "description": "how many of the others were finished (LEASE_EXPIRED)"},
            "size": {"type": "integer", "description": "how large it is (MESSAGE_TOO_LARGE, BATCH_TOO_LARGE)"},
            "limit": {"type": "integer", "description": "how large it may be (MESSAGE_TOO_LARGE, BATCH_TOO_LARGE)"},
            "offset": {"type": "integer", "description": "the offset that was asked for (OFFSET_OUT_OF_RANGE)"},
            "first": {"type": "integer", "description": "the first offset that is kept (OFFSET_OUT_OF_RANGE)"},
            "end": {"type": "integer", "description": "the offset after the last message (OFFSET_OUT_OF_RANGE)"},
        },
        "required": ["type", "title", "status", "detail", "code"],
    },
}  # fmt: skip


# -- checking -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


def check(value: Any, schema: Schema, where: str) -> Any:
    """Return *value* if *schema* allows it (with 2.0 as 2 where whole numbers are due), else raise `BadArgument` that names it."""
    if "$ref" in schema:
        schema = COMPONENTS[schema["$ref"].rpartition("/")[2]]
    if "oneOf" in schema and "type" not in schema:
        schema = next((one for one in schema["oneOf"] if _is_of(value, _resolved(one)["type"])), schema["oneOf"][0])
        return check(value, schema, where)
    wanted = schema["type"]
    if not _is_of(value, wanted):
        names = " or ".join([wanted] if isinstance(wanted, str) else wanted)
        raise BadArgument(where, shown(value), f"must be {names}")
    if "enum" in schema and value not in schema["enum"]:
        raise BadArgument(where, shown(value), f"use {', '.join(map(str, schema['enum']))}")
    if isinstance(value, str):
        _check_text(value, schema, where)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        if not schema.get("minimum", -math.inf) <= value <= schema.get("maximum", math.inf):
            raise BadArgument(where, shown(value), f"must be from {schema['minimum']:,} to {schema['maximum']:,}")
        return int(value) if wanted == "integer" else value
    elif isinstance(value, list):
        least, most = schema.get("minItems", 0), schema.get("maxItems", math.inf)
        if not least <= len(value) <= most:
            raise BadArgument(where, f"<{len(value):,} items>", f"must have from {least:,} to {most:,} items")
        return [check(item, schema["items"], f"{where}[{at}]") for at, item in enumerate(value)]
    elif isinstance(value, dict):
        return _check_record(value, schema, where)
    return value


def _resolved(schema: Schema) -> Schema:
    return COMPONENTS[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def _is_of(value: Any, wanted: str | list[str]) -> bool:
    if isinstance(wanted, list):
        return any(_is_of(value, one) for one in wanted)
    if wanted == "null":
        return value is None
    if wanted == "boolean":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if wanted == "integer":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    kinds: dict[str, Any] = {"string": str, "number": (int, float), "array": list, "object": dict}
    return isinstance(value, kinds[wanted])


def _check_text(value: str, schema: Schema, where: str) -> None:
    least, most = schema.get("minLength", 0), schema.get("maxLength", math.inf)
    if not least <= len(value) <= most:
        raise BadArgument(where, shown(value), f"must have from {least:,} to {most:,} characters")
    if "anyOf" in schema:
        if not any(_fits(value, one) for one in schema["anyOf"]):
            raise BadArgument(where, shown(value), f"must be {schema['description']}")
        return
    if schema.get("format") == "date-time" and not _fits(value, schema):
        raise BadArgument(where, shown(value), "must be a time with a zone, as in 2027-01-01T00:00:00Z")
    # What is base64 is seen when it is decoded, at a fraction of the price.
    pattern = None if "contentEncoding" in schema else schema.get("pattern")
    # A dollar sign would let a final line feed pass: ours stand at the end of every pattern.
    if pattern is not None and _compiled(pattern.removesuffix("$") + r"\Z").match(value) is None:
        if schema is NAME:
            raise BadName(where, value)
        raise BadArgument(where, shown(value), f"must match {pattern}")


def _fits(value: str, schema: Schema) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    form = _TIME if schema.get("format") == "date-time" else schema["pattern"].removesuffix("$")
    return _compiled(form + r"\Z").match(value) is not None


def _check_record(value: dict[str, Any], schema: Schema, where: str) -> dict[str, Any]:
    properties = schema["properties"]
    for name in value:
        if name not in properties:
            raise BadArgument(where, shown(name), f"there is no such field; use {', '.join(properties)}")
    rules = [schema, *schema.get("allOf", ())]
    for rule in rules:
        for name in rule.get("required", ()):
            if name not in value:
                raise BadArgument(name, "nothing", f"is missing in {where}")
        both = rule.get("not", {}).get("required", ())
        if both and all(name in value for name in both):
            raise BadArgument(where, " and ".join(both), "exclude each other")
        for word in ("anyOf", "oneOf"):
            choices = [one["required"][0] for one in rule.get(word, ())]
            found = sum(name in value for name in choices)
            if choices and (found == 0 or (word == "oneOf" and found > 1)):
                raise BadArgument(where, f"{found} of {', '.join(choices)}", "must have one of them")
    return {name: check(item, properties[name], name if where == "body" else f"{where}.{name}") for name, item in value.items()}


def check_parameter(value: str, schema: Schema, where: str) -> Any:
    """The value of a path or query parameter. Raises `BadArgument`, `BadName`."""
    kind = schema["type"]
    if kind == "string":
        if schema is NAME and not is_name(value):
            raise BadName(where, value)
        return check(value, schema, where)
    if kind == "boolean":
        if value not in ("true", "false"):
            raise BadArgument(where, shown(value), "use true or false")
        return value == "true"
    form = r"-?[0-9]{1,20}" if kind == "integer" else r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?"
    if _compiled(form + r"\Z").match(value) is None:
        raise BadArgument(where, shown(value), f"must be {'a whole number' if kind == 'integer' else 'a number'}")
    number = int(value) if kind == "integer" else float(value)
    return check(number, schema, where)
