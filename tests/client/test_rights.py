"""What the rights of a token allow over the native protocol, and what becomes of a client that loses them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import TopicNotFound, Unauthenticated
from penstock.server.auth import TokenAuth
from penstock.server.running import RunningServer
from tests.client.served import PATIENCE_S, eventually, later
from tests.server.running import write_tokens

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.served import Served


def test_a_client_that_lost_its_token_is_given_no_more_messages(served: Served, tmp_path: Path) -> None:
    """Neither what it asked for before, nor what it gave credit for: those messages are ready for others, and nobody failed."""
    rights = {"boss": {"admin": ["*"]}, "worker": {"consume": ["orders"]}}
    auth = TokenAuth(write_tokens(tmp_path / "tokens", rights))
    served.store.create_topic("orders")
    with RunningServer(served.store, auth=auth) as server:
        client: Any = served.client(f"{server.address}?token=worker-token")
        pushed, asked = client.subscribe("orders", "pushed"), client.subscribe("orders", "asked")
        taking = [later(lambda: next(iter(pushed))), later(asked.get)]
        eventually(lambda: pushed._streams)
        client.topics()  # what was sent before it is with the server
        write_tokens(tmp_path / "tokens", {"boss": rights["boss"]})
        auth.reload()
        served.store.publish("orders", b"secret")
        for one in taking:
            with pytest.raises(Unauthenticated):
                one.result(PATIENCE_S)
    for group in ("pushed", "asked"):
        with served.store.subscribe("orders", group) as consumer:
            message = consumer.get(PATIENCE_S)
            assert message is not None
            assert message.attempt == 1


def test_publishing_makes_a_topic_only_for_clients_that_may_make_it(served: Served, tmp_path: Path) -> None:
    """As over HTTP; by a transaction and a producer too."""
    auth = TokenAuth(write_tokens(tmp_path / "tokens", {"writer": {"publish": ["new*"]}, "boss": {"admin": ["new*"]}}))
    with RunningServer(served.store, auth=auth) as server:
        writer: Any = served.client(f"{server.address}?token=writer-token")
        for publish in (
            lambda: writer.publish("new-one", b"x"),
            lambda: writer.producer("new-one"),
            lambda: transact(writer, "new-one"),
        ):
            with pytest.raises(TopicNotFound):
                publish()
        assert served.store.topics() == []
        served.client(f"{server.address}?token=boss-token").publish("new-one", b"1")
        writer.publish("new-one", b"2")
        transact(writer, "new-one")
        assert served.values("new-one") == [b"1", b"2", b"3"]


def transact(client: Any, topic: str) -> None:
    with client.transaction() as transaction:
        transaction.publish(topic, b"3")
