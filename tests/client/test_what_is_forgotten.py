"""What a client keeps for topics that it published to: not for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import penstock
from penstock.client import publishing
from penstock.server.running import RunningServer

if TYPE_CHECKING:
    import pytest


def test_a_client_that_publishes_to_ever_new_topics_keeps_few_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that answers under a topic of its own for each question."""
    monkeypatch.setattr(publishing, "LANE_PLACES_MAX", 10)
    with penstock.open("memory:") as store, RunningServer(store) as server, penstock.open(server.address) as client:
        remote: Any = client
        for number in range(35):
            for value in (b"0", b"1"):
                client.publish(f"reply-{number}", value)
            assert sum(len(lane) for lane in remote._lanes._free) <= 10
        assert [message.value for message in client.read("reply-34")] == [b"0", b"1"]
        # A lane that was replaced goes on nowhere.
        assert client.publish("reply-0", b"2").offset == 2


def test_a_client_that_measures_forgets_topics_that_are_gone() -> None:
    with penstock.open("memory:") as store, RunningServer(store) as server, penstock.open(server.address) as client:
        remote: Any = client
        client.measure()
        for number in range(5):
            client.publish(f"reply-{number}", b"x")
            client.delete_topic(f"reply-{number}")
        client.publish("kept", b"x")
        times = client.metrics().topics["kept"].publish
        assert times is not None
        assert times.count == 1
        assert list(remote._meter.publish) == ["kept"]
