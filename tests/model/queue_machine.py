"""The machine that uses a queue and its model (`queue_model.py`) alike, and compares them after each step."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import LeaseExpired, ProducerFenced, SequenceGap, StageNotFound, TransactionFenced
from penstock.format.batch import encode_batch
from penstock.format.batch_header import Producer
from penstock.settings import StoreSettings
from penstock.store.store import Store
from penstock.testing import FakeClock, SimulatedFileSystem
from tests.model import queue_model as m

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.groups.delivery import Delivery
    from penstock.store.consumer import Consumer

SETTINGS = StoreSettings(
    journal_file_bytes=32 * 1024, frame_bytes=16 * 1024, reference_bytes=1_000, free_bytes_floor=0, reserve_bytes=0
)
TOPIC: dict[str, Any] = {
    "segment_bytes": 1_500, "index_interval_bytes": 200, "coalesce_below_bytes": 700, "coalesce_to_bytes": 2_000,
    "dedup_window": 60,
}  # fmt: skip
PARTITIONS = 2
SHARED, ORDERED = "shared", "ordered"
PREFETCH = 3
CONSUMERS_MAX = 3
PRODUCER = "job"
SENDER = "sender"
KEYS = ["a", "b", "c", "d", "e", None]
KEYS_MAX = 3
"""So few deduplication keys are remembered."""

WISHES: list[dict[str, Any]] = [
    {}, {}, {}, {"delay": 1}, {"delay": 7}, {"delay": 30}, {"delay": "at 12 s"}, {"ttl": 2}, {"ttl": 15}, {"ttl": 100},
    {"delay": 7, "ttl": 3}, {"delay": 3, "ttl": 15},
]  # fmt: skip
"""What publishers ask for."""
LANES = ["low", "medium", "high"]

picks = st.integers(0, 7)
groups = st.sampled_from([SHARED, ORDERED])
partitions = st.integers(0, PARTITIONS - 1)
ways = st.sampled_from(["ack", "ack and wait", "nack", "nack now", "nack for 5 s", "reject", "extend", "extend by 60 s"])


class QueueMachine(RuleBasedStateMachine):
    """
    Topic ``in`` with two groups, and ``out`` for what transactions make of it.

    A rule that has nothing to do does nothing. `tokens` are the last deliveries, valid or not.
    """

    topic: dict[str, Any] = TOPIC
    """The settings of ``in``. If it has priorities, which go with no order, the group that is called ordered is another shared one."""

    @property
    def has_lanes(self) -> bool:
        """Whether ``in`` has priorities."""
        return bool(self.topic.get("priorities"))

    # -- the store and its model ------------------------------------------------------------------------------------

    @initialize(messages=st.integers(0, 3))
    def start(self, messages: int) -> None:
        """A new store with a shared and an ordered group, and some messages."""
        self.files = SimulatedFileSystem()
        self.clock = FakeClock()
        self.logs: dict[str, list[list[bytes]]] = {"in": [[] for _ in range(PARTITIONS)], "out": [[]]}
        self.wishes: dict[m.Place, m.Wish] = {}
        self.models = {
            name: m.GroupModel(name, ordered=ordered, max_deliveries=most, partitions=PARTITIONS, wishes=self.wishes)
            for name, ordered, most in [(SHARED, False, 3), (ORDERED, not self.has_lanes, 2)]
        }
        self.letters: list[tuple[str, m.Place, int]] = []
        self.box: set[int] = set()
        self.stored_keys: list[tuple[str, m.Seen]] = []
        self.sent: dict[tuple[int, int], int] = {}
        """(incarnation, sequence) of what the producer has sent, and its offset in ``out``."""
        self.incarnation = -1
        self.stages: dict[str, tuple[float, list[tuple[str, int, bytes]]]] = {}
        self.results: dict[int, int] = {}
        self.committed_at: float | None = None
        self.counter = 0
        self.crashed = False
        self.tokens: list[Delivery] = []
        self.consumers: dict[str, list[Consumer]] = {SHARED: [], ORDERED: []}
        self._open()
        self.store.create_topic("in", partitions=PARTITIONS, **self.topic)
        self.store.create_topic("out", **TOPIC)
        for name in self.models:
            self._subscribe(name)
        for partition in range(PARTITIONS if messages else 0):
            self._publish(partition, messages)
        self._settle()

    def _open(self) -> None:
        self.store = Store.open("/s", settings=SETTINGS, files=self.files, clock=self.clock, background=False)
        self.commits = -1
        self.keys: m.KeysModel | None = None

    def _subscribe(self, name: str) -> None:
        model = self.models[name]
        self.consumers[name].append(
            self.store.subscribe(
                "in", name, prefetch=PREFETCH, lease=m.LEASE_S, max_deliveries=model.max_deliveries, ordered=model.ordered,
                backoff=m.BACKOFF_S, backoff_max=m.BACKOFF_MAX_S,
            )
        )  # fmt: skip

    @property
    def now(self) -> float:
        """The time of both clocks, which run alike here."""
        return round(self.clock.monotonic(), 6)

    @property
    def ends(self) -> list[int]:
        """Where each partition of ``in`` ends."""
        return [len(log) for log in self.logs["in"]]

    def _values(self, count: int) -> list[bytes]:
        self.counter += count
        return [b"%d" % number for number in range(self.counter - count, self.counter)]

    def _committed(self) -> bool:
        """Whether there was a commit since this was asked last, and all that groups had noted went with it."""
        before, self.commits = self.commits, self.store._volume.commits
        # Behind a checkpoint a frame takes what was noted before it, and the next one the rest.
        return self.commits != before and not any(type(entry) in (bytes, tuple) for entry in self.store._groups._noted)

    def _settle(self) -> None:
        """After each step: see which dead letters came, and what is durable now."""
        ttl = self.topic.get("ttl", math.inf)
        for partition, log in enumerate(self.logs["in"]):
            for offset in range(len(log) - 1, -1, -1):
                if (partition, offset) in self.wishes:
                    break
                self.wishes[partition, offset] = m.Wish(end=self.now + ttl, since=self.now)
        self._read_dead_letters()
        self._see_expired()
        committed = self._committed()
        for name, model in self.models.items():
            if committed:
                model.commit()
                model.touched = set()
            for member in self.store._group("in", name).members:
                model.touched |= {(one.partition, one.offset) for one in (*member.handed.values(), *member.extended.values())}
                model.touched |= {
                    (lot.cursor.partition, lot.offset(at)) for lot in member.lots for at in range(lot.index, lot.stop)
                }

    def _see_expired(self) -> None:
        if self.topic.get("expired") != "dead_letter":
            for name, model in self.models.items():
                model.see_expired(self.store._group("in", name), self.ends, self.now)

    def _read_dead_letters(self) -> None:
        if self.store._volume._topics.get("in.dlq") is None:
            return
        known = len(self.letters)
        if self.store._volume.log("in.dlq").committed_end == known:
            return
        for letter in self.store.read("in.dlq", start=known):
            model = self.models[(letter.headers["x-dlq-group"] or b"").decode()]
            partition = int(letter.headers["x-dlq-source-partition"])
            place = m.i24_dead_letters_are_where_they_belong(model, letter, self.logs["in"][partition], self.now)
            [source] = self.store.read("in", partition, start=place[1], max_messages=1)
            m.i25_a_dead_letter_tells_what_became_of_it(letter, source, self.clock.now_us())
            entry = (model.name, place, model.now.generation[partition])
            assert entry not in self.letters, f"two dead letters of {entry}"
            self.box.add(len(self.letters))
            self.letters.append(entry)
            model.finish_durably(place)

    def _model_of(self, delivery: Delivery) -> m.GroupModel:
        return self.models[delivery.group]

    def _expire(self, name: str) -> None:
        self.models[name].expire(self.now, self.consumers[name])

    def _valid(self, pick: int) -> Delivery | None:
        """One of those that are in somebody's hands."""
        valid = [lease.delivery for model in self.models.values() for lease in model.leases.values()]
        return valid[pick % len(valid)] if valid else None

    def _token(self, pick: int) -> Delivery | None:
        """One of the last that were handed out, whether it is valid still or not."""
        return self.tokens[-1 - pick % len(self.tokens)] if self.tokens else None

    def _suspect_is_out(self) -> bool:
        return bool(m.suspects_in_hand(self.models.values()))

    def _consumer(self, name: str, pick: int) -> Consumer | None:
        own = self.consumers[name]
        return own[pick % len(own)] if own else None

    # -- publishing -------------------------------------------------------------------------------------------------

    @rule(partition=partitions, count=st.integers(1, 4))
    def publish(self, partition: int, count: int) -> None:
        """One message, or several at once."""
        self._publish(partition, count)
        self._settle()

    def _publish(self, partition: int, count: int) -> None:
        values = self._values(count)
        log = self.logs["in"][partition]
        if count == 1:
            moment = dt.datetime(2020, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=self.counter)
            receipts = [
                self.store.publish(
                    "in", values[0], partition=partition, key=b"key " + values[0], headers={"own": values[0]}, timestamp=moment
                )
            ]
        else:
            receipts = list(self.store.publish_many("in", values, partition=partition))
        assert [(one.partition, one.offset, one.duplicate) for one in receipts] == [
            (partition, len(log) + at, False) for at in range(count)
        ]
        log += values

    @rule(
        partition=partitions, wishes=st.lists(st.sampled_from(WISHES), min_size=1, max_size=4),
        lanes=st.lists(st.sampled_from(LANES), min_size=4, max_size=4),
    )  # fmt: skip
    def publish_wishes(self, partition: int, wishes: list[dict[str, Any]], lanes: list[str]) -> None:
        """Messages that are due later, expire, or are urgent."""
        log, values = self.logs["in"][partition], self._values(len(wishes))
        moment = dt.datetime.fromtimestamp(self.clock.now_us() / 1e6, dt.UTC) + dt.timedelta(seconds=12)
        asked = [{**wish, "delay": moment} if isinstance(wish.get("delay"), str) else wish for wish in wishes]
        for at, wish in enumerate(wishes):
            delay = 12 if isinstance(wish.get("delay"), str) else wish.get("delay")
            lane = LANES.index(lanes[at]) if self.has_lanes else 0
            due = -math.inf if delay is None else self.now + delay
            self.wishes[partition, len(log) + at] = m.Wish(
                due, self.now + wish.get("ttl", self.topic.get("ttl", math.inf)), lane, self.now
            )
        urgent: dict[str, Any] = {"priorities": lanes[: len(wishes)]} if self.has_lanes else {}
        if len(wishes) == 1:
            options = {**asked[0], **({"priority": lanes[0]} if self.has_lanes else {})}
            self.store.publish("in", values[0], partition=partition, **options)
        else:
            self.store.publish_many(
                "in", values, partition=partition, ttls=[one.get("ttl") for one in asked],
                delays=[one.get("delay") for one in asked], **urgent,
            )  # fmt: skip
        log += values
        self._settle()

    def _i29_one_copy(self, known: dict[str, m.Seen], key: str, partition: int, receipt: Any) -> bool:
        """The place of the first message with *key*, or of this one. Returns whether it was stored."""
        place = partition, len(self.logs["in"][partition])
        expected = (*known[key][:2], True) if key in known else (*place, False)
        assert (receipt.partition, receipt.offset, receipt.duplicate) == expected, f"{receipt}, expected {expected}"
        if key not in known:
            known[key] = m.Seen(*place, self.clock.now_us())
            self.stored_keys.append((key, known[key]))
            assert self.keys is not None
            self.keys.remember(key, known[key])
        return not receipt.duplicate

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), partition=partitions)
    def publish_once(self, keys: list[str | None], partition: int) -> None:
        """With deduplication keys, often ones that were used before, some of them twice in a call; more than are remembered (I32)."""
        values = self._values(len(keys))
        # Of keys that were stored at one moment a restart does not know which is older.
        self.clock.advance(0.000001)
        topic = self.store._catalog.get("in")
        topic._dedup._keys_max = KEYS_MAX
        if any(keys):
            if self.keys is None:
                self.keys = m.KeysModel(self.stored_keys, KEYS_MAX, TOPIC["dedup_window"] * 1_000_000, self.clock.now_us())
            known = self.keys.known(self.clock.now_us())
        if len(keys) == 1:
            receipts: Any = [self.store.publish("in", values[0], partition=partition, dedup_key=keys[0])]
        else:
            receipts = self.store.publish_many("in", values, partition=partition, dedup_keys=keys)
        for key, value, receipt in zip(keys, values, receipts, strict=True):
            if key is None:
                assert (receipt.partition, receipt.offset) == (partition, len(self.logs["in"][partition]))
                self.logs["in"][partition].append(value)
            elif self._i29_one_copy(known, key, partition, receipt):
                self.logs["in"][partition].append(value)
        if self.keys is not None:
            assert topic.dedup_evicted == self.keys.evicted, "evicted keys are counted wrongly"
        self._settle()

    @rule(
        pick=picks, how=st.sampled_from(["send", "send", "send", "send again", "leave one out", "open", "send as the old one"])
    )
    def send(self, pick: int, how: str) -> None:
        """I29, I31: a producer's batches are stored once and in order; what leaves one out, or comes from an older one, never is."""
        topic, log = self.store._catalog.get("out"), self.logs["out"][0]
        if how == "open" or self.incarnation < 0:
            self.identity, incarnation = self.store._producers.open(SENDER, topic.logs)
            assert incarnation > self.incarnation, "the old one is not fenced"
            self.incarnation = incarnation
            self._settle()
            return
        own = [sequence for incarnation, sequence in self.sent if incarnation == self.incarnation]
        following = len(own)
        [value] = self._values(1)

        def give(incarnation: int, sequence: int) -> tuple[int, bool]:
            producer = Producer(self.identity, incarnation, sequence)
            receipt = topic.append_batch(0, encode_batch([value]).with_producer(producer))
            return receipt.offset, receipt.duplicate

        if how == "send again" and own:
            sequence = own[-1 - pick % min(len(own), 60)]
            assert give(self.incarnation, sequence) == (self.sent[self.incarnation, sequence], True)
        elif how == "leave one out" and self.sent:
            with pytest.raises(SequenceGap):
                give(self.incarnation, following + 1 + pick)
        elif how == "send as the old one" and self.incarnation > 0:
            with pytest.raises(ProducerFenced):
                give(self.incarnation - 1 - pick % self.incarnation, pick)
        else:
            assert give(self.incarnation, following) == (len(log), False)
            self.sent[self.incarnation, following] = len(log)
            log.append(value)
        self._settle()

    # -- consuming --------------------------------------------------------------------------------------------------

    @rule(name=groups, pick=picks, what=st.sampled_from(["subscribe", "close", "pause or resume"]))
    def change_consumers(self, name: str, pick: int, what: str) -> None:
        """One more, one less (what it holds goes back at once), or one that wants nothing for now."""
        consumer = self._consumer(name, pick)
        if what == "subscribe" or consumer is None:
            if len(self.consumers[name]) < CONSUMERS_MAX:
                self._subscribe(name)
        elif what == "close":
            consumer.close()
            self.models[name].close(consumer)
            self.consumers[name].remove(consumer)
        elif consumer.paused:
            consumer.resume()
        else:
            consumer.pause()
        self._settle()

    @rule(name=groups, pick=picks, count=st.integers(1, 4))
    def get(self, name: str, pick: int, count: int) -> None:
        """The next message, or several."""
        self._take(name, pick, count)

    @rule(name=groups, pick=picks, hows=st.lists(ways, min_size=1, max_size=4))
    def handle(self, name: str, pick: int, hows: list[str]) -> None:
        """The next messages, one after the other, and what their handler does with them."""
        for how in hows:
            for delivery in self._take(name, pick, 1):
                self._finish(delivery, how)

    @rule(pick=picks, hows=st.lists(ways, min_size=1, max_size=3))
    def finish(self, pick: int, hows: list[str]) -> None:
        """Messages that somebody has had for a while."""
        for how in hows:
            delivery = self._valid(pick)
            if delivery is not None:
                self._finish(delivery, how)

    @rule(pick=picks, how=ways)
    def finish_late(self, pick: int, how: str) -> None:
        """One that may be with somebody else by now, or done."""
        delivery = self._token(pick)
        if delivery is not None:
            self._finish(delivery, how)

    def _take(self, name: str, pick: int, count: int) -> list[Delivery]:
        consumer = self._consumer(name, pick)
        if consumer is None:
            return []
        model = self.models[name]
        self._expire(name)
        room = PREFETCH - consumer.in_flight
        ready = model.ready(self.ends, self.now) if self.has_lanes else []
        before = self.store._volume.commits
        letters = len(self.letters)
        if count == 1:
            found = [one for one in [consumer.get(timeout=0)] if one is not None]
        else:
            found = consumer.get_many(count, timeout=0)
        # What failed for the last time goes to the dead letters in this call, before anything is looked at.
        self._read_dead_letters()
        if consumer.paused:
            assert found == []
        for delivery in found:
            place = (delivery.partition, delivery.offset)
            m.i15_a_delivery_is_the_message_that_was_published(self.logs["in"][delivery.partition], delivery)
            m.i16_what_was_acked_is_not_delivered_again(model, place)
            m.i18_one_valid_lease(model, place)
            m.i19_a_delay_is_not_cut_short(model, place, self.now)
            m.i21_the_attempt_counts_the_failures(model, place, delivery.attempt)
            m.i24_a_condemned_message_is_not_delivered(model, place)
            m.an_expired_message_is_not_delivered(model, place, self.now)
            if model.ordered:
                m.i7_an_ordered_group_keeps_the_order(model, place, consumer, self.now)
            model.leases[place] = m.Lease(place, consumer, delivery, self.now + m.LEASE_S)
        if self.has_lanes:
            taken = [(one.partition, one.offset) for one in found]
            left = [place for place in ready if place not in taken and place not in model.now.suspects]
            m.the_most_urgent_comes_first(model, [one for one in taken if one not in model.now.suspects], left, self.now)
        if self.crashed:
            m.i21_after_a_crash_leases_are_noted_first(found, list(self.store._groups._noted))
        m.i28_a_suspect_comes_alone(self.models.values(), model, found, committed=self.store._volume.commits > before)
        if not found and not consumer.paused and room > 0 and len(self.letters) == letters:
            m.i15_what_is_ready_is_delivered(
                model,
                model.ready(self.ends, self.now),
                alone=len(self.consumers[name]) == 1,
                suspect_in_hand=self._suspect_is_out(),
            )
        self.tokens = [*self.tokens, *found][-12:]
        self._settle()
        return found

    def _finish(self, delivery: Delivery, how: str) -> None:
        """I18: a valid delivery is finished; a late one is told so, and nothing changes (which the invariants look at)."""
        model = self._model_of(delivery)
        place = (delivery.partition, delivery.offset)
        work, model_work = self._ways(delivery, model, place)[how]
        self._expire(model.name)
        if model.valid(delivery):
            # The model first: it does not know yet how often the message will have failed.
            model_work()
            work()
        else:
            with pytest.raises(LeaseExpired):
                work()
        self._settle()

    def _ways(
        self, delivery: Delivery, model: m.GroupModel, place: m.Place
    ) -> dict[str, tuple[Callable[[], object], Callable[[], object]]]:
        """What can be done with a delivery, in the store and in the model."""

        def fail(least: float, most: float, *, reject: bool = False) -> None:
            model.fail(place, self.now, least, most, "never" if reject else "why", reject=reject)

        def renew(seconds: float, *, own_length: bool) -> None:
            lease = model.leases.pop(place)
            lease.deadline, lease.own_length = self.now + seconds, own_length
            model.leases[place] = lease

        return {
            "ack": (delivery.ack, lambda: model.ack(place)),
            "ack and wait": (lambda: delivery.ack(wait=True), lambda: model.ack(place)),
            "nack": (lambda: delivery.nack(reason="why"), lambda: fail(*model.backoff(place))),
            "nack now": (lambda: delivery.nack(delay=0, reason="why"), lambda: fail(0, 0)),
            "nack for 5 s": (lambda: delivery.nack(delay=5, reason="why"), lambda: fail(5, 5)),
            "reject": (lambda: delivery.reject("never"), lambda: fail(0, 0, reject=True)),
            "extend": (delivery.extend, lambda: renew(m.LEASE_S, own_length=False)),
            "extend by 60 s": (lambda: delivery.extend(60), lambda: renew(60, own_length=True)),
        }

    @rule(name=groups, pick=picks, wait=st.booleans())
    def ack_all(self, name: str, pick: int, wait: bool) -> None:
        """A list of deliveries, the late ones among them."""
        consumer = self._consumer(name, pick)
        chosen = [one for one in self.tokens if one.group == name][pick % 3 :]
        if consumer is None or not chosen:
            return
        model = self.models[name]
        self._expire(name)
        valid = [one for one in chosen if model.valid(one)]
        with contextlib.nullcontext() if len(valid) == len(chosen) else pytest.raises(LeaseExpired):
            consumer.ack(chosen, wait=wait)
        for one in valid:
            model.ack((one.partition, one.offset))
        self._settle()

    @rule(name=groups, pick=picks, partition=partitions, back=st.one_of(st.none(), st.integers(0, 4)))
    def commit(self, name: str, pick: int, partition: int, back: int | None) -> None:
        """All below an offset is done, or all up to a message, and itself."""
        consumer = self._consumer(name, 0)
        if consumer is None:
            return
        if back is None:
            delivery = self._token(pick)
            if delivery is None or delivery.group != name:
                return
            partition, offset = delivery.partition, delivery.offset + 1
            consumer.commit(delivery)
        else:
            offset = max(0, self.ends[partition] - back)
            consumer.commit(offset, partition)
        self.models[name].finish_below(partition, offset)
        self._settle()

    @rule(name=groups, partition=st.one_of(st.none(), partitions), back=st.integers(0, 5), place=st.sampled_from([0, 1, 2]))
    def seek(self, name: str, partition: int | None, back: int, place: int) -> None:
        """Begin anew: I23, durable at once, and what consumers hold is void."""
        chosen = range(PARTITIONS) if partition is None else [partition]
        if place == 0:
            targets = dict.fromkeys(chosen, 0)
            self.store.seek("in", name, "earliest", partition=partition)
        elif place == 1:
            targets = {one: self.ends[one] for one in chosen}
            self.store.seek("in", name, "latest", partition=partition)
        else:
            targets = {one: max(0, self.ends[one] - back) for one in chosen}
            self.store.seek("in", name, targets)
        for one, offset in targets.items():
            self.models[name].seek(one, offset)
        self._settle()

    # -- transactions -----------------------------------------------------------------------------------------------

    @rule(pick=picks, other=picks, partition=partitions, drop=st.sampled_from([False, False, False, True]))
    def transaction(self, pick: int, other: int, partition: int, drop: bool) -> None:
        """Messages to two topics and acks, perhaps in both groups: all or nothing."""
        values = self._values(2)
        acks = list(dict.fromkeys([one for one in (self._valid(pick), self._token(other)) if one is not None]))
        transaction = self.store.transaction()
        transaction.publish("in", values[0], partition=partition)
        transaction.publish("out", values[1])
        for delivery in acks:
            transaction.ack(delivery)
        if drop:
            transaction.abort()
            return
        for name in dict.fromkeys([delivery.group for delivery in acks]):
            self._expire(name)
            if not all(self.models[name].valid(one) for one in acks if one.group == name):
                with pytest.raises(LeaseExpired):
                    transaction.commit()
                self._settle()
                return
        receipts = transaction.commit()
        assert [(one.topic, one.partition, one.offset) for one in receipts] == [
            ("in", partition, self.ends[partition]), ("out", 0, len(self.logs["out"][0]))
        ]  # fmt: skip
        self.logs["in"][partition].append(values[0])
        self.logs["out"][0].append(values[1])
        for delivery in acks:
            self._model_of(delivery).finish_durably((delivery.partition, delivery.offset))
        self._settle()

    @rule(count=st.integers(1, 2), partition=partitions, finish=st.sampled_from([True, True, True, False]))
    def stage(self, count: int, partition: int, finish: bool) -> None:
        """The first phase; what is not finished is gone with the process."""
        stage = self.store.stage(PRODUCER)
        values = self._values(count + 1)
        stage.publish_many("in", values[1:], partition=partition)
        stage.publish("out", values[0])
        if finish:
            messages = [*[("in", partition, value) for value in values[1:]], ("out", 0, values[0])]
            self.stages[stage.finish()] = (self.now, messages)

    @rule(pick=picks, how=st.sampled_from(["commit", "commit", "skip and commit", "repeat", "fenced", "abort"]))
    def commit_stages(self, pick: int, how: str) -> None:
        """The second phase. A number gives its first answer for ever (I41), and one that was passed over is refused (I42)."""
        last = max(self.results, default=0)
        missing = sorted(set(range(last)) - set(self.results))
        before = self.store._volume.commits
        if how == "abort":
            chosen = list(self.stages)[::2]
            assert self.store.abort(chosen) == len(chosen)
            for identity in chosen:
                del self.stages[identity]
                with pytest.raises(StageNotFound):
                    self.store.commit(PRODUCER, last + 1, [identity])
        elif how == "repeat" and self.results:
            number = sorted(self.results)[-16:][-1 - pick % min(16, len(self.results))]
            result = self.store.commit(PRODUCER, number, [])
            assert (result.messages, result.duplicate) == (self.results[number], True)
        elif how == "fenced" and missing:
            with pytest.raises(TransactionFenced):
                self.store.commit(PRODUCER, missing[pick % len(missing)], list(self.stages))
        else:
            self._commit_stages(last + 1 + (how == "skip and commit"), pick % 4)
            return
        assert self.store._volume.commits == before, "something was committed"

    def _commit_stages(self, number: int, count: int) -> None:
        chosen = list(self.stages)[:count]
        result = self.store.commit(PRODUCER, number, chosen)
        messages = [one for identity in chosen for one in self.stages.pop(identity)[1]]
        assert (result.messages, result.duplicate) == (len(messages), False)
        for topic, partition, value in messages:
            self.logs[topic][partition].append(value)
        self.results[number] = len(messages)
        if self.committed_at is not None:
            # Older than the commit before this one: nobody can want it any more.
            self.stages = {one: made for one, made in self.stages.items() if made[0] >= self.committed_at}
        self.committed_at = self.now
        self._settle()

    # -- dead letters -----------------------------------------------------------------------------------------------

    @precondition(lambda self: bool(self.box))
    @rule(pick=picks, replay=st.booleans())
    def take_out_dead_letters(self, pick: int, replay: bool) -> None:
        """I27: sent back once, to where it came from, or thrown away."""
        offset = sorted(self.box)[pick % len(self.box)]
        box = self.store.dead_letters("in")
        _, (partition, source), _ = self.letters[offset]
        for expected in (1, 0):
            assert (box.replay if replay else box.discard)(offsets=[offset]) == expected
        self.box.discard(offset)
        if replay:
            log, wish = self.logs["in"][partition], self.wishes.get((partition, source))
            if wish is not None:
                # It is due at once, as urgent as it was, and lives as long as it was to live.
                self.wishes[partition, len(log)] = m.Wish(end=self.now + wish.end - wish.since, lane=wish.lane, since=self.now)
            log.append(log[source])
        self._settle()

    # -- time, commits and crashes ----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1, 3, 11, 61]))
    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)

    @rule(how=st.sampled_from(["flush", "checkpoint", "checkpoint and merge"]))
    def make_durable(self, how: str) -> None:
        """All acks and failures become durable, by the journal or by way of a snapshot."""
        if how == "flush":
            self.store.flush()
        else:
            self.store._volume.checkpoint()
            for model in self.models.values():
                model.commit()
        if how == "checkpoint and merge":
            self.store._volume.coalesce()
        self._settle()

    @rule(how=st.sampled_from(["kill", "lose power", "restart"]), seed=st.integers(0, 1 << 16))
    def end(self, how: str, seed: int) -> None:
        """The process dies, the power goes, or the store is closed in order, which forgets nothing and counts nothing."""
        members = [member for name in self.models for member in self.store._group("in", name).members]
        # The death of a process leaves it known what was in whose hands, unless a consumer had more than it said it would.
        known = how == "kill" and not any(member.hand.many for member in members)
        if how == "restart":
            self.store.close()
            for name, model in self.models.items():
                for consumer in self.consumers[name]:
                    model.close(consumer)
                model.commit()
        elif how == "kill":
            self.files = self.files.kill()
        else:
            keep: Any = ("nothing", "random", "everything")[seed % 3]
            self.files = self.files.crash(random.Random(seed), keep=keep)
        self._reopen(crashed=how != "restart", known=known)

    def _reopen(self, *, crashed: bool, known: bool = False) -> None:
        self.crashed = crashed
        died = {name: len(own) for name, own in self.consumers.items()}
        self._open()
        self.tokens = []
        self.consumers = {SHARED: [], ORDERED: []}
        for name, model in self.models.items():
            group = self.store._group("in", name)
            if crashed:
                m.i17_acks_recover_as_a_prefix(model, group, self.ends)
                m.i21_counts_survive(model, group, died[name], known=known)
                m.i28_suspects_are_what_the_dead_held(model, group, known=known)
            self._adopt(model, name)
            model.expired = 0
            for place, (least, most) in list(model.now.due.items()):
                model.now.due[place] = (least, most + m.LATE_S + max(0, most - self.now) / 16)
            model.commit()
            model.touched = set()
        self._i42_staged_files()
        for name in self.models:
            self._subscribe(name)
        self._settle()

    def _adopt(self, model: m.GroupModel, name: str) -> None:
        """Of what a crash may have left it left this; the checks have looked at it."""
        state = model.now = model.durable.copy()
        model.leases = {}
        state.held = {}
        state.suspects = set()
        for cursor in self.store._group("in", name).cursors:
            partition = cursor.partition
            for offset in range(self.ends[partition]):
                place = (partition, offset)
                if offset < cursor.scan and offset not in cursor.open and not state.is_done(place):
                    state.finish(place)
                failure = cursor.failures.get(offset)
                if failure is not None:
                    state.failures[place] = failure.count
                if offset in cursor.suspects:
                    state.suspects.add(place)
                    state.due.pop(place, None)

    def _i42_staged_files(self) -> None:
        """What was staged and finished is there; of what was not finished nothing is."""
        if self.files.exists("/s/staging"):
            found = set(self.files.list_directory("/s/staging"))
            assert not [name for name in found if name.endswith(".new")]
            missing = {f"{identity}.stage" for identity in self.stages} - found
            assert not missing, f"finished stages are gone: {missing}"
        else:
            assert not self.stages

    # -- always -----------------------------------------------------------------------------------------------------

    @invariant()
    def groups_equal_their_models(self) -> None:
        """After each step."""
        if not hasattr(self, "store"):
            return
        self._see_expired()
        for name, model in self.models.items():
            group = self.store._group("in", name)
            m.i20_every_group_is_where_its_own_users_left_it(model, group, self.ends)
            m.i18_every_lease_is_held_by_one(model, group)
            assert group.counters.expired_messages == model.expired, "expired messages are counted wrongly"
            for consumer in self.consumers[name]:
                m.i22_in_flight_is_within_the_prefetch(model, consumer, PREFETCH)

    @invariant()
    def logs_end_where_their_models_do(self) -> None:
        """I2, I4: nothing is there that nobody published, and all that was."""
        if hasattr(self, "store"):
            for topic, logs in self.logs.items():
                found = [log.committed_end for log in self.store._catalog.get(topic).logs]
                assert found == [len(log) for log in logs]

    def teardown(self) -> None:
        """At the end all is delivered to those who did not have it, and nothing else is."""
        if hasattr(self, "store") and sys.exc_info()[0] is None:
            self._drain()

    def _drain(self) -> None:
        for name, own in self.consumers.items():
            if not own:
                self._subscribe(name)
            for consumer in own:
                consumer.resume()
        quiet = 0
        while quiet < 5 and any(model.unfinished(self.ends) for model in self.models.values()):
            self.clock.advance(20)
            quiet += 1
            moved = len(self.letters)
            for name, model in self.models.items():
                for pick in range(len(self.consumers[name])):
                    for delivery in self._take(name, pick, 4):
                        quiet = 0
                        delivery.ack()
                        model.ack((delivery.partition, delivery.offset))
                        self._settle()
            if len(self.letters) > moved:
                quiet = 0
        self._i15_nothing_is_lost()
        self.store.close()
        for model in self.models.values():
            model.commit()
        self._reopen(crashed=False)
        self._i15_nothing_is_lost()

    def _i15_nothing_is_lost(self) -> None:
        for name, model in self.models.items():
            left = model.unfinished(self.ends)
            assert not left, f"{name} was never given {left}"
            assert self.store.stats().topics["in"].groups[name].lag == 0
        for topic, logs in self.logs.items():
            for partition, log in enumerate(logs):
                assert [message.value for message in self.store.read(topic, partition)] == log
        assert sorted(letter.offset for letter in self.store.dead_letters("in").list()) == sorted(self.box)
        self.groups_equal_their_models()


class LanesMachine(QueueMachine):
    """The same with priorities, and dead letters of what expires."""

    topic = {**TOPIC, "priorities": True, "expired": "dead_letter"}  # noqa: RUF012


class MortalMachine(QueueMachine):
    """The same with messages that all expire some day."""

    topic = {**TOPIC, "ttl": 25}  # noqa: RUF012
