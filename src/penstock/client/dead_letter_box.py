"""The dead letters of a topic on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.arguments import check_whole_number, shown
from penstock.client.reading import remote_logs
from penstock.errors import BadArgument
from penstock.groups.dead_letters import SUFFIX
from penstock.store import reading
from penstock.store.dead_letter_box import check_filter
from penstock.wire.answers import number_rows, whole
from penstock.wire.calls import Call

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Iterable, Iterator

    from penstock.client.connection import Connection
    from penstock.topics.message import Message

OFFSETS_MAX = 40_000
"""Offsets that one call names."""


class RemoteDeadLetters:
    """Made by `RemoteStore.dead_letters`. See `penstock.DeadLetters`; a *filter* runs here, on what the server sends."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self._connection = connection
        self._topic = topic

    def __iter__(self) -> Iterator[Message]:
        return iter(self.list())

    def list(
        self, max_messages: int | None = None, filter: Callable[[Message], bool] | None = None  # noqa: A002
    ) -> builtins.list[Message]:  # fmt: skip
        """The dead letters that are there, oldest first; with *filter* those that it takes."""
        check_filter(filter)
        if filter is not None:
            return [one for one in self.list() if filter(one)][:max_messages]
        if max_messages is not None:
            check_whole_number("max_messages", max_messages, 0, 1 << 62)
        fields = {"topic": self._topic, "max_messages": max_messages}
        places = number_rows(self._connection.call(Call.DEAD_LETTERS, fields).fields, "places", 2)
        if not places:
            return []
        name = self._topic + SUFFIX
        found: list[Message] = []
        for number, log in enumerate(remote_logs(self._connection, name)):
            offsets = {offset for partition, offset in places if partition == number}
            if offsets:
                rest = reading.messages(name, [(number, log)], min(offsets), max(offsets) + 1, None)
                found += [message for message in rest if message.offset in offsets]
        return found

    def __len__(self) -> int:
        return whole(self._connection.call(Call.DEAD_LETTERS, {"topic": self._topic, "count": True}).fields, "count")

    def replay(self, filter: Callable[[Message], bool] | None = None, offsets: Iterable[int] | None = None) -> int:  # noqa: A002
        """Send dead letters back to their topic, and take them out; returns how many."""
        return self._take_out(Call.REPLAY_DEAD_LETTERS, filter, offsets)

    def discard(self, filter: Callable[[Message], bool] | None = None, offsets: Iterable[int] | None = None) -> int:  # noqa: A002
        """Throw dead letters away; returns how many."""
        return self._take_out(Call.DISCARD_DEAD_LETTERS, filter, offsets)

    def _take_out(self, call: int, choose: Callable[[Message], bool] | None, offsets: Iterable[int] | None) -> int:
        wanted = wanted_offsets(choose, offsets)
        if choose is not None:
            wanted = chosen_offsets(self.list(), choose, wanted)
        # All of them: not sent again if the answer is lost, what came later must not go with it.
        count = 0
        for some in in_parts(wanted):
            fields = {"topic": self._topic, "offsets": some}
            count += whole(self._connection.call(call, fields, resend=some is not None).fields, "count")
        return count


def in_parts(wanted: list[int] | None) -> list[list[int]] | list[None]:
    """The *wanted* offsets as the calls name them: many of them in several."""
    if wanted is None:
        return [None]
    return [wanted[at : at + OFFSETS_MAX] for at in range(0, max(1, len(wanted)), OFFSETS_MAX)]


def wanted_offsets(choose: Callable[[Message], bool] | None, offsets: Iterable[int] | None) -> list[int] | None:
    """The *offsets*, checked, as is *choose*. Raises `BadArgument`."""
    check_filter(choose)
    try:
        return None if offsets is None else [check_whole_number("offsets", one, 0, reading.OFFSET_MAX) for one in offsets]
    except TypeError:
        raise BadArgument("offsets", shown(offsets), "must be a list of offsets") from None


def chosen_offsets(messages: Iterable[Message], choose: Callable[[Message], bool], wanted: list[int] | None) -> list[int]:
    """The offsets of the *messages* that *choose* takes, of all or of those in *wanted*."""
    known = None if wanted is None else set(wanted)
    return [one.offset for one in messages if (known is None or one.offset in known) and choose(one)]
