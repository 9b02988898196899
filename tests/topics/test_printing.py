"""What a message looks like when it is printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.faces import open_face

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("served", [False, True], ids=["embedded", "server"])
def test_a_message_shows_its_key_and_value(tmp_path: Path, *, served: bool) -> None:
    """Shortened; one that was read, and one that was delivered."""
    with open_face(tmp_path, served=served) as store:
        store.publish("orders", b"two apples", key="ada")
        store.publish("orders", b"x" * 5_000)
        store.publish("orders", None, key="bob")
        short, long, tombstone = store.read("orders")
        assert repr(short) == "<Message orders/0 offset 0 key=b'ada' value=b'two apples'>"
        assert repr(long) == f"<Message orders/0 offset 1 value={b'x' * 40!r}... (5,000 bytes)>"
        assert repr(tombstone) == "<Message orders/0 offset 2 key=b'bob' value=None>"
        with store.subscribe("orders", "g") as consumer:
            message = consumer.get(timeout=30)
            assert repr(message).endswith("Delivery orders/0 offset 0 key=b'ada' value=b'two apples'>")
