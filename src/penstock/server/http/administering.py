"""Topics, groups and dead letters."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from penstock.arguments import shown
from penstock.errors import GroupNotFound, NotFound, TopicNotFound
from penstock.server.http import representation as show
from penstock.server.http import schemas
from penstock.server.http.consuming import CREATE, check_may_make_group
from penstock.server.http.operations import Call, Parameter, operation
from penstock.server.http.publishing import BASE64, check_topics_room
from penstock.server.http.schemas import ref
from penstock.store.dead_letter_filter import DeadLetterFilter
from penstock.values import KEY_BYTES_MAX, MESSAGE_BYTES_MAX, MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.store.store import GroupInfo
    from penstock.topics.message import Message

PARTITIONS_MAX = 1_000
_GROUP = "/v1/topics/{topic}/groups/{group}"
_DLQ = "/v1/topics/{topic}/dlq"
_PLACE_OR_OFFSET = {"oneOf": [schemas.OFFSET, schemas.PLACE]}
_YEARS_S = 1_000_000_000
_LAST_US = 253_402_300_799_000_000
"""The last moment that a datetime can say."""

_TOPIC_SETTINGS: dict[str, schemas.Schema] = {
    "partitions": schemas.whole(1, PARTITIONS_MAX, "fixed when the topic is created; default 1"),
    "sync": {"type": "string", "enum": ["always", "interval", "os"]},
    "segment_bytes": schemas.whole(512, 1 << 30),
    "segment_messages": schemas.whole(0, 1 << 31),
    "segment_age": schemas.seconds(0, _YEARS_S, "seconds"),
    "max_message_bytes": schemas.whole(1, MESSAGE_BYTES_MAX),
    "dedup_window": schemas.seconds(0.001, 7 * 86_400, "seconds"),
    "retain": {"type": "string", "enum": ["until_acked", "always"]},
    "retention_age": schemas.seconds(0, _YEARS_S, "seconds"),
    "retention_bytes": schemas.whole(0, 1 << 62),
    "priorities": {"type": "boolean"},
    "ttl": schemas.seconds(0.001, _YEARS_S, "seconds that messages live which do not say it themselves"),
    "expired": {"type": "string", "enum": ["drop", "dead_letter"]},
    "compression": schemas.COMPRESSION,
    "retention_messages": schemas.whole(0, 1 << 62),
    "retention_bytes_hard": schemas.whole(0, 1 << 62),
    "group_expiry": schemas.seconds(0, _YEARS_S, "seconds"),
    "compaction": {"type": "boolean"},
    "tombstone_grace": schemas.seconds(0, _YEARS_S, "seconds"),
    "record_deliveries": {"type": "boolean", "description": "how long messages waited is written to NAME.deliveries"},
    "dead_letter_retention": schemas.seconds(0, _YEARS_S, "seconds; 0 = dead letters are kept"),
    "aging": schemas.seconds(0, _YEARS_S, "seconds; what waits longer is served as one priority higher; 0 = never"),
    "index_interval_bytes": schemas.whole(64, 16 * MIB),
    "coalesce_below_bytes": schemas.whole(0, 16 * MIB),
    "coalesce_to_bytes": schemas.whole(64, 16 * MIB),
}

# -- topics ---------------------------------------------------------------------------------------------------------


@operation(
    "GET",
    "/v1/topics",
    "The topics that the token has any right on.",
    tag="topics",
    any_token=True,
    answers={200: ref("Topics")},
)
async def list_topics(call: Call) -> Response:
    """List topics."""
    topics = [info for info in call.context.store.topics() if call.principal.may_see(info.name)]
    return show.json_answer({"topics": [show.topic_fields(info) for info in topics]})


@operation(
    "POST", "/v1/topics", "Create a topic. Creating it again with the same settings does nothing.", tag="topics", any_token=True,
    while_draining=False,
    body=schemas.record(
        {
            "name": schemas.NAME,
            **_TOPIC_SETTINGS,
        },
        ("name",),
    ),
    answers={201: ref("Topic"), 200: ref("Topic")}, problems=(403, 409, 507),
)  # fmt: skip
async def create_topic(call: Call) -> Response:
    """Create a topic; the right is checked here, since the body names the topic."""
    store, settings = call.context.store, dict(call.body)
    name = settings.pop("name")
    call.principal.require("admin", name)
    try:
        store.topic(name)
        status = 200
    except TopicNotFound:
        check_topics_room(call.context)
        status = 201
    return show.json_answer(show.topic_fields(await store.create_topic(name, **settings)), status)


@operation(
    "GET", "/v1/topics/{topic}", "A topic: its settings, and where its partitions begin and end.", tag="topics", right="read",
    answers={200: ref("TopicDetails")}, problems=(404,),
)  # fmt: skip
async def describe_topic(call: Call) -> Response:
    """Describe a topic."""
    info = call.context.store.topic(call.topic)
    found = (await asyncio.to_thread(call.context.store.stats)).topics[info.name]
    return show.json_answer(
        show.topic_fields(info)
        | {"messages": found.messages, "starts": list(found.starts.values()), "ends": list(found.ends.values())}
    )


@operation(
    "DELETE", "/v1/topics/{topic}", "Delete a topic with its messages, groups and dead letters.", tag="topics", right="admin",
    answers={204: None}, problems=(404,),
)  # fmt: skip
async def delete_topic(call: Call) -> Response:
    """Delete a topic."""
    await call.context.store.delete_topic(call.topic)
    return Response(status_code=204)


@operation(
    "POST", "/v1/topics/{topic}/compact", "Keep the latest message of each key, now.", tag="topics", right="admin",
    answers={200: ref("Rewritten")}, problems=(404,),
)  # fmt: skip
async def compact(call: Call) -> Response:
    """Compact a topic."""
    return show.json_answer((await call.context.store.compact(call.topic))._asdict())


@operation(
    "POST", "/v1/topics/{topic}/retain", "Remove what the topic's retention settings say, now.", tag="topics", right="admin",
    answers={200: ref("Retained")}, problems=(404,),
)  # fmt: skip
async def retain(call: Call) -> Response:
    """Retain."""
    return show.json_answer((await call.context.store.retain(call.topic))._asdict())


@operation(
    "POST", "/v1/topics/{topic}/vacuum", "Remove expired messages, and finished ones whose segment an unfinished one keeps, now.",
    tag="topics", right="admin", answers={200: ref("Rewritten")}, problems=(404,),
)  # fmt: skip
async def vacuum(call: Call) -> Response:
    """Vacuum a topic."""
    return show.json_answer((await call.context.store.vacuum(call.topic))._asdict())


# -- groups ---------------------------------------------------------------------------------------------------------


def _group(call: Call) -> GroupInfo:
    for info in call.context.store.groups(call.topic):
        if info.name == call.group:
            return info
    raise GroupNotFound(call.topic, call.group)


@operation(
    "GET", "/v1/topics/{topic}/groups", "The groups of a topic.", tag="groups", right="read", answers={200: ref("Groups")},
    problems=(404,),
)  # fmt: skip
async def list_groups(call: Call) -> Response:
    """List groups."""
    return show.json_answer({"groups": [show.group_fields(info) for info in call.context.store.groups(call.topic)]})


@operation(
    "GET", _GROUP, "A group: its settings, lag and positions.", tag="groups", right="read", answers={200: ref("GroupDetails")},
    problems=(404,),
)  # fmt: skip
async def describe_group(call: Call) -> Response:
    """Describe a group."""
    info = _group(call)
    stats = (await asyncio.to_thread(call.context.store.stats)).topics[call.topic].groups[call.group]
    numbers: dict[str, Any] = {name: getattr(stats, name) for name in ("lag", "in_flight", "retrying", "members")}
    return show.json_answer(show.group_fields(info) | numbers | {"positions": list(stats.positions.values())})


@operation(
    "PUT", _GROUP, "Make a group, or change its settings; what is not given stays as it is.", tag="groups", right="consume",
    while_draining=False,
    body=schemas.record(
        {
            "start": {**_PLACE_OR_OFFSET, "description": "where a new group begins; default earliest"},
            "ordered": {"type": "boolean"},
            "lease": schemas.seconds(0.001, schemas.SECONDS_MAX, "seconds"),
            "max_deliveries": schemas.whole(0, 1_000_000, "0 = never dead-letter"),
            "backoff": schemas.seconds(0, schemas.SECONDS_MAX, "seconds before the second delivery"),
            "backoff_max": schemas.seconds(0, schemas.SECONDS_MAX, "seconds"),
            "reset": {"type": "string", "enum": ["earliest", "latest", "fail"]},
            "create": CREATE,
            "topic_settings": schemas.record(
                _TOPIC_SETTINGS, (), description="the topic is made with these, or must have them: 409 tells what differs"
            ),
        }
    ),
    answers={200: ref("Group")}, problems=(404, 409),
)  # fmt: skip
async def configure_group(call: Call) -> Response:
    """Make or configure a group."""
    check_may_make_group(call)
    options = dict(call.body)
    if "start" in options:
        options["start"] = show.place_of("start", options["start"])
    if options.get("create"):
        del options["create"]  # as publishing makes it
    async with call.context.store.subscribe(call.topic, call.group, prefetch=1, **options):
        return show.json_answer(show.group_fields(_group(call)))


@operation(
    "DELETE", _GROUP, "Forget a group and its position.", tag="groups", right="admin", answers={204: None}, problems=(404,)
)
async def delete_group(call: Call) -> Response:
    """Delete a group."""
    await call.context.store.delete_group(call.topic, call.group)
    return Response(status_code=204)


@operation(
    "GET", f"{_GROUP}/members", "The members of a group that are there now, and what each holds.", tag="groups", right="read",
    answers={200: ref("Members")}, problems=(404,),
)  # fmt: skip
async def list_members(call: Call) -> Response:
    """List members."""
    found = call.context.store.members(call.topic, call.group)
    return show.json_answer({"members": [show.member_fields(one) for one in found]})


@operation(
    "DELETE", f"{_GROUP}/members/{{member}}",
    "Evict a member: what it holds is ready for others at once, uncounted. Its client is told CONSUMER_EVICTED when it next asks.",
    tag="groups", right="admin", answers={200: ref("Evicted")}, problems=(404,),
)  # fmt: skip
async def evict_member(call: Call) -> Response:
    """Evict a member."""
    return show.json_answer({"messages": await call.context.store.evict_member(call.topic, call.group, call.path["member"])})


@operation(
    "POST", f"{_GROUP}/seek", "Move a group; what its consumers hold is void then.", tag="groups", right="consume",
    body=schemas.record({"to": _PLACE_OR_OFFSET, "partition": schemas.PARTITION}, ("to",)),
    answers={204: None}, problems=(404,),
)  # fmt: skip
async def seek(call: Call) -> Response:
    """Seek."""
    await call.context.store.seek(
        call.topic, call.group, show.place_of("to", call.body["to"]), partition=call.body.get("partition")
    )
    return Response(status_code=204)


@operation(
    "POST", f"{_GROUP}/commit", "Everything of a partition below an offset is done; never goes back.", tag="groups", right="consume",
    body=schemas.record({"offset": schemas.OFFSET, "partition": schemas.PARTITION}, ("offset", "partition")),
    answers={204: None}, problems=(404,),
)  # fmt: skip
async def commit(call: Call) -> Response:
    """Commit an offset."""
    partition = call.body["partition"]
    if partition >= call.context.store.topic(call.topic).partitions:
        raise TopicNotFound(call.topic, partition)
    # Not through a consumer: a new member would move the partitions of an ordered group about.
    group = call.context.store.sync._group(call.topic, call.group)  # noqa: SLF001
    group.commit(partition, call.body["offset"])
    await call.context.store.flush()
    return Response(status_code=204)


# -- dead letters ---------------------------------------------------------------------------------------------------

_FILTER = (
    Parameter("reason", schemas.text(256, "those whose reason has this in it, or fits it as a pattern with * ? [")),
    Parameter("group", schemas.text(196, "those that failed in this group")),
    Parameter("partition", schemas.whole(0, PARTITIONS_MAX, "those from this partition of the topic")),
    Parameter("source_start", schemas.whole(0, schemas.OFFSET_MAX, "those from this offset of the topic on")),
    Parameter("source_end", schemas.whole(0, schemas.OFFSET_MAX, "those from before this offset of the topic")),
    Parameter("since_us", schemas.whole(0, _LAST_US, "dead-lettered from then on; microseconds since 1970")),
    Parameter("until_us", schemas.whole(0, _LAST_US, "dead-lettered before then; microseconds since 1970")),
    Parameter("key", schemas.text(KEY_BYTES_MAX, "those with this key")),
    Parameter(
        "key_base64", schemas.text(2 * KEY_BYTES_MAX, "the same, any bytes", pattern=schemas.BASE64, contentEncoding="base64")
    ),
    Parameter("header", schemas.text(KEY_BYTES_MAX, "NAME: those with this header; NAME=VALUE: with this value of it")),
)


def _filter(query: dict[str, Any]) -> Callable[[Message], bool] | None:
    """What the query says of dead letters, all of which must fit; None if it says nothing. Raises `BadArgument`."""
    given = {name: query[name] for name in ("reason", "group", "partition", "key") if query[name] is not None}
    given |= {name: query[f"source_{name}"] for name in ("start", "end") if query[f"source_{name}"] is not None}
    given |= {name: query[f"{name}_us"] / 1_000_000 for name in ("since", "until") if query[f"{name}_us"] is not None}
    if query["header"] is not None:
        name, equals, value = query["header"].partition("=")
        given["headers"] = {name: value.encode() if equals else None}
    filters = [DeadLetterFilter(**given)] if given else []
    if query["key_base64"] is not None:
        filters.append(DeadLetterFilter(key=show.bytes_of_base64(query["key_base64"], "key_base64")))
    return (lambda letter: all(fits(letter) for fits in filters)) if filters else None


@operation(
    "GET", _DLQ, "The dead letters of a topic that are there, oldest first.", tag="dead letters", right="read", dead_letters=True,
    large=True,
    parameters=(
        Parameter("max_messages", schemas.whole(1, 1_000, "the most dead letters; `limit` is its older name"), 100, older="limit"),
        Parameter("start", schemas.whole(0, schemas.OFFSET_MAX, "dead letters from this id on"), 0),
        Parameter("look", schemas.whole(1, 1_000_000_000, "the most dead letters that are looked at, whether they fit or not")),
        BASE64, *_FILTER,
    ),
    answers={200: ref("DeadLetters")}, problems=(404,),
)  # fmt: skip
async def list_dead_letters(call: Call) -> Response:
    """List dead letters."""
    store, query = call.context.store.sync, call.query

    def some() -> tuple[dict[str, Any], int]:
        letters, fits = store.dead_letters(call.topic), _filter(query)
        looked = LookedAt(letters.between(query["start"]), query["look"], fits)
        found, size = show.fitting(itertools.islice(looked, query["max_messages"]), call.context.settings.response_bytes_max)
        fields: dict[str, Any] = {
            "messages": [_letter_fields(one, as_base64=query["base64"]) for one in found],
            "count": len(letters),
        }
        fields["now_us"] = call.context.clock.now_us()
        full = len(found) == query["max_messages"] or looked.fitting > len(found)
        following = found[-1].offset + 1 if full else looked.next
        return fields | ({} if following is None else {"next": following}), size

    return await show.large_json_answer(*await asyncio.to_thread(some))


def _letter_fields(letter: Message, *, as_base64: bool) -> dict[str, Any]:
    """With the id that the paths of one dead letter take."""
    return {"id": letter.offset} | show.message_fields(letter, as_base64=as_base64)


class LookedAt:
    """The dead letters that fit, among the first *most*; `next` is then where the looking stopped, None at the end of all."""

    def __init__(self, letters: Iterator[Message], most: int | None, fits: Callable[[Message], bool] | None) -> None:
        self._letters, self._most, self._fits = letters, most, fits
        self.fitting = 0
        self.next: int | None = None

    def __iter__(self) -> Iterator[Message]:
        for looked, letter in enumerate(self._letters):
            if looked == self._most:
                self.next = letter.offset
                return
            if self._fits is None or self._fits(letter):
                self.fitting += 1
                yield letter


@operation(
    "GET", f"{_DLQ}/{{id}}", "One dead letter.", tag="dead letters", right="read", dead_letters=True, parameters=(BASE64,),
    large=True, answers={200: ref("DeadLetter")}, problems=(404,),
)  # fmt: skip
async def show_dead_letter(call: Call) -> Response:
    """Show a dead letter."""
    store, identity = call.context.store.sync, call.path["id"]

    def one() -> dict[str, Any] | None:
        found = next(store.dead_letters(call.topic).between(identity, identity + 1), None)
        return None if found is None else _letter_fields(found, as_base64=call.query["base64"])

    fields = await asyncio.to_thread(one)
    if fields is None:
        raise _no_dead_letter(call)
    return await show.large_json_answer(fields, call.context.settings.response_bytes_max)


def _no_dead_letter(call: Call) -> NotFound:
    return NotFound(
        f"topic {call.topic!r} has no dead letter {shown(call.path['id'])}: it was replayed or discarded, or never was"
    )


@operation(
    "POST", f"{_DLQ}/{{id}}/replay", "Send a dead letter back to its topic.", tag="dead letters", right="admin", dead_letters=True,
    while_draining=False, answers={200: ref("Count")}, problems=(404, 507),
)  # fmt: skip
async def replay_dead_letter(call: Call) -> Response:
    """Replay one."""
    count = await call.context.store.replay_dead_letters(call.topic, offsets=[call.path["id"]])
    if not count:
        raise _no_dead_letter(call)
    return show.json_answer({"count": count})


@operation(
    "POST", f"{_DLQ}/replay-all", "Send all dead letters that fit back to their topic.", tag="dead letters", right="admin",
    dead_letters=True, parameters=_FILTER, while_draining=False, answers={200: ref("Count")}, problems=(404, 507),
)  # fmt: skip
async def replay_all_dead_letters(call: Call) -> Response:
    """Replay all, or those that fit."""
    return show.json_answer({"count": await call.context.store.replay_dead_letters(call.topic, filter=_filter(call.query))})


@operation(
    "POST", f"{_DLQ}/discard-all", "Throw away all dead letters that fit.", tag="dead letters", right="admin",
    dead_letters=True, parameters=_FILTER, answers={200: ref("Count")}, problems=(404,),
)  # fmt: skip
async def discard_all_dead_letters(call: Call) -> Response:
    """Discard all, or those that fit."""
    return show.json_answer({"count": await call.context.store.discard_dead_letters(call.topic, filter=_filter(call.query))})


@operation(
    "DELETE", f"{_DLQ}/{{id}}", "Throw a dead letter away.", tag="dead letters", right="admin", dead_letters=True,
    answers={204: None}, problems=(404,),
)  # fmt: skip
async def discard_dead_letter(call: Call) -> Response:
    """Discard one."""
    if not await call.context.store.discard_dead_letters(call.topic, offsets=[call.path["id"]]):
        raise _no_dead_letter(call)
    return Response(status_code=204)
