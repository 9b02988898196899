"""Calls about groups and their dead letters. They keep nothing of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.wire import documents

if TYPE_CHECKING:
    from penstock.broker.replies import Answer
    from penstock.store.store import Store
    from penstock.wire.frame import Frame


class Groups:
    """The groups of a store for its remote clients. All calls wait for the disk."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(self, frame: Frame) -> Answer:
        """The groups of a topic, or all."""
        return {"groups": [documents.encode_group(one) for one in self._store.groups(frame.fields.get("topic"))]}, []

    def delete(self, frame: Frame) -> Answer:
        """Remove a group."""
        self._store.delete_group(frame.fields.get("topic"), frame.fields.get("group"))  # type: ignore[arg-type]
        return {}, []

    def members(self, frame: Frame) -> Answer:
        """The members of a group."""
        found = self._store.members(frame.fields.get("topic"), frame.fields.get("group"))  # type: ignore[arg-type]
        return {"members": [documents.encode_member(one) for one in found]}, []

    def evict_member(self, frame: Frame) -> Answer:
        """Take a member out of its group."""
        fields = frame.fields
        held = self._store.evict_member(fields.get("topic"), fields.get("group"), fields.get("member"))  # type: ignore[arg-type]
        return {"messages": held}, []

    def seek(self, frame: Frame) -> Answer:
        """Move a group."""
        fields = frame.fields
        to = fields.get("to")
        if isinstance(to, dict) and "time_us" not in to:
            to = {int(partition): documents.decode_place("to", where) for partition, where in to.items()}
        else:
            to = documents.decode_place("to", to)
        self._store.seek(fields.get("topic"), fields.get("group"), to, partition=fields.get("partition"))  # type: ignore[arg-type]
        return {}, []

    def dead_letters(self, frame: Frame) -> Answer:
        """The offsets of those that are there; the messages are read like any others."""
        box = self._store.dead_letters(frame.fields.get("topic"))  # type: ignore[arg-type]
        if frame.fields.get("count"):
            return {"count": len(box)}, []
        return {"places": [[one.partition, one.offset] for one in box.list(frame.fields.get("max_messages"))]}, []

    def replay_dead_letters(self, frame: Frame) -> Answer:
        """Publish dead letters again."""
        box = self._store.dead_letters(frame.fields.get("topic"))  # type: ignore[arg-type]
        return {"count": box.replay(offsets=frame.fields.get("offsets"))}, []

    def discard_dead_letters(self, frame: Frame) -> Answer:
        """Remove dead letters."""
        box = self._store.dead_letters(frame.fields.get("topic"))  # type: ignore[arg-type]
        return {"count": box.discard(offsets=frame.fields.get("offsets"))}, []
