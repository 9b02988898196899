"""Broker crash: the server is killed again and again under load; its clients go on by themselves, and nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli import interrupts
from penstock.cli.demo.claims import Claim, Demonstration, Finding
from penstock.cli.demo.screen import heights, line
from penstock.cli.demo.stage import Hand
from penstock.errors import LeaseExpired
from penstock.volume.verification import verify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

    from penstock.cli.demo.stage import Stage
    from penstock.groups.delivery import Delivery
    from penstock.store.store import Store

PRODUCERS = 3
KILLS = 3
LOAD_SECONDS = 0.3
"""How long the server works between two kills."""
PREFETCH = 10
"""What is with a consumer when its server dies is handed out with care afterwards, one after the other."""
CELL_SECONDS = 0.1
CELLS = 50
"""The most in a row; what takes longer has larger cells."""


class Seen(NamedTuple):
    """What the clients were told, and what the store holds."""

    acknowledged: Mapping[bytes, int]
    """Each message and the offset of its receipt."""
    stored: Sequence[bytes]
    """By offset."""
    handled: Sequence[bytes]
    errors: Sequence[str]
    restart_seconds: Sequence[float]
    exit_code: int
    is_sound: bool


class Producers:
    """Threads that publish one message after the other until they are stopped."""

    def __init__(self, store: Store) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.moments: list[float] = []
        self.errors: list[str] = []
        self._store = store
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,), daemon=True) for number in range(PRODUCERS)]
        for thread in self._threads:
            thread.start()

    def _work(self, producer: int) -> None:
        number = 0
        try:
            while not self._stopped.is_set():
                value = b"%d/%d" % (producer, number)
                self.acknowledged[value] = self._store.publish("payments", value).offset
                self.moments.append(time.monotonic())
                number += 1
        except Exception as error:  # noqa: BLE001 - that there is none is a claim
            self.errors.append(f"a producer: {error}")

    def stop(self) -> None:
        """Return when each has its last answer."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()


def perform(stage: Stage) -> Finding:
    """Kill and restart the server under producers and a consumer."""
    stage.start_server()
    stage.await_server()
    store = stage.store()
    store.create_topic("payments")
    handled: list[bytes] = []
    moments: list[float] = []

    def handle(message: Delivery) -> None:
        handled.append(message.value or b"")
        moments.append(time.monotonic())
        with contextlib.suppress(LeaseExpired):
            message.ack()  # unless the server died before: then the message comes again

    kills: list[tuple[float, float]] = []
    began = time.monotonic()
    consumer = Hand(stage.store(), "payments", "ledger", handle, max_deliveries=0, backoff=0.02, prefetch=PREFETCH)
    producers = Producers(store)
    with stage.screen.moving(lambda: draw(began, producers.moments, moments, kills)):
        for _ in range(KILLS):
            _let_work(producers, LOAD_SECONDS, stage)
            at = time.monotonic()
            stage.kill_server()
            stage.start_server()
            stage.await_server()
            kills.append((at, time.monotonic()))
        _let_work(producers, LOAD_SECONDS, stage)
        producers.stop()
        stage.wait("everything is handled", lambda: stage.group(store, "payments", "ledger").lag == 0)
    consumer.close()
    stored = [message.value or b"" for message in store.read("payments")]
    store.close()
    code = stage.stop_server()
    return judge(
        Seen(
            producers.acknowledged, stored, handled, producers.errors + [f"the consumer: {error}" for error in consumer.errors],
            [end - start for start, end in kills], code, verify(stage.data).is_sound,
        )
    )  # fmt: skip


def _let_work(producers: Producers, seconds: float, stage: Stage) -> None:
    """Until they have published something again, and *seconds* more."""
    before = len(producers.moments)
    stage.wait("the producers publish", lambda: len(producers.moments) > before or bool(producers.errors))
    with interrupts.allowed():
        time.sleep(seconds)


def draw(
    began: float, published: Sequence[float], handled: Sequence[float], kills: Sequence[tuple[float, float]]
) -> list[Text]:
    """How many messages went in and out in each cell of time, and when there was no server."""
    elapsed = time.monotonic() - began
    cell = max(CELL_SECONDS, elapsed / CELLS)
    cells = int(elapsed / cell) + 1

    def row(moments: Sequence[float]) -> str:
        counts = Counter(int((moment - began) / cell) for moment in list(moments))
        return heights([counts[at] for at in range(cells)])

    marks = [" "] * cells
    for start, end in list(kills):
        first, last = int((start - began) / cell), int((end - began) / cell)
        marks[first : last + 1] = ["✗", *["·"] * (last - first)]
    return [
        line("  published  ", (row(published), "cyan"), f"  {len(published):,}"),
        line("  handled    ", (row(handled), "green"), f"  {len(handled):,}"),
        line("  server     ", ("".join(marks), "bold red")),
        line((f"             ✗: SIGKILL   ·: no server; a cell is {cell:.1f} s", "dim")),
    ]


def judge(seen: Seen) -> Finding:
    """What must hold of it."""
    times = Counter(seen.stored)
    lost = [
        value
        for value, offset in seen.acknowledged.items()
        if not 0 <= offset < len(seen.stored) or seen.stored[offset] != value
    ]
    twice = sum(count > 1 for count in times.values())
    again = len(seen.handled) - len(set(seen.handled))
    return Finding(
        [
            Claim(f"the server was killed {KILLS} times under load", len(seen.restart_seconds) == KILLS and len(seen.acknowledged) > KILLS),
            Claim("no client saw an error: they waited, and went on", not seen.errors),
            Claim("every acknowledged message lies where its receipt says", not lost),
            Claim("none is stored twice, also where the answer was lost and the message sent again", not twice),
            Claim("every stored message was handled", set(seen.handled) == set(seen.stored)),
            Claim("then the server stopped in order, and each byte of its store is sound", seen.exit_code == 0 and seen.is_sound),
        ],
        {
            "kills": len(seen.restart_seconds), "acknowledged": len(seen.acknowledged), "stored": len(seen.stored), "lost": len(lost),
            "stored_twice": twice, "handled_again": again, "errors": list(seen.errors),
            "away_ms": [round(seconds * 1000) for seconds in seen.restart_seconds],
        },
    )  # fmt: skip


DEMONSTRATION = Demonstration(
    "broker-crash", "The server is killed under load; its clients go on, nothing is lost or doubled.", perform
)
