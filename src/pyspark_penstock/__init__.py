"""
How Spark finds the data source `penstock` without being told: it imports every package named `pyspark_*` and takes its `DefaultSource`.

Spark imports this in every session that uses any Python data source, so it must be quick and must not fail.
"""

from penstock.spark.source import PenstockDataSource as DefaultSource

__all__ = ["DefaultSource"]
