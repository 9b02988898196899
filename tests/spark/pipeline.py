"""
A driver that copies topic `in` to topic `out`, for tests that kill it: `python -m tests.spark.pipeline STORE CHECKPOINT run|finish`.

`run` goes on for ever, and starts its query again when that fails; `finish` ends when everything is copied.
"""

from __future__ import annotations

import sys
import tempfile

from pyspark.errors import StreamingQueryException

from penstock.spark.session import get_session
from tests.spark.conftest import SETTINGS


def main(store: str, checkpoint: str, how: str) -> None:
    """See above. Says `started` when its query runs."""
    with tempfile.TemporaryDirectory(prefix="penstock-spark-") as folder:
        spark = get_session("pipeline", master="local[2,4]", settings={**SETTINGS, "spark.local.dir": folder})
        options = {"store": store, "retryTimeoutMs": "60000"}
        for attempt in range(100):
            frame = (
                spark.readStream.format("penstock").options(**options).option("subscribe", "in")
                .option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "2000").load().select("key", "value")
            )  # fmt: skip
            writer = frame.writeStream.format("penstock").options(**options).option("topic", "out")
            writer = writer.option("checkpointLocation", checkpoint)
            trigger = writer.trigger(availableNow=True) if how == "finish" else writer.trigger(processingTime="0 seconds")
            try:
                query = trigger.start()
                print("started", attempt, flush=True)
                query.awaitTermination()
                return
            except StreamingQueryException as error:
                print("failed", str(error).splitlines()[0], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
