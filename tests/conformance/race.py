"""
Consumers whose speed the test decides: a handler works for as many ticks as its message costs, and the test lets ticks pass.

Between two ticks nobody may be idle while there is a message that nobody has begun, wherever that is: the test waits for that as long as it
takes, so a busy machine makes it slower and not different. What each one has finished in the end then follows from the speeds alone.

A client that cannot be asked to give messages back keeps what it was pushed. There one may be idle (`spare`), but only when the group has
nothing left to give; and a tick lasts a while, since such a client is pushed what it finishes in a while.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from tests.conformance.helpers import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TICK_S = 0.01
LOOK_S = 0.005


class Race:
    """
    *total* messages, and those who work on them.

    *spare* says how many may be idle now though there are messages that nobody has begun.
    """

    def __init__(self, total: int, spare: Callable[[], int] | None = None) -> None:
        self.total = total
        self._spare = spare
        self.finished: dict[str, int] = {}
        self.seen: list[tuple[int, int]] = []
        """Places of messages, in the order in which they were begun."""
        self.attempts: set[int] = set()
        self.failures: list[BaseException] = []
        self._costs: dict[str, int] = {}
        self._left: dict[str, int] = {}
        """The ticks that each one still works."""
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._is_over = False

    def enter(self, name: str, consumer: Any, cost: int) -> None:
        """A consumer that takes *cost* ticks for a message."""
        with self._changed:
            self._costs[name] = cost
            self.finished[name] = 0
        thread = threading.Thread(target=self._serve, args=(name, consumer), name=f"race {name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, name: str, consumer: Any) -> None:
        try:
            for message in consumer:
                with self._changed:
                    self.seen.append((message.partition, message.offset))
                    self.attempts.add(message.attempt)
                    self._left[name] = self._costs[name]
                    self._changed.notify_all()
                    while self._left[name] > 0 and not self._is_over:
                        self._changed.wait()
                    if self._is_over:
                        return
                message.ack()
                with self._changed:
                    del self._left[name]
                    self.finished[name] += 1
                    self._changed.notify_all()
        except BaseException as error:
            with self._changed:
                if not self._is_over:
                    self.failures.append(error)
                self._changed.notify_all()

    def run(self) -> None:
        """Let time pass until all messages are finished."""
        while True:
            self.settle()
            with self._changed:
                if sum(self.finished.values()) >= self.total:
                    return
            self._pass()

    def tick(self) -> None:
        """Let one tick pass."""
        self.settle()
        self._pass()

    def _pass(self) -> None:
        if self._spare is not None:
            time.sleep(TICK_S)
        with self._changed:
            for name in self._left:
                self._left[name] -= 1
            self._changed.notify_all()

    def settle(self) -> None:
        """Return when each one works, or nothing is left that nobody has begun."""
        end = time.monotonic() + PATIENCE
        with self._changed:
            while not self._is_settled():
                assert not self.failures, self.failures
                left = end - time.monotonic()
                assert left > 0, f"idle: {sorted(set(self._costs) - set(self._left))} at {self.finished}; {self.total} in all"
                self._changed.wait(left if self._spare is None else LOOK_S)
            assert not self.failures, self.failures

    def _is_settled(self) -> bool:
        working = sum(left > 0 for left in self._left.values())
        if len(self._left) != working:
            return False  # who has ended its message has not acked it yet
        if working == len(self._costs) or sum(self.finished.values()) + working >= self.total:
            return True
        return self._spare is not None and self._spare() >= len(self._costs) - working

    def stop(self, consumers: Sequence[Any]) -> None:
        """All are done."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        for consumer in consumers:
            try:
                consumer.close()
            except PenstockError as error:
                self.failures.append(error)
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def fair(self) -> dict[str, int]:
        """What each one would have finished if all messages lay in one place."""
        finished = dict.fromkeys(self._costs, 0)
        begun = min(len(self._costs), self.total)
        left = dict(list(self._costs.items())[:begun])
        while left:
            for name in list(left):
                left[name] -= 1
                if left[name] == 0:
                    finished[name] += 1
                    del left[name]
                    if begun < self.total:
                        begun += 1
                        left[name] = self._costs[name]
        return finished
