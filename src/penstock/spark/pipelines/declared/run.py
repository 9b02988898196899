"""A plan on Spark: views of its sources, its steps, and one streaming query for each sink."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from penstock.errors import BadPipeline
from penstock.spark import connections, planning
from penstock.spark.pipelines.declared.plan import places, read_plan
from penstock.spark.pipelines.failures import told_as_ours
from penstock.spark.pipelines.progress import LOOK_SECONDS, Progress, lag_of, quiet
from penstock.spark.pipelines.tables import text_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.spark.pipelines.declared.plan import Plan, Sink, Source, Step
    from penstock.spark.pipelines.progress import Report


_LOST = 'to go on with what is there, give the source in the file options = { failOnDataLoss = "false" }'


class DeclaredPipeline:
    """
    The pipeline that a file declares: making it checks the file and imports its functions, without Spark.

    Raises `BadPipeline` with all that is wrong, `OSError`.
    """

    def __init__(self, path: str) -> None:
        self.plan = read_plan(path)

    def look(self) -> None:
        """
        Whether the stores and topics that it reads are there. Needs no Spark.

        Raises `StoreNotFound`, `TopicNotFound`, `Unavailable`, `Unauthenticated`.
        """
        for place, options in places(self.plan):
            store = connections.reader(place)
            planning.require_all(options.selection, planning.positions_of(store, options.selection))

    def run(self, spark: SparkSession, report: Report = quiet) -> dict[str, Progress]:
        """
        Run it until it ends: with the trigger of an interval that is when *report* says so. Returns what each sink has done.

        When one sink fails the others are stopped. Raises `BadPipeline` where Spark does not understand a step, `PipelineFailed`.
        """
        self.look()
        queries = start(self.plan, spark)
        followed = {sink.name: _Followed(query) for sink, query in zip(self.plan.sinks, queries, strict=True)}
        try:
            with told_as_ours(lost=_LOST):
                while True:
                    ended = [one.wait(LOOK_SECONDS / len(followed)) for one in followed.values()]
                    if report(_together([one.progress for one in followed.values()])) or all(ended):
                        break
        finally:
            for query in queries:
                if query.isActive:
                    query.stop()
        return {name: one.look() for name, one in followed.items()}


class _Followed:
    """A query, and how far it is."""

    def __init__(self, query: StreamingQuery) -> None:
        self._query = query
        self._seen = -1
        self.progress = Progress()

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, after so long at most. Raises what ended it."""
        ended = self._query.awaitTermination(seconds)  # type: ignore[arg-type]  # seconds with a part are fine
        self.look()
        return bool(ended)

    def look(self) -> Progress:
        """How far it is now."""
        for one in self._query.recentProgress:
            if one.batchId > self._seen:
                self._seen = one.batchId
                if one.numInputRows:
                    lag = sum(lag_of(source.endOffset, source.latestOffset) for source in one.sources)
                    self.progress = self.progress.after(one.numInputRows, one.batchDuration / 1000, lag)
        return self.progress


def _together(all_of_them: list[Progress]) -> Progress:
    return Progress(
        sum(one.batches for one in all_of_them),
        sum(one.rows for one in all_of_them),
        sum(one.rows_per_second for one in all_of_them),
        sum(one.lag or 0 for one in all_of_them),
        max(one.batch_seconds for one in all_of_them),
    )


def start(plan: Plan, spark: SparkSession) -> list[StreamingQuery]:
    """
    Start a query for each sink, and return them. Nothing is started unless all steps and sinks are right.

    The views of the plan are in a session of its own, so that two plans in one Spark do not meet. Raises `BadPipeline` where Spark does
    not understand a step, or a function returns something else than a stream of rows.
    """
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException

    own = spark.newSession()
    frames: dict[str, DataFrame] = {}
    for source in plan.sources:
        frames[source.name] = _named(plan, f"[sources.{source.name}]", None, functools.partial(_read, own, source))
    for step in plan.steps:
        if step.module is not None:
            cloudpickle.register_pickle_by_value(step.module)  # type: ignore[no-untyped-call]
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
    # Spark looks for the format of a sink in the session that is active in this thread. In one that Python has started none is, until it
    # makes a DataFrame of its own.
    spark.createDataFrame([], "nothing int")
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
    writer = (
        frame.writeStream.outputMode(sink.mode).queryName(f"{plan.name}.{sink.name}")
        .option("checkpointLocation", sink.checkpoint)
    )  # fmt: skip
    if sink.kind == "console":
        writer = writer.foreachBatch(functools.partial(_print, sink))
    elif sink.kind == "parquet":
        writer = writer.format("parquet").option("path", sink.path)
    else:
        writer = writer.format("penstock").options(**sink.options)
    if sink.partition_by:
        writer = writer.partitionBy(*sink.partition_by)
    if plan.interval_ms is not None:
        writer = writer.trigger(processingTime=f"{plan.interval_ms} milliseconds")
    elif plan.trigger == "once":
        writer = writer.trigger(once=True)
    else:
        writer = writer.trigger(availableNow=True)
    return writer.start()


def _print(sink: Sink, batch: DataFrame, number: int) -> None:
    """Print a batch, by Python and not by Java: so it comes where the rest of this program's output goes. Empty ones are left out."""
    most = int(sink.options["rows"])
    found = batch.head(most + 1)
    if found:
        more = f"\nonly the first {most} rows are shown" if len(found) > most else ""
        print(f"{sink.name}, batch {number}:\n{text_table(batch.columns, found[:most])}{more}", flush=True)  # noqa: T201 - that is what it is for
