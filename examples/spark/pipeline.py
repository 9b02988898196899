"""
Topics are Spark tables: the second part of `make demo`. Needs the extra `spark`; brings its own Java where there is none.

Orders are published to a topic; a stream picks the dear ones and writes them to another topic, exactly once: it is run twice, and the
second run finds nothing to do. The result is read back as a table.
"""

from __future__ import annotations

import os
import tempfile
import time

import penstock
from penstock.spark.session import get_session

ORDERS, USERS = 20_000, 5
SETTINGS = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}


def publish(path: str) -> None:
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        for at in range(0, ORDERS, 1_000):
            numbers = range(at, at + 1_000)
            store.publish_many(
                "orders", [b"%d" % (number % 100) for number in numbers], keys=[b"user-%d" % (n % USERS) for n in numbers]
            )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-spark-demo-") as folder:
        path = os.path.join(folder, "data")
        publish(path)
        print(f"{ORDERS:,} orders are in a topic. Starting Spark (some seconds) ...", flush=True)
        spark = get_session("demo", master="local[2]", settings={**SETTINGS, "spark.local.dir": folder})
        began = time.perf_counter()
        orders = spark.readStream.format("penstock").options(store=path, subscribe="orders", startingOffsets="earliest").load()
        dear = orders.where("cast(cast(value as string) as int) >= 50").select("key", "value")
        for _ in range(2):
            query = (
                dear.writeStream.format("penstock").options(store=path, topic="dear-orders")
                .option("checkpointLocation", os.path.join(folder, "checkpoint")).trigger(availableNow=True).start()
            )  # fmt: skip
            query.awaitTermination()
        spark.read.format("penstock").options(store=path, subscribe="dear-orders").load().createOrReplaceTempView("dear")
        table = spark.sql(
            "select cast(key as string) as user, count(*) as orders, sum(cast(cast(value as string) as int)) as spent,"
            " count(distinct partition, offset) as places from dear group by key order by user"
        )
        table.show()
        found = [tuple(row) for row in table.collect()]
        assert sum(row[1] for row in found) == sum(row[3] for row in found) == ORDERS // 2, found
        print(f"Each order of 50 or more went from topic to topic once, in {time.perf_counter() - began:.1f} s.")
        spark.stop()


if __name__ == "__main__":
    main()
