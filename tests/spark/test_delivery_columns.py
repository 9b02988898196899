"""Messages with a ttl, a delay, a priority, and compressed topics, as rows: a table has every message of the log, due or not."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import pytest

from penstock.testing.fake_clock import FakeClock
from tests.cli.serving import serving
from tests.spark.conftest import open_store
from tests.spark.test_reading import ALL, FULL, batch, pinned, rows, stream

if TYPE_CHECKING:
    from penstock.spark.stream_reader import PenstockStreamReader

START = dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC)
HOUR = dt.timedelta(hours=1)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(now_us=int(START.timestamp()) * 1_000_000)


def delivery(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["value"], row["priority"], row["expires_at"], row["deliver_at"]) for row in found]


def everything(reader: PenstockStreamReader) -> list[dict[str, Any]]:
    start = pinned(reader)
    return rows(reader, reader.partitions(start, reader.latestOffset(start, ALL)))


@pytest.mark.parametrize("compression", ["none", "gzip", "zstd", "lz4"])
@pytest.mark.parametrize("together", [True, False])
def test_what_a_message_was_published_with_is_in_its_row(path: str, clock: FakeClock, compression: str, together: bool) -> None:
    """However the topic is compressed, one by one or in one batch."""
    ttls = [None, 60, None, None, 7200]
    delays = [None, None, 3600, None, START + HOUR]
    priorities = [None, None, None, "high", "medium"]
    contents = [b"%d" % number * 200 for number in range(5)]
    expected = [
        (contents[0], 0, None, None),
        (contents[1], 0, START + dt.timedelta(minutes=1), None),
        (contents[2], 0, None, START + HOUR),
        (contents[3], 2, None, None),
        (contents[4], 1, START + 2 * HOUR, START + HOUR),
    ]
    with open_store(path, clock=clock) as store:
        store.create_topic("t", priorities=True, compression=compression)
        if together:
            store.publish_many("t", contents, ttls=ttls, delays=delays, priorities=priorities)
        else:
            for content, ttl, delay, priority in zip(contents, ttls, delays, priorities, strict=True):
                store.publish("t", content, ttl=ttl, delay=delay, priority=priority)
    assert delivery(rows(batch(path, FULL))) == expected
    assert delivery(everything(stream(path, FULL))) == expected
    middle = batch(path, FULL, startingOffsets='{"t": {"0": 2}}', endingOffsets='{"t": {"0": 4}}')
    assert delivery(rows(middle)) == expected[2:4]


def test_what_has_expired_or_is_not_due_is_a_row_like_any_other(path: str, clock: FakeClock) -> None:
    """Groups do not get them; the log has them until retention takes them, and so has the table: from a folder and from a server."""
    with open_store(path, clock=clock) as store:
        store.create_topic("t", ttl=60)
        store.publish("t", b"of the topic")
        store.publish_many("t", [b"its own", b"later"], ttls=[600, 86_400], delays=[None, 7200])
        clock.advance(3600)
        with store.subscribe("t", "g", start="earliest") as consumer:
            assert consumer.get(timeout=0) is None
    expected = [
        (b"of the topic", 0, START + dt.timedelta(minutes=1), None),
        (b"its own", 0, START + dt.timedelta(minutes=10), None),
        (b"later", 0, START + 24 * HOUR, START + 2 * HOUR),
    ]
    assert delivery(rows(batch(path, FULL))) == expected
    with serving("--data", path, "--native", "127.0.0.1:0", "--no-http") as server:
        url = server.address("native")
        assert delivery(rows(batch(url, FULL))) == expected
        assert delivery(everything(stream(url, FULL))) == expected
