"""Whose the names of producers are, and how many there may be; and how many groups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import Store
from penstock.errors import LimitReached, ProducerFenced, UsageError
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.server.auth import NewToken, TokenAuth, new_token
from penstock.server.running import RunningServer
from penstock.wire.calls import PROTOCOL_VERSION, Call
from tests.client.served import RawClient
from tests.client.test_bounds import write_tokens
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TENANTS = ("one", "two", "two-rotated")


class Tenants:
    """A server with a topic for each of two tenants; the second one has two tokens under one name."""

    def __init__(self, folder: Path) -> None:
        self.tokens: dict[str, NewToken] = {name: new_token() for name in TENANTS}
        write_tokens(
            folder / "tokens",
            ("one", self.tokens["one"].sha256, 'publish = ["a"]'),
            ("two", self.tokens["two"].sha256, 'publish = ["b"]'),
            ("two", self.tokens["two-rotated"].sha256, 'publish = ["b"]'),
        )
        self.store = Store.open(str(folder / "store"), settings=SETTINGS)
        self.store.create_topic("a")
        self.store.create_topic("b")
        self.server = RunningServer(self.store, auth=TokenAuth(str(folder / "tokens")))

    def open(self, name: str) -> Store:
        return penstock.open(f"{self.server.address}?token={self.tokens[name].token}")

    def raw(self, name: str) -> RawClient:
        found = RawClient(int(self.server.address.rpartition(":")[2]), hello=False)
        found.call(Call.HELLO, version=PROTOCOL_VERSION, token=self.tokens[name].token)
        return found


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    found = Tenants(tmp_path)
    yield found
    found.server.close()
    found.store.close()


def test_a_token_cannot_fence_the_producers_of_another(tenants: Tenants) -> None:
    """Under the same name each has a producer of its own; a rotated token goes on under the name of the one before."""
    with tenants.open("two") as mine, tenants.open("one") as others, tenants.open("two-rotated") as rotated:
        producer = mine.producer("b", name="loader")
        producer.send(b"first").result()
        with others.producer("a", name="loader") as foreign:
            foreign.send(b"foreign").result()
        producer.send(b"second").result()
        with rotated.producer("b", name="loader") as newer:
            newer.send(b"third").result()
        with pytest.raises(ProducerFenced, match="producer 'loader' number 0 was replaced by number 1"):
            producer.send(b"fourth").result()
    assert [message.value for message in tenants.store.read("b")] == [b"first", b"second", b"third"]


def test_a_token_cannot_write_under_the_id_of_anothers_producer(tenants: Tenants) -> None:
    """Ids can be computed from names; whose they are is looked at."""
    with tenants.raw("two") as mine, tenants.raw("one") as other:
        opened = mine.call(Call.OPEN_PRODUCER, topic="b", name="loader").fields
        batch = encode_batch([b"forged"], producer=Producer(opened["id"], opened["incarnation"], 0))
        batch.stamp(0, 0, 0, 0, 0, 0)
        for call, where in ((Call.PUBLISH, {"partition": 0}), (Call.PUBLISH_MANY, {"partitions": [0]})):
            with pytest.raises(UsageError, match="another client's"):
                other.call(call, batch.data, topic="a", **where)
    assert list(tenants.store.read("a")) == []


def test_the_process_of_the_store_and_a_server_without_tokens_share_their_names(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "store"), settings=SETTINGS) as store, RunningServer(store) as server:
        old = store.producer("t", name="loader")
        old.send(b"first").result()
        with penstock.open(server.address) as client, client.producer("t", name="loader") as new:
            new.send(b"second").result()
        with pytest.raises(ProducerFenced, match="'loader'"):
            old.send(b"third").result()


def test_names_and_their_owners_survive_a_restart(tmp_path: Path) -> None:
    """From the journal and from a checkpoint."""
    path = str(tmp_path / "store")
    for expected in range(3):
        with Store.open(path, settings=SETTINGS) as store:
            store.create_topic("t")
            logs = store._catalog.get("t").logs
            identity, incarnation = store._producers.open("loader", logs, "tenant")
            assert incarnation == expected
            assert store._producers.name_of(identity) == "'loader'"
            with pytest.raises(UsageError, match="another client's"):
                store._producers.check_opened(Producer(identity, incarnation, 0), "other")
            store._producers.check_opened(Producer(identity, incarnation, 0), "tenant")


def test_one_owner_has_so_many_names_and_no_more(tmp_path: Path) -> None:
    """Those that are there can be opened again, and others have their own."""
    with Store.open(str(tmp_path / "store"), settings=replace(SETTINGS, producers_max=3)) as store:
        store.create_topic("t")
        logs = store._catalog.get("t").logs
        for number in range(3):
            store._producers.open(f"p{number}", logs, "tenant")
        with pytest.raises(
            LimitReached, match="there are 3 named producers of 'tenant' already, as many as producers_max allows"
        ):
            store._producers.open("p3", logs, "tenant")
        store._producers.open("p0", logs, "tenant")
        store._producers.open("p3", logs, "other")
        with store.producer("t", name="mine") as producer:
            producer.send(b"x").result()


def test_a_topic_has_so_many_groups_and_no_more(tmp_path: Path) -> None:
    """From every side: it is the store that counts. Those that are there go on."""
    with (
        Store.open(str(tmp_path / "store"), settings=replace(SETTINGS, topic_groups_max=2)) as store,
        RunningServer(store) as server,
    ):
        store.create_topic("t")
        store.create_topic("other")
        with penstock.open(server.address) as client:
            for group in ("first", "second", "first"):
                client.subscribe("t", group).close()
            for opened in (client, store):
                with pytest.raises(
                    LimitReached, match="there are 2 groups of topic 't' already, as many as topic_groups_max allows"
                ):
                    opened.subscribe("t", "third")
            client.subscribe("other", "third").close()
            client.delete_group("t", "second")
            client.subscribe("t", "third").close()
        assert [group.name for group in store.groups("t")] == ["first", "third"]
