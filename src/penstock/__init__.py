"""A durable message queue for Python whose topics are Spark tables."""

__version__ = "0.1.0"
