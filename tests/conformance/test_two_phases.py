"""Transactions in two phases: stages that many make, and one commit of them all under a producer's number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penstock.errors import (
    BadArgument,
    BadName,
    Closed,
    StageNotFound,
    TopicNotFound,
    TransactionChanged,
    TransactionFenced,
    UsageError,
)
from tests.conformance.awaited import Awaited
from tests.conformance.helpers import numbered, state_of, stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock import Store
    from tests.conformance.backends import Backend

NEVER_MADE = "0" * 32


def plain(store: Any) -> Store:
    """Asyncio makes stages, and asks for commits, with the plain store below."""
    found: Store = store.sync if isinstance(store, Awaited) else store
    return found


def staged(store: Store, *values: bytes, producer: str = "job", topic: str = "t") -> str:
    """A finished stage."""
    with plain(store).stage(producer) as stage:
        stage.publish_many(topic, values)
    return stage.identity


def test_nothing_is_there_before_the_commit_and_all_of_it_after(store: Store) -> None:
    """Several stages, several topics, in the order of the stages."""
    with plain(store).stage("job") as stage:
        stage.publish("t", b"1", key="k", headers={"h": b"x"})
        stage.publish_many("u", [b"2", b"3"])
        assert stage.messages == 3
    other = staged(store, b"4", b"5")
    assert stored(store, "t") == stored(store, "u") == []
    result = store.commit("job", 1, [stage.identity, other])
    assert result == ("job", 1, 5, False, 1, None)
    assert stored(store, "t") == [b"1", b"4", b"5"]
    assert stored(store, "u") == [b"2", b"3"]
    first = next(iter(store.read("t")))
    assert (first.key, dict(first.headers)) == (b"k", {"h": b"x"})


def test_a_number_that_is_repeated_gives_the_first_answer(store: Store) -> None:
    """With the same stages, with none, with stages of the same messages: nothing is published, and what it was given again is dropped."""
    one = staged(store, b"1", b"2")
    assert store.commit("job", 5, [one]) == ("job", 5, 2, False, 5, None)
    late = staged(store, b"2", b"1")
    for stages in ([one], [], [late], [late], [one], [NEVER_MADE]):
        assert store.commit("job", 5, stages) == ("job", 5, 2, True, 5, None)
    assert stored(store, "t") == [b"1", b"2"]
    with pytest.raises(StageNotFound):
        store.commit("job", 6, [late])
    assert store.commit("job", 7, [staged(store, b"3")]).newest == 7
    assert store.commit("job", 5, []) == ("job", 5, 2, True, 7, None), "somebody else goes on"


def staged_rows(
    store: Store, rows: list[tuple[bytes | None, bytes | None, dict[str, bytes] | None]], *, parts: int = 1
) -> list[str]:
    """Stages of rows of value, key and headers, in several parts."""
    found = []
    for part in range(parts):
        with plain(store).stage("job") as stage:
            for value, key, headers in rows[part::parts]:
                stage.publish("t", value, key=key, headers=headers)
        found.append(stage.identity)
    return found


def test_a_number_that_is_repeated_with_other_messages_is_refused(store: Store) -> None:
    """More, fewer, or as many of which one differs in value, key or headers; nothing is lost: the stages are still there."""
    store.create_topic("t", partitions=3)
    rows: list[tuple[bytes | None, bytes | None, dict[str, bytes] | None]] = [
        (b"value %d" % number, b"key %d" % (number % 3) if number % 2 else None, {"n": b"%d" % number} if number % 5 else None)
        for number in range(50)
    ]
    assert store.commit("job", 1, staged_rows(store, rows)).messages == 50
    assert store.commit("job", 1, staged_rows(store, rows[::-1], parts=3)).duplicate, "other stages, another order"
    others = [
        rows[:-1], [*rows, (b"", None, None)], [*rows[:-1], rows[0]], [*rows[:-1], (b"value 49", b"key 0", {"n": b"49"})],
        [*rows[:-1], (None, b"key 1", {"n": b"49"})], [*rows[:-1], (b"value 49", b"key 1", {"n": b"48"})],
        [*rows[:-1], (b"value 49", b"key 1", None)],
    ]  # fmt: skip
    others.append([rows[0], (b"value 3", *rows[1][1:]), rows[2], (b"value 1", *rows[3][1:]), *rows[4:]])
    for other in others:
        stages = staged_rows(store, other, parts=2)
        for _ in range(2):
            with pytest.raises(TransactionChanged) as told:
                store.commit("job", 1, stages)
            assert (told.value.number, told.value.committed, told.value.given) == (1, 50, len(other))
    assert sum(plain(store).ends("t").values()) == 50
    assert store.commit("job", 1, stages, keep_committed=True) == ("job", 1, 50, True, 1, None)
    assert sum(plain(store).ends("t").values()) == 50
    late = staged_rows(store, others[0])
    with pytest.raises(TransactionChanged):
        store.commit("job", 1, late)
    assert store.commit("job", 2, late).messages == 49, "under a number of their own"


def test_a_repetition_of_which_a_stage_is_gone_is_refused(store: Store) -> None:
    """Nobody can tell what it had; where all are gone, somebody asks for the answer once more."""
    store.commit("job", 1, [staged(store, b"1", b"2")])
    left, gone = staged(store, b"1"), staged(store, b"2")
    store.abort([gone])
    with pytest.raises(StageNotFound):
        store.commit("job", 1, [left, gone])
    assert store.commit("job", 1, [gone]).duplicate


def test_a_note_is_kept_beside_a_commit(lasting: Backend) -> None:
    """It is the first one's, and is there after a restart."""
    store = lasting.open()
    assert (
        store.commit("job", 1, [staged(store, b"1")], note='up to {"in": 7} \N{SNOWMAN}').note == 'up to {"in": 7} \N{SNOWMAN}'
    )
    assert store.commit("job", 1, [staged(store, b"1")], note="later").note == 'up to {"in": 7} \N{SNOWMAN}'
    assert store.commit("job", 2, []).note is None
    store = lasting.kill()
    assert plain(store).committed("job", 1) == ("job", 1, 1, True, 2, 'up to {"in": 7} \N{SNOWMAN}')
    with pytest.raises(TransactionChanged):
        store.commit("job", 1, [staged(store, b"2")])
    wrong: list[Any] = [5, b"x", "x" * 2049]
    for bad in wrong:
        with pytest.raises(BadArgument):
            store.commit("job", 3, [], note=bad)


def test_a_lower_number_is_fenced(store: Store) -> None:
    """Whoever comes late changes nothing, and its stages stay until they are aborted."""
    store.create_topic("t")
    store.commit("job", 10, [])
    late = staged(store, b"late")
    for number in (0, 1, 9):
        with pytest.raises(TransactionFenced):
            store.commit("job", number, [late])
    assert stored(store, "t") == []
    assert store.commit("other", 1, []).messages == 0, "numbers are each producer's own"
    assert store.abort([late]) == 1


def test_zero_is_a_number_and_the_highest_too(store: Store) -> None:
    """As I13 has it."""
    assert store.commit("job", 0, [staged(store, b"x")]) == ("job", 0, 1, False, 0, None)
    assert store.commit("job", 0, []).duplicate
    assert store.commit("job", (1 << 63) - 1, []).messages == 0
    with pytest.raises(TransactionFenced):
        store.commit("job", 1, [])


def test_a_stage_that_was_aborted_is_not_there(store: Store) -> None:
    """Aborting counts what was there; it can be repeated."""
    one, two, three = staged(store, b"1"), staged(store, b"2"), staged(store, b"3")
    assert store.abort([one, two, NEVER_MADE]) == 2
    assert store.abort([one, two]) == store.abort([]) == 0
    for stages in ([one], [three, two], [NEVER_MADE]):
        with pytest.raises(StageNotFound):
            store.commit("job", 1, stages)
    assert stored(store, "t") == []
    assert store.commit("job", 1, [three]).messages == 1
    assert stored(store, "t") == [b"3"]


def test_a_stage_is_committed_once(store: Store) -> None:
    """Twice in a list is once; under the next number it is not there."""
    one = staged(store, b"1")
    assert store.commit("job", 1, [one, one]).messages == 1
    with pytest.raises(StageNotFound):
        store.commit("job", 2, [one])
    assert stored(store, "t") == [b"1"]


def test_a_stage_of_another_producer_is_refused(store: Store) -> None:
    """And with it the whole commit; it stays its producer's."""
    own, foreign = staged(store, b"own"), staged(store, b"foreign", producer="other")
    with pytest.raises(BadArgument):
        store.commit("job", 1, [own, foreign])
    assert stored(store, "t") == []
    assert store.commit("job", 1, [own]).messages == 1
    assert store.commit("other", 1, [foreign]).messages == 1
    assert stored(store, "t") == [b"own", b"foreign"]


def test_a_stage_that_is_dropped_is_not_there(store: Store) -> None:
    """By an exception, or in words; and one that has ended takes nothing more."""
    store.create_topic("t")
    with pytest.raises(ZeroDivisionError), plain(store).stage("job") as stage:
        stage.publish("t", b"x")
        raise ZeroDivisionError
    other = plain(store).stage("job")
    other.publish("t", b"x")
    other.abandon()
    for one in (stage, other):
        with pytest.raises(UsageError):
            one.publish("t", b"x")
        with pytest.raises(UsageError):
            one.finish()
        with pytest.raises(StageNotFound):
            store.commit("job", 1, [one.identity])
    assert stored(store, "t") == []


def test_a_stage_that_is_not_finished_is_not_there(store: Store) -> None:
    """Its id is known before."""
    stage = plain(store).stage("job")
    stage.publish("t", b"x")
    with pytest.raises(StageNotFound):
        store.commit("job", 1, [stage.identity])
    assert stage.finish() == stage.identity
    assert store.commit("job", 1, [stage.identity]).messages == 1


def test_a_stage_for_a_topic_that_was_deleted_is_refused(store: Store) -> None:
    """Also where a new one has its name."""
    one = staged(store, b"1")
    store.delete_topic("t")
    store.create_topic("t")
    with pytest.raises(TopicNotFound):
        store.commit("job", 1, [one])
    assert stored(store, "t") == []


def test_what_was_committed_can_be_asked_for(store: Store) -> None:
    """None if it was not; a number that was passed over is told."""
    store = plain(store)
    assert store.committed("job", 3) is None
    store.commit("job", 3, [staged(store, b"1", b"2")])
    assert store.committed("job", 3) == ("job", 3, 2, True, 3, None)
    assert store.committed("job", 4) is None
    assert store.committed("other", 3) is None
    with pytest.raises(TransactionFenced):
        store.committed("job", 2)


def test_commits_and_stages_are_there_after_a_restart(lasting: Backend) -> None:
    """What was finished can be committed, what was committed is known, what was not finished is gone."""
    store = lasting.open()
    store.commit("job", 1, [staged(store, b"1")])
    two = staged(store, b"2")
    unfinished = plain(store).stage("job")
    unfinished.publish("t", b"unfinished")
    for again in (lasting.reopen, lasting.kill):
        store = again()
        assert store.commit("job", 1, []) == ("job", 1, 1, True, 1, None)
        with pytest.raises(StageNotFound):
            store.commit("job", 2, [unfinished.identity])
    assert store.commit("job", 2, [two]).messages == 1
    assert stored(store, "t") == [b"1", b"2"]


def test_a_bad_one_among_those_to_abort_changes_nothing(store: Store) -> None:
    """The good ones before it were removed."""
    one, two = staged(store, b"1"), staged(store, b"2")
    for bad in ("bad", "../../x", NEVER_MADE + "0", ""):
        with pytest.raises(StageNotFound):
            store.abort([one, bad, two])
    for wrong in (None, 5, b"x", ["x"]):
        with pytest.raises(BadArgument):
            store.abort([one, wrong, two])  # type: ignore[list-item]
    assert store.commit("job", 1, [one, two]).messages == 2


NO_LISTS: list[Any] = [None, 5, 1.5, True, "0" * 32, b"0" * 32, [5], [None], [["x"]], [b"0" * 32]]
NO_NUMBERS: list[Any] = [None, -1, 1 << 63, 10**100, "5", 1.0, float("nan"), float("inf"), True, [1], {}]
NO_NAMES: list[Any] = [None, 5, b"job", "", "../x", "a b", "n" * 300, ["job"]]


def _refused(store: Store, call: Callable[[], Any], kind: type[Exception]) -> None:
    before = state_of(store)
    with pytest.raises(kind) as caught:
        call()
    assert 0 < len(str(caught.value)) < 1_000
    assert state_of(store) == before


@pytest.mark.parametrize("bad", NO_LISTS, ids=repr)
def test_what_is_no_list_of_stages_is_refused(store: Store, bad: Any) -> None:
    """By both that take one."""
    staged(store, b"x")
    _refused(store, lambda: store.commit("job", 1, bad), BadArgument)
    _refused(store, lambda: store.abort(bad), BadArgument)
    assert store.commit("job", 1, []).messages == 0


@pytest.mark.parametrize("bad", NO_NUMBERS, ids=repr)
def test_what_is_no_number_of_a_commit_is_refused(store: Store, bad: Any) -> None:
    """To commit, and to ask."""
    store.commit("job", 1, [staged(store, b"x")])
    _refused(store, lambda: store.commit("job", bad, []), BadArgument)
    _refused(store, lambda: plain(store).committed("job", bad), BadArgument)


@pytest.mark.parametrize("bad", NO_NAMES, ids=lambda name: repr(name)[:20])
def test_what_is_no_name_of_a_producer_is_refused(store: Store, bad: Any) -> None:
    """To stage, to commit, and to ask."""
    _refused(store, lambda: plain(store).stage(bad), BadName)
    _refused(store, lambda: store.commit(bad, 1, []), BadName)
    _refused(store, lambda: plain(store).committed(bad, 1), BadName)


def test_a_bad_message_is_not_staged(store: Store) -> None:
    """It is told when it is published, and the stage goes on."""
    store.create_topic("t", max_message_bytes=100)
    with plain(store).stage("job") as stage:
        for bad in ({"value": "text"}, {"value": bytes(101)}, {"value": b"x", "partition": -1}, {"value": b"x", "key": 5}):
            with pytest.raises(UsageError):
                stage.publish("t", **bad)
        with pytest.raises(UsageError):
            stage.publish_many("t", [b"x", 5])
        with pytest.raises(BadName):
            stage.publish("../x", b"x")
        stage.publish_many("t", numbered(2))
    assert store.commit("job", 1, [stage.identity]).messages == 2
    assert stored(store, "t") == numbered(2)


def test_a_stage_ends_with_its_store(lasting: Backend) -> None:
    """It went on writing into the folder of a store that was closed, and that others may have opened."""
    store = lasting.open()
    store.create_topic("t")
    stages = [plain(store).stage("job") for _ in range(3)]
    for stage in stages:
        stage.publish("t", b"x")
    store.close()
    for again in (False, True):
        if again:
            store = lasting.reopen()
        stage = stages[again]
        with pytest.raises(Closed):
            stage.publish("t", b"x")
        with pytest.raises(Closed):
            stage.publish_many("t", [b"x"])
        with pytest.raises(Closed):
            stage.finish()
    with pytest.raises(Closed), stages[2]:
        pass
    for stage in stages:
        stage.abandon()
        with pytest.raises(StageNotFound):
            store.commit("job", 1, [stage.identity])
    assert stored(store, "t") == []
