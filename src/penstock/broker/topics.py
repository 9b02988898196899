"""Calls about topics and the whole store. They keep nothing of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.broker.fields import table
from penstock.topics.catalog import OWN_SUFFIXES, check_publishable
from penstock.wire import documents

if TYPE_CHECKING:
    from penstock.broker.replies import Answer
    from penstock.broker.rights import Principal
    from penstock.store.store import Store
    from penstock.topics.catalog import Catalog
    from penstock.topics.topic import Topic
    from penstock.wire.frame import Frame


class Topics:
    """The topics of a store as one client sees them. The calls wait for the disk; the other methods run in any thread."""

    def __init__(self, store: Store, principal: Principal, *, auto_create: bool | None) -> None:
        self._store = store
        self._catalog = store._catalog  # noqa: SLF001
        self._principal = principal
        self.auto_create = self._catalog.auto_create if auto_create is None else auto_create

    # -- finding ----------------------------------------------------------------------------------------------------

    def named(self, frame: Frame) -> Topic:
        """The topic that a call names. Raises `TopicNotFound`."""
        return self._catalog.get(frame.fields.get("topic"))  # type: ignore[arg-type]

    def publishable(self, frame: Frame) -> Topic:
        """The same, if clients may publish to it."""
        topic = self.named(frame)
        if topic.name.endswith(OWN_SUFFIXES):
            check_publishable(topic.name)  # raises: they are Penstock's own
        return topic

    def to_publish(self, name: Any) -> Topic:
        """The topic, made if the client may have topics made by publishing: only who may make them may."""
        found = self._catalog.to_publish_now(name)
        if found is not None:
            return found
        may_create = self.auto_create and isinstance(name, str) and self._principal.may("admin", name)
        return self._catalog.to_publish(name, auto_create=may_create)

    def may_make(self, name: Any, wanted: Any) -> bool:
        """
        Whether a topic that is not there is made for the client that subscribes to it: only who may make topics may have that.

        *wanted* is what the client says: True, False, or None for what publishing would do. Raises `PermissionDenied`.
        """
        return may_make(self._catalog, self._principal, name, wanted, auto_create=self.auto_create)

    # -- calls ------------------------------------------------------------------------------------------------------

    def list(self, _: Frame) -> Answer:
        """Those that the client has any right on."""
        seen = [one for one in self._store.topics() if self._principal.may_see(one.name)]
        return {"topics": [documents.encode_topic(one) for one in seen]}, []

    def describe(self, frame: Frame) -> Answer:
        """One topic."""
        return documents.encode_topic(self._store.topic(frame.fields.get("topic"))), []  # type: ignore[arg-type]

    def describe_to_publish(self, frame: Frame) -> Answer:
        """One topic that is to be published to."""
        topic = self.to_publish(frame.fields.get("topic"))
        return documents.encode_topic(self._store.topic(topic.name)), []

    def create(self, frame: Frame) -> Answer:
        """Make a topic, or change its settings."""
        name, settings = frame.fields.get("topic"), table(frame, "settings")
        return documents.encode_topic(self._store.create_topic(name, **settings)), []  # type: ignore[arg-type]

    def delete(self, frame: Frame) -> Answer:
        """Remove a topic."""
        self._store.delete_topic(frame.fields.get("topic"))  # type: ignore[arg-type]
        return {}, []

    def stats(self, _: Frame) -> Answer:
        """Figures of the whole store."""
        return documents.encode_stats(self._store.stats()), []

    def metrics(self, _: Frame) -> Answer:
        """The same with ages and, while it is measured, latencies."""
        return documents.encode_metrics(self._store.metrics()), []

    def retain(self, frame: Frame) -> Answer:
        """Free what need not be kept."""
        segments, freed = self._store.retain(frame.fields.get("topic"))
        return {"segments": segments, "bytes": freed}, []

    def vacuum(self, frame: Frame) -> Answer:
        """Take out what is finished."""
        return self._store.vacuum(frame.fields.get("topic"))._asdict(), []

    def compact(self, frame: Frame) -> Answer:
        """Keep the last message of each key."""
        return self._store.compact(frame.fields.get("topic"))._asdict(), []

    def flush(self, _: Frame) -> Answer:
        """Return when all that was done before is durable."""
        self._store.flush()
        return {}, []


def may_make(catalog: Catalog, principal: Principal, name: Any, wanted: Any, *, auto_create: bool) -> bool:
    """See `Topics.may_make`."""
    if not isinstance(name, str) or wanted is False:
        return False
    source = name
    for suffix in OWN_SUFFIXES:
        source = source.removesuffix(suffix)
    if source != name and catalog.to_publish_now(source) is not None:
        return True  # it goes with a topic that is there
    if wanted is None:
        return auto_create and principal.may("admin", source)
    if not catalog.named([name]):
        principal.require("admin", source)
    return True
