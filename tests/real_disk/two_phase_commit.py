"""
Stages and commits, and is killed on the way; looks at what is left. A server, `python -m tests.real_disk.two_phase_commit`: each request
is a line of JSON, and a child of its own that dies without goodbye.

`run` is what is killed: one thread with nothing in the background, the same system calls in the same order each time. It tells a file
on another disk what it was told (`Told`). `watch` reads beside it, `check` is the first opening afterwards, `check_again` the second.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import traceback
from typing import TYPE_CHECKING, Any
from unittest import mock

from penstock.errors import StageNotFound, TransactionFenced, Unavailable
from penstock.files import RealFile, write_fully
from penstock.format.segment import FOOTER_BYTES
from penstock.log.staged_segment import StagedSegment
from penstock.settings import StoreSettings
from penstock.store.read_only import ReadOnlyStore
from penstock.store.store import Store
from penstock.topics.stages import StageLimits, StageWriter
from penstock.volume.verification import verify
from tests.real_disk.writer import STORE, BootFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penstock.log.segment import Segment

PRODUCER = "job"
TOPICS = {"orders": 3, "audit": 1}
LOGS = [(topic, partition) for topic, partitions in TOPICS.items() for partition in range(partitions)]
LIMITS = StageLimits(inline_bytes_max=1_000, adopt_bytes_min=1_000, adopt_batch_bytes_min=500, joined_bytes=0)
SEGMENT_BYTES = 52 * 1024
"""A part has 48 KiB of room for the state of its log, and then two batches of the large stage."""
PARTS = 3
"""How many files of the large stage become segments: two of one log, one of another."""
Log = tuple[str, int]


class Plan:
    """What a seed makes of it: two stages, and the order in which they are committed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        # Of each stage its batches, with the log that each is for.
        self.stages: dict[str, list[tuple[Log, list[bytes]]]] = {"small": [], "large": []}
        numbers: dict[tuple[str, Log], int] = {}

        def add(stage: str, log: Log, lengths: list[int]) -> None:
            values = []
            for length in lengths:
                number = numbers[stage, log] = numbers.get((stage, log), 0) + 1
                values.append(b"%s/%d:" % (stage.encode(), number) + rng.randbytes(length))
            self.stages[stage].append((log, values))

        for log in rng.sample([("orders", 0), ("orders", 1), ("audit", 0)], 3):
            add("small", log, [rng.randrange(40) for _ in range(rng.randint(1, 3))])
        twice, once = rng.sample([("orders", partition) for partition in range(3)], 2)
        # The first for a log is in the stage itself.
        batches = [twice] * 4 + [once] * 2
        rng.shuffle(batches)
        begun: set[Log] = set()
        for log in batches:
            add("large", log, [rng.randrange(700, 750), rng.randrange(700, 750)] if log in begun else [50])
            begun.add(log)
        self.order = rng.sample(list(self.stages), 2)
        self.messages = sum(len(values) for batches in self.stages.values() for _, values in batches)

    def of(self, stage: str, log: Log) -> list[bytes]:
        """What a stage holds for a log, in order."""
        return [value for one, values in self.stages[stage] if one == log for value in values]


class Told:
    """What the program was told before it was killed: ids of stages that it began and finished, and what was committed and published."""

    def __init__(self, path: str) -> None:
        self.begun: dict[str, str] = {}
        self.finished: dict[str, str] = {}
        self.committed: int | None = None
        self.published: dict[Log, int] = {}
        self.is_done = False
        with open(path, encoding="ascii") as file:
            for line in file:
                what, *words = line.split()
                if what in {"begun", "finished"}:
                    (self.begun if what == "begun" else self.finished)[words[0]] = words[1]
                elif what == "committed":
                    self.committed = int(words[0])
                elif what == "published":
                    self.published[words[0], int(words[1])] = int(words[2])
                else:
                    self.is_done = True


def open_store(path: str, boot_id: str = "") -> Store:
    """Open the store at *path*, with nothing in the background; it takes small stages for large ones."""
    files = BootFiles(bytes.fromhex(boot_id))
    store = Store.open(path, settings=StoreSettings(**STORE), files=files, background=False)
    store._staging._stages.limits = LIMITS
    return store


def prepare(path: str) -> None:
    """A store with messages in each log."""
    with open_store(path) as store:
        for topic, partitions in TOPICS.items():
            store.create_topic(topic, partitions=partitions, segment_bytes=SEGMENT_BYTES)
        for topic, partition in LOGS:
            store.publish_many(topic, [b"base/1", b"base/2"], partition=partition)


def stage(store: Store, plan: Plan, name: str, tell: Callable[..., None] = lambda *_: None) -> str:
    """Stage what the plan has under that name; returns the id."""
    begun = store.stage(PRODUCER)
    tell("begun", name, begun.identity)
    for (topic, partition), values in plan.stages[name]:
        begun.publish_many(topic, values, partition=partition)
    identity = begun.finish()
    tell("finished", name, identity)
    return identity


def run(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Open the store and stop, for strace to come; then stage, commit, publish and write a checkpoint."""
    plan = Plan(request["seed"])
    store = open_store(request["path"])
    journal = os.open(request["told"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    yield {"pid": os.getpid()}
    os.kill(os.getpid(), signal.SIGSTOP)

    def tell(*words: object) -> None:
        os.write(journal, " ".join(map(str, words)).encode() + b"\n")

    with PLANTS[request["plant"]]():
        staged = {name: stage(store, plan, name, tell) for name in plan.stages}
        tell("committed", store.commit(PRODUCER, 1, [staged[name] for name in plan.order]).messages)
        for number, (topic, partition) in enumerate(LOGS):
            tell("published", topic, partition, store.publish(topic, b"after", partition=partition).offset)
            if number == 1:
                store._volume.checkpoint()
    # Not closed: that is no part of it.
    tell("done")


# -- bugs that must be found -----------------------------------------------------------------------------------------


def _write_without_sync(self: StagedSegment, segment: Segment) -> None:
    for position, data in self._parts:
        write_fully(self.file, data, position)
    segment.synced_position = self.data_end + FOOTER_BYTES
    self._files.link(self.path, segment.path)


def _write_and_rename(self: StagedSegment, segment: Segment) -> None:
    for position, data in self._parts:
        write_fully(self.file, data, position)
    segment.sync()
    self._files.rename(self.path, segment.path)


def _finish_without_sync(original: Callable[[StageWriter], str]) -> Callable[[StageWriter], str]:
    def finish(self: StageWriter) -> str:
        with mock.patch.object(RealFile, "sync_data"):
            return original(self)

    return finish


PLANTS: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "": contextlib.nullcontext,
    "a part is not synced before the frame": lambda: mock.patch.object(StagedSegment, "write", _write_without_sync),
    "a part loses its name before the frame": lambda: mock.patch.object(StagedSegment, "write", _write_and_rename),
    "a stage is not synced when it is finished": lambda: mock.patch.object(
        StageWriter, "finish", _finish_without_sync(StageWriter.finish)
    ),
}


# -- looking ---------------------------------------------------------------------------------------------------------


class Torn(Exception):
    """What was found is neither all nor nothing, or has too much, or is out of order."""


def look(store: Store | ReadOnlyStore, plan: Plan) -> tuple[bool, dict[Log, list[bytes]]]:
    """Whether all of the commit is there, or nothing of it; and what each log holds. Raises `Torn`."""
    logs = {(topic, number): [bytes(one.value or b"") for one in store.read(topic, number)] for topic, number in LOGS}
    states = set()
    for log, values in logs.items():
        rest = values[2:]
        if values[:2] != [b"base/1", b"base/2"]:
            raise Torn(f"{log}: lost what was there before")
        for name in plan.stages:
            wanted = plan.of(name, log)
            found = [value for value in rest if value.startswith(name.encode() + b"/")]
            if wanted and found in ([], wanted):
                states.add(found == wanted)
            elif found or wanted:
                places = [wanted.index(value) if value in wanted else None for value in found]
                raise Torn(f"{log}: of {len(wanted)} messages of the {name} stage it has {places}")
            rest = [value for value in rest if not value.startswith(name.encode() + b"/")]
        if rest not in ([], [b"after"], [b"after", b"last"], [b"last"]) or values[len(values) - len(rest) :] != rest:
            raise Torn(f"{log}: ends with {[value[:20] for value in values[2:]]}")
    if len(states) != 1:
        raise Torn("some logs have all of the commit, and some have nothing")
    return states.pop(), logs


def _orphans(path: str, *, committed: bool) -> list[str]:
    """Files that nobody needs, or that have a name too many."""
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith((".new", ".probe", ".tmp")) or (
                name.endswith(".part") and name.split(".")[0] + ".stage" not in names
            ):
                found.append(f"orphan {name}")
            links = os.stat(os.path.join(folder, name)).st_nlink
            if links > 1 and not committed:
                found.append(f"{links} names of {name}, which nobody committed")
    return found


def _is_fenced(store: Store) -> bool:
    try:
        store.commit(PRODUCER, 0, [])
    except TransactionFenced:
        return True
    return False


def _is_whole(store: Store, identity: str) -> bool:
    """Whether a stage and all its parts are there."""
    stages = store._staging._stages
    try:
        found = stages.load(identity)
    except StageNotFound:
        return False
    for part in found.parts:
        stages.open_part(identity, part).file.close()
    return True


def _early_reader(path: str, boot_id: str) -> ReadOnlyStore | None:
    with contextlib.suppress(Unavailable):
        return ReadOnlyStore(path, files=BootFiles(bytes.fromhex(boot_id)))
    return None


def check(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """
    Recover, and do what the committer would do: commit again, after staging again what it was not told to be finished.

    `seen` is what a reader saw beside the owner, before the power was lost.
    """
    path, boot_id = request["path"], request["boot_id"]
    plan, told = Plan(request["seed"]), Told(request["told"])
    anomalies: list[str] = []
    reader = _early_reader(path, boot_id)
    early = None if reader is None else look(reader, plan)[0]
    store = open_store(path, boot_id)
    committed, logs = look(store, plan)
    anomalies += _orphans(path, committed=committed)
    first = store.committed(PRODUCER, 1)
    if (first is not None) is not committed or (first is not None and first.messages != plan.messages):
        anomalies.append(f"its number says {first}, its messages are there: {committed}")
    if not committed and (told.committed is not None or early or request["seen"]):
        anomalies.append(f"uncommitted: it was told {told.committed}, a reader saw {early}, one before saw {request['seen']}")
    if not boot_id and told.committed is not None and early is not True:
        anomalies.append(f"committed, and of a reader before recovery it is seen: {early}")
    if told.committed not in {None, plan.messages}:
        anomalies.append(f"{told.committed} messages were committed, and not {plan.messages}")
    for log, offset in told.published.items():
        if logs[log][offset : offset + 1] != [b"after"]:
            anomalies.append(f"lost {log}: {offset} was published")
    if any(b"after" in values for values in logs.values()) and told.committed is None:
        anomalies.append("published before it was committed")
    for name, identity in told.finished.items():
        if not committed and not _is_whole(store, identity):
            anomalies.append(f"the {name} stage was finished, and is gone")
    if committed and not _is_fenced(store):
        anomalies.append("a lower number was committed")
    anomalies += [str(finding) for finding in verify(path, files=BootFiles(bytes.fromhex(boot_id))).findings]

    stages = [told.finished.get(name) or stage(store, plan, name) for name in plan.order]
    for duplicate in (committed, True):
        result = store.commit(PRODUCER, 1, stages)
        if result != (PRODUCER, 1, plan.messages, duplicate, 1, None):
            anomalies.append(f"committed again: {result}, duplicate must be {duplicate}")
    for name, one in (("owner", store), ("reader", reader)):
        if one is not None and not look(one, plan)[0]:
            anomalies.append(f"committed again, and the {name} does not see it")
    if not _is_fenced(store):
        anomalies.append("after another commit: a lower number was committed")
    if request["close"]:
        store.close()
    yield {"anomalies": anomalies, "committed": committed, "early": early}


def check_again(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Open what `check` left: it is all there, the next commit takes away what nobody can want, and it is sound."""
    path, boot_id = request["path"], request["boot_id"]
    plan, told = Plan(request["seed"]), Told(request["told"])
    anomalies: list[str] = []
    store = open_store(path, boot_id)
    if not look(store, plan)[0]:
        anomalies.append("the commit is gone")
    result = store.commit(PRODUCER, 1, list(told.finished.values()))
    if result != (PRODUCER, 1, plan.messages, True, 1, None):
        anomalies.append(f"committed once more: {result}")
    # At most one that was finished, and nobody was told.
    unwanted = [identity for identity, _, _ in store._staging._stages.all()]
    if not set(unwanted) <= set(told.begun.values()) - set(told.finished.values()) or len(unwanted) > 1:
        anomalies.append(f"stages that were committed, or never begun: {unwanted}")
    if store.commit(PRODUCER, 2, []) != (PRODUCER, 2, 0, False, 2, None) or not _is_fenced(store):
        anomalies.append("the next number was not taken, or a lower one was")
    for topic, partition in LOGS:
        store.publish(topic, b"last", partition=partition)
    look(store, plan)
    store.close()
    left = os.listdir(os.path.join(path, "staging"))
    anomalies += [f"left over: {left}"] if left else []
    anomalies += _orphans(path, committed=False)
    anomalies += [str(finding) for finding in verify(path, files=BootFiles(bytes.fromhex(boot_id))).findings]
    with ReadOnlyStore(path, files=BootFiles(bytes.fromhex(boot_id))) as reader:
        if not look(reader, plan)[0]:
            anomalies.append("a reader does not see the commit")
    yield {"anomalies": anomalies, "unwanted": len(unwanted)}


def watch(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Read before the program runs, and again when it was killed; of what it was told to be committed everything must be seen."""
    plan = Plan(request["seed"])
    with ReadOnlyStore(request["path"]) as reader:
        yield {"anomalies": ["it sees what is not there yet"] if look(reader, plan)[0] else []}
        sys.stdin.readline()
        seen = look(reader, plan)[0]
        told = Told(request["told"])
        anomalies = ["it does not see what was committed"] if told.committed is not None and not seen else []
        yield {"anomalies": anomalies, "seen": seen}


COMMANDS = {"run": run, "watch": watch, "check": check, "check_again": check_again}


def serve() -> None:
    """Answer requests; ``status`` asks how the last child ended."""
    ended = 0
    for line in sys.stdin:
        request = json.loads(line)
        if request["command"] == "status":
            os.write(1, json.dumps({"status": ended}).encode() + b"\n")
            continue
        child = os.fork()
        if child == 0:
            try:
                for answer in COMMANDS[request["command"]](request):
                    os.write(1, json.dumps(answer).encode() + b"\n")
            except BaseException as error:
                failure = f"{request['command']}: {type(error).__name__}: {error}\n{traceback.format_exc()}"
                os.write(1, json.dumps({"anomalies": [failure]}).encode() + b"\n")
                os._exit(1)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    serve()
