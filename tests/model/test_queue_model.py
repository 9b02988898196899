"""The queue against dicts: hypothesis chooses what its users do, and when the process dies or the power goes."""

from __future__ import annotations

import contextlib
import random
import sys
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import LeaseExpired, StageNotFound, TransactionFenced
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

picks = st.integers(0, 7)
groups = st.sampled_from([SHARED, ORDERED])
partitions = st.integers(0, PARTITIONS - 1)


class QueueMachine(RuleBasedStateMachine):
    """
    Topic ``in`` with two groups, and ``out`` for what transactions make of it.

    A rule that has nothing to do does nothing. `tokens` are the last deliveries, valid or not.
    """

    # -- the store and its model ------------------------------------------------------------------------------------

    @initialize()
    def start(self) -> None:
        """A new store with a shared and an ordered group."""
        self.files = SimulatedFileSystem()
        self.clock = FakeClock()
        self.logs: dict[str, list[list[bytes]]] = {"in": [[] for _ in range(PARTITIONS)], "out": [[]]}
        self.models = {
            SHARED: m.GroupModel(SHARED, ordered=False, max_deliveries=3, partitions=PARTITIONS),
            ORDERED: m.GroupModel(ORDERED, ordered=True, max_deliveries=2, partitions=PARTITIONS),
        }
        self.letters: list[tuple[str, m.Place, int]] = []
        self.box: set[int] = set()
        self.keys: dict[str, tuple[int, int, float]] = {}
        self.stages: dict[str, tuple[float, list[tuple[str, int, bytes]]]] = {}
        self.results: dict[int, int] = {}
        self.committed_at: list[float] = []
        self.counter = 0
        self.tokens: list[Delivery] = []
        self.consumers: dict[str, list[Consumer]] = {SHARED: [], ORDERED: []}
        self._open()
        self.store.create_topic("in", partitions=PARTITIONS, **TOPIC)
        self.store.create_topic("out", **TOPIC)
        for name in self.models:
            self._subscribe(name)
        self._settle()

    def _open(self) -> None:
        self.store = Store.open("/s", settings=SETTINGS, files=self.files, clock=self.clock, background=False)
        self.commits = -1

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
        return self.clock.monotonic()

    @property
    def ends(self) -> list[int]:
        """Where each partition of ``in`` ends."""
        return [len(log) for log in self.logs["in"]]

    def _values(self, count: int) -> list[bytes]:
        self.counter += count
        return [b"%d" % number for number in range(self.counter - count, self.counter)]

    def _committed(self) -> bool:
        """Whether there was a commit since this was asked last."""
        before, self.commits = self.commits, self.store._volume.commits
        return self.commits != before

    def _settle(self) -> None:
        """After each step: see which dead letters came, and what is durable now."""
        self._read_dead_letters()
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

    def _read_dead_letters(self) -> None:
        if self.store._volume._topics.get("in.dlq") is None:
            return
        known = len(self.letters)
        if self.store._volume.log("in.dlq").committed_end == known:
            return
        for letter in self.store.read("in.dlq", start=known):
            model = self.models[(letter.headers["x-dlq-group"] or b"").decode()]
            partition = int(letter.headers["x-dlq-source-partition"])
            place = m.i24_dead_letters_are_where_they_belong(model, letter, self.logs["in"][partition])
            entry = (model.name, place, model.now.generation[partition])
            assert entry not in self.letters, f"two dead letters of {entry}"
            self.box.add(len(self.letters))
            self.letters.append(entry)
            model.now.finish(place)

    def _model_of(self, delivery: Delivery) -> m.GroupModel:
        return self.models[delivery.group]

    def _expire(self, name: str) -> None:
        self.models[name].expire(self.now, self.consumers[name])

    def _token(self, pick: int) -> Delivery | None:
        return self.tokens[-1 - pick % len(self.tokens)] if self.tokens else None

    def _consumer(self, name: str, pick: int) -> Consumer | None:
        own = self.consumers[name]
        return own[pick % len(own)] if own else None

    # -- publishing -------------------------------------------------------------------------------------------------

    @rule(partition=partitions, count=st.integers(1, 4))
    def publish(self, partition: int, count: int) -> None:
        """One message, or several at once."""
        values = self._values(count)
        log = self.logs["in"][partition]
        if count == 1:
            receipts = [self.store.publish("in", values[0], partition=partition)]
        else:
            receipts = list(self.store.publish_many("in", values, partition=partition))
        assert [(one.partition, one.offset, one.duplicate) for one in receipts] == [
            (partition, len(log) + at, False) for at in range(count)
        ]
        log += values
        self._settle()

    def _expected_place(self, key: str, partition: int) -> tuple[int, int, bool]:
        """I29: the place of the first message with *key*, or of this one."""
        known = self.keys.get(key)
        if known is not None and known[2] > self.now - TOPIC["dedup_window"]:
            return known[0], known[1], True
        return partition, len(self.logs["in"][partition]), False

    def _i29_one_copy(self, key: str, partition: int, value: bytes, receipt: Any) -> None:
        expected = self._expected_place(key, partition)
        assert (receipt.partition, receipt.offset, receipt.duplicate) == expected, f"{receipt}, expected {expected}"
        if not receipt.duplicate:
            self.logs["in"][partition].append(value)
            self.keys[key] = (partition, receipt.offset, self.now)

    @rule(key=st.sampled_from("abc"), partition=partitions)
    def publish_once(self, key: str, partition: int) -> None:
        """A deduplication key, often one that was used before."""
        (value,) = self._values(1)
        receipt = self.store.publish("in", value, partition=partition, dedup_key=key)
        self._i29_one_copy(key, partition, value, receipt)
        self._settle()

    @rule(keys=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=4), partition=partitions)
    def publish_many_once(self, keys: list[str | None], partition: int) -> None:
        """Several keys at once, some of them twice."""
        values = self._values(len(keys))
        receipts = self.store.publish_many("in", values, partition=partition, dedup_keys=keys)
        for key, value, receipt in zip(keys, values, receipts, strict=True):
            if key is None:
                assert (receipt.partition, receipt.offset) == (partition, len(self.logs["in"][partition]))
                self.logs["in"][partition].append(value)
            else:
                self._i29_one_copy(key, partition, value, receipt)
        self._settle()

    # -- consuming --------------------------------------------------------------------------------------------------

    @rule(name=groups)
    def subscribe(self, name: str) -> None:
        """One more consumer."""
        if len(self.consumers[name]) < CONSUMERS_MAX:
            self._subscribe(name)
            self._settle()

    @rule(name=groups, pick=picks)
    def get(self, name: str, pick: int) -> None:
        """The next message."""
        self._take(name, pick, lambda consumer: [one for one in [consumer.get(timeout=0)] if one is not None])

    @rule(name=groups, pick=picks, count=st.integers(2, 4))
    def get_many(self, name: str, pick: int, count: int) -> None:
        """The next messages."""
        self._take(name, pick, lambda consumer: consumer.get_many(count, timeout=0))

    def _take(self, name: str, pick: int, ask: Callable[[Consumer], list[Delivery]]) -> list[Delivery]:
        consumer = self._consumer(name, pick)
        if consumer is None:
            return []
        model = self.models[name]
        self._expire(name)
        room = PREFETCH - consumer.in_flight
        before = self.store._volume.commits
        found = ask(consumer)
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
            if model.ordered:
                m.i7_an_ordered_group_keeps_the_order(model, place, consumer)
            model.leases[place] = m.Lease(place, consumer, delivery, self.now + m.LEASE_S)
        m.i28_a_suspect_comes_alone(model, found, committed=self.store._volume.commits > before)
        if not found and not consumer.paused and room > 0:
            ready = model.ready(self.ends, self.now)
            m.i15_what_is_ready_is_delivered(model, ready, alone=len(self.consumers[name]) == 1)
        self.tokens = [*self.tokens, *found][-12:]
        self._settle()
        return found

    def _finish(self, delivery: Delivery, work: Callable[[], object], model_work: Callable[[m.GroupModel, m.Place], None]) -> None:
        """I18: a valid delivery is finished; a late one is told so, and nothing changes (which the invariants look at)."""
        model = self._model_of(delivery)
        self._expire(model.name)
        if model.valid(delivery):
            work()
            model_work(model, (delivery.partition, delivery.offset))
        else:
            with pytest.raises(LeaseExpired):
                work()
        self._settle()

    @rule(pick=picks, wait=st.booleans())
    def ack(self, pick: int, wait: bool) -> None:
        """It is done."""
        delivery = self._token(pick)
        if delivery is not None:
            self._finish(delivery, lambda: delivery.ack(wait=wait), lambda model, place: model.ack(place))

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
        with contextlib.nullcontext() if len(valid) == len(chosen) else pytest.raises(LeaseExpired):  # type: ignore[attr-defined]
            consumer.ack(chosen, wait=wait)
        for one in valid:
            model.ack((one.partition, one.offset))
        self._settle()

    @rule(pick=picks, delay=st.sampled_from([None, 0, 0.05, 5]))
    def nack(self, pick: int, delay: float | None) -> None:
        """It failed."""
        delivery = self._token(pick)
        if delivery is None:
            return

        def fail(model: m.GroupModel, place: m.Place) -> None:
            least, most = model.backoff(place) if delay is None else (delay, delay)
            model.fail(place, self.now, least, most, "why")

        self._finish(delivery, lambda: delivery.nack(delay=delay, reason="why"), fail)

    @rule(pick=picks)
    def reject(self, pick: int) -> None:
        """It can never be handled."""
        delivery = self._token(pick)
        if delivery is not None:
            self._finish(
                delivery,
                lambda: delivery.reject("never"),
                lambda model, place: model.fail(place, self.now, 0, 0, "never", reject=True),
            )

    @rule(pick=picks, seconds=st.sampled_from([None, 2, 60]))
    def extend(self, pick: int, seconds: float | None) -> None:
        """It takes longer."""
        delivery = self._token(pick)
        if delivery is None:
            return

        def renew(model: m.GroupModel, place: m.Place) -> None:
            lease = model.leases.pop(place)
            lease.deadline = self.now + (m.LEASE_S if seconds is None else seconds)
            lease.own_length = seconds is not None
            model.leases[place] = lease

        self._finish(delivery, lambda: delivery.extend(seconds), renew)

    @rule(name=groups, pick=picks, partition=partitions, back=st.integers(0, 4))
    def commit_offset(self, name: str, pick: int, partition: int, back: int) -> None:
        """All below an offset is done."""
        consumer = self._consumer(name, pick)
        offset = self.ends[partition] - back
        if consumer is not None and offset >= 0:
            consumer.commit(offset, partition)
            self.models[name].finish_below(partition, offset)
            self._settle()

    @rule(pick=picks)
    def commit_message(self, pick: int) -> None:
        """All up to a message is done, and itself."""
        delivery = self._token(pick)
        if delivery is not None and self.consumers[delivery.group]:
            self.consumers[delivery.group][0].commit(delivery)
            self._model_of(delivery).finish_below(delivery.partition, delivery.offset + 1)
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

    @rule(name=groups, pick=picks)
    def pause_or_resume(self, name: str, pick: int) -> None:
        """No more messages for one consumer, or again."""
        consumer = self._consumer(name, pick)
        if consumer is not None:
            if consumer.paused:
                consumer.resume()
            else:
                consumer.pause()

    @rule(name=groups, pick=picks)
    def close_consumer(self, name: str, pick: int) -> None:
        """What it holds goes back at once."""
        consumer = self._consumer(name, pick)
        if consumer is not None:
            consumer.close()
            self.models[name].close(consumer)
            self.consumers[name].remove(consumer)
            self._settle()

    # -- transactions -----------------------------------------------------------------------------------------------

    @rule(pick=picks, other=picks, partition=partitions, drop=st.sampled_from([False, False, False, True]))
    def transaction(self, pick: int, other: int, partition: int, drop: bool) -> None:
        """Messages to two topics and acks, perhaps in both groups: all or nothing."""
        values = self._values(2)
        acks = list(dict.fromkeys([one for one in (self._token(pick), self._token(other)) if one is not None]))
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
                return
        receipts = transaction.commit()
        assert [(one.topic, one.partition, one.offset) for one in receipts] == [
            ("in", partition, self.ends[partition]), ("out", 0, len(self.logs["out"][0]))
        ]  # fmt: skip
        self.logs["in"][partition].append(values[0])
        self.logs["out"][0].append(values[1])
        for delivery in acks:
            self._model_of(delivery).ack((delivery.partition, delivery.offset))
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

    @rule(count=st.integers(0, 3), step=st.integers(1, 2))
    def commit_stages(self, count: int, step: int) -> None:
        """The second phase."""
        number = max(self.results, default=0) + step
        chosen = list(self.stages)[:count]
        result = self.store.commit(PRODUCER, number, chosen)
        messages = [one for identity in chosen for one in self.stages.pop(identity)[1]]
        assert (result.messages, result.duplicate) == (len(messages), False)
        for topic, partition, value in messages:
            self.logs[topic][partition].append(value)
        self.results[number] = len(messages)
        if self.committed_at:
            # Older than the commit before this one: nobody can want it any more.
            self.stages = {one: made for one, made in self.stages.items() if made[0] >= self.committed_at[-1]}
        self.committed_at.append(self.now)
        self._settle()

    @precondition(lambda self: bool(self.results))
    @rule(pick=picks, gap=st.booleans())
    def commit_again(self, pick: int, gap: bool) -> None:
        """I41, I42: a number gives its first answer for ever; one that was passed over is refused."""
        numbers = sorted(self.results)
        missing = sorted(set(range(numbers[-1])) - set(numbers))
        with self._nothing_changes():
            if gap and missing:
                with pytest.raises(TransactionFenced):
                    self.store.commit(PRODUCER, missing[pick % len(missing)], list(self.stages))
            else:
                number = numbers[-1 - pick % len(numbers[-16:])]
                result = self.store.commit(PRODUCER, number, [])
                assert (result.messages, result.duplicate) == (self.results[number], True)

    @contextlib.contextmanager
    def _nothing_changes(self) -> Any:
        before = self.store._volume.commits
        yield
        assert self.store._volume.commits == before

    @rule()
    def abort_stages(self) -> None:
        """Half of what is staged is dropped."""
        chosen = list(self.stages)[::2]
        assert self.store.abort(chosen) == len(chosen)
        for identity in chosen:
            del self.stages[identity]
            with pytest.raises(StageNotFound):
                self.store.commit(PRODUCER, max(self.results, default=0) + 1, [identity])

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
            self.logs["in"][partition].append(self.logs["in"][partition][source])
        self._settle()

    # -- time, commits and crashes ----------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1, 3, 11, 61]))
    def advance(self, seconds: float) -> None:
        """Time passes."""
        self.clock.advance(seconds)

    @rule()
    def flush(self) -> None:
        """All acks and failures become durable."""
        self.store.flush()
        self._settle()

    @rule(merge=st.booleans())
    def checkpoint(self, merge: bool) -> None:
        """All acks and failures become durable, by way of a snapshot; small batches are merged."""
        self.store._volume.checkpoint()
        for model in self.models.values():
            model.commit()
        if merge:
            self.store._volume.coalesce()
        self._settle()

    @rule()
    def restart(self) -> None:
        """An orderly restart forgets nothing and counts nothing."""
        self.store.close()
        for name, model in self.models.items():
            for consumer in self.consumers[name]:
                model.close(consumer)
            model.commit()
        self._reopen(crashed=False)

    @rule()
    def kill(self) -> None:
        """The process dies."""
        self.files = self.files.kill()
        self._reopen(crashed=True)

    @rule(seed=st.integers(0, 1 << 16), keep=st.sampled_from(["nothing", "random", "everything"]))
    def lose_power(self, seed: int, keep: Any) -> None:
        """The power goes."""
        self.files = self.files.crash(random.Random(seed), keep=keep)
        self._reopen(crashed=True)

    def _reopen(self, *, crashed: bool) -> None:
        died = {name: len(own) for name, own in self.consumers.items()}
        self._open()
        self.tokens = []
        self.consumers = {SHARED: [], ORDERED: []}
        for name, model in self.models.items():
            group = self.store._group("in", name)
            if crashed:
                m.i17_acks_recover_as_a_prefix(model, group, self.ends)
                m.i21_counts_survive(model, group, died[name])
                m.i28_suspects_are_what_the_dead_held(model, group)
            self._adopt(model, name)
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
        state.condemned = {}
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
        for name, model in self.models.items():
            group = self.store._group("in", name)
            m.i20_every_group_is_where_its_own_users_left_it(model, group, self.ends)
            m.i18_every_lease_is_held_by_one(model, group)
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
        for _ in range(200):
            self.clock.advance(20)
            moved = len(self.letters)
            quiet = True
            for name, model in self.models.items():
                for pick in range(len(self.consumers[name])):
                    for delivery in self._take(name, pick, lambda consumer: consumer.get_many(4, timeout=0)):
                        quiet = False
                        delivery.ack()
                        model.ack((delivery.partition, delivery.offset))
                        self._settle()
            if quiet and len(self.letters) == moved:
                break
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


TestQueueModel = QueueMachine.TestCase
TestQueueModel.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)


@pytest.mark.long
class TestQueueModelLong(QueueMachine.TestCase):  # type: ignore[misc]
    """The same, longer."""

    settings = settings(max_examples=2_000, stateful_step_count=50, deadline=None)
