"""
Pipelines that a file declares: sources, steps, sinks. `penstock pipeline run FILE`.

Theory of operation. `keys.py` is the one table of what a file may say; `lines.py` knows where in the file something stands; `plan.py`
makes a `Plan` of the file or tells everything that is wrong with it; `run.py` gives the plan to Spark. All but the last work without
PySpark, so a bad file is refused before a Java starts.

Each sink is a streaming query of its own, with a checkpoint of its own under the pipeline's folder, and so exactly once by itself. Two
sinks read their sources twice; neither waits for the other.

docs/reference/pipeline-file.md is for users; docs/adr/0030-declared-pipelines.md says why it is so.
"""
