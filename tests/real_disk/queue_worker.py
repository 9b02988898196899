"""
A process that uses a store as producers and consumers do, and is made to crash.

`serve` forks one for each line it gets, so that a start costs no imports. What its clients did and were told goes to a history on another
file (see queue_checker.py). What a client does with a message follows from the message alone: its value is ``PRODUCER.NUMBER``, and the
number decides who nacks, rejects or is late.

Groups of the topic ``jobs``: ``shared`` (retries, dead letters, leases that end), ``ordered``, and ``moving``, whose consumers publish to
``results`` in the transaction that acks.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any

from penstock.errors import Closed, LeaseExpired, MessageTooLarge, OffsetOutOfRange, PenstockError
from penstock.groups import group as group_module
from penstock.groups.group import Group
from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.topics.deduplication import DedupWindow
from penstock.volume.tickets import Other
from tests.real_disk.history import HistoryWriter
from tests.real_disk.queue_checker import DeadLetter, Final, Log, Rules
from tests.real_disk.writer import STORE, make_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer
    from penstock.topics.message import Message

PARTITIONS = {"jobs": 3, "results": 2}
PRODUCERS = 3
LEASE_MS = 500
MAX_DELIVERIES = 4
RULES = Rules(
    groups=("jobs/shared", "jobs/ordered", "jobs/moving"),
    ordered=frozenset({"jobs/ordered"}),
    lease_ms={"jobs/shared": LEASE_MS, "jobs/ordered": 30_000, "jobs/moving": 30_000},
    max_deliveries={"jobs/shared": MAX_DELIVERIES, "jobs/ordered": 20, "jobs/moving": 20},
)
MESSAGE_BYTES_MAX = 2_000
KIB = 1024


def plan(value: str) -> str:
    """What a consumer of the shared group does with a message, whoever it is: a fixed share of each."""
    share = int(value.rpartition(".")[2]) % 40
    return {3: "reject", 11: "fail always", 17: "fail once", 23: "late once", 31: "fail once"}.get(share, "ack")


def text_of(message: Message) -> str:
    """What a message says, without what makes it longer."""
    return (message.value or b"").split(b" ")[0].decode()


def _ms() -> int:
    return time.monotonic_ns() // 1_000_000


class Client:
    """What clients share: the store, the history, and how they end."""

    def __init__(self, session: Session, name: str) -> None:
        self.session = session
        self.store = session.store
        self.name = f"{session.number}{name}"
        self.rng = random.Random(f"{session.seed} {session.number} {name}")
        self.numbers = 0

    def tell(self, *event: object) -> None:
        """Write down an event."""
        self.session.tell(*event)

    def take(self, consumer: Consumer, group: str, count: int) -> list[tuple[str, Delivery]]:
        """Up to *count* messages, each with its token."""
        asked = _ms()
        messages = consumer.get_many(count, timeout=0.05)
        got = _ms()
        taken = []
        for message in messages:
            self.numbers += 1
            token = f"{self.name}.{self.numbers}"
            value = text_of(message)
            self.tell("got", token, group, message.partition, message.offset, message.attempt, value, asked, got)
            taken.append((token, message))
        return taken

    def finish(self, token: str, how: str, call: Callable[[], object], *words: object) -> None:
        """Finish a delivery, and tell what came of it."""
        self.tell(how, token, *words)
        try:
            call()
        except LeaseExpired:
            self.tell("late", token)
        else:
            self.tell("done", token, _ms())


class Producer(Client):
    """Publishes one message after the other; each is sent again after a crash until it is answered."""

    def __init__(self, session: Session, number: int) -> None:
        super().__init__(session, f"p{number}")
        self._producer = f"p{number}"
        self._next, self._unanswered = session.resume.get(self._producer, (0, []))
        self._answered: list[int] = []

    def run(self) -> None:
        """Publish until the end."""
        while not self.session.stopping():
            if self._unanswered:
                self._publish([self._unanswered.pop(0)])
                continue
            chance = self.rng.random()
            if chance < 0.02:
                self._refuse()
            elif chance < 0.06 and self._answered:
                # A key that was published a moment ago.
                self._publish([self.rng.choice(self._answered[-20:])])
            else:
                count = 5 if chance < 0.15 else 1
                self._next += count
                self._publish(list(range(self._next - count, self._next)))
            if self.session.is_ahead:
                time.sleep(0.01)

    def _publish(self, numbers: list[int]) -> None:
        ops = [f"{self._producer}.{number}" for number in numbers]
        for op in ops:
            self.tell("send", op, "jobs", op, op)
        filling = b" " + b"." * self.rng.choice([0, 10, 10, 100, 900])
        values = [op.encode() + filling for op in ops]
        try:
            # A message of one number always goes to the same partition, as keys do.
            if len(ops) == 1:
                receipts = [self.store.publish("jobs", values[0], key=b"%d" % (numbers[0] % 7), dedup_key=ops[0])]
            else:
                keys = [b"%d" % (number % 7) for number in numbers]
                receipts = list(self.store.publish_many("jobs", values, keys=keys, dedup_keys=ops))
        except (PenstockError, OSError):
            for op in ops:
                self.tell("unknown", op)
            raise
        for op, receipt in zip(ops, receipts, strict=True):
            self.tell("sent", op, receipt.partition, receipt.offset, receipt.duplicate)
        self._answered += numbers

    def _refuse(self) -> None:
        self._next += 1
        op = f"{self._producer}.{self._next - 1}"
        self.tell("send", op, "jobs", op, op)
        try:
            self.store.publish("jobs", op.encode() + b" " + b"." * MESSAGE_BYTES_MAX, dedup_key=op)
        except MessageTooLarge:
            self.tell("refused", op)


class SharedConsumer(Client):
    """Acks, nacks, rejects or is late, as the message wants it; one at a time, or in batches."""

    def __init__(self, session: Session, number: int) -> None:
        super().__init__(session, f"s{number}")
        self._batch = 1 if number % 2 == 0 else 8

    def run(self) -> None:
        """Consume until the end."""
        options: dict[str, Any] = {
            "lease": LEASE_MS / 1000,
            "max_deliveries": MAX_DELIVERIES,
            "backoff": 0.01,
            "backoff_max": 0.05,
        }
        with self.store.subscribe("jobs", "shared", prefetch=20, **options) as consumer:
            while not self.session.stopping():
                taken = self.take(consumer, "jobs/shared", self._batch)
                if len(taken) > 1 and all(plan(text_of(message)) == "ack" for _, message in taken):
                    self._ack_all(consumer, taken)
                    continue
                for token, message in taken:
                    self._handle(token, message)
            self.tell("left", self.name)

    def _ack_all(self, consumer: Consumer, taken: list[tuple[str, Delivery]]) -> None:
        wait = self.rng.random() < 0.2
        for token, _ in taken:
            self.tell("ack", token, wait)
        try:
            consumer.ack([message for _, message in taken], wait=wait)
        except LeaseExpired:
            # Some of them: which, nobody says. So nothing is held against any of them.
            return
        for token, _ in taken:
            self.tell("done", token, _ms())

    def _handle(self, token: str, message: Delivery) -> None:
        what = plan(text_of(message))
        if what == "reject":
            self.finish(token, "reject", lambda: message.reject("as planned"))
        elif what == "fail always" or (what == "fail once" and message.attempt == 1):
            delay = self.rng.choice([None, 0, 0.02])
            self.finish(token, "nack", lambda: message.nack(delay=delay, reason="as planned"))
        else:
            if what == "late once" and message.attempt == 1 and self.rng.random() < 0.3:
                time.sleep(LEASE_MS / 1000 + 0.1)
            wait = self.rng.random() < 0.1
            self.finish(token, "ack", lambda: message.ack(wait=wait), wait)


class OrderedConsumer(Client):
    """Finishes each message before it takes the next; fails some; comes and goes, so that partitions change hands."""

    def __init__(self, session: Session, number: int) -> None:
        super().__init__(session, f"o{number}")

    def run(self) -> None:
        """Consume until the end."""
        while not self.session.stopping():
            with self.store.subscribe(
                "jobs", "ordered", prefetch=30, ordered=True, max_deliveries=20, backoff=0.01
            ) as consumer:
                for _ in range(self.rng.choice([20, 300])):
                    if self.session.stopping():
                        break
                    for token, message in self.take(consumer, "jobs/ordered", 1):
                        self._handle(token, message)

    def _handle(self, token: str, message: Delivery) -> None:
        if message.offset % 10 == 4 and message.attempt == 1:
            self.finish(token, "nack", lambda: message.nack(delay=self.rng.choice([0, 0.005])))
        else:
            wait = self.rng.random() < 0.1
            self.finish(token, "ack", lambda: message.ack(wait=wait), wait)


class Mover(Client):
    """Takes messages and publishes two for each, in the transaction that acks; gives some transactions up."""

    def __init__(self, session: Session, number: int) -> None:
        super().__init__(session, f"m{number}")
        self._transactions = 0

    def run(self) -> None:
        """Move messages until the end."""
        with self.store.subscribe("jobs", "moving", prefetch=20, max_deliveries=20) as consumer:
            while not self.session.stopping():
                taken = self.take(consumer, "jobs/moving", self.rng.choice([1, 1, 4]))
                if taken:
                    while not self._move(taken):
                        pass
            self.tell("left", self.name)

    def _move(self, taken: list[tuple[str, Delivery]]) -> bool:
        self._transactions += 1
        op = f"t{self.name}.{self._transactions}"
        messages = [f"{op}-{number}" for number in range(2 * len(taken))]
        self.tell("transaction", op, [token for token, _ in taken], [["results", value] for value in messages])
        transaction = self.store.transaction()
        for value in messages:
            transaction.publish("results", value.encode())
        for _, message in taken:
            transaction.ack(message)
        if self.rng.random() < 0.05:
            transaction.abort()
            self.tell("refused", op)
            return False
        try:
            receipts = transaction.commit()
        except LeaseExpired:
            self.tell("refused", op)
            return True
        except (PenstockError, OSError):
            self.tell("unknown", op)
            raise
        self.tell("committed", op, [[receipt.partition, receipt.offset] for receipt in receipts], _ms())
        return True


class Steward(Client):
    """Flushes, retains, and looks at numbers and dead letters."""

    def __init__(self, session: Session, number: int) -> None:
        super().__init__(session, f"c{number}")

    def run(self) -> None:
        """Go round until the end."""
        while not self.session.stopping():
            time.sleep(self.rng.uniform(0.002, 0.03))
            self.numbers += 1
            self.tell("flush", self.numbers)
            self.store.flush()
            self.tell("flushed", self.numbers)
            if self.numbers % 5 == 0:
                self.store.retain()
                len(self.store.dead_letters("jobs"))
                self._look()
            lag = max((group.lag for group in self.store.stats().topics["jobs"].groups.values()), default=0)
            self.session.is_ahead = lag > 1_500

    def _look(self) -> None:
        """Where a log begins, and some of what lies there, read without a group."""
        topic = self.rng.choice(list(PARTITIONS))
        partition = self.rng.randrange(PARTITIONS[topic])
        first = self.store.stats().topics[topic].starts[partition]
        self.tell("begins", topic, partition, first, _ms())
        start = self.rng.randint(first, self.store.ends(topic)[partition])
        with contextlib.suppress(OffsetOutOfRange):  # retention in the background was quicker
            messages = [[one.offset, text_of(one)] for one in self.store.read(topic, partition, start=start, max_messages=40)]
            self.tell("read", topic, partition, start, messages)


def plant_bug(store: Store, which: str) -> None:
    """Make the store wrong in one way, to show that the harness notices."""
    groups: Any = store._groups
    submit, commit = store._volume.submit_changes, store._volume.commit_together
    if which == "acks are not waited for":
        groups.flush = lambda: None
    elif which == "dead letters are finished a little later":

        def in_two_frames(changes: Any, *, essential: bool = False) -> Any:
            other = [change for change in changes if isinstance(change, Other)]
            if len(changes) == 2 and len(other) == 1:
                for change in other:
                    threading.Timer(0.02, lambda body=change.body: groups.commit(body)).start()
                return submit([change for change in changes if not isinstance(change, Other)], essential=essential)
            return submit(changes, essential=essential)

        store._volume.submit_changes = in_two_frames  # type: ignore[assignment, method-assign]
    elif which == "transactions take two frames":

        def one_by_one(logs: Any, batches: Any, others: Any) -> Any:
            if logs and others:
                commit([], [], others)
                others = []
            return commit(logs, batches, others)

        store._volume.commit_together = one_by_one  # type: ignore[method-assign]
    elif which == "keys are forgotten":
        DedupWindow._load = lambda self, now_us: None  # type: ignore[method-assign]
    elif which == "leases are too short":
        Group.configure = _short_leases(Group.configure)  # type: ignore[method-assign]
        for group in groups.all():
            group.configure(group.settings)
    elif which == "failures are forgotten":
        Group._replay_failed = lambda self, cursor, operation: None  # type: ignore[method-assign]
        name = "cursor_operations"
        setattr(group_module, name, _without_failures(getattr(group_module, name)))
    else:
        assert which == "order is not kept"
        Group._withdraw_behind = lambda self, cursor, offset: None  # type: ignore[method-assign]


def _short_leases(configure: Any) -> Any:
    def wrong(group: Any, settings: Any) -> None:
        configure(group, settings)
        group._lease_s = 0.002

    return wrong


def _without_failures(snapshot_of: Any) -> Any:
    def wrong(group: Any, cursor: Any, now: float, now_us: int) -> Any:
        failures, cursor.failures = cursor.failures, {}
        try:
            return snapshot_of(group, cursor, now, now_us)
        finally:
            cursor.failures = failures

    return wrong


class Session:
    """One life of the process."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.number = request["session"]
        self.seed = request["seed"]
        self.resume = {name: (count, list(unanswered)) for name, (count, unanswered) in request["resume"].items()}
        self._stop = threading.Event()
        self.is_ahead = False
        self._history = HistoryWriter(request["history"])
        self._fails_are_normal = request["fails_are_normal"]
        self.store = Store.open(
            request["path"], settings=StoreSettings(**STORE), files=make_files(request), background=True
        )  # fmt: skip
        if request.get("plant"):
            plant_bug(self.store, request["plant"])
        self.tell("session", self.number)
        self.store.create_topic(
            "jobs", partitions=PARTITIONS["jobs"], segment_bytes=16 * KIB, coalesce_below_bytes=4 * KIB,
            max_message_bytes=MESSAGE_BYTES_MAX, retention_bytes=256 * KIB, dedup_window=3600,
        )  # fmt: skip
        self.store.create_topic(
            "results", partitions=PARTITIONS["results"], segment_bytes=64 * KIB, coalesce_below_bytes=4 * KIB
        )
        self._threads: list[threading.Thread] = []

    def stopping(self) -> bool:
        """Whether the clients are to end."""
        return self._stop.is_set()

    def tell(self, *event: object) -> None:
        """Write down an event."""
        self._history.line(json.dumps(event, separators=(",", ":")))

    def start(self, *, producing: bool) -> None:
        """Let the clients work."""
        consumers: list[tuple[type[Any], int]] = [(SharedConsumer, 3), (OrderedConsumer, 2), (Mover, 2), (Steward, 1)]
        if producing:
            consumers.append((Producer, PRODUCERS))
        for kind, count in consumers:
            for number in range(count):
                thread = threading.Thread(target=self._run, args=(kind(self, number),), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _run(self, client: Any) -> None:
        try:
            client.run()
        except (PenstockError, OSError) as error:
            # Without power everything fails; a process that is only killed sees no errors at all.
            if not self._fails_are_normal or isinstance(error, (LeaseExpired, Closed)):
                self.tell("stopped", client.name, f"{type(error).__name__}: {error}")
        except BaseException:
            self.tell("stopped", client.name, traceback.format_exc())

    def drain(self, seconds: float) -> Final:
        """Wait until every group has finished everything, and read what is there."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            groups = self.store.stats().topics["jobs"].groups
            if len(groups) == 3 and all(group.lag == 0 for group in groups.values()):
                break
            time.sleep(0.05)
        self._stop.set()
        for thread in self._threads:
            thread.join(20)
        return self._read()

    def _read(self) -> Final:
        stats = self.store.stats().topics
        final = Final()
        for topic, partitions in PARTITIONS.items():
            for partition in range(partitions):
                start = stats[topic].starts[partition]
                values = [text_of(message) for message in self.store.read(topic, partition)]
                final.logs[topic, partition] = Log(start, values)
        for name, group in stats["jobs"].groups.items():
            for partition, position in group.positions.items():
                final.positions[f"jobs/{name}", partition] = position
        for letter in self.store.dead_letters("jobs").list():
            head = {name.removeprefix("x-dlq-"): text.decode() for name, text in letter.headers}
            value = text_of(letter)
            final.dead.append(
                DeadLetter(
                    head["source-topic"], head["group"], int(head["source-partition"]), int(head["source-offset"]), value,
                    int(head["deliveries"]), head["reason"],
                )
            )  # fmt: skip
        return final


def _say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def _live(request: dict[str, Any]) -> None:
    try:
        session = Session(request)
        _say("opened")
        session.start(producing="answer" not in request)
        if "answer" not in request:
            time.sleep(600)
        final = session.drain(request["seconds"])
        session.store.close()
        with open(request["answer"], "wb") as file:
            pickle.dump(final, file)
        _say("drained")
    except BaseException as error:
        if not request["fails_are_normal"] or not isinstance(error, (PenstockError, OSError)):
            HistoryWriter(request["history"]).line(json.dumps(["stopped", "process", traceback.format_exc()]))
        _say("failed", repr(error))
        time.sleep(600 if "answer" not in request else 0)


def serve() -> None:
    """Fork a process for each request, a line of JSON; say its number, and when it has ended."""
    for line in sys.stdin:
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            try:
                _say("pid", os.getpid())
                _live(request)
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        _say("ended", status)
