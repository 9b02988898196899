"""What several looks at a store tell together."""

from __future__ import annotations

import pytest

from penstock.cli.top.history import TREND_LENGTH, WINDOW_S, History
from penstock.testing.fake_clock import FakeClock
from tests.cli.looks import Seen, group, look, times


def test_the_first_look_has_no_rates() -> None:
    (topic,) = History().add(look(0, {"orders": Seen(100)})).topics
    assert (topic.in_per_s, topic.out_per_s, topic.trend) == (None, None, ())


def test_two_looks_make_a_rate() -> None:
    clock, history = FakeClock(), History()
    history.add(
        look(clock.monotonic(), {"orders": Seen(100, {"billing": group(delivered=50), "shipping": group(delivered=5)})})
    )
    clock.advance(2)
    picture = history.add(
        look(clock.monotonic(), {"orders": Seen(140, {"billing": group(delivered=60), "shipping": group(delivered=5)})})
    )
    assert (picture.topics[0].in_per_s, picture.topics[0].out_per_s) == (20, 5)
    assert [one.out_per_s for one in picture.groups] == [5, 0]


def test_counters_that_go_back_make_no_rate() -> None:
    """A server that begins anew counts from 0, and a topic that is made again begins at offset 0."""
    history = History()
    history.add(look(0, {"orders": Seen(100, {"g": group(delivered=50)})}))
    picture = history.add(look(1, {"orders": Seen(40, {"g": group(delivered=3)})}))
    assert (picture.topics[0].in_per_s, picture.topics[0].out_per_s, picture.groups[0].out_per_s) == (None, None, None)
    picture = history.add(look(2, {"orders": Seen(45, {"g": group(delivered=4)})}))
    assert (picture.topics[0].in_per_s, picture.groups[0].out_per_s) == (5, 1)
    assert picture.topics[0].trend == (0, 5)


def test_a_long_outage_is_averaged() -> None:
    history = History()
    history.add(look(0, {"orders": Seen(0)}))
    assert history.add(look(100, {"orders": Seen(50)})).topics[0].in_per_s == 0.5


def test_two_looks_at_one_moment_make_no_rate() -> None:
    history = History()
    history.add(look(5, {"orders": Seen(1)}))
    assert history.add(look(5, {"orders": Seen(9)})).topics[0].in_per_s is None


def test_what_is_new_or_gone_has_no_rate() -> None:
    history = History()
    history.add(look(0, {"orders": Seen(9)}))
    (topic,) = history.add(look(1, {"mails": Seen(3, {"g": group(delivered=2)})})).topics
    assert (topic.name, topic.in_per_s, topic.out_per_s) == ("mails", None, None)
    assert set(history._trends) == {"mails"}, "what is gone is forgotten"


def test_a_trend_is_the_last_rates() -> None:
    history = History()
    for second in range(TREND_LENGTH + 5):
        picture = history.add(look(second, {"orders": Seen(second * second)}))
    assert picture.topics[0].trend == tuple(range(2 * 5 - 1, 2 * (TREND_LENGTH + 4), 2))


def test_dead_letters_are_no_topic_unless_somebody_asks_for_it() -> None:
    topics = {"orders": Seen(9, dead=2), "orders.dlq": Seen(2), "lone.dlq": Seen(1)}
    picture = History().add(look(0, topics, reasons={"orders": "bad"}))
    assert [one.name for one in picture.topics] == ["lone.dlq", "orders"]
    assert [(one.topic, one.count, one.oldest_s, one.reason) for one in picture.dead_letters] == [("orders", 2, 90, "bad")]
    assert [one.name for one in History(["*.dlq"]).add(look(0, topics)).topics] == ["lone.dlq", "orders.dlq"]
    files = History().add(look(0, topics, is_whole=False))
    assert "orders.dlq" in [one.name for one in files.topics], "a reader of files knows nothing else of dead letters"


def test_patterns_choose_topics_and_what_belongs_to_them() -> None:
    topics = {
        name: Seen(1, {"g": group()}, dead=1, publish=times(1), acks=times(1)) for name in ("orders", "mails", "orders-2")
    }
    picture = History(["orders*", "x"]).add(look(0, topics, fsync=times(5)))
    assert [one.name for one in picture.topics] == ["orders", "orders-2"]
    assert {one.topic for one in picture.groups} == {one.topic for one in picture.dead_letters} == {"orders", "orders-2"}
    assert [one.what for one in picture.times] == [
        "fsync", "publish orders", "deliver to ack orders/g", "publish orders-2", "deliver to ack orders-2/g",
    ]  # fmt: skip
    assert History(["Orders"]).add(look(0, topics)).topics == []


def test_times_are_those_of_the_last_minute() -> None:
    """What a server saw in a week would hide what it sees now."""
    history = History()

    def shown(at_s: float, *in_buckets: int) -> tuple[int, ...]:
        (row,) = history.add(look(at_s, {}, fsync=times(*in_buckets))).times
        return row.times.counts[:2]

    assert shown(0, 1000, 0) == (1000, 0), "until there is an earlier look: of all time"
    assert shown(WINDOW_S - 1, 1000, 1) == (1000, 1)
    assert shown(WINDOW_S, 1000, 2) == (0, 2)
    assert shown(2 * WINDOW_S - 1, 1000, 7) == (0, 7)
    assert shown(2 * WINDOW_S, 1000, 9) == (0, 7), "since the look half a minute ago"
    assert shown(2 * WINDOW_S + 1, 3, 0) == (3, 0), "the server began anew"
    assert shown(2 * WINDOW_S + 2, 4, 0) == (4, 0)


@pytest.mark.parametrize("failure", [None, "the disk failed"])
def test_a_failed_store_is_told(failure: str | None) -> None:
    assert History().add(look(0, {}, failure=failure)).failure == failure
