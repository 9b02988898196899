"""The calls of the service Admin."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.arguments import check_whole_number, shown
from penstock.errors import BadArgument, PermissionDenied
from penstock.groups.dead_letters import SUFFIX
from penstock.server.grpc import translation as to
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.server.grpc.service import Call
    from penstock.topics.message import Message

DEAD_LETTERS_DEFAULT = 100
DEAD_LETTERS_MAX = 1_000


async def create_topic(call: Call, request: pb.CreateTopicRequest) -> pb.Topic:
    """Create a topic."""
    call.require("admin", request.name)
    options = to.topic_options(request.settings)
    partitions = request.partitions if request.HasField("partitions") else 1
    return to.topic_of(await asyncio.to_thread(lambda: call.store.create_topic(request.name, partitions=partitions, **options)))


async def list_topics(call: Call, request: pb.ListTopicsRequest) -> pb.ListTopicsResponse:
    """Those that the caller has any right on."""
    del request

    # There may be thousands.
    def work() -> pb.ListTopicsResponse:
        seen = [info for info in call.store.topics() if call.principal.may_see(info.name)]
        return pb.ListTopicsResponse(topics=[to.topic_of(info) for info in seen])

    return await asyncio.to_thread(work)


async def get_topic(call: Call, request: pb.GetTopicRequest) -> pb.GetTopicResponse:
    """A topic. Any right on it will do."""
    if not call.principal.may_see(request.topic):
        raise PermissionDenied(call.principal.name, "read", request.topic)
    info = call.store.topic(request.topic)
    logs = call.store._catalog.get(request.topic).logs  # noqa: SLF001
    return pb.GetTopicResponse(
        topic=to.topic_of(info), starts=[log.log_start for log in logs], ends=call.store._volume.ends(logs)  # noqa: SLF001
    )  # fmt: skip


async def retain(call: Call, request: pb.RetainRequest) -> pb.RetainResponse:
    """Remove what retention says."""
    call.require("admin", request.topic)
    segments, freed = await asyncio.to_thread(call.store.retain, request.topic)
    return pb.RetainResponse(segments=segments, bytes=freed)


async def delete_topic(call: Call, request: pb.DeleteTopicRequest) -> pb.DeleteTopicResponse:
    """Delete a topic."""
    call.require("admin", request.topic)
    await asyncio.to_thread(call.store.delete_topic, request.topic)
    return pb.DeleteTopicResponse()


async def compact(call: Call, request: pb.RewriteRequest) -> pb.RewriteResponse:
    """Compact a topic."""
    call.require("admin", request.topic)
    return pb.RewriteResponse(**(await asyncio.to_thread(call.store.compact, request.topic))._asdict())


async def vacuum(call: Call, request: pb.RewriteRequest) -> pb.RewriteResponse:
    """Vacuum a topic."""
    call.require("admin", request.topic)
    return pb.RewriteResponse(**(await asyncio.to_thread(call.store.vacuum, request.topic))._asdict())


async def list_groups(call: Call, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
    """The groups of a topic."""
    call.require("read", request.topic)
    return await asyncio.to_thread(
        lambda: pb.ListGroupsResponse(groups=[to.group_of(info) for info in call.store.groups(request.topic)])
    )


async def delete_group(call: Call, request: pb.DeleteGroupRequest) -> pb.DeleteGroupResponse:
    """Forget a group."""
    call.require("admin", request.topic)
    await asyncio.to_thread(call.store.delete_group, request.topic, request.group)
    return pb.DeleteGroupResponse()


async def seek(call: Call, request: pb.SeekRequest) -> pb.SeekResponse:
    """Move a group."""
    call.require("consume", request.topic)
    place, partition = to.place_of("to", request.to), to.given(request, "partition")
    await asyncio.to_thread(lambda: call.store.seek(request.topic, request.group, place, partition=partition))
    return pb.SeekResponse()


async def list_members(call: Call, request: pb.ListMembersRequest) -> pb.ListMembersResponse:
    """The members of a group."""
    call.require("read", request.topic)
    return await asyncio.to_thread(
        lambda: pb.ListMembersResponse(members=[to.member_of(one) for one in call.store.members(request.topic, request.group)])
    )


async def evict_member(call: Call, request: pb.EvictMemberRequest) -> pb.EvictMemberResponse:
    """Take a member out of its group."""
    call.require("admin", request.topic)
    held = await asyncio.to_thread(call.store.evict_member, request.topic, request.group, request.member)
    return pb.EvictMemberResponse(messages=held)


async def get_stats(call: Call, request: pb.GetStatsRequest) -> pb.GetStatsResponse:
    """Numbers of one topic, or of all."""
    topic = to.given(request, "topic")
    call.require("read", topic)

    def work() -> pb.GetStatsResponse:
        if topic is not None:
            call.store.topic(topic)
        stats = call.store.stats()
        return to.stats_of(stats, stats.topics if topic is None else [topic])

    return await asyncio.to_thread(work)


async def get_metrics(call: Call, request: pb.GetMetricsRequest) -> pb.GetMetricsResponse:
    """Metrics of one topic, or of all."""
    topic = to.given(request, "topic")
    call.require("read", topic)

    def work() -> pb.GetMetricsResponse:
        if topic is not None:
            call.store.topic(topic)
        metrics = call.store.metrics()
        return to.metrics_of(metrics, metrics.topics if topic is None else [topic])

    return await asyncio.to_thread(work)


async def list_dead_letters(call: Call, request: pb.ListDeadLettersRequest) -> pb.ListDeadLettersResponse:
    """A page of them."""
    call.require("read", request.topic + SUFFIX)
    most = request.max_messages if request.HasField("max_messages") else DEAD_LETTERS_DEFAULT
    check_whole_number("max_messages", most, 1, DEAD_LETTERS_MAX)
    fits = to.filter_of(request.filter)

    def work() -> pb.ListDeadLettersResponse:
        letters = call.store.dead_letters(request.topic)
        chosen: Iterator[Message] = (one for one in letters if one.offset >= request.start and (fits is None or fits(one)))
        page = to.Pages(chosen, call.service.settings.push_bytes_max).next(most)
        return pb.ListDeadLettersResponse(messages=page, count=len(letters))

    return await asyncio.to_thread(work)


async def replay_dead_letters(call: Call, request: pb.ChooseDeadLettersRequest) -> pb.DeadLettersResponse:
    """Send some back, or all."""
    return await _take_out(call, request, republish=True)


async def discard_dead_letters(call: Call, request: pb.ChooseDeadLettersRequest) -> pb.DeadLettersResponse:
    """Throw some away, or all."""
    return await _take_out(call, request, republish=False)


async def _take_out(call: Call, request: pb.ChooseDeadLettersRequest, *, republish: bool) -> pb.DeadLettersResponse:
    call.require("admin", request.topic + SUFFIX)
    which = request.WhichOneof("which")
    fits = to.filter_of(request.filter)
    # A filter that says nothing would mean all of them, and who forgot to fill it in does not.
    if which is None or (which == "all" and not request.all) or (which == "filter" and fits is None):
        raise BadArgument("which", shown(which), "say which dead letters: offsets, a filter that says something, or all = true")
    offsets = list(request.offsets.offsets) if which == "offsets" else None

    def work() -> int:
        letters = call.store.dead_letters(request.topic)
        return letters.replay(fits, offsets) if republish else letters.discard(fits, offsets)

    return pb.DeadLettersResponse(count=await asyncio.to_thread(work))
