"""
The judge of verify, opening and repair: they agree, and repair loses nothing that can be read.

What can be read is found out here by other means than the product's: every place in every file is tried where a batch may begin.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import BadBytes, Corrupt, PenstockError, StoreNotFound, UnsupportedFormat
from penstock.format.batch import Batch
from penstock.format.batch_header import COMPATIBLE_PREWRITTEN, KIND_DATA, MAGIC
from penstock.format.checkpoint import Checkpoint
from penstock.format.frame import (
    ENTRY_BATCH,
    ENTRY_REFERENCE,
    FRAME_MAGIC,
    JournalFileHeader,
    decode_reference,
    frame_entries,
    parse_frame,
)
from penstock.format.segment import SegmentHeader
from penstock.journal.checkpoints import NAMES
from penstock.log.segment import segment_name
from penstock.store import checking
from penstock.testing import FakeClock
from penstock.values import is_name
from penstock.volume.document import decode_document
from penstock.volume.repair import NOT_MENDED
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penstock.format.checkpoint import LogRow
    from penstock.format.frame import FrameEntry
    from penstock.settings import StoreSettings
    from penstock.testing import SimulatedFileSystem
    from penstock.volume.log_repair import Lost
    from penstock.volume.topic_files import TopicRecord

Place = tuple[str, int, int]
"""Topic, partition, offset."""
Contents = dict[Place, bytes | None]


class Disagreement(AssertionError):
    """Verify, opening and repair do not agree, or repair lost something."""


class Opened(NamedTuple):
    """What opening and reading gave."""

    error: str | None
    contents: Contents
    bytes: int = 0
    """What the files of all segments take then."""
    ends: Mapping[tuple[str, int], int] = MappingProxyType({})
    """Where each log goes on."""


def open_and_read(files: SimulatedFileSystem, path: str, settings: StoreSettings) -> Opened:
    """Open the store as an owner does, and read all that is committed. An error that is not `Corrupt` is let through."""
    contents: Contents = {}
    try:
        volume = Volume.open(
            path, settings=settings, files=files, clock=FakeClock(), background=False, create=False, layers=checking._layers()
        )
    except Corrupt as error:
        return Opened(str(error), {})
    failure = None
    for log in volume.logs:
        at = log.log_start
        while at < log.committed_end:
            try:
                batches = log.read(at)
            except Corrupt as error:
                failure = failure or str(error)
                at += 1
                continue
            if not batches:
                break
            for batch in batches:
                for index in range(len(batch)):
                    value = batch.value(index)
                    contents[log.identity.topic, log.identity.partition, batch.offset(index)] = (
                        None if value is None else bytes(value)
                    )
            at = max(at + 1, batches[-1].end_offset)
    ends = {(log.identity.topic, log.identity.partition): log.committed_end for log in volume.logs}
    sizes = {name: len(data) for name, data in files.files().items()}
    taken = sum(sizes.get(f"{log.directory}/{segment_name(first)}", 0) for log in volume.logs for first in log.segment_firsts)
    volume.abandon()
    return Opened(failure, contents, taken, ends)


def _batches(data: bytes) -> list[Batch]:
    found = []
    at = data.find(MAGIC)
    while at >= 0:
        try:
            batch = Batch(memoryview(data), at)
            batch.verify()
        except (BadBytes, UnsupportedFormat):
            pass
        else:
            found.append(batch)
        at = data.find(MAGIC, at + 1)
    return found


def _take(batch: Batch, topic: str, partition: int, into: Contents) -> None:
    for index in range(len(batch)):
        value = batch.value(index)
        into[topic, partition, batch.offset(index)] = None if value is None else bytes(value)


def intact(subject: Subject, *, ahead: bool) -> Contents:
    """
    All messages of topics that have a folder which lie whole in some file of the store, under the identity that file has.

    *ahead*: also those that were written ahead of a frame that is not there. If the last frame is torn, recovery takes them for
    uncommitted: after a power cut nothing says more, and if something else is damaged too, the error may not be about that. Without *ahead*
    they count if a frame or a checkpoint says that they were committed.
    """
    found: Contents = {}
    path, topics = subject.path, subject.topics
    files = _without_foreign(subject.files.files(), subject.store_id)
    tree = subject.files.tree()
    there = [
        record if _is_whole(files, path, record) else record._replace(partitions=1 + max(_partitions(tree, path, record)))
        for record in topics
        if f"{path}/topics/{record.name}/" in tree
    ]
    by_id = {record.topic_id: record for record in there}
    frames = [frame for name, data in files.items() for frame in _frames(name, data, path)]
    by_log = _known_logs(files, path, topics, there, frames)
    committed = _committed(files, path, by_log, frames)
    nobodys = {record.topic_id for record in there if _has_gaps(files, path) and not _is_told(files, path, record)}
    for name, data in files.items():
        segment = re.fullmatch(re.escape(path) + r"/topics/([^/]+)/(\d+)/(\d{20})\.log", name)
        if not segment:
            continue
        batches = _batches(data)
        topic, partition, uid = segment[1], int(segment[2]), None
        try:
            header = SegmentHeader.decode(data)
        except (BadBytes, UnsupportedFormat):
            # Nothing says whose it is but its name; a file of another log with a bad header cannot be told apart.
            uid = batches[0].header.segment_uid if batches else None
            if topic not in {record.name for record in there}:
                continue
        else:
            if header.topic_id not in by_id or header.topic_id in nobodys:
                continue
            topic, partition, uid = by_id[header.topic_id].name, header.partition, header.segment_uid
            if (topic, partition) != (segment[1], int(segment[2])) and _is_there(files, path, topic, header):
                continue  # a copy in the folder of another log, of one that is there
        for batch in batches:
            if batch.header.compatible & COMPATIBLE_PREWRITTEN and not ahead and batch.end_offset > committed[topic, partition]:
                continue
            if batch.header.segment_uid == uid and batch.header.kind == KIND_DATA:
                _take(batch, topic, partition, found)
    for entry in frames:
        if entry.kind == ENTRY_BATCH and entry.owner in by_log:
            _take(Batch(entry.body), *by_log[entry.owner], found)
    return found


def _without_foreign(files: dict[str, bytes], store_id: bytes) -> dict[str, bytes]:
    """The files, without those that say that they belong to another store."""
    kept = {}
    for name, data in files.items():
        decode = next((one for end, one in _DECODERS.items() if end in name), None)
        with contextlib.suppress(BadBytes, UnsupportedFormat):
            if decode is not None and decode(data).store_id != store_id:
                continue
        kept[name] = data
    return kept


_DECODERS: dict[str, Callable[[bytes], SegmentHeader | JournalFileHeader | Checkpoint]] = {
    ".log": SegmentHeader.decode,
    ".wal": JournalFileHeader.decode,
    "/checkpoint-": Checkpoint.decode,
}


def _known_logs(
    files: dict[str, bytes], path: str, topics: list[TopicRecord], there: list[TopicRecord], frames: list[FrameEntry]
) -> dict[int, tuple[str, int]]:
    """
    The logs, by their numbers in checkpoints and journal, of which something says whose they are.

    `topic.json` does; where one is lost, that no other topic is, or may be; or a frame with a batch for a segment of the topic.
    """
    names = {record.name for record in there}
    lost = [record for record in topics if record.name not in names or not _is_whole(files, path, record)]
    uids: dict[int, bytes] = {}
    for name, data in files.items():
        if name.startswith(f"{path}/topics/") and name.endswith(".log"):
            with contextlib.suppress(BadBytes, UnsupportedFormat):
                header = SegmentHeader.decode(data)
                uids[header.segment_uid] = header.topic_id
    proven = {
        (entry.owner, uids.get(uid))
        for entry in frames
        if entry.kind in (ENTRY_BATCH, ENTRY_REFERENCE)
        for uid in [Batch(entry.body).header.segment_uid if entry.kind == ENTRY_BATCH else decode_reference(entry).segment_uid]
    }
    return {
        record.first_log_id + at: (record.name, at)
        for record in there
        if record.name not in [one.name for one in lost]
        or (len(lost) == 1 and not _has_gaps(files, path))
        or any((record.first_log_id + one, record.topic_id) in proven for one in range(record.partitions))
        for at in range(record.partitions)
    }


def _committed(
    files: dict[str, bytes], path: str, by_log: dict[int, tuple[str, int]], frames: list[FrameEntry]
) -> Counter[tuple[str, int]]:
    """How far each log was committed, as a checkpoint or a frame says."""
    ends: Counter[tuple[str, int]] = Counter()
    known = [(row.log_id, row.end) for name in NAMES for row in _rows(files.get(f"{path}/{name}", b""))]
    for entry in frames:
        if entry.kind == ENTRY_BATCH:
            known.append((entry.owner, Batch(entry.body).end_offset))
        elif entry.kind == ENTRY_REFERENCE:
            reference = decode_reference(entry)
            known.append((entry.owner, reference.first_offset + reference.offset_span))
    for log_id, end in known:
        if log_id in by_log:
            ends[by_log[log_id]] = max(ends[by_log[log_id]], end)
    return ends


def _rows(data: bytes) -> Sequence[LogRow]:
    try:
        return Checkpoint.decode(data).rows
    except (BadBytes, UnsupportedFormat):
        return ()


def _is_there(files: dict[str, bytes], path: str, topic: str, header: SegmentHeader) -> bool:
    """Whether the segment that the header is of lies where it belongs, in whatever condition."""
    content = files.get(f"{path}/topics/{topic}/{header.partition}/{header.first_offset:020d}.log", b"")
    try:
        found = SegmentHeader.decode(content)
    except (BadBytes, UnsupportedFormat):
        return False
    return (found.topic_id, found.partition, found.first_offset) == (header.topic_id, header.partition, header.first_offset)


def _is_whole(files: dict[str, bytes], path: str, record: TopicRecord) -> bool:
    try:
        found = decode_document("topic", files.get(f"{path}/topics/{record.name}/topic.json", b""))
    except BadBytes:
        return False
    return (found.get("id"), found.get("first_log_id")) == (record.topic_id.hex(), record.first_log_id)


def _has_gaps(files: dict[str, bytes], path: str) -> bool:
    """Whether a file lies where the folder of a topic may have been: then nothing says how many topics there were."""
    return any(os.path.dirname(name) == f"{path}/topics" and is_name(os.path.basename(name)) for name in files)


def _is_told(files: dict[str, bytes], path: str, record: TopicRecord) -> bool:
    """Whether something in the topic's own folder says its id: `topic.json`, or the header of a segment."""
    for name, data in files.items():
        if name.startswith(f"{path}/topics/{record.name}/") and name.endswith(".log"):
            with contextlib.suppress(BadBytes, UnsupportedFormat):
                if SegmentHeader.decode(data).topic_id == record.topic_id:
                    return True
    return _is_whole(files, path, record)


def _partitions(tree: list[str], path: str, record: TopicRecord) -> list[int]:
    """The partitions that have a folder."""
    return [0, *[at for at in range(record.partitions) if f"{path}/topics/{record.name}/{at}/" in tree]]


def _frames(name: str, data: bytes, path: str) -> list[FrameEntry]:
    """The entries of all whole frames of a journal file."""
    if not name.startswith(f"{path}/journal/") or not name.endswith(".wal"):
        return []
    try:
        header = JournalFileHeader.decode(data)
    except (BadBytes, UnsupportedFormat):
        uid = None
    else:
        uid = header.file_uid
        if header.sequence != int(name[-10:-4]):
            return []
    found: list[FrameEntry] = []
    at = data.find(FRAME_MAGIC)
    while at >= 0:
        try:
            frame = parse_frame(memoryview(data), at)
            entries = list(frame_entries(memoryview(data), at, frame))
        except (BadBytes, UnsupportedFormat):
            pass
        else:
            found += [entry for entry in entries if uid in (None, frame.file_uid)]
        at = data.find(FRAME_MAGIC, at + 1)
    return found


class Subject(NamedTuple):
    """A store that something was done to."""

    name: str
    files: SimulatedFileSystem
    path: str
    settings: StoreSettings
    expected: Contents
    """What was committed, or may have been: nothing else may ever be read."""
    topics: list[TopicRecord]
    starts: Mapping[tuple[str, int], int] = MappingProxyType({})
    """What was removed by retention, or may have been: all below these offsets."""
    store_id: bytes = b""


def judge(subject: Subject) -> str:
    """Raises `Disagreement`; returns what came of it: "sound", "repaired"."""
    name, files, path, settings, expected, *_ = subject
    before = files.files()
    try:
        found = checking.verify(path, files=files)
    except StoreNotFound:
        return "no store"
    except Exception as error:
        raise Disagreement(f"{name}: verify raised {type(error).__name__}: {error}") from error
    if files.files() != before:
        raise Disagreement(f"{name}: verify changed files")
    try:
        opened = open_and_read(files.clone(), path, settings)
    except Exception as error:
        raise Disagreement(f"{name}: opening raised {type(error).__name__}: {error}") from error
    if found.is_sound != (opened.error is None):
        raise Disagreement(f"{name}: verify says {found.findings or 'sound'}, opening says {opened.error or 'whole'}")
    if opened.error is not None and not opened.contents and opened.error not in [finding.reason for finding in found.findings]:
        raise Disagreement(f"{name}: verify says {found.findings}, and opening, in other words, {opened.error}")
    if opened.error is None and (found.messages, found.bytes) != (len(opened.contents), opened.bytes):
        raise Disagreement(
            f"{name}: verify counts {found.messages} messages in {found.bytes} bytes, "
            f"and opening gives {len(opened.contents)} in {opened.bytes}"
        )
    wrong = {place: value for place, value in opened.contents.items() if expected.get(place, b"nothing") != value}
    if wrong:
        raise Disagreement(f"{name}: opening gives what nobody published: {wrong}")
    planned = _plan(subject)
    changed = files.clone()
    try:
        done = checking.repair(path, files=changed)
    except Exception as error:
        raise Disagreement(f"{name}: repair raised {type(error).__name__}: {error}; opening said {opened.error}") from error
    if len(planned) != len(done.lost):
        raise Disagreement(f"{name}: repair was to do {planned} and did {done.lost}")
    if opened.error is None:
        after = changed.files()
        if {**after, f"{path}/LOCK": b""} != {**before, f"{path}/LOCK": b""} or done.lost or done.quarantine:
            raise Disagreement(f"{name}: repair changed a sound store: {done}")
        return "sound"
    _judge_repaired(subject, changed, opened, done.lost)
    return "repaired"


def _plan(subject: Subject) -> list[object]:
    before = subject.files.files()
    try:
        planned = checking.plan(subject.path, files=subject.files)
    except Exception as error:
        raise Disagreement(f"{subject.name}: plan raised {type(error).__name__}: {error}") from error
    if subject.files.files() != before:
        raise Disagreement(f"{subject.name}: planning a repair changed files")
    return list(planned)


def _judge_repaired(subject: Subject, changed: SimulatedFileSystem, opened: Opened, lost: list[Lost]) -> None:
    name, path, settings = subject.name, subject.path, subject.settings
    if not lost:
        raise Disagreement(f"{name}: repair says nothing of what it did; opening said {opened.error}")
    if any(NOT_MENDED in str(one) for one in lost):
        raise Disagreement(f"{name}: repair took the last resort ({lost}); opening had said {opened.error}")
    again = checking.verify(path, files=changed)
    if not again.is_sound:
        raise Disagreement(f"{name}: after repair ({lost}) verify says {again.findings}; opening had said {opened.error}")
    try:
        repaired = open_and_read(changed.clone(), path, settings)
    except PenstockError as error:
        raise Disagreement(f"{name}: after repair ({lost}) opening raised {error}") from error
    if repaired.error is not None:
        raise Disagreement(f"{name}: after repair ({lost}) opening says {repaired.error}; before it was {opened.error}")
    readable = {
        place: value
        for place, value in intact(subject, ahead=", " not in name).items()
        if place in subject.expected and subject.expected[place] == value and place[2] >= subject.starts.get(place[:2], 0)
    }
    gone = {**readable, **opened.contents}.items() - repaired.contents.items()
    if gone:
        raise Disagreement(f"{name}: repair ({lost}) lost {sorted(gone)}; opening had said {opened.error}")
    wrong = {place: value for place, value in repaired.contents.items() if subject.expected.get(place, b"nothing") != value}
    nameless = _nameless(subject) if wrong else set()
    wrong = {
        place: value
        for place, value in wrong.items()
        if (place, value) not in nameless and not _is_adopted(subject, place, value)
    }
    if wrong:
        raise Disagreement(f"{name}: after repair ({lost}) there is what nobody published: {wrong}")
    for place, end in _known_ends(subject).items():
        if repaired.ends.get(place, end) < end:
            raise Disagreement(f"{name}: after repair ({lost}) {place} gives offsets below {end} to other messages")


def _is_adopted(subject: Subject, place: Place, value: bytes | None) -> bool:
    """Whether a folder that is no topic's got the messages of a topic whose folder is gone: nothing else says what its name was."""
    tree, names = subject.files.tree(), {record.name for record in subject.topics}
    return (
        place[0] not in names
        and f"{subject.path}/topics/{place[0]}/" in tree
        and not _has_gaps(subject.files.files(), subject.path)
        and any(
            subject.expected.get((name, *place[1:]), b"nothing") == value
            for name in names
            if f"{subject.path}/topics/{name}/" not in tree
        )
    )


def _nameless(subject: Subject) -> set[tuple[Place, bytes | None]]:
    """
    What lies in segments with an unreadable header, in the log that they lie in.

    Such a file may be of another log or store, and only its name says whose it is.
    """
    found: set[tuple[Place, bytes | None]] = set()
    for name, data in subject.files.files().items():
        segment = re.fullmatch(re.escape(subject.path) + r"/topics/([^/]+)/(\d+)/(\d{20})\.log", name)
        if segment:
            try:
                SegmentHeader.decode(data)
            except (BadBytes, UnsupportedFormat):
                for batch in _batches(data):
                    content: Contents = {}
                    _take(batch, segment[1], int(segment[2]), content)
                    found |= content.items()
    return found


def _known_ends(subject: Subject) -> dict[tuple[str, int], int]:
    """Where the logs end at least: as a checkpoint says that can be read. Not those of topics that are not known any more."""
    files, path = _without_foreign(subject.files.files(), subject.store_id), subject.path
    topics = [record for record in subject.topics if _is_whole(files, path, record)]
    by_log = {record.first_log_id + at: (record.name, at) for record in topics for at in range(record.partitions)}
    ends: dict[tuple[str, int], int] = {}
    for name in NAMES:
        for row in _rows(files.get(f"{path}/{name}", b"")):
            if row.log_id in by_log:
                place = by_log[row.log_id]
                ends[place] = max(ends.get(place, 0), row.end)
    return ends


def judge_all(subjects: object, at_most: int = 10) -> Counter[str]:
    """Judge one after the other, and fail at the end with the first disagreements."""
    outcomes: Counter[str] = Counter()
    problems = []
    for subject in subjects:  # type: ignore[attr-defined]
        try:
            outcomes[judge(subject)] += 1
        except Disagreement as error:
            problems.append(str(error))
            outcomes["disagreement"] += 1
            if len(problems) >= 200:
                break
    assert not problems, f"{len(problems)} disagreements in {sum(outcomes.values())}:\n" + "\n".join(problems[:at_most])
    return outcomes
