"""The embedded engine's public face: Store, Producer, Consumer, Queue, transactions and workers."""
