"""Damaged stores that are made by hand, each for a planted bug that few stores show."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING

from penstock.format.batch import encode_single
from penstock.format.frame import FRAME_MAGIC
from penstock.testing import SimulatedFileSystem
from tests.bad_bytes import stores as small
from tests.verification.damages import STORE, remove_tree
from tests.verification.stores import small_stores, whole

if TYPE_CHECKING:
    from tests.verification.judge import Subject
    from tests.verification.stores import Whole

_SEGMENTS = f"{STORE}/topics/always/0/"


def _segments(files: SimulatedFileSystem) -> list[str]:
    return sorted(path for path in files.files() if path.startswith(_SEGMENTS) and path.endswith(".log"))


def _other_boot(store: Whole) -> SimulatedFileSystem:
    """The positions file does not count."""
    return store.base.files.crash(Random(0), keep="everything")


def sound() -> Subject:
    """Nothing is wrong with it."""
    store = small_stores()["closed"]
    return store.subject("sound", store.base.files.kill())


def torn_tail() -> Subject:
    """Behind the last batch lies the beginning of one that nobody has committed: opening cuts it."""
    store = small_stores()["killed"]
    files = _other_boot(store)
    path = _segments(files)[-1]
    files.replace(path, files.files()[path] + b"garbage")
    return store.subject("torn tail", files)


@lru_cache(maxsize=1)
def _closed_twice() -> Whole:
    builder = small._Builder()
    builder.append(0, 1, 2, 3, 4)
    builder.reopen()
    builder.close()
    return whole(builder.files.kill(), {}, small.SETTINGS)


def lost_end() -> Subject:
    """The last batch of a log is gone, and only the checkpoints know of it."""
    store = _closed_twice()
    files = _other_boot(store)
    path = _segments(files)[-1]
    files.replace(path, files.files()[path][:-40])
    return store.subject("lost end", files)


def bad_first_batch() -> Subject:
    """Of the batches in a sealed segment the first one is damaged."""
    store = small_stores()["closed"]
    files = _other_boot(store)
    path = _segments(files)[0]
    content = bytearray(files.files()[path])
    content[content.index(b"first")] ^= 1
    files.replace(path, bytes(content))
    return store.subject("bad first batch", files)


@lru_cache(maxsize=2)
def _powerless(*numbers: int) -> Whole:
    builder = small._Builder()
    builder.append(0, 1)
    builder.reopen()
    builder.append(*numbers)
    return whole(builder.files.crash(Random(0), keep="nothing"), {}, small.SETTINGS)


def _without_frame(name: str, store: Whole) -> Subject:
    """The frame before the last one is damaged."""
    files = _other_boot(store)
    path = max(path for path in files.files() if path.endswith(".wal") and FRAME_MAGIC in files.files()[path])
    content = bytearray(files.files()[path])
    at = content.rindex(FRAME_MAGIC, 0, content.rindex(FRAME_MAGIC))
    content[at + 20] ^= 1
    files.replace(path, bytes(content))
    return store.subject(name, files)


def bad_frame() -> Subject:
    """Of the frames that alone have the last batches one in the middle is damaged."""
    return _without_frame("bad frame", _powerless(2, 4, 0, 4))


def bad_reference() -> Subject:
    """The frame that refers to a batch in a segment is damaged."""
    return _without_frame("bad reference", _powerless(1, 3, 0))


def lost_journal() -> Subject:
    """The journal is gone, and with it the frame that refers to the last batch, which was written ahead of it."""
    store = small_stores()["referring"]
    files = _other_boot(store)
    for path in files.files():
        if path.endswith(".wal"):
            files.unlink(path)
    return store.subject("lost journal", files)


def stray_segments() -> Subject:
    """Two segments lie in the folders of each other's topics."""
    store = small_stores()["closed"]
    files = _other_boot(store)
    mine = _segments(files)[0]
    other = mine.replace("/always/", "/os/")
    content = files.files()
    files.replace(mine, content[other])
    files.replace(other, content[mine])
    return store.subject("stray segments", files)


def no_checkpoint() -> Subject:
    """Neither checkpoint is there."""
    store = small_stores()["killed"]
    files = _other_boot(store)
    for number in range(2):
        files.unlink(f"{STORE}/checkpoint-{number}")
    return store.subject("no checkpoint", files)


def weak_tail() -> Subject:
    """A log with a weaker sync mode has bytes after its first segment, which opening takes for a torn tail; and another log is damaged."""
    store = small_stores()["killed"]
    files = _other_boot(store)
    weak = _segments(files)[0].replace("/always/", "/os/")
    files.replace(weak, files.files()[weak] + bytes(512))
    path = _segments(files)[0]
    content = bytearray(files.files()[path])
    content[content.index(b"first")] ^= 1
    files.replace(path, bytes(content))
    return store.subject("weak tail, bad batch", files)


def bad_segments() -> Subject:
    """Of two segments that follow each other one has a bad batch, and one is empty; and another topic is gone."""
    store = small_stores()["closed"]
    files = store.base.files.kill()
    first, second = [path.replace("/always/", "/os/") for path in _segments(files)[:2]]
    content = bytearray(files.files()[first])
    content[content.index(b"first")] ^= 1
    files.replace(first, bytes(content))
    files.replace(second, b"")
    remove_tree(files, f"{STORE}/topics/always")
    return store.subject("bad batch, empty segment, lost topic", files)


def folder_for_file() -> Subject:
    """A folder has the name of a checkpoint."""
    store = small_stores()["closed"]
    files = _other_boot(store)
    files.unlink(f"{STORE}/checkpoint-0")
    files.make_directory(f"{STORE}/checkpoint-0")
    return store.subject("a folder for a checkpoint", files)


def _with_foreign(store: Whole, path: str, other: str) -> SimulatedFileSystem:
    files = _other_boot(store)
    files.replace(f"{STORE}/{path}", store.base.foreign[f"{STORE}/{other}"])
    return files


def foreign_topic() -> Subject:
    """The `topic.json` of a topic is that of one of another store."""
    store = small_stores()["closed"]
    return store.subject("foreign topic", _with_foreign(store, "topics/always/topic.json", "topics/always/topic.json"))


def foreign_identity() -> Subject:
    """`store.json` is that of another store."""
    store = small_stores()["closed"]
    return store.subject("foreign identity", _with_foreign(store, "store.json", "store.json"))


def lost_topics() -> Subject:
    """Two topics have lost their `topic.json`, and the journal alone has the end of one of them."""
    store = small_stores()["powerless"]
    files = _other_boot(store)
    for topic in ("always", "os"):
        files.replace(f"{STORE}/topics/{topic}/topic.json", b"{}")
    return store.subject("lost topic, lost topic", files)


def nameless_stray() -> Subject:
    """Two segments of a log have each other's names, and the header of one of them cannot be read."""
    store = small_stores()["closed"]
    files = _other_boot(store)
    first, second = _segments(files)[:2]
    content = files.files()
    files.replace(first, bytes(8) + content[second][8:])
    files.replace(second, content[first])
    return store.subject("stray segments, bad header", files)


@lru_cache(maxsize=1)
def _with_silent_partitions() -> Whole:
    """Between two topics lies one with three partitions, of which one has messages, and the journal alone has them."""
    files = SimulatedFileSystem()
    volume = small.open_volume(files)
    for name, partitions in (("before", 1), ("orders", 3), ("after", 1)):
        volume.create_topic(name, partitions=partitions, settings=small.TOPICS["always"])
    log = next(log for log in volume.logs if (log.identity.topic, log.identity.partition) == ("orders", 1))
    volume.append(log, encode_single(b"only here"))
    return whole(files.crash(Random(0), keep="nothing"), {}, small.SETTINGS)


def silent_partitions() -> Subject:
    """A topic has lost its `topic.json`, and of its three logs the journal names the one in the middle."""
    store = _with_silent_partitions()
    files = _other_boot(store)
    files.unlink(f"{STORE}/topics/orders/topic.json")
    return store.subject("lost topic", files)


@lru_cache(maxsize=1)
def _with_silent_topic() -> Whole:
    """Two topics, of which only the first has messages, in the journal."""
    files = SimulatedFileSystem()
    volume = small.open_volume(files)
    for name, settings in small.TOPICS.items():
        volume.create_topic(name, settings=settings)
    volume.append(volume.logs[0], encode_single(b"of the first topic"))
    return whole(files.crash(Random(0), keep="nothing"), {}, small.SETTINGS)


def displaced_topic() -> Subject:
    """The folder of a topic is gone, and its `topic.json` lies in that of another."""
    store = _with_silent_topic()
    files = _other_boot(store)
    files.replace(f"{STORE}/topics/os/topic.json", files.files()[f"{STORE}/topics/always/topic.json"])
    remove_tree(files, f"{STORE}/topics/always")
    return store.subject("lost topic, displaced topic", files)


def file_for_topic() -> Subject:
    """A file has the name of a topic, and another topic has lost its `topic.json`."""
    store = _with_silent_topic()
    files = _other_boot(store)
    remove_tree(files, f"{STORE}/topics/always")
    files.replace(f"{STORE}/topics/always", b"")
    files.unlink(f"{STORE}/topics/os/topic.json")
    return store.subject("a file for a topic, lost topic", files)


def nothing_in_shape() -> Subject:
    """A folder lies in the place of `store.json` and a file in that of the journal, and there are no topics."""
    store = small_stores()["closed"]
    files = _other_boot(store)
    files.unlink(f"{STORE}/store.json")
    files.make_directory(f"{STORE}/store.json")
    for folder in ("topics", "journal"):
        remove_tree(files, f"{STORE}/{folder}")
    files.replace(f"{STORE}/journal", b"")
    return store.subject("a folder for the identity, no topics, a file for the journal", files)


@lru_cache(maxsize=1)
def _with_partitions() -> Whole:
    """Three logs of two topics, each with a message in the journal and in its segment."""
    files = SimulatedFileSystem()
    volume = small.open_volume(files)
    for name, partitions in (("always", 2), ("other", 1)):
        volume.create_topic(name, partitions=partitions, settings=small.TOPICS["always"])
    for number, log in enumerate(volume.logs):
        volume.append(log, encode_single(b"in log %d" % number))
    return whole(files.kill(), {}, small.SETTINGS)


def lost_topics_with_partitions() -> Subject:
    """Two topics have lost their `topic.json`, and of the three segments one is left, whose partition is not the first."""
    store = _with_partitions()
    files = _other_boot(store)
    for log in ("always/0", "other/0"):
        files.unlink(f"{STORE}/topics/{log}/{0:020d}.log")
    for topic in ("always", "other"):
        files.unlink(f"{STORE}/topics/{topic}/topic.json")
    return store.subject("lost segment, lost segment, lost topic, lost topic", files)
