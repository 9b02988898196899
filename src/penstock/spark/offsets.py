"""
What Spark keeps in a query's checkpoint: how far each topic was read, and what makes these offsets mean the same later.

```json
{"_epoch": 3, "_ids": {"orders": "0f3c..."}, "orders": {"0": 23, "1": 17}}
```

Topics look as in the Kafka connector; names of topics never begin with `_`. Spark compares offsets as text, so the JSON is canonical:
topics by name, partitions by number. `_epoch` is the log epoch of the store when the offsets were seen, see `TopicPositions`.

A query's first offset is not known when Spark asks for it first, and Spark may ask again after a crash: so it is a symbol (`START`), and
the first batch, which is always empty, makes the offsets that it stands for durable.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from penstock.errors import BadBytes
from penstock.values import is_name

if TYPE_CHECKING:
    from collections.abc import Mapping

START: dict[str, Any] = {"_start": "as the options say"}


def is_start(document: Mapping[str, Any]) -> bool:
    """Whether it is the symbol for where a query starts."""
    return "_start" in document


class Offsets(NamedTuple):
    """The next offset to read of each partition of each topic."""

    epoch: int
    ids: dict[str, str]
    topics: dict[str, dict[int, int]]

    def to_json(self) -> dict[str, Any]:
        """As Spark stores it."""
        document: dict[str, Any] = {"_epoch": self.epoch, "_ids": {name: self.ids[name] for name in sorted(self.ids)}}
        for name in sorted(self.topics):
            document[name] = {str(number): self.topics[name][number] for number in sorted(self.topics[name])}
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Raises `BadBytes`: somebody else wrote this checkpoint."""
        try:
            topics = {
                name: {_partition(number): _offset(offset) for number, offset in partitions.items()}
                for name, partitions in document.items()
                if is_name(name)
            }
            ids = {str(name): str(identity) for name, identity in document["_ids"].items()}
            return cls(int(document["_epoch"]), ids, topics)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadBytes("the checkpoint", f"has no offsets of Penstock topics ({type(error).__name__}: {error})") from None


def _partition(text: str) -> int:
    if re.fullmatch(r"[0-9]{1,9}", text) is None:
        raise ValueError(f"{text!r} is no partition")
    return int(text)


def _offset(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no offset")
    return value
