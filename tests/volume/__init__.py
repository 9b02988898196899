"""Tests of the volume: topics, commits, readers, verify and repair."""
