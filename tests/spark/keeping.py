"""
A driver that archives topic `in` and keeps its latest values, for ever, for tests that kill it.

`python -m tests.spark.keeping STORE FOLDER`. It prints a line for each batch: which pipeline, and how many messages.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from typing import TYPE_CHECKING

from penstock.errors import PenstockError
from penstock.spark.pipelines.archive import Archive
from penstock.spark.pipelines.latest import Latest
from penstock.spark.session import get_session
from tests.spark.broken import end_if_broken
from tests.spark.conftest import SETTINGS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.progress import Progress


def keep(spark: SparkSession, store: str, folder: str, what: str) -> None:
    """Run one of the pipelines, again and again: what it reads may be archived and removed from the log at the same time."""
    seen = 0

    def report(progress: Progress) -> None:
        nonlocal seen
        if progress.batches != seen:
            seen = progress.batches
            print(what, progress.rows, flush=True)

    files = os.path.join(folder, "archive")
    while True:
        try:
            pipeline: Archive | Latest
            if what == "archive":
                pipeline = Archive(store, "in", files, batch_rows=200)
            else:
                pipeline = Latest(store, "in", os.path.join(folder, "table"), archive=files, buckets=4, batch_rows=200)
            pipeline.run(spark, report, every_s=0.01)
        except PenstockError as error:
            print("failed", what, type(error).__name__, error, flush=True)
            end_if_broken(error)


def main(store: str, folder: str) -> None:
    """See above."""
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as local:
        spark = get_session("keeping", master="local[2,4]", settings={**SETTINGS, "spark.local.dir": local})
        both = [threading.Thread(target=keep, args=(spark, store, folder, what)) for what in ("archive", "latest")]
        for thread in both:
            thread.start()
        for thread in both:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
