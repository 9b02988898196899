"""Which right each call of the native protocol needs; a test fails when a call has no row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from penstock.arguments import shown
from penstock.broker.fields import named_parts
from penstock.errors import BadArgument, PermissionDenied
from penstock.groups.dead_letters import SUFFIX
from penstock.wire.calls import Call

if TYPE_CHECKING:
    from penstock.wire.frame import Frame


class Principal(Protocol):
    """Somebody who asks; `server/auth.py` has those that there are."""

    @property
    def name(self) -> str:
        """Who it is, for logs and errors."""
        ...

    @property
    def scope(self) -> str:
        """Whose the names of its producers are: its own, or nobody's where there are no tokens."""
        ...

    def check_valid(self) -> None:
        """Raise `Unauthenticated` if its token was revoked or has expired."""
        ...

    def require(self, right: str, topic: str | None) -> None:
        """Return if it has *right* on *topic*, or with None on the whole store. Raises `Unauthenticated`, `PermissionDenied`."""
        ...

    def may(self, right: str, topic: str | None) -> bool:
        """Whether `require` would return. Raises `Unauthenticated`."""
        ...

    def may_see(self, topic: str) -> bool:
        """Whether it has any right on *topic*."""
        ...


class Rule(NamedTuple):
    """
    A right, and on what: the field *topic* (or *topics*) of the call, the dead letters of that topic, or the whole store.

    The right "any" is one of them, whichever. Without a *right* any valid token will do:
    the call touches only what its connection has open, or looks at rights itself.
    """

    right: str | None = None
    on: str = "store"


_ANY = Rule()
RULES: dict[Call, Rule] = {
    Call.HELLO: _ANY,
    Call.PING: _ANY,
    Call.TOPICS: _ANY,
    Call.TOPIC: Rule("any", "topic"),
    Call.CREATE_TOPIC: Rule("admin", "topic"),
    Call.TOPIC_TO_PUBLISH: Rule("publish", "topic"),
    Call.STATS: Rule("read"),
    Call.METRICS: Rule("read"),
    Call.RETAIN: Rule("admin", "topic"),
    Call.FLUSH: _ANY,
    Call.VACUUM: Rule("admin", "topic"),
    Call.COMPACT: Rule("admin", "topic"),
    Call.DELETE_TOPIC: Rule("admin", "topic"),
    Call.PUBLISH: Rule("publish", "topic"),
    Call.PUBLISH_MANY: Rule("publish", "topic"),
    Call.PUBLISH_ONCE: Rule("publish", "topic"),
    Call.OPEN_PRODUCER: Rule("publish", "topic"),
    Call.TRANSACT: Rule("publish", "parts"),
    Call.STAGE: Rule("publish"),
    Call.STAGE_ADD: Rule("publish", "parts"),
    Call.STAGE_FINISH: _ANY,
    Call.STAGE_ABANDON: _ANY,
    # A higher number fences everybody else who uses the name, and those of transactions have no owners, unlike those of producers: whoever
    # may publish everywhere, as these calls need, can spoil nothing more by that.
    Call.COMMIT: Rule("publish"),
    Call.ABORT: Rule("publish"),
    Call.COMMITTED: Rule("publish"),
    Call.SUBSCRIBE: Rule("consume", "topic"),
    Call.FETCH: Rule("consume", "consumer"),
    Call.CREDIT: Rule("consume", "consumer"),
    Call.ACK: _ANY,
    Call.NACK: _ANY,
    Call.EXTEND: _ANY,
    Call.RETURN: _ANY,
    Call.COMMIT_POSITION: Rule("consume", "consumer"),
    Call.UNSUBSCRIBE: _ANY,
    Call.PAUSE: _ANY,
    Call.CANCEL: _ANY,
    Call.CONSUMER: _ANY,
    Call.HEARTBEAT: _ANY,
    Call.GROUPS: Rule("read", "topic"),
    Call.DELETE_GROUP: Rule("admin", "topic"),
    Call.SEEK: Rule("consume", "topic"),
    Call.MEMBERS: Rule("read", "topic"),
    Call.EVICT_MEMBER: Rule("admin", "topic"),
    Call.POSITIONS: Rule("read", "topics"),
    Call.READ: Rule("read", "topic"),
    Call.OFFSET_OF_TIME: Rule("read", "topic"),
    Call.DEAD_LETTERS: Rule("read", "dead letters"),
    Call.REPLAY_DEAD_LETTERS: Rule("admin", "dead letters"),
    Call.DISCARD_DEAD_LETTERS: Rule("admin", "dead letters"),
}


def require(principal: Principal, frame: Frame, topic_of_consumer: Any) -> None:
    """
    Return if *principal* may make the call. Raises `Unauthenticated` or `PermissionDenied`.

    *topic_of_consumer* gives the topic of a consumer by its handle, None if there is none: the call itself then says so.
    """
    rule = RULES.get(frame.call)  # type: ignore[call-overload]  # a Call is an int
    if rule is None or rule.right is None:
        return  # if there is no such call, it will be told
    # Each topic once, however many parts of a call are of it.
    for topic in dict.fromkeys(_topics(rule, frame.fields, topic_of_consumer)):
        if rule.right == "any":
            if topic is not None and not principal.may_see(topic):
                raise PermissionDenied(principal.name, "", topic)
        else:
            principal.require(rule.right, topic)


def _topics(rule: Rule, fields: dict[str, Any], topic_of_consumer: Any) -> list[str | None]:
    if rule.on == "store":
        return [None]
    if rule.on == "parts":
        return [name for name, _ in named_parts(fields)]
    if rule.on == "consumer":
        topic = topic_of_consumer(fields.get("consumer"))
        return [] if topic is None else [topic]
    if rule.on == "topics" and "topics" in fields:
        names = fields["topics"]
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadArgument("topics", shown(names), "must be a list of names")
        return list(names)
    named = fields.get("topic")
    if named is None:
        return [None]
    return [f"{named}{SUFFIX}" if rule.on == "dead letters" else str(named)]
