"""
A driver of a cluster, for `test_cluster.py`: `python -m tests.spark.cluster MASTER CHECKPOINT OPTIONS`, the options of a store as JSON.

It writes numbers to topic `in`, streams them to topic `out`, reads that, and prints what it found as JSON.
"""

from __future__ import annotations

import json
import os
import sys

from penstock.spark.session import get_session
from tests.spark.conftest import SETTINGS


def main(master: str, checkpoint: str, given: str) -> None:
    """See above."""
    options = json.loads(given)
    spark = get_session(
        "cluster",
        master=master,
        settings={
            **SETTINGS,
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executor.extraJavaOptions": SETTINGS["spark.driver.extraJavaOptions"],
            # Not before both executors are there: those that Spark waits for are as many cores as it may have.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
        },
    )
    numbers = spark.range(0, 1_000, numPartitions=4).selectExpr("cast(id as string) as value", "cast(id % 7 as string) as key")
    numbers.write.format("penstock").options(**options).option("topic", "in").mode("append").save()
    stream = (
        spark.readStream.format("penstock").options(**options).option("subscribe", "in").option("startingOffsets", "earliest")
    )
    sink = stream.load().select("key", "value").writeStream.format("penstock").options(**options).option("topic", "out")
    sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    found = spark.read.format("penstock").options(**options).option("subscribe", "out").load()
    rows = found.rdd.map(lambda row: (int(row.value), os.getcwd())).collect()
    print(json.dumps({"values": sorted(row[0] for row in rows), "folders": sorted({row[1] for row in rows})}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
