"""
Staging in a store that another process owns, or that nobody owns at the moment: the first of two phases, without the owner.

Stages are files in the store's folder that mean nothing until the owner commits them, so a process that may write there can make them
itself: many of Spark's tasks do at once, and nothing goes through a socket. Topics must be there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

from penstock.clock import SystemClock
from penstock.log.identity import LogIdentity
from penstock.store.staging import OpenStage
from penstock.topics.encoder import MessageEncoder
from penstock.topics.stages import Stages
from penstock.values import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings import TopicSettings
    from penstock.store.read_only import ReadOnlyStore
    from penstock.topics.catalog import Catalog
    from penstock.volume.topic_files import TopicRecord


class _Room(NamedTuple):
    """How much room a part leaves for its log's state; if the owner needs more, it copies the part."""

    room_bytes: int = 256 * 1024


class OutsideLog(NamedTuple):
    """What a stage needs to know of a log."""

    identity: LogIdentity
    settings: TopicSettings
    state: _Room


class OutsideTopic(MessageEncoder):
    """A topic to stage for."""

    def __init__(self, store_id: bytes, record: TopicRecord) -> None:
        super().__init__(record.name, record.partitions, record.settings)
        self.logs = [
            OutsideLog(
                LogIdentity(store_id, record.topic_id, record.name, number, record.first_log_id + number),
                record.settings,
                _Room(),
            )
            for number in range(record.partitions)
        ]


class _Topics:
    """The topics as `OpenStage` wants them."""

    def __init__(self, find: Callable[[str], OutsideTopic]) -> None:
        self._find = find
        self._known: dict[str, OutsideTopic] = {}

    def to_publish(self, name: str, check: Callable[[OutsideTopic], object] | None = None) -> OutsideTopic:  # noqa: ARG002
        """The topic; there is nothing to check before it is made, since it is not. Raises `TopicNotFound`."""
        if name not in self._known:
            self._known[name] = self._find(name)
        return self._known[name]


def stage_outside(store: ReadOnlyStore, producer: str) -> OpenStage:
    """A stage of *producer* in the store that *store* reads. Raises `BadName`, `StorageFull`."""
    check_name("producer", producer)
    volume = store.volume
    stages = Stages(volume.files, volume.path, volume.store_id, SystemClock(), outside=True)

    def find(name: str) -> OutsideTopic:
        store.topic(name)
        return OutsideTopic(volume.store_id, next(one for one in volume.topics if one.name == name))

    # It has what a stage asks of a catalog, and nothing else of one; and it needs no store that is open.
    return OpenStage(stages.begin(producer), cast("Catalog", _Topics(find)), lambda: None)
