"""
The judge of queue tests: reads what clients wrote down over many crashes, looks at what is left at the end, and names every anomaly.

Clients write one line for each event to a file that no crash takes away; lines stand in the order in which they happened. Each is a list
in JSON that begins with its kind:

    session N                                a process has opened the store
    crashed HOW                              it is gone: kill, power
    stopped WHERE ERROR                      a client ended because of an error
    send OP TOPIC VALUE KEY                  about to publish; OP is PRODUCER.NUMBER, and numbers rise; KEY: the dedup key, or null
    sent OP PARTITION OFFSET DUPLICATE       acknowledged
    refused OP                               certainly not stored: also of transactions
    unknown OP                               may or may not be stored: also of transactions
    got TOKEN GROUP PARTITION OFFSET ATTEMPT VALUE ASKED GOT       a delivery; ASKED and GOT: milliseconds before and after the call
    ack TOKEN WAIT, nack TOKEN, reject TOKEN           about to finish it
    done TOKEN MS                            that succeeded, before this moment
    late TOKEN                               it was told that its lease had ended
    flush N, flushed N                       everything done before the first is durable after the second
    left MEMBER                              a consumer is about to close: what it holds (tokens MEMBER.NUMBER) goes back
    transaction OP TOKENS MESSAGES           about to commit; MESSAGES: (topic, value) each
    committed OP PLACES MS                   acknowledged; PLACES: (partition, offset) of each message
    begins TOPIC PARTITION OFFSET MS         the log began here, at this moment or before: what lies before is removed
    read TOPIC PARTITION START MESSAGES      one reading without a group, from START on; MESSAGES: (offset, value) each, as they came

A client writes its line after the call has returned, and others may be quicker. So within one session a delivery counts as later than an
ack only if it was asked for after that.

Anomalies (reliability.md, section 4):

    lost-write            acknowledged or seen, and not there any more
    inconsistent-offset   another message lies where one was acknowledged or seen
    duplicate             one message at two offsets
    phantom               a value that nobody ever sent
    aborted-read          a message that was refused, or of a transaction that was dropped
    reorder               a producer's messages in another order than sent, or an ordered group that skips or goes back
    unseen                a message that a group was never given, or never finished and has passed nevertheless
    stuck                 a group that is not at the end though all was drained
    redelivered-after-ack           by the process that had taken the ack
    redelivered-after-durable-ack   by any process
    double-lease          two valid deliveries of one message at once
    delivery-count        an attempt that is not higher than a failure that was durable, or higher than can be
    dlq-lost              neither finished by its consumer nor in the dead letters
    dlq-dup               two dead letters of one message in one group, or one of a message whose ack was durable
    dlq-wrong             a dead letter that says something else than its message, or of one that did not fail often enough
    dedup-miss            two messages with one deduplication key
    dedup-false-drop      taken for a duplicate, and there is no first one
    partial-transaction   some messages of a transaction, or its messages without its acks, or its acks without its messages
    non-monotonic-read    one reading goes back, or gives a message twice
    skipped-read          one reading leaves out a message that is there
    resurrected           a message that was removed, and is read, delivered or in the log again
    broken                a client was stopped by an error that no crash explains
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

KINDS = (
    "lost-write", "inconsistent-offset", "duplicate", "phantom", "aborted-read", "reorder", "unseen", "stuck",
    "redelivered-after-ack", "redelivered-after-durable-ack", "double-lease", "delivery-count", "dlq-lost", "dlq-dup", "dlq-wrong",
    "dedup-miss", "dedup-false-drop", "partial-transaction", "non-monotonic-read", "skipped-read", "resurrected", "broken",
)  # fmt: skip
SHOWN = 25
"""So many anomalies are told; the rest is counted."""


class Log(NamedTuple):
    """What a partition holds at the end; `values` begins at `start`."""

    start: int
    values: list[str]

    @property
    def end(self) -> int:
        """Behind its last message."""
        return self.start + len(self.values)

    def at(self, offset: int) -> str | None:
        """The message there; None behind the end."""
        return self.values[offset - self.start] if self.start <= offset < self.end else None


class DeadLetter(NamedTuple):
    """A dead letter as it was found."""

    topic: str
    group: str
    partition: int
    offset: int
    value: str
    deliveries: int
    reason: str


@dataclass(slots=True)
class Final:
    """What is left at the end, after everything was drained."""

    logs: dict[tuple[str, int], Log] = field(default_factory=dict)
    dead: list[DeadLetter] = field(default_factory=list)
    positions: dict[tuple[str, int], int] = field(default_factory=dict)
    """(``TOPIC/GROUP``, partition) -> the first offset that is not finished."""


class Rules(NamedTuple):
    """What the groups were told; groups are named ``TOPIC/GROUP``."""

    groups: tuple[str, ...]
    ordered: frozenset[str] = frozenset()
    """Ordered groups; their clients finish each message before they take the next."""
    lease_ms: dict[str, int] = {}  # noqa: RUF012
    max_deliveries: dict[str, int] = {}  # noqa: RUF012


class Place(NamedTuple):
    """A message as one group sees it."""

    group: str
    partition: int
    offset: int


@dataclass(slots=True)
class _Delivery:
    place: Place
    attempt: int
    asked_ms: int
    got_ms: int
    session: int
    doing: str = ""
    ended: bool = False
    """Finished, given back, or told that it is too late: it is valid no more."""


@dataclass(slots=True)
class _Told:
    """What the history tells of one message in one group."""

    deliveries: int = 0
    last: _Delivery | None = None
    acked_in: int = -1
    """The session in which an ack succeeded."""
    acked_ms: int = 0
    acks: int = 0
    """Acks that were asked for, by themselves or in a transaction."""
    durable: bool = False
    failures: int = 0
    """Nacks and rejects that were asked for."""
    failed: tuple[int, int, int] = (-1, 0, 0)
    """(session, attempt, when) of the last failure that was taken."""
    durably_failed: tuple[int, int] = (0, 0)
    """(attempt, when) of the last failure that was durable."""
    transactions: list[str] = field(default_factory=list)
    got_after: set[str] = field(default_factory=set)
    """Transactions of earlier sessions that had asked for its ack when it was delivered again."""


@dataclass(slots=True)
class _Sending:
    topic: str
    value: str
    key: str | None
    tries: int = 0
    answers: list[tuple[int, int, bool]] = field(default_factory=list)
    refused: bool = False


@dataclass(slots=True)
class _Transaction:
    tokens: list[str]
    messages: list[tuple[str, str]]
    session: int
    outcome: str = "unknown"
    places: list[tuple[int, int]] = field(default_factory=list)


class QueueChecker:
    """Takes the lines of a history one by one, then judges what is left."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._session = -1
        self._crashes = 0
        self._told: dict[Place, _Told] = {}
        self._deliveries: dict[str, _Delivery] = {}
        self._sendings: dict[str, _Sending] = {}
        self._transactions: dict[str, _Transaction] = {}
        self._seen: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
        self._done: list[tuple[Place, str, int]] = []
        """What the session did since the last flush, in order: (place, what, attempt)."""
        self._flushed = 0
        self._flushes: dict[int, int] = {}
        self._last_in_order: dict[tuple[str, int], _Delivery] = {}
        self._held: dict[str, list[_Delivery]] = defaultdict(list)
        """What each consumer of the session was ever given."""
        self._reached: dict[tuple[str, int], int] = {}
        """How far each partition of an ordered group was ever delivered."""
        self._skipping: dict[tuple[str, int], list[int]] = defaultdict(list)
        self._where: dict[tuple[str, str], set[tuple[int, int]]] = defaultdict(set)
        self._begins: dict[tuple[str, int], tuple[int, int]] = {}
        """Where each log was seen to begin, and when."""
        self._left_out: dict[tuple[str, int], set[int]] = defaultdict(set)
        """Offsets that a reading went past."""
        self.counts: Counter[str] = Counter()
        self.found: Counter[str] = Counter()
        self._anomalies: list[str] = []

    def _report(self, kind: str, text: str) -> None:
        assert kind in KINDS
        self.found[kind] += 1
        if len(self._anomalies) < SHOWN:
            self._anomalies.append(f"{kind} {text}")

    # -- taking in the history --------------------------------------------------------------------------------------

    def take_lines(self, lines: Iterable[str | bytes]) -> None:
        """Take in lines as they stand in the file."""
        for line in lines:
            self.take(json.loads(line))

    def take(self, event: list[Any]) -> None:
        """Take in one event."""
        kind, *rest = event
        self.counts[kind] += 1
        getattr(self, f"_take_{kind}")(*rest)

    def _take_session(self, number: int) -> None:
        self._session = number
        self._done, self._flushed, self._flushes = [], 0, {}
        self._last_in_order = {}
        self._held.clear()

    def _take_crashed(self, how: str) -> None:
        self._crashes += 1

    def _take_stopped(self, where: str, error: str) -> None:
        self._report("broken", f"{where}: {error}")

    def _take_left(self, member: str) -> None:
        for delivery in self._held.pop(member, []):
            delivery.ended = True

    def _take_send(self, op: str, topic: str, value: str, key: str | None) -> None:
        sending = self._sendings.setdefault(op, _Sending(topic, value, key))
        sending.tries += 1

    def _take_sent(self, op: str, partition: int, offset: int, duplicate: bool) -> None:
        sending = self._sendings[op]
        if duplicate and sending.tries == 1:
            self._report("dedup-false-drop", f"{op} was told that it is a duplicate of {partition}/{offset}, and was sent once")
        for other in sending.answers:
            if other[:2] != (partition, offset):
                kind = "dedup-miss" if sending.key is not None else "duplicate"
                self._report(kind, f"{op} is at {other[0]}/{other[1]}, and at {partition}/{offset}")
        sending.answers.append((partition, offset, duplicate))
        if not duplicate:
            self._see(sending.topic, partition, offset, sending.value)

    def _take_refused(self, op: str) -> None:
        if op in self._transactions:
            transaction = self._transactions[op]
            transaction.outcome = "refused"
            for token in transaction.tokens:
                told = self._told[self._deliveries[token].place]
                told.acks -= 1
                told.transactions.remove(op)
        else:
            self._sendings[op].refused = True

    def _take_unknown(self, op: str) -> None:
        pass

    def _see(self, topic: str, partition: int, offset: int, value: str) -> None:
        known = self._seen[topic, partition].setdefault(offset, value)
        if known != value:
            self._report("inconsistent-offset", f"{topic}/{partition}: {offset} was {known}, and is {value}")

    def _take_begins(self, topic: str, partition: int, offset: int, when: int) -> None:
        known, _ = self._begins.get((topic, partition), (0, 0))
        if offset < known:
            self._report("resurrected", f"{topic}/{partition} began at {known}, and begins at {offset}")
        elif offset > known:
            self._begins[topic, partition] = (offset, when)

    def _take_read(self, topic: str, partition: int, start: int, messages: list[list[Any]]) -> None:
        expected, (first, _) = start, self._begins.get((topic, partition), (0, 0))
        for offset, value in messages:
            self._see(topic, partition, offset, value)
            if offset < first:
                self._report("resurrected", f"{topic}/{partition} began at {first}, and {offset} was read: {value}")
            if offset < expected:
                self._report("non-monotonic-read", f"{topic}/{partition}: {offset} was read where {expected} was next")
            # Judged at the end, when it is known what lies there.
            self._left_out[topic, partition].update(range(expected, offset))
            expected = max(expected, offset + 1)

    def _take_got(
        self, token: str, group: str, partition: int, offset: int, attempt: int, value: str, asked: int, got: int
    ) -> None:
        place = Place(group, partition, offset)
        told = self._told.setdefault(place, _Told())
        topic = group.partition("/")[0]
        self._see(topic, partition, offset, value)
        begins, since = self._begins.get((topic, partition), (0, 0))
        if offset < begins and asked >= since:
            self._report("resurrected", f"{topic}/{partition} began at {begins}, and {place} was delivered")
        if asked >= told.acked_ms and told.durable:
            self._report("redelivered-after-durable-ack", f"{place}, attempt {attempt}")
        elif asked >= told.acked_ms and told.acked_in == self._session:
            self._report("redelivered-after-ack", f"{place}, attempt {attempt}")
        self._judge_attempt(place, told, attempt, asked)
        last = told.last
        delivery = _Delivery(place, attempt, asked, got, self._session)
        if last is not None and last.session == self._session and not last.ended:
            first, second = (last, delivery) if last.asked_ms <= got else (delivery, last)
            lease = self._rules.lease_ms.get(group, 30_000)
            if second.got_ms < first.asked_ms + lease:
                self._report(
                    "double-lease", f"{place}: again {second.got_ms - first.asked_ms} ms after it was asked for, of {lease}"
                )
            last.ended = True
        self._deliveries[token] = delivery
        self._held[token.rpartition(".")[0]].append(delivery)
        told.last = delivery
        told.deliveries += 1
        told.got_after |= {op for op in told.transactions if self._transactions[op].session != self._session}
        if group in self._rules.ordered:
            self._judge_order(delivery)

    def _judge_attempt(self, place: Place, told: _Told, attempt: int, asked: int) -> None:
        floor = told.durably_failed[0] if asked >= told.durably_failed[1] else 0
        if told.failed[0] == self._session and asked >= told.failed[2]:
            floor = max(floor, told.failed[1])
        if attempt <= floor:
            self._report("delivery-count", f"{place}: attempt {attempt} after attempt {floor} had failed")
        # Each crash may be put down to it, though it was not seen being delivered.
        if attempt - 1 > told.deliveries + self._crashes:
            self._report(
                "delivery-count", f"{place}: attempt {attempt} after {told.deliveries} deliveries, {self._crashes} crashes"
            )

    def _judge_order(self, delivery: _Delivery) -> None:
        place = delivery.place
        key = (place.group, place.partition)
        last = self._last_in_order.get(key)
        if last is not None and last.place.offset > place.offset:
            self._report("reorder", f"{place} comes after {last.place.offset}")
        self._last_in_order[key] = delivery
        # Judged at the end, when the dead letters are known: everything before it was finished, or is one of them.
        self._skipping[key] += [
            offset
            for offset in range(self._reached.get(key, 0), place.offset)
            if not (before := self._told.get(Place(*key, offset))) or not (before.acks or before.failures)
        ]
        self._reached[key] = max(self._reached.get(key, 0), place.offset)

    def _take_ack(self, token: str, wait: bool) -> None:
        self._begin(token, "ack wait" if wait else "ack")
        self._told[self._deliveries[token].place].acks += 1

    def _take_nack(self, token: str) -> None:
        self._begin(token, "nack")
        self._told[self._deliveries[token].place].failures += 1

    def _take_reject(self, token: str) -> None:
        self._begin(token, "reject")
        self._told[self._deliveries[token].place].failures += 1

    def _begin(self, token: str, what: str) -> None:
        delivery = self._deliveries[token]
        delivery.doing = what
        # From here on it may be delivered again, as far as the history can tell.
        delivery.ended = True

    def _take_done(self, token: str, when: int = 0) -> None:
        delivery = self._deliveries[token]
        place, doing = delivery.place, delivery.doing
        told = self._told[place]
        if doing in {"nack", "reject"}:
            self.counts[f"done {doing}"] += 1
            told.failed = (self._session, delivery.attempt, when)
            self._done.append((place, "failed", delivery.attempt))
            return
        self.counts["done ack"] += 1
        self._finish(place, told, when, durable=doing == "ack wait")
        if not told.durable:
            self._done.append((place, "acked", 0))

    def _finish(self, place: Place, told: _Told, when: int, *, durable: bool) -> None:
        if told.acked_in == self._session:
            self._report("double-lease", f"{place}: two deliveries were both finished in one session")
        told.acked_in, told.acked_ms = self._session, when
        told.durable = told.durable or durable

    def _take_late(self, token: str) -> None:
        # Nothing was changed: the ack that was asked for is none.
        delivery = self._deliveries[token]
        told = self._told[delivery.place]
        if delivery.doing.startswith("ack"):
            told.acks -= 1
        elif delivery.doing in {"nack", "reject"}:
            told.failures -= 1

    def _take_flush(self, number: int) -> None:
        self._flushes[number] = len(self._done)

    def _take_flushed(self, number: int) -> None:
        until = self._flushes.pop(number)
        for place, what, attempt in self._done[self._flushed : until]:
            told = self._told[place]
            if what == "acked":
                told.durable = True
            else:
                told.durably_failed = max(told.durably_failed, (attempt, told.failed[2]))
        self._flushed = max(self._flushed, until)

    def _take_transaction(self, op: str, tokens: list[str], messages: list[list[str]]) -> None:
        self._transactions[op] = _Transaction(tokens, [(topic, value) for topic, value in messages], self._session)
        for token in tokens:
            delivery = self._deliveries[token]
            delivery.ended = True
            told = self._told[delivery.place]
            told.acks += 1
            told.transactions.append(op)

    def _take_committed(self, op: str, places: list[list[int]], when: int = 0) -> None:
        transaction = self._transactions[op]
        transaction.outcome = "committed"
        transaction.places = [(partition, offset) for partition, offset in places]
        for (topic, value), (partition, offset) in zip(transaction.messages, transaction.places, strict=True):
            self._see(topic, partition, offset, value)
        for token in transaction.tokens:
            place = self._deliveries[token].place
            self._finish(place, self._told[place], when, durable=True)

    # -- judging what is left ---------------------------------------------------------------------------------------

    def judge(self, final: Final) -> list[str]:
        """Everything that is wrong; empty if nothing is."""
        for (topic, partition), log in final.logs.items():
            for offset, value in enumerate(log.values, log.start):
                self._see(topic, partition, offset, value)
        for (topic, partition), seen in self._seen.items():
            for offset, value in seen.items():
                self._where[topic, value].add((partition, offset))
        self._judge_seen(final)
        self._judge_readings(final)
        self._judge_sendings()
        self._judge_producers()
        self._judge_transactions()
        dead = self._judge_dead(final)
        self._judge_groups(final, dead)
        more = sum(self.found.values()) - len(self._anomalies)
        return [*self._anomalies, *([f"and {more} more: {dict(self.found)}"] if more else [])]

    def judge_nothing(self) -> list[str]:
        """What is wrong so far, whatever is left in the end."""
        return list(self._anomalies)

    def _judge_seen(self, final: Final) -> None:
        """Whatever was seen anywhere is there, unless retention took it."""
        for (topic, partition), seen in self._seen.items():
            log = final.logs.get((topic, partition), Log(0, []))
            for offset, value in seen.items():
                if offset >= log.end:
                    self._report("lost-write", f"{topic}/{partition}: {offset} was {value}, and the log ends at {log.end}")

    def _judge_readings(self, final: Final) -> None:
        """What a reading went past was a hole, or was removed before."""
        for place, offsets in self._left_out.items():
            for offset in sorted(offsets & self._seen[place].keys()):
                if offset >= self._begins.get(place, (0, 0))[0]:
                    self._report(
                        "skipped-read", f"{place[0]}/{place[1]}: {offset} is {self._seen[place][offset]}, and was left out"
                    )
        for place, (first, _) in self._begins.items():
            log = final.logs.get(place)
            if log is not None and log.start < first:
                self._report("resurrected", f"{place[0]}/{place[1]} began at {first}, and begins at {log.start} in the end")

    def _judge_sendings(self) -> None:
        known: dict[tuple[str, str], str] = {}
        for op, sending in self._sendings.items():
            known[sending.topic, sending.value] = op
            where = self._where.get((sending.topic, sending.value), set())
            if len(where) > 1:
                self._report(
                    "duplicate" if sending.key is None else "dedup-miss", f"{op}: {sending.value} is at {sorted(where)}"
                )
            for partition, offset, duplicate in sending.answers:
                if duplicate and self._seen[sending.topic, partition].get(offset) != sending.value:
                    self._report("dedup-false-drop", f"{op} was told that it is at {partition}/{offset}, and it is not")
            if sending.refused and not sending.answers and where:
                self._report("aborted-read", f"{op} was refused, and is at {sorted(where)}")
        for op, transaction in self._transactions.items():
            for message in transaction.messages:
                known[message] = op
                if len(self._where.get(message, ())) > 1:
                    self._report("duplicate", f"{op}: {message} is at {sorted(self._where[message])}")
        for (topic, value), where in self._where.items():
            if (topic, value) not in known:
                self._report("phantom", f"{topic}: {value} is at {sorted(where)}, and nobody sent it")

    def _judge_producers(self) -> None:
        """Each producer waits for its answer before it sends the next: so they lie in that order."""
        numbers: dict[tuple[str, str], tuple[str, int]] = {}
        for op, sending in self._sendings.items():
            name, _, place = op.rpartition(".")
            numbers[sending.topic, sending.value] = (name, int(place))
        for (topic, partition), seen in self._seen.items():
            last: dict[str, int] = {}
            for offset in sorted(seen):
                producer, number = numbers.get((topic, seen[offset]), ("", 0))
                if producer and number < last.get(producer, -1):
                    self._report("reorder", f"{topic}/{partition}: {producer}.{number} at {offset} is behind {last[producer]}")
                if producer:
                    last[producer] = number

    def _judge_transactions(self) -> None:
        for op, transaction in self._transactions.items():
            there = [message for message in transaction.messages if message in self._where]
            if there and transaction.outcome == "refused":
                self._report("aborted-read", f"{op}: {there[0]}")
            elif there and len(there) < len(transaction.messages):
                self._report("partial-transaction", f"{op}: {len(there)} of its {len(transaction.messages)} messages")
            if not there:
                continue
            for token in transaction.tokens:
                place = self._deliveries[token].place
                if op in self._told[place].got_after:
                    self._report("partial-transaction", f"{op}: its messages are there, and {place} was delivered again")

    def _judge_dead(self, final: Final) -> set[Place]:
        dead: set[Place] = set()
        for letter in final.dead:
            place = Place(f"{letter.topic}/{letter.group}", letter.partition, letter.offset)
            told = self._told.get(place, _Told())
            if place in dead:
                self._report("dlq-dup", f"{place} has two dead letters")
            elif told.durable:
                self._report("dlq-dup", f"{place} is a dead letter, and its ack was durable")
            dead.add(place)
            seen = self._seen[letter.topic, letter.partition].get(letter.offset)
            if seen != letter.value:
                self._report("dlq-wrong", f"{place} was {seen}, and its dead letter is {letter.value}")
            allowed = self._rules.max_deliveries.get(place.group, 0)
            blameless = letter.reason in {"the consumer's process died", "lease expired"}
            # A crash may be put down to it, a lease may have ended on a busy machine; a nack needs one who asked for it.
            if blameless and told.failures + self._crashes + told.deliveries < allowed:
                self._report("dlq-wrong", f"{place} failed {letter.deliveries} times, and there were fewer deliveries")
            elif not blameless and not told.failures:
                self._report("dlq-wrong", f"{place} is dead ({letter.reason}), and no client had refused it")
        return dead

    def _judge_groups(self, final: Final, dead: set[Place]) -> None:
        for group in self._rules.groups:
            topic = group.partition("/")[0]
            for (name, partition), log in final.logs.items():
                if name == topic:
                    if final.positions.get((group, partition), 0) != log.end:
                        position = final.positions.get((group, partition))
                        self._report("stuck", f"{group}: partition {partition} is at {position}, the end is {log.end}")
                    for offset in range(log.end):
                        self._judge_place(Place(group, partition, offset), dead)
        for (group, partition), offsets in self._skipping.items():
            for offset in offsets:
                if Place(group, partition, offset) not in dead:
                    self._report("reorder", f"{group}: partition {partition} went on before {offset} was finished")

    def _judge_place(self, place: Place, dead: set[Place]) -> None:
        told = self._told.get(place)
        if place in dead:
            return
        if told is None:
            self._report("unseen", f"{place} was never delivered")
            return
        visible = [op for op in told.transactions if self._is_visible(op)]
        if len(visible) > 1:
            self._report(
                "partial-transaction", f"{place} was finished by {visible}: the first ack is lost, and not its messages"
            )
        elif told.transactions and not visible and told.acks == len(told.transactions):
            self._report("partial-transaction", f"{place} was finished by {told.transactions}, whose messages are not there")
        elif not told.acks:
            kind = "dlq-lost" if told.failures else "unseen"
            self._report(kind, f"{place} was delivered {told.deliveries} times and never acked, and the group has passed it")

    def _is_visible(self, op: str) -> bool:
        return any(message in self._where for message in self._transactions[op].messages)
