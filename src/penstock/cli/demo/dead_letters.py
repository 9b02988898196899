"""Retries and dead letters: what fails comes again after growing waits; what fails for good is set aside, and sent back once mended."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.demo.claims import Claim, Demonstration, Finding
from penstock.cli.demo.screen import line
from penstock.cli.demo.stage import Hand

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

    from penstock.cli.demo.stage import Stage
    from penstock.groups.delivery import Delivery

TASKS = 60
SHAKY = frozenset({10, 20, 30})
"""They fail twice."""
POISONED = frozenset({7, 42})
"""They fail until the handler is mended."""
MAX_DELIVERIES = 4
BACKOFF_SECONDS = 0.15
JITTER = 0.2
"""A wait is up to so much shorter, by chance."""
CELL_SECONDS = 0.05


class Try(NamedTuple):
    """One delivery."""

    task: int
    attempt: int
    seconds: float
    failed: bool


class Seen(NamedTuple):
    """The deliveries, the dead letters, and what came of sending them back."""

    tries: Sequence[Try]
    letters: Mapping[int, tuple[str, str]]
    """By task: how often it was delivered, and why it failed."""
    replayed: int
    handled_after: Sequence[int]
    letters_after: int


def perform(stage: Stage) -> Finding:
    """Let tasks fail, and mend the handler."""
    stage.start_server()
    stage.await_server()
    store = stage.store()
    store.publish_many("tasks", [b"%d" % number for number in range(TASKS)])
    tries: list[Try] = []
    mended = threading.Event()
    began = time.monotonic()

    def handle(message: Delivery) -> None:
        task = int(message.value or b"")
        failed = not mended.is_set() and (task in POISONED or (task in SHAKY and message.attempt <= 2))
        tries.append(Try(task, message.attempt, time.monotonic() - began, failed))
        if failed:
            message.nack(reason="cannot be parsed" if task in POISONED else "the other side is away")
        else:
            message.ack()

    hand = Hand(store, "tasks", "workers", handle, max_deliveries=MAX_DELIVERIES, backoff=BACKOFF_SECONDS)
    with stage.screen.moving(lambda: draw(tries)):
        stage.wait("all tasks are handled or set aside", lambda: stage.group(store, "tasks", "workers").lag == 0)
        dead = store.dead_letters("tasks")
        letters = {
            int(letter.value or b""): (_header(letter, "deliveries"), _header(letter, "reason")) for letter in dead.list()
        }
    before = len(tries)
    mended.set()
    replayed = dead.replay()
    stage.wait("what was sent back is handled", lambda: stage.group(store, "tasks", "workers").lag == 0)
    hand.close()
    if hand.errors:
        raise hand.errors[0]
    return judge(Seen(tries[:before], letters, replayed, [one.task for one in tries[before:] if not one.failed], len(dead)))


def _header(letter: object, name: str) -> str:
    headers = letter.headers  # type: ignore[attr-defined]
    return bytes(headers.get(f"x-dlq-{name}") or b"").decode("utf-8", "replace")


def draw(tries: Sequence[Try]) -> list[Text]:
    """When each of the troubled tasks was tried, and what came of it."""
    seen = list(tries)
    lines = [line((f"  {TASKS} tasks; a cell is {CELL_SECONDS:g} s", "bold"))]
    for task in sorted(SHAKY | POISONED):
        cells: dict[int, tuple[str, str]] = {}
        own = [one for one in seen if one.task == task]
        for one in own:
            cells[int(one.seconds / CELL_SECONDS)] = ("✗", "red") if one.failed else ("✓", "bold green")
        row = [cells.get(at, ("·", "dim")) for at in range(max(cells, default=0) + 1)]
        is_dead = len(own) == MAX_DELIVERIES and own[-1].failed
        lines.append(line(f"  task {task:<4}", *row, (" dead letter", "bold red") if is_dead else ""))
    healthy = sum(not one.failed for one in seen if one.task not in SHAKY | POISONED)
    lines.append(line("  others   ", ("✓", "bold green"), f" {healthy} at their first delivery"))
    return lines


def judge(seen: Seen) -> Finding:
    """What must hold of it."""
    by_task: dict[int, list[Try]] = {task: [] for task in range(TASKS)}
    for one in seen.tries:
        by_task[one.task].append(one)
    healthy = [tries for task, tries in by_task.items() if task not in SHAKY | POISONED]
    waits = {
        task: [later.seconds - earlier.seconds for earlier, later in zip(by_task[task], by_task[task][1:], strict=False)]
        for task in sorted(SHAKY | POISONED)
    }
    least = [BACKOFF_SECONDS * 2**number * (1 - JITTER) for number in range(MAX_DELIVERIES)]
    grow = all(wait >= bound for row in waits.values() for wait, bound in zip(row, least, strict=False))
    return Finding(
        [
            Claim("a task that does not fail is delivered once, however many others fail", all(len(tries) == 1 for tries in healthy)),
            Claim("a task that fails twice succeeds at its third delivery",
                  all([one.failed for one in by_task[task]] == [True, True, False] for task in SHAKY)),
            Claim("each retry waits as long as the backoff says: twice as long as the one before", grow and all(waits.values())),
            Claim(f"what fails {MAX_DELIVERIES} times is a dead letter, with its reason and its count",
                  seen.letters == dict.fromkeys(POISONED, (str(MAX_DELIVERIES), "cannot be parsed"))),
            Claim("once the handler was mended the dead letters were sent back and handled, and none is left",
                  seen.replayed == len(POISONED) and sorted(seen.handled_after) == sorted(POISONED) and seen.letters_after == 0),
        ],
        {
            "tasks": TASKS, "deliveries": len(seen.tries), "dead_letters": {str(task): why for task, (_, why) in seen.letters.items()},
            "waits_ms": {str(task): [round(wait * 1000) for wait in row] for task, row in waits.items()}, "replayed": seen.replayed,
        },
    )  # fmt: skip


DEMONSTRATION = Demonstration(
    "dead-letters", "What fails comes again after growing waits, and is set aside when it fails for good.", perform
)
