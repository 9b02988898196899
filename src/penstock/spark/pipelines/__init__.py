"""Ready-made pipelines on the data source: library functions that `penstock pipeline` runs too. See docs/spark.md."""
