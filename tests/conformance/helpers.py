"""Small words that most tests of the suite share."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penstock import Consumer, Delivery, GroupStats, Message, ReadOnlyStore, Store
    from tests.conformance.backends import Backend

PATIENCE = 60.0
"""Seconds that a test waits for something that must happen; it is never a measure of anything."""
LATE = 1.04
"""A delay ends never early, and late by three in a hundred at most."""


def numbered(count: int, first: int = 0) -> list[bytes]:
    """Values that say their place."""
    return [b"%d" % number for number in range(first, first + count)]


def values(messages: Iterable[Message]) -> list[bytes | None]:
    """What the messages carry, in order."""
    return [message.value for message in messages]


def offsets(messages: Iterable[Message]) -> list[int]:
    """Where the messages stand, in order."""
    return [message.offset for message in messages]


def take(consumer: Consumer, at_most: int = 100_000) -> list[Delivery]:
    """Everything that is ready now, handed out and not finished."""
    messages: list[Delivery] = []
    while len(messages) < at_most:
        message = consumer.get(timeout=0)
        if message is None:
            break
        messages.append(message)
    return messages


def drain(consumer: Consumer, at_most: int = 100_000) -> list[Delivery]:
    """Everything that is ready now, each message acked as it comes."""
    messages: list[Delivery] = []
    while len(messages) < at_most:
        message = consumer.get(timeout=0)
        if message is None:
            break
        message.ack()
        messages.append(message)
    return messages


def one(consumer: Consumer) -> Delivery:
    """The next message; there must be one."""
    message = consumer.get(timeout=0)
    assert message is not None, "a message should be ready"
    return message


def stored(store: Store | ReadOnlyStore, topic: str, partition: int | None = None) -> list[bytes | None]:
    """The values that a topic holds."""
    return values(store.read(topic, partition))


def moment(backend: Backend) -> datetime:
    """Now, by the store's clock."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=backend.clock.now_us())


def ten_apart(backend: Backend, store: Store) -> list[datetime]:
    """Publish ten numbered messages to topic t, ten seconds between each two; returns their times."""
    times = []
    for value in numbered(10):
        times.append(moment(backend))
        store.publish("t", value)
        backend.advance(10)
    return times


def state_of(store: Store) -> dict[str, Any]:
    """All that a call could have changed, to compare before and after one that was refused."""
    stats = store.stats()
    return {
        "topics": sorted((info.name, info.topic_id, info.partitions) for info in store.topics()),
        "groups": sorted((group.topic, group.name) for group in store.groups()),
        "stored": {info.name: [(one.partition, one.offset) for one in store.read(info.name)] for info in store.topics()},
        "stats": {
            name: (
                topic.messages,
                {
                    group: (
                        one.lag,
                        one.in_flight,
                        one.retrying,
                        one.acked,
                        one.nacked,
                        one.dead_lettered,
                        one.members,
                        dict(one.positions),
                    )
                    for group, one in topic.groups.items()
                },
            )
            for name, topic in stats.topics.items()
        },
    }


def group_stats(store: Store) -> GroupStats:
    """The numbers of group g of topic t."""
    return store.stats().topics["t"].groups["g"]


def position(store: Store, topic: str, group: str, partition: int = 0) -> int:
    """The next offset of a group."""
    place: int = store.stats().topics[topic].groups[group].positions[partition]
    return place


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> bool:
    """Whether it comes to hold: for what tells nobody when it does, such as another process."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def uncommitted(store: Store) -> int:
    """How many changes wait for a commit, not counting those of a commit that is under way."""
    return len(store._volume._committer._pending)


class Running:
    """A function in a thread of its own: `result()` waits for it and passes on what it returned or raised."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function, self._arguments = function, arguments
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._function(*self._arguments)
        except BaseException as error:
            self._error = error

    @property
    def ended(self) -> bool:
        """Whether it returned or raised."""
        return not self._thread.is_alive()

    def result(self) -> Any:
        """Wait, and return what came out."""
        self._thread.join(PATIENCE)
        assert self.ended, f"{self._function} still runs"
        if self._error is not None:
            raise self._error
        return self._result


def all_of(function: Callable[[Any], Any], arguments: Iterable[Any]) -> list[Any]:
    """Call *function* with each of *arguments* at once, each in its thread, and return what each returned."""
    return [running.result() for running in [Running(function, argument) for argument in arguments]]
