"""A plan on Spark: views of its sources, its steps, and one streaming query for each sink."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.errors import BadPipeline
from penstock.spark import connections, planning
from penstock.spark.pipelines.declared.plan import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.pipelines.declared.plan import Plan, Sink, Source, Step


def look(plan: Plan) -> None:
    """
    Whether the stores and topics that the plan reads are there. Needs no Spark.

    Raises `StoreNotFound`, `TopicNotFound`, `Unavailable`, `Unauthenticated`.
    """
    for place, options in places(plan):
        store = connections.reader(place)
        planning.require_all(options.selection, planning.positions_of(store, options.selection))


def start(plan: Plan, spark: SparkSession) -> list[StreamingQuery]:
    """
    Start a query for each sink, and return them. Nothing is started unless all steps and sinks are right.

    The views of the plan are in a session of its own, so that two plans in one Spark do not meet. Raises `BadPipeline` where Spark does
    not understand a step, or a function returns something else than a stream of rows.
    """
    from pyspark.errors import PySparkException

    own = spark.newSession()
    frames: dict[str, DataFrame] = {}
    for source in plan.sources:
        frames[source.name] = _named(plan, f"[sources.{source.name}]", None, functools.partial(_read, own, source))
    for step in plan.steps:
        if step.module_path is not None:
            spark.sparkContext.addPyFile(step.module_path)
        where = f"[steps.{step.name}] {'sql' if step.sql is not None else 'function'}"
        frames[step.name] = _named(plan, where, step.line, functools.partial(_apply, plan, own, step, frames))
    for sink in plan.sinks:
        frame = frames[sink.input]
        if not frame.isStreaming:
            raise BadPipeline(plan.path, f"[sinks.{sink.name}] from: {sink.input!r} is no stream, but a plain DataFrame")
        missing = [name for name in sink.partition_by if name not in frame.columns]
        if missing:
            raise BadPipeline(
                plan.path,
                f"[sinks.{sink.name}] partition_by: there is no column {missing[0]}; there are {', '.join(frame.columns)}",
            )
    started: list[StreamingQuery] = []
    try:
        for sink in plan.sinks:
            started.append(_start(plan, sink, frames[sink.input]))
    except PySparkException as error:
        for query in started:
            query.stop()
        raise BadPipeline(plan.path, f"[sinks.{sink.name}]: {_first_line(error)}") from None
    return started


def _named(plan: Plan, where: str, line: int | None, work: Callable[[], DataFrame]) -> DataFrame:
    """What *work* gives. Raises `BadPipeline` with what Spark has to say about that place of the file."""
    from pyspark.errors import PySparkException

    try:
        return work()
    except PySparkException as error:
        at = "" if line is None else f"line {line}: "
        raise BadPipeline(plan.path, f"{at}{where}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _read(spark: SparkSession, source: Source) -> DataFrame:
    if source.kind == "topic":
        frame = spark.readStream.format("penstock").options(**source.options).load()
    elif source.stream:
        # A stream of files must be told its columns; those that are there tell them.
        schema = spark.read.parquet(source.path).schema
        frame = spark.readStream.schema(schema).options(**source.options).parquet(source.path)
    else:
        frame = spark.read.parquet(source.path)
    if source.watermark is not None:
        frame = frame.withWatermark(source.watermark.column, source.watermark.delay)
    return frame


def _apply(plan: Plan, spark: SparkSession, step: Step, frames: dict[str, DataFrame]) -> DataFrame:
    from pyspark.sql import DataFrame

    if step.sql is None:
        assert step.function is not None
        made = step.function(*[frames[name] for name in step.inputs])
        if not isinstance(made, DataFrame):
            raise BadPipeline(plan.path, f"[steps.{step.name}] function: it returned {type(made).__name__} and no DataFrame")
        return made
    for name in step.inputs:
        frames[name].createOrReplaceTempView(name)
    try:
        return spark.sql(step.sql)
    finally:
        # A step sees what it names and nothing else, so that `from` is the truth.
        for name in step.inputs:
            spark.catalog.dropTempView(name)


def _start(plan: Plan, sink: Sink, frame: DataFrame) -> StreamingQuery:
    kinds = {"topic": "penstock", "parquet": "parquet", "console": "console"}
    writer = (
        frame.writeStream.format(kinds[sink.kind]).options(**sink.options).outputMode(sink.mode)
        .queryName(f"{plan.name}.{sink.name}").option("checkpointLocation", sink.checkpoint)
    )  # fmt: skip
    if sink.kind == "parquet":
        writer = writer.option("path", sink.path)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if plan.interval_ms is not None:
        writer = writer.trigger(processingTime=f"{plan.interval_ms} milliseconds")
    elif plan.trigger == "once":
        writer = writer.trigger(once=True)
    else:
        writer = writer.trigger(availableNow=True)
    return writer.start()
