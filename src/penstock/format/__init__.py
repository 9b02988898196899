"""Bytes to values and back, without I/O."""
