"""Consumer crash: a consumer process is killed at work; what it held goes to another at once, and what it had finished does not."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.demo.claims import Claim, Demonstration, Finding
from penstock.cli.demo.screen import line
from penstock.cli.demo.stage import Stalled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from penstock.cli.demo.stage import Actor, Event, Stage

MESSAGES = 40
PREFETCH = 10
HANGS_AT = 6
"""So many messages the victim finishes; it hangs in the next."""
LEASE_SECONDS = 300


class Seen(NamedTuple):
    """What the two consumers told, and what the system says of the victim."""

    victim: Sequence[Event]
    heir: Sequence[Event]
    status: int
    seconds: float
    """From the kill until all was handled."""


def perform(stage: Stage) -> Finding:
    """Kill a consumer that hangs in a message, beside one that works."""
    stage.start_server()
    options = {"prefetch": PREFETCH, "backoff": 0.1, "lease": LEASE_SECONDS, "handle_ms": 3, "durable": True}
    victim = stage.actor("a", "mails", "sender", hang_at=HANGS_AT, **options)
    heir = stage.actor("b", "mails", "sender", wait=True, **options)
    stage.await_server()
    store = stage.store()
    stage.wait("the consumers begin", lambda: victim.is_ready and heir.is_ready)
    killed: list[float] = []

    def rest() -> bool:
        """The victim hangs, and the other has handled all that it was given."""
        found = stage.group(store, "mails", "sender")
        return len(victim.got()) > HANGS_AT and found.lag == found.in_flight <= PREFETCH and len(heir.got()) == len(heir.done())

    with stage.screen.moving(lambda: draw(victim, heir, killed)):
        store.publish_many("mails", [b"mail %d" % number for number in range(MESSAGES)])
        # Before the other one begins, which may be quick enough to leave it too few to hang in.
        stage.wait("the first consumer works", lambda: bool(victim.got()))
        heir.cue()
        stage.wait("the consumers work", rest)
        killed.append(time.monotonic())
        status = victim.kill()
        stage.wait("the other consumer takes over", lambda: stage.group(store, "mails", "sender").lag == 0)
        seconds = time.monotonic() - killed[0]
        # The server knows before what its consumer tells is here; what does not come is missing in the claims.
        with contextlib.suppress(Stalled):
            stage.wait("the consumers tell", lambda: len(victim.done()) + len(heir.done()) >= MESSAGES)
    return judge(Seen(victim.events, heir.events, status, seconds))


def draw(victim: Actor, heir: Actor, killed: Sequence[float]) -> list[Text]:
    """A cell for each message: who has it."""
    cells: dict[int, tuple[str, str]] = {}
    for event in list(victim.events):
        cells[event.offset] = ("a", "cyan") if event.what == "done" else ("x", "bold red") if killed else ("…", "red")
    for event in list(heir.events):
        after = killed and event.seconds > killed[0]
        cells[event.offset] = (("B", "bold green") if after else ("b", "yellow")) if event.what == "done" else ("…", "yellow")
    picture = [cells.get(offset, ("·", "dim")) for offset in range(MESSAGES)]
    end = ("  SIGKILL", "bold red") if killed else ""
    return [
        line("  consumer a  ", ("█" * len(victim.done()), "cyan"), end),
        line("  consumer b  ", ("█" * len(heir.done()), "yellow")),
        line("  messages    ", *picture),
        line(("              a, b: handled by that consumer   B: by b after the death of a   ·: waits", "dim")),
    ]


def judge(seen: Seen) -> Finding:
    """What must hold of it."""
    finished = {event.offset for event in seen.victim if event.what == "done"}
    in_hand = {event.offset for event in seen.victim if event.what == "got"} - finished
    taken_over = [event for event in seen.heir if event.what == "got"]
    again = {event.offset for event in taken_over if event.attempt > 1}
    done = finished | {event.offset for event in seen.heir if event.what == "done"}
    return Finding(
        [
            Claim("consumer a was killed by SIGKILL while it had a message in hand", seen.status == -signal.SIGKILL and len(in_hand) == 1),
            Claim("nothing is lost: every message was handled", done == set(range(MESSAGES))),
            Claim("nothing that a had acknowledged came again", not finished & {event.offset for event in taken_over}),
            Claim("the one that a had in hand came to b, as its second delivery", again == in_hand),
            Claim("all others that a had been sent came to b uncounted", len(taken_over) == MESSAGES - len(finished)),
            Claim(f"b took over long before the lease of {LEASE_SECONDS} s had ended", seen.seconds < LEASE_SECONDS / 3),
        ],
        {
            "messages": MESSAGES, "finished_by_a": len(finished), "in_hand": sorted(in_hand), "handled_by_b": len(taken_over),
            "taken_over_ms": round(seen.seconds * 1000),
        },
    )  # fmt: skip


DEMONSTRATION = Demonstration(
    "consumer-crash", "A consumer process is killed at work; another takes over what it held.", perform
)
