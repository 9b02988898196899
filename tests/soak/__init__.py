"""A server under mixed load for a long time."""
