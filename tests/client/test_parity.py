"""A store on a server has the names of a store in a folder; what is missing has its reason."""

from __future__ import annotations

import pytest

from penstock import Consumer, DeadLetters, Delivery, OpenStage, Store, Transaction
from penstock.client.consumer import RemoteConsumer
from penstock.client.dead_letter_box import RemoteDeadLetters
from penstock.client.delivery import RemoteDelivery
from penstock.client.staging import RemoteStage
from penstock.client.store import RemoteStore
from penstock.client.transaction import RemoteTransaction

PAIRS = [
    (Store, RemoteStore, {
        "begin_publish": "the first half of `publish`, for asyncio; it has its own",
        "forget": "for a forked child: a connection knows by itself",
        "has_threads": "the server has",
        "open": "`penstock.open`",
    }),
    (Consumer, RemoteConsumer, {"forget": "for a forked child: a connection knows by itself"}),
    (Delivery, RemoteDelivery, {}),
    (Transaction, RemoteTransaction, {
        "add_batch": "for the broker, whose clients encode",
        "finish_unleased": "for dead letters, which are the server's own",
    }),
    (OpenStage, RemoteStage, {"add_batch": "for the broker, whose clients encode"}),
    (DeadLetters, RemoteDeadLetters, {"between": "for pages over HTTP", "expire": "retention is the server's own"}),
]  # fmt: skip


@pytest.mark.parametrize(("plain", "remote", "missing"), PAIRS, ids=[plain.__name__ for plain, _, _ in PAIRS])
def test_every_public_name_is_there(plain: type, remote: type, missing: dict[str, str]) -> None:
    instance = {"topic", "group", "ordered"} if remote is RemoteConsumer else set()
    absent = {name for name in dir(plain) if not name.startswith("_") and not hasattr(remote, name)} - instance
    assert absent == set(missing)
