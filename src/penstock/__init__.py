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

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_HOMES = {
    "penstock.client.queue": ["Queue"],
    "penstock.errors": ["PenstockError"],
    "penstock.groups.delivery": ["Delivery"],
    "penstock.settings": ["GroupSettings", "StoreSettings", "TopicSettings"],
    "penstock.store.consumer": ["Consumer"],
    "penstock.store.dead_letter_box": ["DeadLetters"],
    "penstock.store.dead_letter_filter": ["DeadLetterFilter"],
    "penstock.store.future": ["Future"],
    "penstock.store.metrics": ["GroupMetrics", "Latency", "StoreMetrics", "TopicMetrics"],
    "penstock.store.producer": ["Producer"],
    "penstock.store.read_only": ["ReadOnlyStore"],
    "penstock.store.staging": ["Committed", "OpenStage"],
    "penstock.store.stats": ["GroupStats", "StoreStats", "TopicStats"],
    "penstock.store.store": ["GroupInfo", "Retained", "Rewritten", "Store", "TopicInfo"],
    "penstock.store.transaction": ["Transaction"],
    "penstock.topics.message": ["Headers", "Message"],
    "penstock.topics.receipt": ["Receipt", "Receipts"],
    "penstock.values": ["SyncMode"],
}
"""Which module each public name is imported from, when it is first used: a program that only imports Penstock pays for no engine."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "open":
        found = importlib.import_module("penstock.sharing.opening").open_store
    elif name in _HOME_OF:
        found = getattr(importlib.import_module(_HOME_OF[name]), name)
    elif name == "errors":
        return importlib.import_module("penstock.errors")
    else:
        raise AttributeError(f"module 'penstock' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
