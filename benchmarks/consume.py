"""
Consuming through the public interface: getting, acknowledging, a large backlog, memory.

`python -m benchmarks.consume MODE ...` is the process whose memory is measured: it prints bytes for each message.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.load import BATCH_MESSAGES, VALUE, VALUES, SyncedFile
from benchmarks.measure import KIB, Group, Row, Work, alternate, at_least, at_most, microseconds, per_second
from benchmarks.publish import STEADY, best_row, opened_peers, peer_rows
from benchmarks.queue_peers import PEERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench, Side
    from benchmarks.queue_peers import OpenPeer, Peer

MANY = 100
_LONG = 3600.0
"""Seconds; longer than any run: nothing comes again by itself."""
_AS_ONE_REPEAT = 3
"""How often memory is measured: it does not vary as times do."""


def fill(store: Any, topic: str, messages: int) -> None:
    """Publish at least so many messages, 1000 at a time."""
    for _ in range((messages + BATCH_MESSAGES - 1) // BATCH_MESSAGES):
        store.publish_many(topic, VALUES)


# -- rates -----------------------------------------------------------------------------------------------------------------


def one_by_one(consumer: Any, count: int) -> Side:
    """Get and acknowledge so many, one after the other; at the end all of that is stored."""

    def turn() -> Work:
        get = consumer.get
        start = time.perf_counter()
        for _ in range(count):
            get(5).ack()
        consumer.flush()
        return Work(count, time.perf_counter() - start)

    return turn


def in_groups(consumer: Any, count: int, at_once: int = MANY) -> Side:
    """Get *at_once* and acknowledge them with one call, until there were so many; at the end all of that is stored."""

    def turn() -> Work:
        left = count
        start = time.perf_counter()
        while left > 0:
            found = consumer.get_many(min(at_once, left), 5)
            if not found:
                raise AssertionError(f"{left} messages did not come")
            consumer.ack(found)
            left -= len(found)
        consumer.flush()
        return Work(count, time.perf_counter() - start)

    return turn


def whole(consumer: Any, count: int, at_once: int) -> Side:
    """Get *at_once* and acknowledge them for good, so many times; messages are counted."""

    def turn() -> Work:
        start = time.perf_counter()
        for _ in range(count):
            consumer.ack(_get(consumer, at_once), wait=True)
        return Work(count * at_once, time.perf_counter() - start)

    return turn


def _get(consumer: Any, count: int) -> list[Any]:
    found: list[Any] = consumer.get_many(count, 5)
    while len(found) < count:
        more = consumer.get_many(count - len(found), 5)
        if not more:
            raise AssertionError(f"{count - len(found)} messages did not come")
        found += more
    return found


def _take_side(peer: OpenPeer, count: int, *, together: bool, in_one: bool = False) -> Side:
    """Only a few are there, and finished ones are gone: a backlog slows some of them down."""
    values = [peer.value] * count

    def turn() -> Work:
        if in_one:
            peer.put_many(values)
        else:
            for value in values:
                peer.put(value)
        start = time.perf_counter()
        if together:
            peer.take_many(count)
        else:
            peer.take(count)
        seconds = time.perf_counter() - start
        peer.tidy()
        return Work(count, seconds)

    return turn


def _peer_sides(peers: dict[Peer, OpenPeer], count: int) -> tuple[list[Side], list[Peer]]:
    """One after the other for each, then together for those that can."""
    able = [peer for peer in peers if peer.take_many]
    one = [_take_side(opened, count, together=False, in_one=bool(peer.put_many)) for peer, opened in peers.items()]
    return one + [_take_side(peers[peer], MANY, together=True, in_one=bool(peer.put_many)) for peer in able], able


_WEAKER = "no sync; after a SIGKILL ours would come again, theirs not"


def _consume(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with (
        bench.folder() as folder,
        opened_peers(folder, fsync=False) as peers,
        penstock.open(os.path.join(folder, "store")) as store,
    ):
        store.create_topic("log", sync="os", **STEADY)
        fill(store, "log", sizes.consumes * sizes.turns * (sizes.repeats + 1))
        with (
            store.subscribe("log", "one", lease=_LONG) as one,
            store.subscribe("log", "many", lease=_LONG, prefetch=10 * MANY) as many,
        ):
            sides, able = _peer_sides(peers, sizes.peer_puts)
            singly, together, *rest = alternate(
                sizes.repeats, [one_by_one(one, sizes.consumes), in_groups(many, sizes.consumes), *sides], turns=sizes.turns
            )
    rates = dict(zip(peers, rest, strict=False))
    batched = dict(zip(able, rest[len(peers) :], strict=True))
    for name, ours, limit, note in (
        ("get-ack", singly, 150, "get and ack, one after the other"),
        ("get-many-ack", together, 600, f"get_many({MANY}) and one ack"),
    ):
        yield Row(
            name, [rate / 1e3 for rate in ours.each], per_second(ours.median), "", at_least(limit, "k/s"), "k/s",
            note=f"messages; {note}, one flush at the end", unsteadiness=ours.unsteadiness,
        )  # fmt: skip
    yield best_row("get-ack-best-peer", singly, rates, None, f"one after the other, {_WEAKER}")
    yield best_row("get-many-best-peer", together, batched, None, f"{MANY} at once, {_WEAKER}")


def _ack_wait(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    count = sizes.bare_syncs
    with (
        bench.folder() as folder,
        opened_peers(folder, fsync=True) as peers,
        penstock.open(os.path.join(folder, "store")) as store,
    ):
        file = SyncedFile(os.path.join(folder, "raw"))
        store.create_topic("log", sync="always", **STEADY)
        fill(store, "log", count * MANY * sizes.turns * (sizes.repeats + 1))
        consumers = [
            store.subscribe("log", f"group-{number}", lease=_LONG, prefetch=10 * MANY if number % 2 else MANY)
            for number in range(4)
        ]
        theirs, able = _peer_sides(peers, count)
        sides = [
            file.side(VALUE, count),
            _waiting(consumers[0], count, 1),
            _waiting(consumers[1], count, MANY),
            whole(consumers[2], count, 1),
            whole(consumers[3], count, MANY),
            *theirs,
        ]
        bare, single, together, singly, many, *rest = alternate(sizes.repeats, sides, turns=sizes.turns)
        for consumer in consumers:
            consumer.close()
        file.close()
    for name, ours, note in (("ack-wait", single, "one message"), ("ack-wait-100", together, f"{MANY} messages at once")):
        yield Row(
            name, bare.over(ours), microseconds(1e6 / ours.median), microseconds(1e6 / bare.median),
            note=f"ack(wait=True) of {note}, sync=always; raw: pwrite+fdatasync", unsteadiness=bare.unsteadiness,
        )  # fmt: skip
    rates = dict(zip(peers, rest, strict=False))
    batched = dict(zip(able, rest[len(peers) :], strict=True))
    note = "get and ack(wait=True), one after the other; peer: the same with fsync"
    yield from peer_rows("get", singly, rates, {peer.name: note for peer in PEERS})
    notes = {
        peer.name: f"get_many({MANY}) and ack(wait=True); peer: {peer.take_many}, with fsync"
        for peer in PEERS
        if peer.take_many
    }
    yield from peer_rows("get-many", many, batched, notes)


def _waiting(consumer: Any, count: int, at_once: int) -> Side:
    """Only the acknowledging is timed."""

    def turn() -> Work:
        seconds = 0.0
        for _ in range(count):
            found = _get(consumer, at_once)
            start = time.perf_counter()
            consumer.ack(found, wait=True)
            seconds += time.perf_counter() - start
        return Work(count, seconds)

    return turn


# -- a backlog -------------------------------------------------------------------------------------------------------------


def _backlog(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    large, small = sizes.backlog
    with bench.folder() as folder:
        paths = [os.path.join(folder, "large"), os.path.join(folder, "small")]
        for path, messages in zip(paths, sizes.backlog, strict=True):
            with penstock.open(path) as store:
                store.create_topic("log", sync="os", **STEADY)
                fill(store, "log", messages)
        memory = []
        for _ in range(_AS_ONE_REPEAT):
            much, little = (_in_process("pending", path) for path in paths)
            memory.append((much - little) / (large - small))
        with (
            penstock.open(paths[0]) as large_store,
            penstock.open(paths[1]) as small_store,
            large_store.subscribe("log", "group", lease=_LONG, prefetch=10 * MANY) as from_large,
            small_store.subscribe("log", "group", lease=_LONG, prefetch=10 * MANY) as from_small,
        ):
            drain = in_groups(from_small, small)

            def refilled() -> Work:
                work = drain()
                fill(small_store, "log", small)
                return work

            ours, few = alternate(sizes.repeats, [in_groups(from_large, small), refilled], turns=sizes.backlog_turns)
    yield Row(
        "drain-backlog", ours.over(few), per_second(ours.median), per_second(few.median), at_least(0.8),
        note=f"{large:,} messages wait; raw: {small:,} do", unsteadiness=few.unsteadiness,
    )  # fmt: skip
    yield _memory_row("memory-pending", memory, 2, f"untouched, {large:,} wait when the store is opened; anonymous memory")


def _memory(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    messages = min(sizes.backlog[0], 1_000_000)
    with bench.folder() as folder:
        published = [_in_process("published", folder, messages) for _ in range(_AS_ONE_REPEAT)]
        nacked = [_in_process("nacked", folder, sizes.nacked) for _ in range(_AS_ONE_REPEAT)]
    yield _memory_row(
        "memory-published", published, 2, f"untouched, {messages:,} published beside a consumer; anonymous memory"
    )
    yield _memory_row("memory-nacked", nacked, 100, f"{sizes.nacked:,} wait for their time after a nack; anonymous memory")


def _memory_row(name: str, values: list[float], most: float, note: str) -> Row:
    middle = sorted(values)[len(values) // 2]
    return Row(name, values, f"{middle:.3g} B", "", at_most(most, "B"), "B", note)


# -- the process whose memory is measured ------------------------------------------------------------------------------------


def _in_process(*arguments: object) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.consume", *[str(each) for each in arguments]],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return float(done.stdout)


def anonymous_bytes() -> int:
    """What the process has in memory that no file backs, after everything that can go has gone."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) * KIB
    raise AssertionError("the kernel does not tell")


def _take_some(consumer: Any) -> None:
    consumer.ack(consumer.get_many(MANY, 5), wait=True)


def _pending(path: str) -> float:
    """The whole process with this store open and a consumer at work."""
    with penstock.open(path) as store, store.subscribe("log", "memory", lease=_LONG) as consumer:
        _take_some(consumer)
        return anonymous_bytes()


def _published(folder: str, messages: int) -> float:
    """For each message that is published while a consumer is there and does not get to it."""
    path = tempfile.mkdtemp(dir=folder)
    with penstock.open(os.path.join(path, "store")) as store:
        store.create_topic("log", sync="os", **STEADY)
        fill(store, "log", messages // 10)
        with store.subscribe("log", "group", lease=_LONG) as consumer:
            _take_some(consumer)
            before = anonymous_bytes()
            fill(store, "log", messages)
            _take_some(consumer)
            return (anonymous_bytes() - before) / messages


def _nacked(folder: str, messages: int) -> float:
    """For each message that was given back and waits for its time."""
    path = tempfile.mkdtemp(dir=folder)
    with penstock.open(os.path.join(path, "store")) as store:
        store.create_topic("log", sync="os", **STEADY)
        fill(store, "log", 2 * messages)
        with store.subscribe("log", "group", lease=_LONG) as consumer:
            _give_back(consumer, max(messages // 10, MANY))
            before = anonymous_bytes()
            _give_back(consumer, messages)
            return (anonymous_bytes() - before) / messages


def _give_back(consumer: Any, messages: int) -> None:
    left = messages
    while left > 0:
        found = consumer.get_many(min(MANY, left), 5)
        if not found:
            raise AssertionError(f"{left} messages did not come")
        consumer.nack(found, delay=_LONG)
        left -= len(found)
    consumer.flush()


def _main(mode: str, path: str, *numbers: str) -> None:
    if mode == "pending":
        print(_pending(path))
    else:
        print({"published": _published, "nacked": _nacked}[mode](path, int(numbers[0])))


GROUPS = (
    Group("consume", ("get-ack", "get-many-ack", "get-ack-best-peer", "get-many-best-peer"), _consume),
    Group(
        "ack-wait",
        (
            "ack-wait",
            "ack-wait-100",
            *[f"get-{peer.name}" for peer in PEERS],
            *[f"get-many-{peer.name}" for peer in PEERS if peer.take_many],
        ),
        _ack_wait,
        is_durable=True,
    ),
    Group("backlog", ("drain-backlog", "memory-pending"), _backlog),
    Group("memory", ("memory-published", "memory-nacked"), _memory),
)

if __name__ == "__main__":
    _main(*sys.argv[1:])
