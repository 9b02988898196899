"""Measurements against what the machine can do at best: `python -m benchmarks.run`."""
