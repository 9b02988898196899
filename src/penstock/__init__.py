"""
A durable message queue for Python whose topics are Spark tables.

>>> import penstock
>>> store = penstock.open("memory:")
>>> store.publish("orders", b"first")
Receipt(topic='orders', partition=0, offset=0, duplicate=False)
>>> with store.subscribe("orders", group="billing") as consumer:
...     with consumer.get() as message:
...         message.value
b'first'
>>> store.close()
"""

from __future__ import annotations

from penstock import errors
from penstock.client.queue import Queue
from penstock.errors import PenstockError
from penstock.groups.delivery import Delivery
from penstock.settings import GroupSettings, StoreSettings, TopicSettings
from penstock.sharing.opening import open_store as open  # noqa: A004 - the name that users expect, as in gzip.open
from penstock.store.consumer import Consumer
from penstock.store.dead_letter_box import DeadLetters
from penstock.store.dead_letter_filter import DeadLetterFilter
from penstock.store.future import Future
from penstock.store.metrics import GroupMetrics, Latency, StoreMetrics, TopicMetrics
from penstock.store.producer import Producer
from penstock.store.read_only import ReadOnlyStore
from penstock.store.staging import Committed, OpenStage
from penstock.store.stats import GroupStats, StoreStats, TopicStats
from penstock.store.store import GroupInfo, Retained, Rewritten, Store, TopicInfo
from penstock.store.transaction import Transaction
from penstock.topics.message import Headers, Message
from penstock.topics.receipt import Receipt, Receipts
from penstock.values import SyncMode

__version__ = "0.1.0"

__all__ = [
    "Committed", "Consumer", "DeadLetterFilter", "DeadLetters", "Delivery", "Future", "GroupInfo", "GroupMetrics",
    "GroupSettings", "GroupStats", "Headers", "Latency", "Message", "OpenStage", "PenstockError", "Producer", "Queue",
    "ReadOnlyStore", "Receipt", "Receipts", "Retained", "Rewritten", "Store", "StoreMetrics", "StoreSettings", "StoreStats",
    "SyncMode", "TopicInfo", "TopicMetrics", "TopicSettings", "TopicStats", "Transaction", "errors", "open",
]  # fmt: skip
