"""The mistakes of the first hour: each is told with what happened, where, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import penstock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture
def store() -> Iterator[penstock.Store]:
    with penstock.open("memory:") as opened:
        opened.publish("orders", b"two books")
        yield opened


MISTAKES: list[tuple[str, Callable[[Any], object], type[Exception], list[str]]] = [
    ("text as a value", lambda s: s.publish("orders", "text"), penstock.errors.BadArgument, ["value='text'", "text.encode()"]),
    (
        "a dict as a value",
        lambda s: s.publish("orders", {"a": 1}),
        penstock.errors.BadArgument,
        ["value={'a': 1}", "json.dumps"],
    ),
    ("a number as a key", lambda s: s.publish("orders", b"x", key=5), penstock.errors.BadArgument, ["key=5", "str(key)"]),
    (
        "text in a header",
        lambda s: s.publish("orders", b"x", headers={"source": "web"}),
        penstock.errors.BadArgument,
        ["the header 'source' must be bytes", "encode it"],
    ),
    (
        "a topic that nobody made",
        lambda s: s.seek("nothing", "billing", "earliest"),
        penstock.errors.TopicNotFound,
        ["'nothing'", "create it first"],
    ),
    (
        "a partition that is not there",
        lambda s: s.publish("orders", b"x", partition=1),
        penstock.errors.TopicNotFound,
        ["'orders' has no partition 1", "begin at 0"],
    ),
    (
        "several topics at once",
        lambda s: s.subscribe(["orders"], group="billing"),
        penstock.errors.BadName,
        ["use text (str)"],
    ),
    (
        "a message that is too large",
        lambda s: s.publish("orders", bytes(2 << 20)),
        penstock.errors.MessageTooLarge,
        ["'orders' is 2,097,152 bytes", "1,048,576"],
    ),
    (
        "a limit that is too large",
        lambda s: s.create_topic("films", max_message_bytes=1 << 30),
        penstock.errors.BadSetting,
        ["max_message_bytes=1073741824", "at most 67,108,864"],
    ),
    (
        "a setting of another name",
        lambda s: s.create_topic("films", partition=4),
        penstock.errors.BadSetting,
        ["partition=4", "did you mean partitions"],
    ),
    ("the name that SQLite has for it", lambda s: penstock.open(":memory:"), penstock.errors.BadArgument, ['"memory:"']),
    ("no path at all", lambda s: penstock.open(None), penstock.errors.BadArgument, ["path=None", "folder"]),  # type: ignore[call-overload]
]


@pytest.mark.parametrize(("mistake", "expected", "texts"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_a_mistake_is_told_with_what_to_do(
    store: penstock.Store, mistake: Callable[[penstock.Store], object], expected: type[Exception], texts: list[str]
) -> None:
    """And nothing has happened."""
    with pytest.raises(expected) as caught:
        mistake(store)
    assert [text for text in texts if text not in str(caught.value)] == []
    assert [topic.name for topic in store.topics()] == ["orders"]
    assert store.ends("orders") == {0: 1}


def test_an_ack_that_comes_too_late_says_why_that_can_be(store: penstock.Store) -> None:
    """It was acked before, or the consumer was closed too early."""
    consumer = store.subscribe("orders", group="billing")
    message = consumer.get(timeout=1)
    assert message is not None
    consumer.close()
    with pytest.raises(penstock.errors.LeaseExpired, match=r"orders/0 offset 0 .* its consumer was closed"):
        message.ack()
