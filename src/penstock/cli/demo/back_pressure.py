"""Back-pressure: a consumer that stops reading is sent no more than it asked for, costs the server next to nothing, and delays nobody."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.demo.claims import Claim, Demonstration, Finding
from penstock.cli.demo.screen import bar, line
from penstock.errors import ProducerFull
from penstock.values import KIB, MIB

if TYPE_CHECKING:
    from rich.text import Text

    from penstock.cli.demo.stage import Actor, Stage

WARM_UP = 200
MESSAGES = 1_500
MESSAGE_BYTES = 32 * KIB
BATCH = 50
PREFETCH = 20
LEASE_SECONDS = 300
"""Longer than any machine takes for all of it: what the stopped consumer holds stays its own."""
PENDING = 200
"""The most messages that a producer gathers before it says that it is full."""
GROWTH_BYTES_MAX = 16 * MIB
"""What the server may grow by; the backlog is larger than that."""


class Seen(NamedTuple):
    """What was measured while one consumer was stopped, and after it went on."""

    held: int
    """The most that the stopped consumer was sent and had not finished."""
    growth_bytes: int
    """How much more memory the server itself took."""
    quick: int
    """What the other group had handled meanwhile."""
    quick_seconds: float
    """From the last publish until it had handled everything."""
    accepted: int
    """How many messages a producer took that nothing took from it."""
    handled: list[int]
    """What the stopped consumer had handled in the end, by offset."""


class View:
    """What the picture shows."""

    def __init__(self) -> None:
        self.published = self.held = self.growth_bytes = 0
        self.is_stopped = False


def perform(stage: Stage) -> Finding:
    """Stop one consumer with SIGSTOP while another works, and publish."""
    stage.start_server()
    stuck = stage.actor("stopped", "frames", "archive", prefetch=PREFETCH, lease=LEASE_SECONDS)
    quick = stage.actor("quick", "frames", "preview", prefetch=PREFETCH)
    stage.await_server()
    store = stage.store()
    stage.wait("the consumers begin", lambda: stuck.is_ready and quick.is_ready)
    payload = bytes(MESSAGE_BYTES)
    # The first messages fill what the server keeps anyway: pools, caches, threads.
    for _ in range(WARM_UP // BATCH):
        store.publish_many("frames", [payload] * BATCH)
    stage.wait("the consumers work", lambda: len(stuck.done()) == len(quick.done()) == WARM_UP)
    accepted = _fill_producer(stage)

    view = View()
    with stage.screen.moving(lambda: draw(view, stuck, quick)):
        stuck.send(signal.SIGSTOP)
        view.is_stopped = True
        before = stage.server_bytes()
        for _ in range(MESSAGES // BATCH):
            store.publish_many("frames", [payload] * BATCH)
            view.published += BATCH
            view.held = max(view.held, stage.group(store, "frames", "archive").in_flight)
            view.growth_bytes = max(view.growth_bytes, stage.server_bytes() - before)
        end = time.monotonic()
        stage.wait("the other group handles all", lambda: len(quick.done()) == WARM_UP + MESSAGES)
        quick_seconds = time.monotonic() - end
        view.held = max(view.held, stage.group(store, "frames", "archive").in_flight)
        view.growth_bytes = max(view.growth_bytes, stage.server_bytes() - before)
        before_resuming = len(quick.done()) - WARM_UP
        stuck.send(signal.SIGCONT)
        view.is_stopped = False
        stage.wait("the stopped consumer catches up", lambda: len(stuck.done()) >= WARM_UP + MESSAGES)
    return judge(Seen(view.held, view.growth_bytes, before_resuming, quick_seconds, accepted, stuck.done()))


def _fill_producer(stage: Stage) -> int:
    """How many messages a producer takes while nothing is sent."""
    with stage.store().producer(
        "samples", linger=60, batch_messages=100_000, max_pending=PENDING, when_full="raise"
    ) as producer:
        for accepted in range(100_000):
            try:
                producer.send(b"sample")
            except ProducerFull:
                return accepted
    return 100_000


def draw(view: View, stuck: Actor, quick: Actor) -> list[Text]:
    """How far each is, and what the server keeps for it."""
    state = ("  SIGSTOP", "bold red") if view.is_stopped else ""
    backlog = MESSAGES * MESSAGE_BYTES
    return [
        bar("published", view.published, MESSAGES, f"{view.published:,}"),
        bar("handled by quick", len(quick.done()) - WARM_UP, MESSAGES, f"{len(quick.done()) - WARM_UP:,}", "green"),
        bar("handled by stopped", len(stuck.done()) - WARM_UP, MESSAGES, f"{len(stuck.done()) - WARM_UP:,}", "yellow"),
        bar("sent ahead to it, most", view.held, MESSAGES, f"{view.held} of {PREFETCH} allowed", "red"),
        bar(
            "server's memory, more",
            view.growth_bytes,
            backlog,
            f"{view.growth_bytes / MIB:.1f} of {backlog / MIB:.0f} MiB",
            "red",
        ),
        line("  ", state),
    ]


def judge(seen: Seen) -> Finding:
    """What must hold of it."""
    total = WARM_UP + MESSAGES
    backlog = MESSAGES * MESSAGE_BYTES
    return Finding(
        [
            Claim(f"the stopped consumer was sent {PREFETCH} messages ahead at most", 0 < seen.held <= PREFETCH),
            Claim(
                f"the server grew by less than {GROWTH_BYTES_MAX // MIB} MiB while {backlog / MIB:.0f} MiB piled up behind it",
                seen.growth_bytes < GROWTH_BYTES_MAX < backlog,
            ),
            Claim("the other group got everything meanwhile", seen.quick == MESSAGES),
            Claim(f"a producer that is not emptied takes {PENDING} messages, and says that it is full", seen.accepted == PENDING),
            Claim("when it went on, the stopped consumer got every message, once", sorted(seen.handled) == list(range(total))),
        ],
        {
            "messages": MESSAGES, "backlog_bytes": backlog, "sent_ahead": seen.held, "server_growth_bytes": seen.growth_bytes,
            "handled_by_the_other_group": seen.quick, "other_group_behind_ms": round(seen.quick_seconds * 1000),
            "producer_full_after": seen.accepted,
        },
    )  # fmt: skip


DEMONSTRATION = Demonstration(
    "back-pressure", "A consumer that stops reading costs the server next to nothing, and delays nobody.", perform
)
