"""Producers: what is remembered of named ones, and the futures and callbacks of what they send."""

from __future__ import annotations

import json
import struct

import pytest

from penstock.clock import SystemClock
from penstock.errors import UnsupportedFormat
from penstock.store.store import Store
from penstock.topics.producers import Producers


@pytest.mark.parametrize("kind", [0, 3, 255])
def test_an_entry_of_a_producer_that_is_not_known_is_refused(kind: int) -> None:
    body = json.dumps({}).encode()
    with pytest.raises(UnsupportedFormat):
        Producers(SystemClock()).replay(struct.pack("<B3xI", kind, len(body)) + body)


def test_a_future_of_a_store_without_threads_commits_what_it_waits_for() -> None:
    with Store.open("memory:", background=False) as store:
        store.create_topic("t", sync="always")
        with store.producer("t") as producer:
            assert producer.send(b"x").result(5).offset == 0
