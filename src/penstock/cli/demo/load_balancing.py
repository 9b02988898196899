"""Load balancing: the consumers of one group share its messages, each as many as it can handle; another group gets all of them too."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from penstock.cli.demo.claims import Claim, Demonstration, Finding
from penstock.cli.demo.screen import bar, line
from penstock.cli.demo.stage import Hand

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
    with stage.screen.moving(lambda: draw(everyone, audited)):
        store.publish_many("orders", [b"order %d" % number for number in range(MESSAGES)])
        stage.wait("the first messages are handled", lambda: _handled(everyone) >= JOINS_AFTER)
        everyone[-1].cue()
        stage.wait("all messages are handled", lambda: _handled(everyone) >= MESSAGES and len(audited) >= MESSAGES)
    hand.close()
    return judge({actor.name: actor.done() for actor in everyone}, audited)


def _handled(actors: Sequence[Actor]) -> int:
    return sum(len(actor.done()) for actor in actors)


def draw(actors: Sequence[Actor], audited: Sequence[int]) -> list[Text]:
    """A bar for each consumer: the messages that it has handled."""
    lines = [line((f"  group billing: {MESSAGES} messages, {len(actors)} consumers", "bold"))]
    for actor in actors:
        count = len(actor.done())
        style = "yellow" if "slow" in actor.name else "green" if "late" in actor.name else "cyan"
        lines.append(bar(f"consumer {actor.name}", count, MESSAGES / 2, f"{count}", style))
    return [
        *lines,
        line(("  group audit: the same messages, one consumer", "bold")),
        bar("consumer", len(audited), MESSAGES, f"{len(audited)}"),
    ]


def judge(handled: Mapping[str, Sequence[int]], audited: Sequence[int]) -> Finding:
    """What must hold of the messages that each consumer of the group, and the other group, have handled."""
    counts = {name: len(messages) for name, messages in handled.items()}
    times = Counter(message for messages in handled.values() for message in messages)
    quick = [count for name, count in counts.items() if "quick" in name]
    slow = next(count for name, count in counts.items() if "slow" in name)
    late = next(count for name, count in counts.items() if "late" in name)
    return Finding(
        [
            Claim(
                f"each of {MESSAGES} messages went to one consumer of the group",
                len(times) == MESSAGES and set(times.values()) == {1},
            ),
            Claim("the slow consumer holds nobody up: the quick ones took over twice as many each", min(quick) > 2 * slow > 0),
            Claim("the consumer that came late took its share", late > 0),
            Claim("the other group got every message too, once", len(audited) == len(set(audited)) == MESSAGES),
        ],
        {"messages": MESSAGES, "handled": counts, "handled_by_the_other_group": len(audited)},
    )


DEMONSTRATION = Demonstration(
    "load-balancing", "Consumers of one group share its messages, each as many as it can handle.", perform
)
