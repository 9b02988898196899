"""How long after a publish the consumer that waits for it has it, in one process."""

from __future__ import annotations

import os
import queue
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.load import VALUE
from benchmarks.measure import Group, Row, at_most, microseconds
from benchmarks.publish import STEADY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.measure import Bench

_PAUSE = 0.001
"""Seconds before each publish, so that the consumer waits by then."""
_GIVE_UP = 10.0


class _Receiver:
    """A thread that takes one thing after the other and notes when it had it."""

    def __init__(self, take: Callable[[], object]) -> None:
        self._take = take
        self._taken = threading.Semaphore(0)
        self.had = 0.0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while True:
                found = self._take()
                self.had = time.perf_counter()
                if found is None:
                    return
                if hasattr(found, "ack"):
                    found.ack()
                self._taken.release()
        except BaseException as error:  # noqa: BLE001 - raised by the one who waits
            self._error = error
            self._taken.release()

    def wait(self) -> float:
        """When it had the next one."""
        if not self._taken.acquire(timeout=_GIVE_UP):
            raise TimeoutError("the consumer did not wake")
        if self._error is not None:
            raise self._error
        return self.had

    def join(self) -> None:
        self._thread.join(_GIVE_UP)


def _latencies(receiver: _Receiver, give: Callable[[], object], count: int, *, from_return: bool) -> list[float]:
    """Microseconds from giving (the call, or its return) until the receiver had it."""
    took = []
    for _ in range(count):
        time.sleep(_PAUSE)
        start = time.perf_counter()
        give()
        if from_return:
            start = time.perf_counter()
        took.append(max(0.0, receiver.wait() - start) * 1e6)
    return took


def _percentile(values: list[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def _wake(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with bench.folder() as folder, penstock.open(os.path.join(folder, "store")) as store:
        box: queue.SimpleQueue[object] = queue.SimpleQueue()
        givers: list[tuple[str, _Receiver, Callable[[], object]]] = [("bare", _Receiver(box.get), lambda: box.put(VALUE))]
        consumers: list[Any] = []
        for sync in ("os", "always"):
            store.create_topic(sync, sync=sync, **STEADY)
            consumer = store.subscribe(sync, "group")
            consumers.append(consumer)

            def give(topic: str = sync) -> object:
                return store.publish(topic, VALUE)

            givers.append((sync, _Receiver(consumer.get), give))
        took: dict[str, list[list[float]]] = {name: [] for name, _, _ in givers}
        for repeat in range(-1, sizes.repeats):
            for name, receiver, give_one in givers:
                found = _latencies(receiver, give_one, sizes.wakes, from_return=name == "always")
                if repeat >= 0:
                    took[name].append(found)
        box.put(None)
        for consumer in consumers:
            consumer.close()
        for _, receiver, _ in givers:
            receiver.join()
    bare = [_percentile(each, 99) for each in took["bare"]]
    for name, since in (("os", "from the call of publish"), ("always", "from the return of publish, which is the commit")):
        values = [_percentile(each, 99) for each in took[name]]
        middle = statistics.median([value for each in took[name] for value in each])
        yield Row(
            f"wake-{name}", values, microseconds(statistics.median(values)), microseconds(statistics.median(bare)),
            at_most(1000, "us"), "us", note=f"99 of 100 wake within, median {microseconds(middle)}, {since}; raw: a SimpleQueue",
            unsteadiness=max(bare) / max(min(bare), 1e-9), figures={"median_us": middle},
        )  # fmt: skip


GROUPS = (Group("wake", ("wake-os", "wake-always"), _wake, is_durable=True),)
