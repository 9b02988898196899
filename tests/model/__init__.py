"""Random operations against a simple model."""
