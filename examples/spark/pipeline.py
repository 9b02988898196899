"""
Topics are Spark tables: the second part of `make demo`. Needs the extra `spark`; brings its own Java where there is none.

A day's orders are published to a topic. The pipeline that pipeline.toml declares picks the dear ones and writes them to another topic,
exactly once: it is run twice, and the second run finds nothing to do. The result is read back as a table, and drawn: as text here, and as
a picture in a file.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
import shutil
import tempfile
import time

import penstock
from penstock.spark.pipelines.charts import Panel, spark_line, svg_chart, text_bars
from penstock.spark.pipelines.declared.run import DeclaredPipeline
from penstock.spark.pipelines.tables import text_table
from penstock.spark.session import get_session

HERE = os.path.dirname(os.path.abspath(__file__))
PICTURE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "build", "demo", "orders.svg")
ORDERS, USERS = 20_000, ("ada", "bob", "cy", "dee", "eve")
DAY = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)
SETTINGS = {"spark.ui.enabled": "false", "spark.log.level": "OFF", "spark.sql.shuffle.partitions": "2"}


def moment(number: int) -> dt.datetime:
    """When an order was made: more of them around noon."""
    share = number / ORDERS
    return DAY + dt.timedelta(days=share + math.sin(share * 2 * math.pi) / (2 * math.pi) * 0.8)


def publish(path: str) -> None:
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        for at in range(0, ORDERS, 1_000):
            numbers = range(at, at + 1_000)
            store.publish_many(
                "orders",
                [json.dumps({"item": f"item-{n % 7}", "price": n % 100}).encode() for n in numbers],
                keys=[USERS[n * 7 % 11 % len(USERS)].encode() for n in numbers],
                timestamps=[moment(n) for n in numbers],
            )


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="penstock-spark-demo-") as folder:
        path = os.path.join(folder, "data")
        publish(path)
        file = shutil.copy(os.path.join(HERE, "pipeline.toml"), folder)  # paths in it are seen from where it is
        pipeline = DeclaredPipeline(file)
        print(f"{ORDERS:,} orders of a day are in a topic. Starting Spark (some seconds) ...", flush=True)
        spark = get_session("demo", master="local[2]", settings={**SETTINGS, "spark.local.dir": folder})
        began = time.perf_counter()
        runs = [pipeline.run(spark)["out"].rows for _ in range(2)]
        print(
            f"The pipeline of examples/spark/pipeline.toml has read {runs[0]:,} messages, and {runs[1]:,} when it was run again.\n"
        )
        spark.read.format("penstock").options(store=path, subscribe="dear-orders").load().selectExpr(
            "cast(key as string) as user", "cast(get_json_object(cast(value as string), '$.price') as int) as price",
            "timestamp", "partition", "offset",
        ).createOrReplaceTempView("dear")  # fmt: skip
        table = spark.sql(
            "select user, count(*) as orders, sum(price) as spent, count(distinct partition, offset) as places "
            "from dear group by user order by user"
        ).collect()
        hours = spark.sql("select hour(timestamp) as hour, user, sum(price) as spent from dear group by all").collect()
        spark.stop()
        took = time.perf_counter() - began
    assert sum(row.orders for row in table) == sum(row.places for row in table) == ORDERS // 2, table
    assert runs == [ORDERS, 0], runs
    print(text_table(["user", "dear orders", "spent"], [(row.user, row.orders, row.spent) for row in table]))
    print(f"\n{text_bars([(row.user, row.spent) for row in table])}\n")
    spent = {user: [0.0] * 24 for user in USERS}
    for row in hours:
        spent[row.user][row.hour] += row.spent
    print(f"spent by the hour  {spark_line([sum(values) for values in zip(*spent.values(), strict=True)])}\n")
    moments = [DAY + dt.timedelta(hours=hour) for hour in range(24)]
    os.makedirs(os.path.dirname(PICTURE), exist_ok=True)
    with open(PICTURE, "w", encoding="utf-8") as picture:
        picture.write(svg_chart("Dear orders of a day", moments, [Panel("Spent", "by the hour", spent, "bar")]))
    print(f"Each order of 50 or more went from topic to topic once, in {took:.1f} s.")
    print(f"The picture: {PICTURE}")


if __name__ == "__main__":
    main()
