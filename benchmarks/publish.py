"""Publishing through the public interface, against other queues with the same durability."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import penstock
from benchmarks.load import BATCH_MESSAGES, VALUE, VALUES
from benchmarks.measure import Group, Row, Work, alternate, at_least, at_most, calls, microseconds, per_second
from benchmarks.queue_peers import PEERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.measure import Bench, Rates, Side, Target
    from benchmarks.queue_peers import OpenPeer, Peer

THREADS = 64
OUTSTANDING = 512
# Merging in the background would run beside some repeats and not beside others.
STEADY: dict[str, Any] = {"coalesce_below_bytes": 0}


@contextmanager
def opened_peers(folder: str, *, fsync: bool) -> Iterator[dict[Peer, OpenPeer]]:
    """Those peers that can be used here, each open in a folder of its own."""
    with ExitStack() as stack:
        found: dict[Peer, OpenPeer] = {}
        for peer in PEERS:
            if (peer.has_fsync or not fsync) and not peer.missing:
                found[peer] = peer.open(folder, fsync=fsync)
                stack.callback(found[peer].close)
        yield found


def best_of(rates: dict[Peer, Rates]) -> Peer:
    """The fastest one."""
    return max(rates, key=lambda peer: rates[peer].median)


def best_row(name: str, ours: Rates, rates: dict[Peer, Rates], target: Target | None, note: str) -> Row:
    """How many times the rate of the fastest peer."""
    best = best_of(rates)
    theirs = rates[best]
    absent = [peer.name for peer in PEERS if peer.missing]
    note += f"; raw: the best peer, {best.name}" + (f"; not installed: {', '.join(absent)}" if absent else "")
    return Row(
        name, ours.over(theirs), per_second(ours.median), per_second(theirs.median), target, note=note,
        unsteadiness=theirs.unsteadiness, figures={"peer_per_second": theirs.median},
    )  # fmt: skip


def peer_rows(prefix: str, ours: Rates, rates: dict[Peer, Rates], notes: dict[str, str]) -> Iterator[Row]:
    """One row for each of the peers named in *notes*, measured or not."""
    for peer in PEERS:
        if peer.name not in notes:
            continue
        name = f"{prefix}-{peer.name}"
        theirs = rates.get(peer)
        if theirs is None:
            yield Row(name, [], "", refused="absent: " + (peer.missing or "it has no fsync for a single message"))
            continue
        yield Row(
            name, ours.over(theirs), per_second(ours.median), per_second(theirs.median), note=notes[peer.name],
            unsteadiness=theirs.unsteadiness, figures={"peer_per_second": theirs.median},
        )  # fmt: skip


def put_side(peer: OpenPeer, count: int) -> Side:
    """So many messages, one after the other."""
    put, value = peer.put, peer.value
    return calls(lambda: put(value), count)


# -- survives the death of the process -------------------------------------------------------------------------------------


def _singles(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with (
        bench.folder() as folder,
        opened_peers(folder, fsync=False) as peers,
        penstock.open(os.path.join(folder, "store")) as store,
    ):
        store.create_topic("singles", sync="os", **STEADY)
        publish = store.publish
        sides = [
            calls(lambda: publish("singles", VALUE), sizes.singles),
            *[put_side(peer, sizes.peer_puts) for peer in peers.values()],
        ]
        ours, *theirs = alternate(sizes.repeats, sides, turns=sizes.turns)
    rates = dict(zip(peers, theirs, strict=True))
    yield Row(
        "publish-os", ours.microseconds, microseconds(1e6 / ours.median), "", at_most(8, "us"), "us",
        note="publish of 100 B, one after the other, sync=os", unsteadiness=ours.unsteadiness,
    )  # fmt: skip
    yield best_row("publish-os-best-peer", ours, rates, at_least(10), "survives SIGKILL, one after the other")
    yield from peer_rows("os", ours, rates, {peer.name: "one after the other, no sync" for peer in PEERS})


def _many(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with bench.folder() as folder, opened_peers(folder, fsync=False) as peers:
        able = [peer for peer in peers if peer.put_many]
        with penstock.open(os.path.join(folder, "store")) as store:
            store.create_topic("many", sync="os", **STEADY)
            sides = [
                _batches(lambda: store.publish_many("many", VALUES), sizes.publish_batches),
                *[_peer_batches(peers[peer], sizes.peer_batches) for peer in able],
            ]
            ours, *theirs = alternate(sizes.repeats, sides, turns=sizes.turns)
    rates = dict(zip(able, theirs, strict=True))
    yield Row(
        "publish-many", [rate / 1e6 for rate in ours.each], per_second(ours.median), "", at_least(3, "M/s"), "M/s",
        note="messages; publish_many of 1000 x 100 B, sync=os", unsteadiness=ours.unsteadiness,
    )  # fmt: skip
    yield from peer_rows("many", ours, rates, {peer.name: f"1000 by {peer.put_many}" for peer in PEERS if peer.put_many})


def _batches(publish: Callable[[], object], count: int) -> Side:
    turn = calls(publish, count)

    def messages() -> Work:
        work = turn()
        return Work(work.amount * BATCH_MESSAGES, work.seconds)

    return messages


def _peer_batches(peer: OpenPeer, count: int) -> Side:
    values = [peer.value] * BATCH_MESSAGES
    return _batches(lambda: peer.put_many(values), count)


def _producer(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with bench.folder() as folder, penstock.open(os.path.join(folder, "store")) as store:
        sides = []
        with ExitStack() as stack:
            for sync in ("os", "always"):
                store.create_topic(sync, sync=sync, **STEADY)
                sides.append(_sends(stack.enter_context(store.producer(sync)), sizes.sends))
            plain, durable = alternate(sizes.repeats, sides, turns=sizes.turns)
    yield Row(
        "producer-send", [rate / 1e3 for rate in plain.each], per_second(plain.median), "", at_least(500, "k/s"), "k/s",
        note=f"sync=os, {sizes.sends:,} futures awaited at the end", unsteadiness=plain.unsteadiness,
    )  # fmt: skip
    yield Row(
        "producer-send-always", [rate / 1e3 for rate in durable.each], per_second(durable.median), "", None, "k/s",
        note="the same with sync=always", unsteadiness=durable.unsteadiness,
    )  # fmt: skip


def _sends(producer: Any, count: int) -> Side:
    """Send so many, then wait for each."""

    def turn() -> Work:
        send = producer.send
        start = time.perf_counter()
        futures = [send(VALUE) for _ in range(count)]
        for future in futures:
            future.result()
        return Work(count, time.perf_counter() - start)

    return turn


# -- survives the loss of power --------------------------------------------------------------------------------------------


def _durable(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with (
        bench.folder() as folder,
        opened_peers(folder, fsync=True) as peers,
        penstock.open(os.path.join(folder, "store")) as store,
    ):
        for name in ("single", "threads", "producer"):
            store.create_topic(name, sync="always", **STEADY)
        with store.producer("producer") as producer:
            sides: list[Side] = [
                calls(lambda: store.publish("single", VALUE), sizes.bare_syncs),
                _outstanding(producer, OUTSTANDING, sizes.tickets[OUTSTANDING]),
                *[put_side(peer, sizes.bare_syncs) for peer in peers.values()],
                *[_peer_batch_of(peers[peer], OUTSTANDING) for peer in peers if peer.put_many],
            ]
            single, outstanding, *rest = alternate(sizes.repeats, sides, turns=sizes.turns)
        sides = [
            threads_side(lambda: store.publish("threads", VALUE), THREADS, sizes.turn_seconds),
            *[
                threads_side(lambda peer=peer: peer.put(peer.value), THREADS, sizes.turn_seconds)  # type: ignore[misc]
                for peer in peers.values()
            ],
        ]
        threads, *in_threads = alternate(sizes.repeats, sides)
    one = dict(zip(peers, rest, strict=False))
    batched = dict(zip([peer for peer in peers if peer.put_many], rest[len(peers) :], strict=True))
    many = dict(zip(peers, in_threads, strict=True))
    names = {
        peer.name: f"{THREADS} threads; one alone does {per_second(one[peer].median)}" if peer in one else "" for peer in PEERS
    }
    best_one, best_many = best_of(one), best_of(many)
    # Most of them are slower with many threads than with one: then the one counts, though it ran in other turns.
    rates = many if many[best_many].median >= one[best_one].median else one
    how = f"{THREADS} threads" if rates is many else "one thread, faster than many"
    yield best_row("durable-threads", threads, rates, at_least(4), f"{THREADS} blocking threads, sync=always; peers: {how}")
    yield from peer_rows("fsync", threads, many, names)
    yield best_row("durable-single", single, one, None, "one thread, one after the other, sync=always")
    yield best_row("durable-outstanding", outstanding, one, at_least(30), f"a producer, {OUTSTANDING} outstanding")
    yield best_row(
        "durable-vs-batches", outstanding, batched, None,
        f"a producer, {OUTSTANDING} outstanding; peers: {OUTSTANDING} in one transaction by hand",
    )  # fmt: skip


def _outstanding(producer: Any, outstanding: int, count: int) -> Side:
    """Send so many messages: when *outstanding* of them wait, wait for the oldest."""

    def turn() -> Work:
        send = producer.send
        waiting: deque[Any] = deque()
        start = time.perf_counter()
        for _ in range(count):
            if len(waiting) >= outstanding:
                waiting.popleft().result()
            waiting.append(send(VALUE))
        while waiting:
            waiting.popleft().result()
        return Work(count, time.perf_counter() - start)

    return turn


def _peer_batch_of(peer: OpenPeer, messages: int) -> Side:
    values = [peer.value] * messages

    def turn() -> Work:
        start = time.perf_counter()
        peer.put_many(values)
        return Work(messages, time.perf_counter() - start)

    return turn


def threads_side(publish: Callable[[], object], threads: int, seconds: float) -> Side:
    """So many threads that publish one message after the other, for so long."""

    def turn() -> Work:
        counts = [0] * threads
        errors: list[BaseException] = []
        ready = threading.Barrier(threads + 1)
        over = threading.Event()

        def run(number: int) -> None:
            done = 0
            ready.wait()
            try:
                while True:
                    publish()
                    done += 1
                    if over.is_set():
                        break
            except BaseException as error:  # noqa: BLE001 - raised by the one who waits
                errors.append(error)
            counts[number] = done

        running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
        for thread in running:
            thread.start()
        ready.wait()
        start = time.perf_counter()
        time.sleep(seconds)
        over.set()
        for thread in running:
            thread.join()
        if errors:
            raise errors[0]
        return Work(max(sum(counts), 1), time.perf_counter() - start)

    return turn


def _names(prefix: str, peers: list[str]) -> tuple[str, ...]:
    return tuple(f"{prefix}-{name}" for name in peers)


_ALL = [peer.name for peer in PEERS]

GROUPS = (
    Group("publish", ("publish-os", "publish-os-best-peer", *_names("os", _ALL)), _singles),
    Group("publish-many", ("publish-many", *_names("many", [peer.name for peer in PEERS if peer.put_many])), _many),
    Group("producer", ("producer-send", "producer-send-always"), _producer),
    Group(
        "durable",
        ("durable-threads", *_names("fsync", _ALL), "durable-single", "durable-outstanding", "durable-vs-batches"),
        _durable,
        is_durable=True,
    ),
)
