"""
A driver with a declared pipeline and the counting of traffic, both for ever, for tests that kill it.

`python -m tests.spark.endless STORE FOLDER`. FOLDER has the pipeline's file; the traffic of topic `in` goes to a table and to a topic.
Its file `published` was modified at a time up to which all that was published can be read.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from typing import TYPE_CHECKING

from penstock.clock import SystemClock
from penstock.errors import PenstockError
from penstock.spark.pipelines.declared.run import DeclaredPipeline
from penstock.spark.pipelines.traffic import Traffic
from penstock.spark.session import get_session
from tests.spark.broken import end_if_broken
from tests.spark.conftest import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable


def again_and_again(work: Callable[[], object]) -> None:
    while True:
        try:
            work()
        except PenstockError as error:
            print("failed", type(error).__name__, error, flush=True)
            end_if_broken(error)
        time.sleep(0.1)


class PublishersClock(SystemClock):
    """
    As late as the publisher is, who may be stopped for a while when a message has its time and nobody can read it yet.

    The counting of traffic bears that for some seconds only.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def now_us(self) -> int:
        return os.stat(self._path).st_mtime_ns // 1000


def main(store: str, folder: str) -> None:
    """See above."""
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as local:
        spark = get_session("endless", master="local[2,4]", settings={**SETTINGS, "spark.local.dir": local})
        declared = DeclaredPipeline(os.path.join(folder, "pipeline.toml"))
        clock = PublishersClock(os.path.join(folder, "published"))
        traffic = Traffic(store, ["in"], window_s=1, table=os.path.join(folder, "table"), topic="traffic", clock=clock)
        works = (lambda: declared.run(spark), lambda: traffic.run(spark))
        threads = [threading.Thread(target=again_and_again, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
