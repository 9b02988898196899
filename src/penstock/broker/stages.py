"""The stages that a client has open, and the commit of finished ones."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from penstock.aio.waiting import finished_or_undone
from penstock.arguments import check_whole_number
from penstock.broker.batches import adopt_parts
from penstock.broker.fields import texts
from penstock.errors import StageNotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.broker.replies import Answer
    from penstock.broker.topics import Topics
    from penstock.store.staging import Committed, OpenStage
    from penstock.store.store import Store
    from penstock.wire.frame import Frame

STAGES_MAX = 100
"""What one connection may have open."""


class Stages:
    """The unfinished stages of one client. `begin` runs in the event loop, the other calls in threads."""

    def __init__(self, store: Store, topics: Topics) -> None:
        self._store = store
        self._topics = topics
        self._stages: dict[str, tuple[OpenStage, threading.Lock]] = {}

    async def begin(self, frame: Frame) -> Answer:
        """Make a stage."""
        if len(self._stages) >= STAGES_MAX:
            raise Unavailable(f"this connection has {STAGES_MAX} unfinished stages; finish or abandon some")
        stage = await finished_or_undone(
            lambda: self._store.stage(frame.fields.get("producer")),  # type: ignore[arg-type]
            lambda made: made.abandon(),
        )
        self._stages[stage.identity] = (stage, threading.Lock())
        return {"stage": stage.identity}, []

    def _get(self, frame: Frame) -> tuple[OpenStage, threading.Lock]:
        identity = frame.fields.get("stage")
        found = self._stages.get(identity) if isinstance(identity, str) else None
        if found is None:
            raise StageNotFound(str(identity))
        return found

    def add(self, frame: Frame) -> Answer:
        """Add batches to a stage."""
        stage, lock = self._get(frame)
        # A stage is for one thread, and its calls may come at once.
        with lock:
            known = self._digest(frame)
            for topic, partition, batch in adopt_parts(frame, self._topics):
                stage.add_batch(topic, partition, batch, known)
                known = None if known is None else 0  # it is that of all of them
        return {}, []

    @staticmethod
    def _digest(frame: Frame) -> int | None:
        """The digest of the batches, where the client has made it: it tells a repetition of its own from something else."""
        given = frame.fields.get("digest")
        return None if given is None else check_whole_number("digest", given, 0, (1 << 64) - 1)

    def finish(self, frame: Frame) -> Answer:
        """Make a stage durable; it can be committed then, by any client."""
        stage, lock = self._get(frame)
        with lock:
            identity = stage.finish()
        self._stages.pop(identity, None)
        return {"stage": identity}, []

    def abandon(self, frame: Frame) -> Answer:
        """Remove an unfinished stage."""
        stage, lock = self._get(frame)
        with lock:
            stage.abandon()
        self._stages.pop(stage.identity, None)
        return {}, []

    def commit(self, frame: Frame) -> Answer:
        """Publish finished stages, all or nothing."""
        fields = frame.fields
        result = self._store.commit(
            fields.get("producer"), fields.get("number"), texts(frame, "stages"),  # type: ignore[arg-type]
            keep_committed=fields.get("keep_committed") is True, note=fields.get("note"),
        )  # fmt: skip
        return {"messages": result.messages, "duplicate": result.duplicate, "newest": result.newest, **_note(result)}, []

    def committed(self, frame: Frame) -> Answer:
        """What became of a numbered commit."""
        result = self._store.committed(frame.fields.get("producer"), frame.fields.get("number"))  # type: ignore[arg-type]
        if result is None:
            return {"messages": None}, []
        return {"messages": result.messages, "newest": result.newest, **_note(result)}, []

    def abort(self, frame: Frame) -> Answer:
        """Remove finished stages that were not committed."""
        return {"count": self._store.abort(texts(frame, "stages"))}, []

    def disconnect(self) -> Callable[[], None]:
        """Forget all. Returns what is left to do, which waits for the disk."""
        stages, self._stages = list(self._stages.values()), {}

        def release() -> None:
            for stage, lock in stages:
                with lock:
                    stage.abandon()

        return release


def _note(result: Committed) -> dict[str, str]:
    return {} if result.note is None else {"note": result.note}
