"""
Stories: what happens to a dozen messages in a topic that uses some features, told twice.

Theory of operation
-------------------
A `Feature` says how it changes the messages, the topic, the group, and what is done with a message or half-way. A `Story` takes any
number of them, publishes the messages in two lots, hands out all that is ready again and again, and finishes or fails each message as the
features say. A `Model` (`story_model.py`) that has nothing in common with the engine does the same with a plain list, and every delivery
is compared with it: which message, in which order, with which attempt. At the end so are the topic's content, its dead letters, and the
group's lag.

In each round all that is ready is taken, and time stands still meanwhile. So it does not matter how much a consumer leases ahead.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.errors import LeaseExpired
from tests.conformance.helpers import group_stats
from tests.conformance.story_model import SECOND, Model, Told, Wanted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penstock import Consumer, Delivery, Message, Store
    from tests.conformance.backends import Backend

STEP_S = 6
"""Between two rounds: longer than the backoff after one failure."""
BACKOFF_S = 2
FIRST_LOT, SECOND_LOT = range(8), range(8, 12)
TOGETHER = 5
"""How many are taken at once where many are."""


class Feature:
    """What one feature changes in a story. Nothing, unless it says so."""

    name: ClassVar[str] = ""
    topic: ClassVar[dict[str, Any]] = {}
    group: ClassVar[dict[str, Any]] = {}
    manner: ClassVar[dict[str, Any]] = {}
    """Attributes of the story: how things are done in it."""
    keeps_data = False
    """Whether it needs a backend that finds its data again."""

    def shape(self, message: Wanted) -> None:
        """Change a message before it is published."""

    def decide(self, story: Story, told: Told) -> tuple[str, Any] | None:
        """What becomes of a message that was delivered: ("nack", delay or None), ("reject", reason), or None for nothing to say."""
        return None

    def published(self, story: Story, lot: Sequence[Told]) -> None:
        """A lot was published."""

    def half_way(self, story: Story) -> None:
        """All that is ready was taken once."""

    def at_end(self, story: Story) -> None:
        """The group has nothing more to get."""

    def alone(self, story: Story) -> None:
        """Check what must be so at the end where nothing else has a say."""


class Story:
    """One topic `t` with a group `g`, and the model of both."""

    many = False
    """Whether messages are published and taken many at once."""
    in_transactions = False
    compression: str | None = None

    def __init__(self, backend: Backend, features: Sequence[Feature]) -> None:
        self.backend, self.features = backend, features
        self.topic: dict[str, Any] = {}
        self.group: dict[str, Any] = {"lease": 3_600, "backoff": BACKOFF_S}
        for one in features:
            self.topic |= one.topic
            self.group |= one.group
            for name, value in one.manner.items():
                setattr(self, name, value)
        if self.group.get("ordered") and len(features) > 2:
            # What is leased ahead is taken back when something before it fails, and comes before what was delayed then. Two features
            # cannot show that, and with more of them the model would have to know how much is leased ahead.
            self.group["prefetch"] = TOGETHER if self.many else 1
        if self.topic.get("priorities") and len(features) > 2:
            # An expired message may take the turn of those that have aged, or not, as it lies in a batch with others or alone. So
            # nothing ages by the time that other features let pass.
            self.topic.setdefault("aging_ms", 10**9)
        self.store: Store = backend.open()
        self.log: list[str] = []
        """What was delivered, to be read when a test fails."""
        self.acked: list[int] = []
        """Offsets."""

    @property
    def now_us(self) -> int:
        """Now, by the store's clock."""
        return self.backend.clock.now_us()

    # -- telling ----------------------------------------------------------------------------------------------------

    def tell(self) -> None:
        """From the first message to the last, with everything that the features do."""
        self.begin()
        for one in self.features:
            one.at_end(self)
            self.go_on()
        self.check()

    def begin(self) -> None:
        """Make the topic, publish, and let the group get everything."""
        # There are settings that HTTP and gRPC have no word for.
        maker = self.backend.owner() if self.backend.name in ("http", "grpc") else self.store
        maker.create_topic("t", **self.topic)
        self.model = Model(
            lanes=bool(self.topic.get("priorities")),
            age_us=self.topic.get("aging_ms", 30_000) * 1_000,
            ttl_us=round(self.topic["ttl"] * SECOND) if "ttl" in self.topic else None,
            keeps_expired=self.topic.get("expired") == "dead_letter",
            ordered=bool(self.group.get("ordered")),
        )
        self.consumer: Consumer = self.store.subscribe("t", "g", **self.group)
        self.publish(FIRST_LOT)
        self.backend.advance(STEP_S)
        self.publish(SECOND_LOT)
        self.take_all()
        for one in self.features:
            one.half_way(self)
        self.go_on()

    def go_on(self) -> None:
        """Let time pass until the group has got everything."""
        for _ in range(60):
            self.take_all()
            if not self.model.unfinished:
                return
            self.backend.advance(STEP_S)
        raise AssertionError(f"never delivered: {self.model.unfinished}")

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(self, numbers: Iterable[int]) -> None:
        """Publish messages with these numbers."""
        lot = []
        for number in numbers:
            message = Wanted(number, b"%d" % number)
            for one in self.features:
                one.shape(message)
            lot.append(message)
        first = len(self.model.messages)
        told = [self.model.add(message, self.now_us) for message in lot]
        places = self.send(lot)
        assert [offset for offset, _ in places] == list(range(first, first + len(lot)))
        assert not any(duplicate for _, duplicate in places)
        for one in self.features:
            one.published(self, told)

    def send(self, lot: Sequence[Wanted]) -> list[tuple[int, bool]]:
        """Publish as the features say; returns the offsets, and whether each is a duplicate."""
        in_transaction = self.in_transactions and not any(message.dedup_key for message in lot)
        columns: dict[str, Any] = {
            "keys": [message.key for message in lot],
            "headers": [message.headers or None for message in lot],
            "ttls": [message.ttl for message in lot],
            "delays": [message.delay for message in lot],
            "priorities": [message.priority for message in lot],
            "dedup_keys": [message.dedup_key for message in lot],
        }
        columns = {name: column for name, column in columns.items() if any(column)}
        if self.compression is not None:
            columns["compression"] = self.compression
        values = [message.value for message in lot]
        if in_transaction:
            with self.store.transaction() as t:
                if self.many:
                    t.publish_many("t", values, **columns)
                else:
                    for index, value in enumerate(values):
                        t.publish("t", value, **_singular(columns, index))
            receipts: Any = t.receipts
        elif self.many:
            receipts = self.store.publish_many("t", values, **columns)
        else:
            receipts = [self.store.publish("t", value, **_singular(columns, index)) for index, value in enumerate(values)]
        return [(receipt.offset, receipt.duplicate) for receipt in receipts]

    # -- consuming --------------------------------------------------------------------------------------------------

    def take_all(self) -> None:
        """Take all that is ready, compare it with the model, and do with each message what the features say."""
        while doubt_us := self.model.doubt_us(self.now_us):
            self.backend.advance(doubt_us / SECOND)
        while got := self._take():
            got = self._without_lost(got)
            expected = [self.model.next(self.now_us, message.offset) for message in got]
            self.log += [f"{self.now_us // SECOND % 10_000}: {message.offset} ({message.attempt})" for message in got]
            for message, told in zip(got, expected, strict=True):
                assert told is not None, f"{message} is not ready; {self.log}"
                assert message.offset == told.offset, f"{told} comes next; {self.log}"
                assert message.attempt == told.failures + 1
                assert same(message, told.wanted), (message, told)
            self._settle(list(zip(got, [told for told in expected if told is not None], strict=True)))
        missing = self.model.next(self.now_us)
        assert missing is None, f"{missing} is ready; {self.log}"

    def _without_lost(self, got: list[Delivery]) -> list[Delivery]:
        """What was taken though the group had not finished it may be in memory, and still come."""
        for message in got:
            if message.offset in self.model.lost:
                message.ack()
        return [message for message in got if message.offset not in self.model.lost]

    def _take(self) -> list[Delivery]:
        # In an ordered group what expired becomes a dead letter before anything behind it is handed out, and nobody waits for that.
        tries = len(self.model.messages) if self.model.ordered and self.model.keeps_expired else 1
        for _ in range(tries):
            if self.many:
                got = self.consumer.get_many(TOGETHER, timeout=0)
            else:
                message = self.consumer.get(timeout=0)
                got = [] if message is None else [message]
            if got:
                return got
        return []

    def _settle(self, taken: list[tuple[Delivery, Told]]) -> None:
        failed: int | None = None
        for message, told in taken:
            if failed is not None and self.model.ordered and told.offset > failed:
                with suppress(LeaseExpired):
                    message.ack(wait=True)
                    raise AssertionError(f"{message} was finished, and offset {failed} before it failed")
                self.model.take_back(told)
                continue
            found = [decision for one in self.features if (decision := one.decide(self, told)) is not None]
            if not found:
                self._ack(message)
                self.model.ack(told)
                self.acked.append(told.offset)
                continue
            kind, detail = found[0]
            if kind == "reject":
                message.reject(detail)
                self.model.reject(told, detail)
            else:
                message.nack(delay=detail)
                self.model.nack(told, self.now_us, BACKOFF_S if detail is None else detail)
            failed = told.offset if failed is None else min(failed, told.offset)

    def _ack(self, message: Delivery) -> None:
        if not self.in_transactions:
            message.ack()
            return
        with self.store.transaction() as t:
            t.ack(message)
            t.publish("out", b"%d" % message.offset)

    # -- what features do -------------------------------------------------------------------------------------------

    def restart(self, *, kill: bool) -> None:
        """Close the store and open it again, or go on from what a killed process leaves."""
        if kill:
            self.store.flush()
            self.store = self.backend.kill()
        else:
            self.consumer.close()
            self.store = self.backend.reopen()
        self.model.restart()
        self.consumer = self.store.subscribe("t", "g", **self.group)

    def may_go(self, told: Told) -> bool:
        """Whether retention, vacuum and compaction may take it. The group may come to one that expired sooner than the model does."""
        return (
            told.state == "finished"
            or self.topic.get("retain") == "always"
            or (told.expires_us is not None and told.expires_us <= self.now_us)
        )

    def removed(self) -> list[Told]:
        """What the topic does not hold any more since the last call; the model knows it then."""
        left = {message.offset for message in self.store.read("t")}
        gone = [replace(told) for told in self.model.present if told.offset not in left]
        self.model.lose([told.offset for told in gone])
        return gone

    # -- checking ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare all that is left with the model."""
        if self.model.lost:
            # The group notices when it comes to them; what is delayed is due by then.
            self.backend.advance(60)
            self.take_all()
        self.store.flush()
        assert group_stats(self.store).lag == 0
        found = list(self.store.read("t"))
        assert [message.offset for message in found] == [told.offset for told in self.model.present]
        for message, told in zip(found, self.model.present, strict=True):
            assert same(message, told.wanted), (message, told)
        letters = self.store.dead_letters("t").list()
        deaths = sorted([_death(letter) for letter in letters])
        expected = sorted([(one.told.offset, one.reason.encode(), b"%d" % one.deliveries) for one in self.model.letters])
        # What was taken though the group had not finished it may be in memory, and be found to have expired.
        deaths = [death for death in deaths if death in expected or death[0] not in self.model.lost or death[1] != b"expired"]
        if self.many and self.model.ordered:
            # What expired behind a message that fails may be noticed with it: before it is lost, or once more after a seek.
            deaths = [death for death in deaths if death in expected or death[1] != b"expired"]
            deaths, expected = sorted(set(deaths)), sorted(set(expected))
        assert deaths == expected
        for letter in letters:
            assert same(letter, self.model.messages[_death(letter)[0]].wanted, dead=True), letter


def _singular(columns: dict[str, Any], index: int) -> dict[str, Any]:
    """Of the columns of `publish_many` what `publish` takes for one message."""
    names = {"keys": "key", "headers": "headers", "ttls": "ttl", "delays": "delay", "priorities": "priority"}
    names["dedup_keys"] = "dedup_key"
    chosen = {names[name]: column[index] for name, column in columns.items() if name in names}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    return chosen | ({"compression": columns["compression"]} if "compression" in columns else {})


def same(message: Message, wanted: Wanted, *, dead: bool = False) -> bool:
    """Whether it is what was published; one that is *dead* has more headers."""
    headers = [pair for pair in message.headers if not (dead and pair[0].startswith("x-dlq-"))]
    return (message.value, message.key, headers, message.priority) == (
        wanted.value, wanted.key, wanted.headers, wanted.priority or "low",
    )  # fmt: skip


def _death(letter: Message) -> tuple[int, bytes, bytes]:
    said = letter.headers
    return int(said["x-dlq-source-offset"]), said["x-dlq-reason"], said["x-dlq-deliveries"]
