"""Read and Commit."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.arguments import check_whole_number
from penstock.errors import ServerStopping
from penstock.server.grpc import translation as to
from penstock.store.reading import OFFSET_MAX
from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from penstock.server.grpc.service import Call

PAGE_MESSAGES_MAX = 1_000


async def read(call: Call, request: pb.ReadRequest) -> None:
    """Write the messages in pages, each when the client has room for it."""
    call.require("read", request.topic)
    start = to.place_of("start", request.start) if request.HasField("start") else "earliest"
    end = to.place_of("end", request.end) if request.HasField("end") else None
    most = to.given(request, "max_messages")

    def find() -> to.Pages:
        found = call.store.read(request.topic, to.given(request, "partition"), start=start, end=end, max_messages=most)
        return to.Pages(found, call.service.settings.push_bytes_max)

    pages = await asyncio.to_thread(find)

    def next_page() -> bytes | None:
        messages = pages.next(PAGE_MESSAGES_MAX)
        return pb.ReadResponse(messages=messages).SerializeToString() if messages else None

    while True:
        async with call.making():
            page = await asyncio.to_thread(next_page)
        if page is None:
            return
        if call.service.is_stopping:
            raise ServerStopping("the server is stopping; read on from the last message on another one")
        # A right that was taken away ends it.
        call.require("read", request.topic)
        await call.write(page)


async def commit(call: Call, request: pb.CommitRequest) -> pb.CommitResponse:
    """Everything of a partition below an offset is done."""
    call.require("consume", request.topic)

    def work() -> None:
        # Not through a consumer: a new member would move the partitions of an ordered group about.
        store = call.store
        offset = check_whole_number("offset", request.offset, 0, OFFSET_MAX)
        partition = store._catalog.get(request.topic).check_partition(request.partition)  # noqa: SLF001
        store._group(request.topic, request.group).commit(partition, offset)  # noqa: SLF001
        store.flush()

    await asyncio.to_thread(work)
    return pb.CommitResponse()
