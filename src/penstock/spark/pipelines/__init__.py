"""
Pipelines: what many do with topics on Spark, one file each, as functions. `penstock pipeline` runs them from a shell.

Each has a class that says what is wanted: making it checks everything that can be checked without Spark, and `run(spark, report)` does
it. *report* is called after each batch and about twice a second while the pipeline waits; a true answer ends the
pipeline in order, and so does what it raises.
docs/pipelines.md is for users; docs/adr/0029-archive.md says why the archive is as it is.
"""
