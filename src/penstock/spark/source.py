"""The data source `penstock`: what Spark makes of `format("penstock")`. Quick to import, since Spark imports it in every session."""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from penstock.spark.telling import in_one_line

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class PenstockDataSource(DataSource):
    """Topics as tables, for batches and streams, to read and to write."""

    def __init__(self, options: dict[str, str]) -> None:
        # Made beside the driver, and only there: what travels to processes with other working folders has the whole path.
        super().__init__(_with_whole_path(options))

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "penstock"

    @in_one_line
    def schema(self) -> StructType:
        """The columns of a read without a schema of its own. Raises `BadSetting`."""
        from penstock.spark.options import ReadOptions
        from penstock.spark.schema import read_schema

        options = ReadOptions.parse(self.options)
        return read_schema(include_headers=options.include_headers, include_delivery=options.include_delivery)

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Raises `BadSetting`, `BadColumn`."""
        from penstock.spark.options import ReadOptions
        from penstock.spark.reader import PenstockReader
        from penstock.spark.schema import check_read

        check_read(schema)
        return PenstockReader(ReadOptions.parse(self.options).for_batch(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """It checks its options when it is first asked for something."""
        from penstock.spark.stream_reader import PenstockStreamReader

        return PenstockStreamReader(self.options, schema)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001
        """Raises `BadSetting`, `BadColumn`, `StoreLocked`."""
        from penstock.spark.options import WriteOptions
        from penstock.spark.writer import PenstockWriter

        _refuse_overwrite(overwrite=overwrite)
        return PenstockWriter(WriteOptions.parse(self.options, streaming=False), schema)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """Raises `BadSetting`, `BadColumn`."""
        from penstock.spark.options import WriteOptions
        from penstock.spark.stream_writer import PenstockStreamWriter

        _refuse_overwrite(overwrite=overwrite)
        return PenstockStreamWriter(WriteOptions.parse(self.options, streaming=True), schema)


def _with_whole_path(options: dict[str, str]) -> dict[str, str]:
    from penstock.client.address import is_url

    found = copy.copy(options)  # of the same kind: Spark's does not look at the case of names
    for name, value in options.items():
        if name.lower() == "store" and value and value != "memory:" and not is_url(value):
            found[name] = os.path.abspath(value)
    return found


def _refuse_overwrite(*, overwrite: bool) -> None:
    from penstock.errors import BadSetting

    if overwrite:
        raise BadSetting(
            "mode", "overwrite", 'messages are never replaced: use mode("append"), for streams outputMode("append")'
        )
