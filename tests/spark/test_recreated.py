"""
Topics that were made again, and logs that lost their end, under streams on real Spark: told as a loss, never skipped over.

What the reader does in each case is in `test_reading.py`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.cli.serving import serving
from tests.spark.conftest import open_store
from tests.spark.test_streams import copy, run, source, start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from pyspark.sql import SparkSession


def publish(store: Any, numbers: range) -> None:
    """To both partitions."""
    store.publish_many("in", [b"%d" % number for number in numbers], keys=[b"k%d" % (number % 10) for number in numbers])


def arrived(store: Any) -> list[int]:
    return sorted(int(message.value or b"-1") for message in store.read("out"))


@contextlib.contextmanager
def places(kind: str, path: str) -> Iterator[tuple[str, Callable[[], AbstractContextManager[Any]]]]:
    """A store for Spark, and how the test opens it."""
    if kind == "folder":
        yield path, lambda: open_store(path)
        return
    with serving("--data", path, "--native", "127.0.0.1:0", "--no-http") as server:
        url = server.address("native")
        yield url, lambda: penstock.open(url)


@pytest.mark.parametrize("kind", ["folder", "server"])
def test_a_topic_that_was_deleted_and_made_again_is_a_loss(spark: SparkSession, path: str, tmp_path: Path, kind: str) -> None:
    """In the same store, now with more messages than the stream had read: under a query that runs, and under one that starts again."""
    checkpoint = str(tmp_path / "checkpoint")
    with places(kind, path) as (place, opened):
        with opened() as store:
            store.create_topic("in", partitions=2)
            publish(store, range(50))
        query = start(source(spark, place).select("key", "value"), place, checkpoint)
        with opened() as store:
            before = store.ends("in")
            store.delete_topic("in")
            store.create_topic("in", partitions=2)
            publish(store, range(1_000, 1_120))
            assert all(end > before[number] for number, end in store.ends("in").items())
        with pytest.raises(Exception, match=r"(?s)DataLost: in: the topic (is gone|was deleted and made again)"):
            query.processAllAvailable()
        with pytest.raises(Exception, match=r"(?s)DataLost: in: the topic was deleted and made again"):
            copy(spark, place, checkpoint)
        with opened() as store:
            assert arrived(store) == list(range(50))
        copy(spark, place, checkpoint, failOnDataLoss="false")
        with opened() as store:
            assert arrived(store) == [*range(50), *range(1_000, 1_120)]
            publish(store, range(1_120, 1_130))
        copy(spark, place, checkpoint)  # the loss is behind it
        with opened() as store:
            assert arrived(store) == [*range(50), *range(1_000, 1_130)]


def test_a_lost_tail_is_a_loss(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """A store died and lost messages that were read, and others have their offsets: told by the log epoch."""
    checkpoint, sink = str(tmp_path / "checkpoint"), str(tmp_path / "sink")
    with open_store(path) as store:
        store.create_topic("in", partitions=2, sync="os")
        publish(store, range(50))
        store.flush()
        store._volume.checkpoint()
        shutil.copytree(path, path + ".before")
        publish(store, range(50, 100))
    with open_store(sink) as store:
        store.create_topic("out")
    run(source(spark, path).select("key", "value"), sink, checkpoint)
    with open_store(sink) as store:
        assert arrived(store) == list(range(100))
    shutil.rmtree(path)
    os.rename(path + ".before", path)
    with open_store(path) as store:  # it was not closed in order
        publish(store, range(1_000, 1_120))
    with pytest.raises(Exception, match=r"(?s)DataLost: in/\d: messages before offset \d+ were lost when the store died"):
        run(source(spark, path).select("key", "value"), sink, checkpoint)
    run(source(spark, path, failOnDataLoss="false").select("key", "value"), sink, checkpoint)
    with open_store(sink) as store:
        assert arrived(store) == [*range(100), *range(1_000, 1_120)]
