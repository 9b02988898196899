"""What must happen in a story (`stories.py`): a plain list of messages, looked through from the start for every delivery."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PRIORITIES = ("low", "medium", "high")
SECOND = 1_000_000


@dataclass
class Wanted:
    """A message that is to be published, as features shape it."""

    number: int
    value: bytes | None
    key: bytes | None = None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    ttl: float | None = None
    delay: float | None = None
    priority: str | None = None
    dedup_key: bytes | None = None


@dataclass
class Told:
    """A message as the model knows it; times in microseconds."""

    wanted: Wanted
    offset: int
    since_us: int
    due_us: int
    expires_us: int | None
    replayed: bool = False
    state: str = "fresh"
    """fresh: never seen; aside: seen, and not due; ready: came back, or of before a restart; then taken, finished."""
    earliest_us: int = 0
    """After it failed it may come again from here on, and comes from `ready_us` on."""
    ready_us: int = 0
    failures: int = 0

    @property
    def lane(self) -> int:
        """The number of its priority."""
        return PRIORITIES.index(self.wanted.priority or "low")


@dataclass
class Letter:
    """A dead letter as the model knows it."""

    told: Told
    reason: str
    deliveries: int


class Model:
    """The reference: a list of messages, looked through from the start for every delivery."""

    def __init__(self, *, lanes: bool, age_us: int, ttl_us: int | None, keeps_expired: bool, ordered: bool) -> None:
        self.lanes, self.age_us, self.ttl_us, self.keeps_expired, self.ordered = lanes, age_us, ttl_us, keeps_expired, ordered
        self.messages: list[Told] = []
        self.gone: set[int] = set()
        """Offsets that retention, vacuum or compaction took."""
        self.lost: set[int] = set()
        """Of those, what the group had not finished."""
        self.letters: list[Letter] = []
        self._turn = [True, True, True]
        self._handed_us = self._before_us = 0
        """When a message was handed out last, and the time before that."""

    def add(self, wanted: Wanted, now_us: int, *, replayed: bool = False) -> Told:
        """A message was stored."""
        due_us = now_us if wanted.delay is None or replayed else now_us + round(wanted.delay * SECOND)
        ttl_us = self.ttl_us if wanted.ttl is None else round(wanted.ttl * SECOND)
        told = Told(wanted, len(self.messages), now_us, due_us, None if ttl_us is None else now_us + ttl_us, replayed)
        self.messages.append(told)
        return told

    @property
    def present(self) -> list[Told]:
        """What the topic holds."""
        return [told for told in self.messages if told.offset not in self.gone]

    @property
    def unfinished(self) -> list[Told]:
        """What the group has still to get."""
        return [told for told in self.messages if told.state != "finished"]

    def next(self, now_us: int, got: int | None = None) -> Told | None:
        """The message to be delivered next, if there is one; it is taken then. *got*: what a store has delivered."""
        if got is not None:
            if now_us > self._handed_us:
                self._handed_us, self._before_us = now_us, self._handed_us
            self._look_ahead(got)
        while (told := self._next(now_us)) is not None:
            if told.expires_us is None or told.expires_us > now_us:
                told.state = "taken"
                return told
            self._finish(told)
            if self.keeps_expired:
                self.letters.append(Letter(told, "expired", told.failures))
        return None

    def _look_ahead(self, got: int) -> None:
        """
        Put aside what a store may have come to when it was not due.

        In an ordered group handing out ends before what expired and is yet to be a dead letter; how far the store has come by then is
        its own business, and what it has put aside comes in the order of due times.
        """
        if self.ordered and self.keeps_expired and self.messages[got].state == "fresh":
            for told in self.messages[: got + 1]:
                if told.state == "fresh" and told.due_us > self._before_us >= told.since_us:
                    told.state = "aside"

    def _next(self, now_us: int) -> Told | None:
        if self.ordered and self._is_blocked(now_us):
            return None
        if self.lanes:
            return self._next_by_lanes(now_us)
        ready = [told for told in self.messages if told.state == "ready" and told.ready_us <= now_us]
        aside = [told for told in self.messages if told.state == "aside" and told.due_us <= now_us]
        fresh = [told for told in self.messages if told.state == "fresh"]
        for told in [*ready, *sorted(aside, key=lambda told: (told.due_us, told.offset)), *fresh]:
            if told.due_us <= now_us or (told.expires_us is not None and told.expires_us <= now_us):
                return told
            told.state = "aside"
        return None

    def _is_blocked(self, now_us: int) -> bool:
        """In an ordered group: whether something failed and is not due again, though it may have gone meanwhile."""
        return any(told.ready_us > now_us and (told.state == "ready" or told.offset in self.gone) for told in self.messages)

    def _next_by_lanes(self, now_us: int) -> Told | None:
        waiting = [
            told
            for told in self.messages
            if told.state in ("fresh", "aside", "ready") and told.due_us <= now_us and told.ready_us <= now_us
        ]
        for level in (2, 1, 0):
            own = [told for told in waiting if told.lane == level]
            aged = [told for told in waiting if told.lane < level <= told.lane + self._age(told, now_us)]
            if own and aged:
                chosen = aged if self._turn[level] else own
                self._turn[level] = not self._turn[level]
                return chosen[0]
            if own or aged:
                self._turn[level] = True
                return (own or aged)[0]
        return None

    def _age(self, told: Told, now_us: int) -> int:
        return min(2, (now_us - max(told.since_us, told.due_us)) // self.age_us)

    def _finish(self, told: Told) -> None:
        told.state = "finished"

    def ack(self, told: Told) -> None:
        """It is done."""
        self._finish(told)

    def nack(self, told: Told, now_us: int, delay_s: float) -> None:
        """It failed, and comes again."""
        told.failures += 1
        told.state, told.earliest_us = "ready", now_us + round(delay_s * SECOND)
        told.ready_us = now_us + round(delay_s * 1.04 * SECOND)

    def doubt_us(self, now_us: int) -> int:
        """How long nobody can say whether something that failed is due again: a store may let many wait for the same moment."""
        return max([told.ready_us - now_us for told in self.messages if told.earliest_us <= now_us < told.ready_us], default=0)

    def reject(self, told: Told, reason: str) -> None:
        """It is a dead letter."""
        self._finish(told)
        self.letters.append(Letter(told, reason, told.failures + 1))

    def take_back(self, told: Told) -> None:
        """In an ordered group: something before it failed."""
        told.state, told.ready_us = "ready", 0

    def restart(self) -> None:
        """What was put aside is looked at again."""
        for told in self.messages:
            if told.state == "aside":
                told.state, told.ready_us = "ready", 0

    def seek(self) -> None:
        """Everything comes again, as if for the first time."""
        for told in self.messages:
            told.ready_us, told.failures = 0, 0
        for told in self.present:
            told.state = "fresh"
        self._turn = [True, True, True]

    def lose(self, offsets: Iterable[int]) -> None:
        """These are not there any more."""
        for offset in offsets:
            self.gone.add(offset)
            if self.messages[offset].state != "finished":
                self.lost.add(offset)
            self._finish(self.messages[offset])
