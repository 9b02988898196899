"""
Topics as Spark tables: the data source `penstock` on PySpark's Python data source API. Needs the extra `spark`.

Theory of operation. Spark calls the parts of a data source in processes of its own, and pickles what travels between them:

- *planners*, beside the driver: `source.py` is made, options are checked, ranges of offsets are planned, writes are committed;
- one process for each streaming query that asks `stream_reader.py` how far the topics reach;
- *workers*, one for each task at work, that read a range or stage rows.

So nothing here holds a connection in an object that travels; each process has its own (`connections.py`). Data moves as Arrow batches
between the files (or the server) and Spark: nothing is done per row.

Reading is repeatable: what Spark keeps in its checkpoint are offsets, with the ids of the topics and the log epoch in which they were
seen (`offsets.py`), so that a range means the same messages for ever, or an error (`loss.py`). Writing is in two phases: tasks stage,
the driver commits all stages under (query id, batch id), and repeating that changes nothing (`writer.py`, `stream_writer.py`).

docs/spark.md is for users; docs/adr/0024-spark-data-source.md says why it is so.
"""
