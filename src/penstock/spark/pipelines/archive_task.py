"""What a task of the archive does: a range of messages becomes Parquet files, one a date, as Arrow all the way."""

from __future__ import annotations

import datetime as dt
import os
import uuid
from typing import TYPE_CHECKING, Any

from penstock.spark import connections
from penstock.spark.pipelines.archive_folder import NO_DATE, Written, finish_file
from penstock.spark.schema import read_schema
from penstock.values import MIB

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.spark.options import StorePlace
    from penstock.spark.planning import Range

ROW_GROUP_ROWS, ROW_GROUP_BYTES = 500_000, 64 * MIB
OPEN_MAX = 64
"""Files that a task has open: with publishers' times a range may have any number of dates."""
_COLUMNS = ("key", "value", "partition", "offset", "timestamp", "timestampType", "headers")
_DAY_US = 86_400_000_000
_EPOCH = dt.date(1970, 1, 1)


def write_range(place: StorePlace, folder: str, wanted: Range) -> list[Written]:
    """Write the messages of *wanted* into new files in *folder*; they are on the disk when it returns. Raises `DataLost`."""
    from penstock.spark.rows import batches

    whole = read_schema(include_headers=True, include_delivery=False)
    schema = type(whole)([whole[name] for name in _COLUMNS])
    files = _Files(folder, wanted, schema)
    try:
        for batch in batches(connections.reader(place), wanted, schema, fail_on_data_loss=True):
            for day, rows in _by_day(batch):
                files.add(day, rows)
        return files.finish()
    except BaseException:
        files.abandon()
        raise


def _by_day(batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
    """The rows by their day since 1970, UTC; in their order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    micros = batch["timestamp"].cast(pa.int64())
    days = pc.divide(micros, _DAY_US)
    # Division rounds towards zero; days before 1970 must round down.
    days = pc.subtract(days, pc.cast(pc.less(micros, pc.multiply(days, _DAY_US)), pa.int64()))
    bounds = pc.min_max(days)
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first == last:
        return [(first, batch)]
    return [(day, batch.filter(pc.equal(days, day))) for day in sorted(pc.unique(days).to_pylist())]


def date_text(day: int) -> str:
    """The date of a day since 1970 as a folder's name has it; outside of the years 1 to 9999 there is none."""
    try:
        return (_EPOCH + dt.timedelta(days=day)).isoformat()
    except OverflowError:
        return NO_DATE


class _Files:
    """The files of one range, by day."""

    def __init__(self, folder: str, wanted: Range, schema: Any) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._folder = folder
        self._wanted = wanted
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._open: dict[str, _OneFile] = {}
        self._done: list[Written] = []

    def add(self, day: int, rows: pa.RecordBatch) -> None:
        date = date_text(day)
        if date not in self._open:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            self._open[date] = _OneFile(os.path.join(self._folder, f"{uuid.uuid4().hex}.parquet"), self._schema)
        self._open[date].add(rows)

    def finish(self) -> list[Written]:
        """All files, at least one: where a range has no messages an empty file says that nothing is missing."""
        if not self._open and not self._done:
            self._open[NO_DATE] = _OneFile(os.path.join(self._folder, f"{uuid.uuid4().hex}.parquet"), self._schema)
        for date in list(self._open):
            self._close(date)
        return self._done

    def _close(self, date: str) -> None:
        file = self._open.pop(date)
        file.close()
        one = self._wanted
        self._done.append(Written(file.path, one.partition, one.start, one.end, date, file.rows, finish_file(file.path)))

    def abandon(self) -> None:
        """The whole folder is removed later; only let go of what is open."""
        for file in self._open.values():
            file.abandon()


class _OneFile:
    """A Parquet file whose row groups are of a good size, whatever comes in."""

    def __init__(self, path: str, schema: Any) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.rows = 0
        self._schema = schema
        self._writer = pq.ParquetWriter(path, schema, compression="zstd", store_schema=False)
        self._waiting: list[Any] = []
        self._waiting_rows = self._waiting_bytes = 0

    def add(self, rows: pa.RecordBatch) -> None:
        self.rows += rows.num_rows
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        self._waiting_bytes += rows.nbytes
        if self._waiting_rows >= ROW_GROUP_ROWS or self._waiting_bytes >= ROW_GROUP_BYTES:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=ROW_GROUP_ROWS)
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0

    def close(self) -> None:
        self._write()
        self._writer.close()

    def abandon(self) -> None:
        self._waiting = []
        self._writer.close()
