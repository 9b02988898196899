"""
What a queue promises, in plain Python: logs are lists, a group is a few dicts, and a crash forgets what was not committed.

The machine (`queue_machine.py`) does everything twice, in the store and here, and each check below is named after the invariant of
reliability.md, section 3, that it looks at. A check raises `AssertionError`.

The model knows two states of each group: `now`, as the living process sees it, and `durable`, as it was at the last commit. A crash may
leave anything between the two, and may count the messages that were with a consumer then as failed once.
"""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from penstock.groups.operations import LEASED, RETURNED, decode_ranges, operations
from penstock.offset_set import OffsetSet

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penstock.groups.delivery import Delivery
    from penstock.groups.group import Group
    from penstock.store.consumer import Consumer
    from penstock.topics.message import Message

LEASE_S = 10.0
BACKOFF_S = 1.0
BACKOFF_MAX_S = 8.0
JITTER = 0.2
AGING_S = 30.0
AGING_LATE_S = 2.0
LATE_S = 0.11
"""A delay may be longer than asked: a checkpoint rounds it up to tenths of a second, and the schedule by a thirty-second part."""

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Wish:
    """What a publisher asked for: when the message is due and when it expires (wall clock, seconds), and its lane."""

    due: float = -math.inf
    end: float = math.inf
    lane: int = 0
    since: float = math.inf
    """When it was published."""

    def __post_init__(self) -> None:
        # As the store counts, in whole microseconds: a sum of floats may lie behind the moment that it means.
        for name in ("due", "end", "since"):
            object.__setattr__(self, name, round(getattr(self, name), 6))

    def levels(self, now: float) -> tuple[int, int]:
        """The lane in which it is served now: at least, and at most; it may age a little late."""
        waited = round(now - max(self.since, self.due), 6)
        return min(2, self.lane + int(max(0.0, waited - AGING_LATE_S) // AGING_S)), min(
            2, self.lane + int(max(0.0, waited) // AGING_S)
        )


PLAIN = Wish()


@dataclass(eq=False)
class Lease:
    """A message in the hands of a consumer."""

    place: Place
    consumer: Consumer
    delivery: Delivery
    deadline: float
    own_length: bool = False
    """Extended by its holder: these are looked at after the others when leases end."""


@dataclass
class State:
    """What a group knows of its messages."""

    base: list[int]
    """Where each partition begins: everything before is finished."""
    generation: list[int]
    done: set[Place] = field(default_factory=set)
    failures: dict[Place, int] = field(default_factory=dict)
    due: dict[Place, tuple[float, float]] = field(default_factory=dict)
    """Not before the first, and after the second at the latest (wall clock, seconds)."""
    condemned: dict[Place, str] = field(default_factory=dict)
    """To be dead-lettered, and why."""
    suspects: set[Place] = field(default_factory=set)
    held: dict[Place, int] = field(default_factory=dict)
    """With which consumer (its member's number) it is; only of interest in `durable`."""

    def copy(self) -> State:
        """The same, on its own."""
        return State(
            list(self.base), list(self.generation), set(self.done), dict(self.failures), dict(self.due), dict(self.condemned),
            set(self.suspects), dict(self.held),
        )  # fmt: skip

    def is_done(self, place: Place) -> bool:
        """Whether the group is through with it."""
        return place[1] < self.base[place[0]] or place in self.done

    def forget(self, place: Place) -> None:
        """It is finished: nothing else is to be known of it."""
        self.failures.pop(place, None)
        self.due.pop(place, None)
        self.condemned.pop(place, None)
        self.suspects.discard(place)

    def finish(self, place: Place) -> None:
        """It is finished."""
        self.done.add(place)
        self.forget(place)

    def seek(self, partition: int, offset: int) -> None:
        """Begin a partition anew at *offset*."""
        self.base[partition] = offset
        self.generation[partition] += 1
        for table in (self.failures, self.due, self.condemned, self.held):
            for place in [one for one in table if one[0] == partition]:
                del table[place]
        self.done = {place for place in self.done if place[0] != partition}
        self.suspects = {place for place in self.suspects if place[0] != partition}


class GroupModel:
    """One group. Places that were handed out are in `leases`; everything else is in `now`."""

    def __init__(
        self, name: str, *, ordered: bool, max_deliveries: int, partitions: int, wishes: dict[Place, Wish] | None = None
    ) -> None:
        self.name = name
        self.wishes = {} if wishes is None else wishes
        self.expired = 0
        self.ordered = ordered
        self.max_deliveries = max_deliveries
        self.now = State([0] * partitions, [0] * partitions)
        self.durable = self.now.copy()
        self.leases: dict[Place, Lease] = {}
        self.touched: set[Place] = set()
        """What consumers of this process may have leased: all that was ever unfinished while one of them took something."""

    # -- what happens -----------------------------------------------------------------------------------------------

    def wish(self, place: Place) -> Wish:
        """What its publisher asked for."""
        return self.wishes.get(place, PLAIN)

    def has_expired(self, place: Place, now: float) -> bool:
        """Whether it must not be handed out any more."""
        return self.wish(place).end <= now

    def see_expired(self, group: Group, ends: list[int], now: float) -> None:
        """What has expired and is with nobody is finished whenever the engine comes by: see where it did."""
        for place in self.unfinished(ends):
            if self.has_expired(place, now) and place not in self.leases and not _is_open(group, place):
                self.now.finish(place)
                self.expired += 1

    def commit(self) -> None:
        """All that happened so far is durable."""
        self.durable = self.now.copy()
        self.durable.held = {place: lease.consumer._member.identity for place, lease in self.leases.items()}

    def valid(self, delivery: Delivery) -> bool:
        """Whether it may still be finished."""
        lease = self.leases.get((delivery.partition, delivery.offset))
        return lease is not None and lease.delivery is delivery

    def expire(self, now: float, consumers: Iterable[Consumer]) -> None:
        """Leases that have ended are failures, in the order in which the engine comes by."""
        for consumer in consumers:
            own = [lease for lease in self.leases.values() if lease.consumer is consumer and lease.deadline <= now]
            for lease in sorted(own, key=lambda one: one.own_length):
                if self.leases.get(lease.place) is lease:
                    self.fail(lease.place, now, 0.0, 0.0, "lease expired")

    def fail(self, place: Place, now: float, least_s: float, most_s: float, reason: str, *, reject: bool = False) -> None:
        """A delivery failed: it comes again after a delay between *least_s* and *most_s*, or goes to the dead letters."""
        del self.leases[place]
        state = self.now
        state.suspects.discard(place)
        count = state.failures[place] = state.failures.get(place, 0) + 1
        if reject or count >= self.max_deliveries:
            state.condemned[place] = reason
            state.due.pop(place, None)
        else:
            state.due[place] = (now + least_s, now + most_s * 33 / 32 + LATE_S)
        if self.ordered:
            for other in [one for one in self.leases if one[0] == place[0] and one[1] > place[1]]:
                del self.leases[other]

    def backoff(self, place: Place) -> tuple[float, float]:
        """The delay of the next failure if none is given: from, to."""
        nominal = min(BACKOFF_S * 2.0 ** self.now.failures.get(place, 0), BACKOFF_MAX_S)
        return nominal * (1 - JITTER), nominal

    def ack(self, place: Place) -> None:
        """It is done."""
        del self.leases[place]
        self.now.finish(place)

    def finish_below(self, partition: int, offset: int) -> None:
        """All before *offset* is done."""
        for at in range(self.now.base[partition], offset):
            self.now.finish((partition, at))
            self.leases.pop((partition, at), None)

    def seek(self, partition: int, offset: int) -> None:
        """Begin anew at *offset*, durably."""
        self.now.seek(partition, offset)
        self.durable.seek(partition, offset)
        self.leases = {place: lease for place, lease in self.leases.items() if place[0] != partition}
        self.touched = {place for place in self.touched if place[0] != partition}

    def finish_durably(self, place: Place) -> None:
        """It was finished in the frame that did something else, too: a transaction, a dead letter."""
        self.leases.pop(place, None)
        self.now.finish(place)
        self.durable.finish(place)

    def close(self, consumer: Consumer) -> None:
        """What *consumer* had goes back, uncounted."""
        for place in [place for place, lease in self.leases.items() if lease.consumer is consumer]:
            del self.leases[place]

    # -- what may be asked ------------------------------------------------------------------------------------------

    def unfinished(self, ends: list[int]) -> list[Place]:
        """All that is not done, in order."""
        state = self.now
        return [
            (partition, offset)
            for partition, end in enumerate(ends)
            for offset in range(state.base[partition], end)
            if (partition, offset) not in state.done
        ]

    def ready(self, ends: list[int], now: float) -> list[Place]:
        """What somebody could certainly be given now, were there no rule of order."""
        state = self.now
        return [
            place
            for place in self.unfinished(ends)
            if place not in self.leases and place not in state.condemned and state.due.get(place, (0.0, 0.0))[1] <= now
            and self.wish(place).due <= now < self.wish(place).end
            and state.failures.get(place, 0) < self.max_deliveries
        ]  # fmt: skip


# -- checks of one delivery ---------------------------------------------------------------------------------------------


def i15_a_delivery_is_the_message_that_was_published(log: list[bytes], delivery: Message) -> None:
    assert delivery.offset < len(log), f"offset {delivery.offset} was never published"
    assert delivery.value == log[delivery.offset]


def i16_what_was_acked_is_not_delivered_again(model: GroupModel, place: Place) -> None:
    """Neither before nor after a crash, where the ack was durable; only a seek brings it back."""
    assert not model.now.is_done(place), f"{place} of {model.name} was finished"


def i18_one_valid_lease(model: GroupModel, place: Place) -> None:
    assert place not in model.leases, f"{place} of {model.name} is with another consumer"


def i19_a_delay_is_not_cut_short(model: GroupModel, place: Place, now: float) -> None:
    due = max(model.now.due.get(place, (-math.inf, 0.0))[0], model.wish(place).due)
    assert now >= due - 1e-6, f"{place} of {model.name} came {due - now} s too early"


def an_expired_message_is_not_delivered(model: GroupModel, place: Place, now: float) -> None:
    end = model.wish(place).end
    assert now < end, f"{place} of {model.name} had expired {now - end} s before"


def the_most_urgent_comes_first(model: GroupModel, found: list[Place], left: list[Place], now: float) -> None:
    """Nothing that is ready and was left behind is more urgent than what came; in a lane the first comes first."""
    for place in found:
        _, most = model.wish(place).levels(now)
        for other in left:
            least, _ = model.wish(other).levels(now)
            assert least <= most, f"{place} of {model.name} came, and {other} is more urgent"
            if other[0] == place[0] and model.wish(other) == model.wish(place) and model.wish(place).due == -math.inf:
                assert other > place, f"{place} of {model.name} came before {other}"


def i21_the_attempt_counts_the_failures(model: GroupModel, place: Place, attempt: int) -> None:
    expected = model.now.failures.get(place, 0) + 1
    assert attempt == expected, f"{place} of {model.name}: attempt {attempt}, it failed {expected - 1} times"


def i21_after_a_crash_leases_are_noted_first(found: list[Delivery], noted: list[object]) -> None:
    """Whatever killed the last process may come first, and may kill this one: the journal knows who has it before it is handed out."""
    leases = OffsetSet()
    for entry in noted:
        for operation in operations(entry) if isinstance(entry, bytes) else ():
            # What was passed over is leased and returned in one entry.
            if operation.kind in (LEASED, RETURNED):
                for start, end in decode_ranges(operation)[2]:
                    change = OffsetSet(range(start, end))
                    leases = leases | change if operation.kind == LEASED else leases - change
    assert not found or not leases, "messages were handed out before their lease was durable"


def i22_in_flight_is_within_the_prefetch(model: GroupModel, consumer: Consumer, prefetch: int) -> None:
    held = sum(lease.consumer is consumer for lease in model.leases.values())
    assert consumer.in_flight == held, f"holds {consumer.in_flight}, was handed {held}"
    assert held <= prefetch


def i24_a_condemned_message_is_not_delivered(model: GroupModel, place: Place) -> None:
    assert place not in model.now.condemned, f"{place} of {model.name} is on its way to the dead letters"
    assert model.now.failures.get(place, 0) < model.max_deliveries, f"{place} of {model.name} has failed often enough"


def i7_an_ordered_group_keeps_the_order(model: GroupModel, place: Place, consumer: Consumer, now: float) -> None:
    """Everything before it is done, or in the hands of the same consumer; what was delayed or has expired is passed over."""
    partition, offset = place
    if model.wish(place).due > -math.inf:
        return
    for at in range(model.now.base[partition], offset):
        wish = model.wish((partition, at))
        if not model.now.is_done((partition, at)) and wish.due == -math.inf and wish.end > now:
            lease = model.leases.get((partition, at))
            assert lease is not None, f"{place} came before offset {at}"
            assert lease.consumer is consumer, f"{place} came while another consumer had {at}"
    later = [one for one in model.leases if one[0] == partition and one[1] > offset and model.wish(one).due == -math.inf]
    assert not later, f"{place} came behind {later}"


def i28_a_suspect_comes_alone(
    models: Iterable[GroupModel], model: GroupModel, found: list[Delivery], *, committed: bool
) -> None:
    """One in a call, one with anybody, and only after a note that it was begun."""
    if any((one.partition, one.offset) in model.now.suspects for one in found):
        assert len(found) == 1, "a suspect came with company"
        assert committed, "a suspect came without a note"
        held = suspects_in_hand(models)
        assert len(held) == 1, f"suspects at once: {held}"


def suspects_in_hand(models: Iterable[GroupModel]) -> list[tuple[str, Place]]:
    """The suspects that somebody is handling; there should be one at most."""
    return [(model.name, place) for model in models for place in model.leases if place in model.now.suspects]


def i15_what_is_ready_is_delivered(model: GroupModel, ready: list[Place], *, alone: bool, suspect_in_hand: bool) -> None:
    """Nothing came: then there is nothing to come. *alone*: the group has one consumer."""
    if model.ordered:
        if not alone:
            return
        first: dict[int, Place] = {}
        waiting = {place[0] for place in (*model.now.due, *model.now.condemned)} | {
            place[0] for place, count in model.now.failures.items() if count >= model.max_deliveries
        }
        for place in ready:
            first.setdefault(place[0], place)
        # Nothing behind a suspect either, as long as somebody has it.
        waiting |= {partition for partition, _ in model.now.suspects & model.leases.keys()}
        if suspect_in_hand:
            # Nor beside one that must wait for another suspect, wherever that is.
            waiting |= {place[0] for place in ready if place in model.now.suspects}
        ready = [place for place in first.values() if place[0] not in waiting]
    if suspect_in_hand:
        ready = [place for place in ready if place not in model.now.suspects]
    assert not ready, f"{model.name} gave nothing, and these are ready: {ready}"


# -- checks of the whole ------------------------------------------------------------------------------------------------


def i20_every_group_is_where_its_own_users_left_it(model: GroupModel, group: Group, ends: list[int]) -> None:
    """What is finished, what failed and how often, and what is suspect: as the model says, to the last message."""
    for cursor, end in zip(group.cursors, ends, strict=True):
        partition = cursor.partition
        assert cursor.generation == model.now.generation[partition]
        finished = {offset for offset in range(end) if offset < cursor.scan and offset not in cursor.open}
        expected = {offset for offset in range(end) if model.now.is_done((partition, offset))}
        assert finished == expected, f"{model.name}/{partition}: finished {finished}, expected {expected}"
        counts = {offset: failure.count for offset, failure in cursor.failures.items()}
        known = {offset: count for (at, offset), count in model.now.failures.items() if at == partition}
        assert counts == known, f"{model.name}/{partition}: failures {counts}, expected {known}"
        suspects = {offset for at, offset in model.now.suspects if at == partition}
        assert set(cursor.suspects) == suspects, f"{model.name}/{partition}: suspects {cursor.suspects}, expected {suspects}"


def i18_every_lease_is_held_by_one(model: GroupModel, group: Group) -> None:
    """The engine's tables hold what the model says, each message once; an ordered partition is with one consumer."""
    found = [
        (delivery.partition, delivery.offset)
        for member in group.members
        for table in (member.handed, member.extended)
        for delivery in table.values()
    ]
    for member in group.members:
        assert len(member.hand.named) + member.hand.many == member.in_flight, "the file of hands says something else"
        assert member.hand.named <= {*member.handed, *member.extended}
    assert sorted(found) == sorted(model.leases), f"{model.name}: handed {found}, expected {sorted(model.leases)}"
    if model.ordered:
        holders: dict[int, Consumer] = {}
        for (partition, _), lease in model.leases.items():
            assert holders.setdefault(partition, lease.consumer) is lease.consumer, f"partition {partition} is with two"


def i17_acks_recover_as_a_prefix(model: GroupModel, group: Group, ends: list[int]) -> None:
    """After a crash: what was durable is there, what was not may be, and nothing else. I16, I23, I24 too."""
    for cursor, end in zip(group.cursors, ends, strict=True):
        partition = cursor.partition
        assert cursor.generation == model.durable.generation[partition], "a seek came halfway"
        for offset in range(end):
            place = (partition, offset)
            finished = offset < cursor.scan and offset not in cursor.open
            if model.durable.is_done(place):
                assert finished, f"the durable ack of {place} of {model.name} is lost"
            elif not model.now.is_done(place):
                assert not finished, f"{place} of {model.name} is lost: nobody acked it"


def i21_counts_survive(model: GroupModel, group: Group, consumers: int, *, known: bool) -> None:
    """
    After a crash: no count is lower than it was durably, and each consumer that died adds one at most, to what it may have held.

    Where it is *known* what they had in their hands, exactly that counts.
    """
    blamed: list[Place] = []
    raised: list[Place] = []
    for cursor in group.cursors:
        partition = cursor.partition
        counts = {(partition, offset): failure.count for offset, failure in cursor.failures.items()}
        for place in {place for place in (*counts, *model.durable.failures) if place[0] == partition}:
            if place[1] < cursor.scan and place[1] not in cursor.open:
                continue
            count, least = counts.get(place, 0), model.durable.failures.get(place, 0)
            most = max(least, model.now.failures.get(place, 0))
            assert count >= least, f"{place} of {model.name} had failed {least} times, now {count}"
            assert count <= most + 1, f"{place} of {model.name} had failed {most} times, now {count}"
            if count > least:
                blamed.append(place)
            if count > most:
                raised.append(place)
                assert place in model.touched, f"{place} of {model.name} was with nobody, and is blamed"
    assert len(raised) <= consumers, f"{consumers} consumers of {model.name} died, and {raised} are blamed"
    if known:
        assert set(raised) <= set(model.leases), f"{raised} of {model.name} are blamed, and {list(model.leases)} were in hand"
    i21_a_death_is_counted(model, blamed)
    lost = [place for place in model.leases if known and place not in blamed and _is_open(group, place)]
    assert not lost, f"{lost} of {model.name} were in hand when the process died, and that is not counted"


def _is_open(group: Group, place: Place) -> bool:
    cursor = group.cursors[place[0]]
    return place[1] >= cursor.scan or place[1] in cursor.open


def i21_a_death_is_counted(model: GroupModel, blamed: list[Place]) -> None:
    """A consumer that died with messages in its hands, durably so, has one of them blamed, and a suspect before all others."""
    certain: dict[int, list[Place]] = {}
    for place, holder in model.durable.held.items():
        lease = model.leases.get(place)
        if lease is not None and lease.consumer._member.identity == holder:
            certain.setdefault(holder, []).append(place)
    suspects = {place for places in certain.values() for place in places} & model.now.suspects
    assert suspects <= set(blamed), f"suspects {suspects} of {model.name} were begun, and {blamed} are blamed"
    assert len(blamed) >= len(certain), f"consumers of {model.name} died with {certain}, and {blamed} are blamed"


def i28_suspects_are_what_the_dead_held(model: GroupModel, group: Group, *, known: bool) -> None:
    """
    After a crash: what was suspect and was neither finished nor failed is so still; new ones were with a consumer that died.

    Where it is *known* what they had in their hands, only that is.
    """
    found = {(cursor.partition, offset) for cursor in group.cursors for offset in cursor.suspects}
    lost = (model.durable.suspects & model.now.suspects) - found
    assert not lost, f"{lost} of {model.name} were suspect"
    new = found - model.durable.suspects - model.touched
    assert not new, f"{new} of {model.name} were with nobody, and are suspect"
    beside = found - model.durable.suspects - model.now.suspects - model.leases.keys()
    assert not (known and beside), f"{beside} of {model.name} were in nobody's hands, and are suspect"
    held = {place for place in model.durable.held if place in model.leases} - found
    assert not held, f"{held} of {model.name} were with a consumer that died, and are not suspect"


def i25_a_dead_letter_tells_what_became_of_it(letter: Message, source: Message, now_us: int) -> None:
    """Where it comes from, when it failed, and its message unchanged: key, own headers, time."""
    headers = {name.removeprefix("x-dlq-"): bytes(value) for name, value in letter.headers if name.startswith("x-dlq-")}
    assert headers["source-topic"] == source.topic.encode()
    assert (letter.value, letter.key, letter.timestamp) == (source.value, source.key, source.timestamp)
    assert [pair for pair in letter.headers if not pair[0].startswith("x-dlq-")] == list(source.headers)
    first, last = (dt.datetime.fromisoformat(headers[name].decode()).timestamp() for name in ("first-failure", "last-failure"))
    assert source.append_time_us / 1e6 - 1 < first <= last <= now_us / 1e6
    assert first == last or int(headers["deliveries"]) > 1


class Seen(NamedTuple):
    """Where the message of a deduplication key is, and since when."""

    partition: int
    offset: int
    time_us: int


class KeysModel:
    """I32: the deduplication keys that are remembered, oldest first, and how many were forgotten before their time."""

    def __init__(self, stored: list[tuple[str, Seen]], keys_max: int, window_us: int, now_us: int) -> None:
        """Made from what is stored when a key is first used after an opening."""
        self._keys: dict[str, Seen] = {}
        self._max = keys_max
        self._window_us = window_us
        self.evicted = 0
        for key, seen in stored:
            if seen.time_us > now_us - window_us:
                self._keys.pop(key, None)
                self.remember(key, seen)

    def remember(self, key: str, seen: Seen) -> None:
        """It was stored."""
        self._keys[key] = seen
        if len(self._keys) > self._max:
            del self._keys[next(iter(self._keys))]
            self.evicted += 1

    def known(self, now_us: int) -> dict[str, Seen]:
        """Those that count now."""
        self._keys = {key: seen for key, seen in self._keys.items() if seen.time_us > now_us - self._window_us}
        return dict(self._keys)


def i24_dead_letters_are_where_they_belong(model: GroupModel, letter: Message, log: list[bytes], now: float) -> Place:
    """A dead letter is of a condemned message, says what became of it (I25), and is the only one."""
    headers = {name.removeprefix("x-dlq-"): bytes(value) for name, value in letter.headers}
    place = int(headers["source-partition"]), int(headers["source-offset"])
    assert headers["group"] == model.name.encode()
    assert letter.value == log[place[1]]
    count = model.now.failures.get(place, 0)
    assert not model.now.is_done(place), f"a dead letter of {place} of {model.name}, which is finished"
    assert int(headers["deliveries"]) == count
    if headers["reason"] == b"expired":
        assert model.has_expired(place, now), f"a dead letter of {place} of {model.name}, which has not expired"
        assert place not in model.leases, f"a dead letter of {place} of {model.name}, which somebody has"
        model.expired += 1
        return place
    assert place in model.now.condemned or count >= model.max_deliveries, f"{place} of {model.name} failed {count} times only"
    if place in model.now.condemned:
        assert headers["reason"].decode() == model.now.condemned[place]
    return place
