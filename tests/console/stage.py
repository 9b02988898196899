"""A server with something to look at: topics, groups that are behind, and dead letters that mean no good."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import penstock
from tests.cli.serving import Serving, serving
from tests.server.running import until, write_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVIL = "<img src=x onerror=\"window.pwned='{}'\"><script>window.pwned='{}'</script>"
TOKENS = {
    "admin": {"admin": ["*"]},
    "reader": {"read": ["*"]},
    "publisher": {"publish": ["orders"]},
}


def evil(where: str) -> str:
    """What would run if it were taken for HTML."""
    return EVIL.replace("{}", where)


@contextmanager
def staged(folder: Path) -> Iterator[tuple[Serving, penstock.Store]]:
    """A server that asks for tokens, and a client of it that may do everything."""
    tokens = write_tokens(folder / "tokens.toml", TOKENS)
    arguments = (
        "--data",
        str(folder / "data"),
        "--native",
        "127.0.0.1:0",
        "--no-grpc",
        "--http",
        "127.0.0.1:0",
        "--tokens",
        tokens,
    )
    with serving(*arguments) as server, penstock.open(f"{server.address('native')}?token=admin-token") as store:
        fill(store)
        yield server, store


def fill(store: penstock.Store) -> None:
    """Messages, a group that is behind, and three dead letters."""
    store.create_topic("payments")
    store.publish_many("payments", [b'{"amount": %d}' % number for number in range(120)])
    fail(store, "orders")
    store.publish_many("orders", [f"order {number}".encode() for number in range(5)], partition=1)


def fail(store: penstock.Store, topic: str) -> None:
    """Make *topic*, with three dead letters, and a group that has finished all the rest."""
    store.create_topic(topic, partitions=2)
    letters = [
        (evil("value"), evil("key"), {evil("name"): evil("header").encode()}, evil("reason")),
        ('{"order":12345678901234567890,"items":[1,{}],"note":"late"}', "user-2", {}, "ConnectionError: no route"),
        ("plain text", "user-3\N{RIGHT-TO-LEFT OVERRIDE}nimda", {"source": b"\x00\xff\x10"}, "ConnectionError: timed out"),
    ]
    for value, key, headers, _ in letters:
        store.publish(topic, value.encode(), key=key.encode(), headers=headers, partition=0)
    with store.subscribe(topic, "billing") as consumer:
        for *_, reason in letters:
            message = consumer.get(30)
            assert message is not None
            message.reject(reason)
    until(lambda: len(store.dead_letters(topic)) == len(letters))
