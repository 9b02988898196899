"""
What a subscriber may say: the options of a subscription, and how the topic is to be.

Of a declared topic only what the declaration names must fit one that is there.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from penstock.arguments import check_seconds, shown
from penstock.errors import BadSetting, TopicExists
from penstock.settings import TopicSettings, no_such_setting
from penstock.topics.options import SECONDS_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penstock.topics.topic import Topic

_NAMES = frozenset(field.name for field in fields(TopicSettings))
SUBSCRIPTION_OPTIONS = (
    "prefetch", "prefetch_bytes", "lease", "max_deliveries", "ordered", "start", "reset", "backoff", "backoff_max", "concurrency", "name",
    "create", "topic_settings",
)  # fmt: skip
"""The keywords of `Store.subscribe`; a test compares them."""


def check_subscription_options(options: Mapping[str, Any], more: tuple[str, ...] = ()) -> None:
    """Raise `BadSetting` for a name that is neither an option of `Store.subscribe` nor one of *more*."""
    for name, value in options.items():
        if name not in SUBSCRIPTION_OPTIONS:
            raise no_such_setting(name, value, "subscription", [*SUBSCRIPTION_OPTIONS, *more])


class Declaration:
    """
    The topic that a subscriber expects: keywords of `Store.create_topic` and their values.

    Raises `BadSetting` at once where a name or a value is wrong.
    """

    def __init__(self, given: Mapping[str, Any] | None, default: TopicSettings) -> None:
        if given is not None and not hasattr(given, "items"):
            raise BadSetting("topic_settings", shown(given), 'must be a mapping, like {"partitions": 4}')
        self.partitions: int | None = None
        wanted: dict[str, Any] = {}
        for name, value in ({} if given is None else given).items():
            if value is None:
                continue
            if name == "partitions":
                if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                    raise BadSetting("partitions", shown(value), "must be a whole number from 1 on")
                self.partitions = value
            elif name in _NAMES:
                wanted[name] = value
            elif f"{name}_ms" in _NAMES:
                least = 0.001 if name == "ttl" else 0
                wanted[f"{name}_ms"] = round(check_seconds(name, value, least, SECONDS_MAX) * 1000)
            else:
                raise no_such_setting(str(name), value, "topic", ["partitions", *(one.removesuffix("_ms") for one in _NAMES)])
        self.settings = replace(default, **wanted)
        """What the topic gets if it is made for this."""
        self._named = tuple(wanted)

    def check(self, topic: Topic) -> None:
        """Raise `TopicExists` if *topic* is not as declared; the error tells each setting that differs."""
        differing = []
        if self.partitions is not None and topic.partitions != self.partitions:
            differing.append(f"partitions={topic.partitions}, not {self.partitions}")
        if self._named and (others := topic.settings.differing(self.settings, self._named)):
            differing.append(others)
        if differing:
            raise TopicExists(topic.name, ", ".join(differing))
