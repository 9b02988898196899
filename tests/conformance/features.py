"""The features of topics, groups and messages, each as what it changes in a story (`stories.py`)."""

# ruff: noqa: RUF012 (what a feature says of itself is never changed)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.conformance.helpers import stored
from tests.conformance.stories import Feature, Story
from tests.conformance.story_model import PRIORITIES, Told, Wanted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock import Message

DELAYS_S = {0: 3, 3: 21, 4: 11, 6: 7, 9: 10, 10: 3}
"""By number. The first is due when the group gets to it; the others come due between rounds, not in the order of their offsets."""
PAST_S = 1_000
"""Past every window, grace and retention of these stories."""
REASON = "no"


# -- what a message asks for --------------------------------------------------------------------------------------------


class Headers(Feature):
    name = "headers"

    def shape(self, message: Wanted) -> None:
        if message.number % 2:
            message.headers = [("n", b"%d" % message.number), ("n", b""), ("\u00e9", b"\0\xff")]


class Delay(Feature):
    name = "delay"

    def shape(self, message: Wanted) -> None:
        message.delay = DELAYS_S.get(message.number)


class Ttl(Feature):
    """Of each four messages one expires soon, and one much later."""

    name = "ttl"

    def shape(self, message: Wanted) -> None:
        message.ttl = {3: 5, 2: 1e6}.get(message.number % 4)

    def alone(self, story: Story) -> None:
        assert sorted({int(line.split()[1]) for line in story.log}) == [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]


class TopicTtl(Feature):
    name = "ttl of the topic"
    topic = {"ttl": 15}


class ExpiredToDeadLetters(Feature):
    name = "expired messages to the dead letters"
    topic = {"expired": "dead_letter"}

    def shape(self, message: Wanted) -> None:
        if message.number in (3, 10):
            message.ttl = 5

    def alone(self, story: Story) -> None:
        assert [letter.value for letter in story.store.dead_letters("t").list()] == [b"3"]


class Priority(Feature):
    name = "priority"
    topic = {"priorities": True}

    def shape(self, message: Wanted) -> None:
        message.priority = PRIORITIES[message.number % 3]


class Aging(Priority):
    """Messages of the first lot are served one lane higher in the first round."""

    name = "aging"
    topic = {"priorities": True, "aging_ms": 4_000}


class DedupKey(Feature):
    """Each lot is published again in part: nothing is stored, and the first receipts come back."""

    name = "dedup key"
    topic = {"dedup_window": 600}

    def shape(self, message: Wanted) -> None:
        message.dedup_key = b"d%d" % message.number

    def published(self, story: Story, lot: Sequence[Told]) -> None:
        again = lot[1:3]
        assert story.send([told.wanted for told in again]) == [(told.offset, True) for told in again]


class Tombstones(Feature):
    name = "tombstones"

    def shape(self, message: Wanted) -> None:
        message.key = message.key or b"k%d" % (message.number % 3)
        if message.number % 4 == 3:
            message.value = None


# -- how it is stored ---------------------------------------------------------------------------------------------------


def _long(message: Wanted) -> None:
    if message.value is not None and message.number % 2:
        message.value = b"%d " % message.number * 1_000


class Compression(Feature):
    name = "compression of the topic"
    topic = {"compression": "gzip"}

    def shape(self, message: Wanted) -> None:
        _long(message)


class PublishCompression(Feature):
    name = "compression of a publish"
    manner = {"compression": "zstd"}

    def shape(self, message: Wanted) -> None:
        _long(message)


class SmallSegments(Feature):
    name = "small segments"
    topic = {"segment_messages": 2}


class _Restarting(Feature):
    keeps_data = True
    kill = False

    def half_way(self, story: Story) -> None:
        story.restart(kill=self.kill)

    def at_end(self, story: Story) -> None:
        story.restart(kill=self.kill)


class Restart(_Restarting):
    name = "restart"


class Kill(_Restarting):
    name = "kill"
    kill = True


# -- how it is handed out -----------------------------------------------------------------------------------------------


class Ordered(Feature):
    name = "ordered group"
    group = {"ordered": True}


class Nack(Feature):
    """The first delivery of each fourth message fails."""

    name = "nack with backoff"

    def decide(self, story: Story, told: Told) -> tuple[str, Any] | None:
        return ("nack", None) if told.wanted.number % 4 == 2 and told.failures == 0 else None


class Seek(Feature):
    name = "seek"

    def half_way(self, story: Story) -> None:
        story.store.seek("t", "g", to="earliest")
        story.model.seek()


class Many(Feature):
    name = "many at once"
    manner = {"many": True}


class Transactions(Feature):
    """Messages are published in a transaction, and each is acked in one that publishes its result: there is one of each."""

    name = "transactions"
    manner = {"in_transactions": True}

    def at_end(self, story: Story) -> None:
        if story.acked:
            assert sorted(int(value or b"") for value in stored(story.store, "out")) == sorted(story.acked)


# -- what becomes of it -------------------------------------------------------------------------------------------------


class DeadLetters(Feature):
    """Each fourth message is rejected."""

    name = "dead letters"

    def decide(self, story: Story, told: Told) -> tuple[str, Any] | None:
        return ("reject", REASON) if told.wanted.number % 4 == 0 and not told.replayed else None

    def alone(self, story: Story) -> None:
        assert [letter.value for letter in story.store.dead_letters("t").list()] == [b"0", b"4", b"8"]


class Replay(DeadLetters):
    """Of the rejected messages some are sent back, chosen by a filter, and the others discarded."""

    name = "replay and discard"

    def at_end(self, story: Story) -> None:
        box, model = story.store.dead_letters("t"), story.model

        def others(letter: Message) -> bool:
            return bool(letter.headers["x-dlq-reason"] == REASON.encode())

        def some(letter: Message) -> bool:
            return others(letter) and int(letter.headers["x-dlq-source-offset"]) >= 4

        back = [int(letter.headers["x-dlq-source-offset"]) for letter in box.list(filter=some)]
        assert sorted(back) == sorted(one.told.offset for one in model.letters if one.reason == REASON and one.told.offset >= 4)
        assert box.replay(filter=some) == len(back)
        for offset in back:
            model.add(model.messages[offset].wanted, story.now_us, replayed=True)
        kept = [one for one in model.letters if one.reason != REASON]
        assert box.discard(filter=others) == len(model.letters) - len(kept) - len(back)
        model.letters = kept

    def alone(self, story: Story) -> None:
        assert len(story.store.dead_letters("t")) == 0
        assert stored(story.store, "t")[12:] == [b"4", b"8"]


class DeadLetterRetention(DeadLetters):
    name = "retention of dead letters"
    topic = {"dead_letter_retention": 500}

    def at_end(self, story: Story) -> None:
        if story.model.letters:
            story.backend.advance(501)
            story.store.retain("t.dlq")
            story.model.letters = []

    def alone(self, story: Story) -> None:
        assert len(story.store.dead_letters("t")) == 0


# -- what becomes of old messages ---------------------------------------------------------------------------------------


class _Retention(Feature):
    """Whole segments go from the front, and nothing that the group has not finished."""

    def half_way(self, story: Story) -> None:
        self.retain(story)

    def at_end(self, story: Story) -> None:
        story.backend.advance(PAST_S)
        story.take_all()
        self.retain(story)

    def retain(self, story: Story) -> None:
        before = [told.offset for told in story.model.present]
        story.store.flush()
        story.store.retain("t")
        gone = story.removed()
        assert [told.offset for told in gone] == before[: len(gone)]
        if "retention_bytes_hard" not in story.topic:
            assert all(story.may_go(told) for told in gone), gone

    def alone(self, story: Story) -> None:
        assert story.model.gone


class RetentionByAge(_Retention):
    name = "retention by age"
    topic = {"retention_age": 100, "segment_messages": 2}


class RetentionByBytes(_Retention):
    name = "retention by bytes"
    topic = {"retention_bytes": 1, "segment_messages": 2}


class RetentionByCount(_Retention):
    name = "retention by count"
    topic = {"retention_messages": 3, "segment_messages": 2}


class RetainAlways(Feature):
    """What the group has not finished may go as well."""

    name = "groups that are not asked"
    topic = {"retain": "always"}


class HardLimit(_Retention):
    """Even of what the group has not finished."""

    name = "hard limit of bytes"
    topic = {"retention_bytes": 1, "retention_bytes_hard": 1, "segment_messages": 2}


class Vacuum(Feature):
    """A message that failed pins its segment, and time passes."""

    name = "vacuum"
    topic = {"retention_age": 100, "segment_messages": 4}

    def decide(self, story: Story, told: Told) -> tuple[str, Any] | None:
        return ("nack", 136.5) if told.wanted.number == 1 and told.failures == 0 else None

    def half_way(self, story: Story) -> None:
        story.backend.advance(130)
        story.store.flush()
        story.store.vacuum("t")
        gone = story.removed()
        assert all(story.may_go(told) for told in gone), gone

    def alone(self, story: Story) -> None:
        assert {0, 2, 3} <= story.model.gone


class Compaction(Feature):
    """Half-way, at the end, and when the grace of tombstones is over."""

    name = "compaction"
    topic = {"compaction": True, "tombstone_grace": 100, "segment_messages": 2}

    def shape(self, message: Wanted) -> None:
        message.key = b"k%d" % (message.number % 3)

    def half_way(self, story: Story) -> None:
        self.compact(story)

    def at_end(self, story: Story) -> None:
        self.compact(story)
        story.backend.advance(PAST_S)
        self.compact(story)

    @staticmethod
    def compact(story: Story) -> None:
        present = story.model.present
        latest = {told.wanted.key: told for told in present}
        story.store.flush()
        story.store.compact("t")
        for told in story.removed():
            assert story.may_go(told), told
            assert latest[told.wanted.key].offset > told.offset or told.wanted.value is None, told

    def alone(self, story: Story) -> None:
        assert len(story.model.gone) >= 6


class DeleteTopic(Feature):
    """Then the same again in a topic of the same name, which knows nothing of the first."""

    name = "deleting the topic"
    deleted = False

    def at_end(self, story: Story) -> None:
        if self.deleted:
            return
        self.deleted = True
        story.check()
        before = story.store.topic("t").topic_id
        story.consumer.close()
        story.store.delete_topic("t")
        assert [info.name for info in story.store.topics() if info.name.startswith("t")] == []
        if story.in_transactions and story.acked:
            story.store.delete_topic("out")
        story.acked.clear()
        story.begin()
        assert story.store.topic("t").topic_id != before


FEATURES: tuple[type[Feature], ...] = (
    Headers, Delay, Ttl, TopicTtl, ExpiredToDeadLetters, Priority, Aging, DedupKey, Tombstones, Compression, PublishCompression,
    SmallSegments, Restart, Kill, Ordered, Nack, Seek, Many, Transactions, DeadLetters, Replay, DeadLetterRetention, RetentionByAge,
    RetentionByBytes, RetentionByCount, RetainAlways, HardLimit, Vacuum, Compaction, DeleteTopic,
)  # fmt: skip
