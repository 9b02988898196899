"""Load balancing: the consumers of one group share its messages, each as many as it can handle; another group gets all of them too."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.demo.claims import Claim, Demonstration, Finding
from penstock.cli.demo.screen import bar, line
from penstock.cli.demo.stage import PATIENCE_SECONDS, Hand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

    from penstock.cli.demo.stage import Actor, Stage
    from penstock.groups.delivery import Delivery

MESSAGES = 240
QUICK_MS, SLOW_MS = 5, 60
JOINS_AFTER = 60
"""How many messages are through when one more consumer joins."""


def perform(stage: Stage) -> Finding:
    """Let four consumer processes share a topic, one of them slow and one late."""
    stage.start_server()
    everyone = [
        stage.actor("1, quick", "orders", "billing", handle_ms=QUICK_MS, prefetch=4),
        stage.actor("2, quick", "orders", "billing", handle_ms=QUICK_MS, prefetch=4),
        stage.actor("3, slow", "orders", "billing", handle_ms=SLOW_MS, prefetch=4),
        stage.actor("4, comes late", "orders", "billing", handle_ms=QUICK_MS, prefetch=4, wait=True),
    ]
    stage.await_server()
    store = stage.store()
    store.create_topic("orders")
    audited: list[int] = []

    def audit(message: Delivery) -> None:
        audited.append(message.offset)
        message.ack()

    hand = Hand(store, "orders", "audit", audit)
    stage.wait("the consumers begin", lambda: all(actor.is_ready for actor in everyone))
    end = time.monotonic() + PATIENCE_SECONDS
    rounds: list[int] = []

    def all_handled() -> bool:
        return min(_handled(everyone), len(audited)) >= len(rounds) * MESSAGES

    with stage.screen.moving(lambda: draw(everyone, audited, len(rounds) * MESSAGES)):
        # A machine that is busy with other work may let one of the processes stand still while the others handle everything. That tells
        # nothing of how they share: then there is more to handle.
        while not rounds or (not _shares(_done(everyone)).are_fair and time.monotonic() < end):
            rounds.append(len(rounds))
            store.publish_many(
                "orders", [b"order %d" % number for number in range(rounds[-1] * MESSAGES, len(rounds) * MESSAGES)]
            )
            if len(rounds) == 1:
                stage.wait("the first messages are handled", lambda: _handled(everyone) >= JOINS_AFTER)
                everyone[-1].cue()
            stage.wait("all messages are handled", all_handled)
    hand.close()
    return judge(_done(everyone), audited, len(rounds) * MESSAGES)


def _done(actors: Sequence[Actor]) -> dict[str, list[int]]:
    return {actor.name: actor.done() for actor in actors}


def _handled(actors: Sequence[Actor]) -> int:
    return sum(len(actor.done()) for actor in actors)


def draw(actors: Sequence[Actor], audited: Sequence[int], messages: int) -> list[Text]:
    """A bar for each consumer: the messages that it has handled."""
    lines = [line((f"  group billing: {messages} messages, {len(actors)} consumers", "bold"))]
    for actor in actors:
        count = len(actor.done())
        style = "yellow" if "slow" in actor.name else "green" if "late" in actor.name else "cyan"
        lines.append(bar(f"consumer {actor.name}", count, messages / 2, f"{count}", style))
    return [
        *lines,
        line(("  group audit: the same messages, one consumer", "bold")),
        bar("consumer", len(audited), messages, f"{len(audited)}"),
    ]


class _Shares(NamedTuple):
    """How many messages each kind of consumer has handled."""

    quick: list[int]
    slow: int
    late: int

    @property
    def quick_took_more(self) -> bool:
        return min(self.quick) > 2 * self.slow > 0

    @property
    def are_fair(self) -> bool:
        return self.quick_took_more and self.late > 0


def _shares(handled: Mapping[str, Sequence[int]]) -> _Shares:
    counts = {name: len(messages) for name, messages in handled.items()}
    return _Shares(
        [count for name, count in counts.items() if "quick" in name],
        next(count for name, count in counts.items() if "slow" in name),
        next(count for name, count in counts.items() if "late" in name),
    )


def judge(handled: Mapping[str, Sequence[int]], audited: Sequence[int], messages: int = MESSAGES) -> Finding:
    """What must hold of the messages that each consumer of the group, and the other group, have handled."""
    shares = _shares(handled)
    times = Counter(message for some in handled.values() for message in some)
    return Finding(
        [
            Claim(
                f"each of {messages} messages went to one consumer of the group",
                len(times) == messages and set(times.values()) == {1},
            ),
            Claim("the slow consumer holds nobody up: the quick ones took over twice as many each", shares.quick_took_more),
            Claim("the consumer that came late took its share", shares.late > 0),
            Claim("the other group got every message too, once", len(audited) == len(set(audited)) == messages),
        ],
        {
            "messages": messages,
            "handled": {name: len(some) for name, some in handled.items()},
            "handled_by_the_other_group": len(audited),
        },
    )


DEMONSTRATION = Demonstration(
    "load-balancing", "Consumers of one group share its messages, each as many as it can handle.", perform
)
