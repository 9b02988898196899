"""
`repair`: set damage aside, by explicit order only, so that the store opens again with every message that can still be read.

Theory of operation
-------------------
What is wrong is what opening says, and nothing else. The store is opened and read as `verify` does it, by the recovery that every
opening goes through, on an overlay of its files; what that raises is mended, in the one place that the error names; and it is opened
again, until it opens and all of it can be read. So repair has no rules of its own of what is damaged, and a sound store is not touched.

What it does about each place:

- `store.json`: written anew; checkpoints, journal and segments know the store's id.
- `topic.json`: one flipped bit is flipped back. Else it is written anew, with the id that its segments have, and default settings.
- Checkpoints, of which none can be read: one is made from what the logs hold. Groups and producers begin anew.
- The journal: written anew, with each frame that can be read.
- A log: see `log_repair.py`.
- A topic whose folder is gone: what names it is forgotten.
- What has the name of a file and is none, or that of a folder and is none, is moved away, before anything else.
- `store.json` or `topic.json` of another store: as if it were damaged.

Several damages are mended one after the other, each look judging the mend before it. In a store that was damaged no torn tail is
trusted: what opening would cut off and can be read is kept.

If an error comes back, its mend did not help. Then what is in the way is set aside, each time more of it (`_LAST_RESORTS`): so every
repair ends in a store that opens.

Nothing is thrown away: each file that is changed is first copied into `quarantine/`, and each one that goes is moved there, together with a
report. A repair that is interrupted is begun anew by the next one.

`plan` does the same on an overlay of the store's files, and says what it would do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from penstock.clock import SystemClock
from penstock.errors import BadBytes, Corrupt, DamagedFile, MissingData, PenstockError, StoreLocked, UnsupportedFormat
from penstock.files import LockHeld, NotRegular, RealFileSystem, write_fully
from penstock.format.batch import Batch
from penstock.format.checkpoint import Checkpoint, LogRow
from penstock.format.frame import (
    ENTRY_BATCH,
    ENTRY_LOG_START,
    ENTRY_OTHER,
    ENTRY_REFERENCE,
    FrameEntry,
    decode_log_start,
    decode_reference,
)
from penstock.format.segment import SEGMENT_HEADER_BYTES, SegmentHeader
from penstock.journal.checkpoints import CHECKPOINT_BYTES_MAX, NAMES, Checkpoints
from penstock.journal.journal import NEW_SUFFIX, SPARE_SUFFIX, SUFFIX, file_name
from penstock.journal.salvage import journal_identities, journal_sequences, whole_frames, write_journal
from penstock.journal.small_file import TEMPORARY_SUFFIX, read_small_file, replace_small_file
from penstock.log.identity import LogIdentity
from penstock.log.positions import PositionsReader
from penstock.log.salvage import FilePieces, Walk
from penstock.log.segment import INDEX_SUFFIX, LOG_SUFFIX, index_path, parse_segment_name, segment_name
from penstock.overlay_files import OverlayFileSystem
from penstock.settings import TopicSettings
from penstock.values import is_name
from penstock.volume.access import check_folder, naming_refusals
from penstock.volume.document import decode_document, encode_document
from penstock.volume.identity import (
    JOURNAL,
    LOCK_NAME,
    POSITIONS_NAME,
    STORE_FILE,
    TOPICS,
    create_identity,
    identity_document,
    read_identity,
)
from penstock.volume.log_repair import Evidence, LogRepair, Lost
from penstock.volume.topic_files import (
    DELETED_PREFIX,
    NEW_PREFIX,
    PARTITIONS_MAX,
    TOPIC_FILE,
    TopicRecord,
    corrected_topic,
    read_deleted,
    read_topic,
    topic_document,
    topic_folders,
)
from penstock.volume.verification import Verifier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.clock import Clock
    from penstock.files import FileSystem
    from penstock.journal.salvage import WholeFrame
    from penstock.log.positions import Position
    from penstock.volume.verification import Layers

QUARANTINE = "quarantine"
NOT_MENDED = "this could not be mended in its place"
"""The last resort was needed."""
_ROUNDS = 40
"""After so many, what is left is set aside instead of mended."""
_UNEXPECTED = (BadBytes, FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, NotRegular)
"""What a mend may raise because of other damage than what it mends."""
_CERTAIN = 100
"""How well numbers of logs must fit a topic's segments, if there are others that may be theirs."""
_COPY_BYTES = 1 << 20
_FRAMES_END = 1 << 62


class Repair(NamedTuple):
    """What `repair` did."""

    lost: list[Lost]
    quarantine: str | None
    """The folder with the files as they were; None if nothing had to be changed."""


class Repairer:
    """Repairs one store that nobody owns. Used once."""

    def __init__(self, files: FileSystem, path: str, clock: Clock, layers: Layers = tuple) -> None:
        self._files = files
        self._path = path
        self._clock = clock
        self._layers = layers
        self._quarantine: str | None = None
        self._aside: set[str] = set()
        self._lost: list[Lost] = []
        self._store_id = b""
        self._topics_directory = os.path.join(path, TOPICS)
        self._journal_directory = os.path.join(path, JOURNAL)
        self._keeps_uncommitted = False
        """Whether frames of the journal are lost: then one that was written ahead of its frame may have been committed by such a frame."""
        self._drops_others = False
        self._drops_sections = False
        self._has_mended = False
        self._given_up = 0
        self._kept: set[tuple[str, ...]] = set()
        self._displaced: dict[str, set[int]] = {}
        """The numbers of the logs of topics without a folder whose `topic.json` lies whole in that of another."""

    def run(self) -> Repair:
        """Repair. Raises `StoreLocked`, `StoreNotFound`, `NoAccess`, or `Corrupt` for what cannot be repaired."""
        check_folder(self._files, self._path)
        lock_path = os.path.join(self._path, LOCK_NAME)
        if self._files.exists(self._path) and self._files.exists(lock_path):
            try:
                self._files.open(lock_path).close()
            except NotRegular:
                self._move_away(lock_path)
        read_identity_or_damage(self._files, self._path)
        try:
            lock = self._files.lock(lock_path)
        except LockHeld as held:
            raise StoreLocked(self._path, held.owner.get("pid"), held.owner.get("host"), held.owner.get("url")) from None
        try:
            self._mend_all()
            self._report()
        finally:
            lock.release()
        return Repair(self._lost, self._quarantine)

    def _mend_all(self) -> None:
        seen: set[tuple[str, ...]] = set()
        for done in range(_ROUNDS + len(self._LAST_RESORTS) + 1):
            verifier = Verifier(self._files, self._path, layers=self._layers, is_owner=True)
            errors = verifier.examine()
            for error in errors:
                if isinstance(error, UnsupportedFormat):
                    raise error
            if not errors and not (self._has_mended and self._keep_what_opening_cuts(verifier)):
                return
            if not errors:
                continue
            self._has_mended = True
            now = tuple(map(str, errors))
            try:
                if done < _ROUNDS and (self._clear_places() or self._mend_strangers()):
                    continue  # what was said may have been about that, and may be said once more
                if now in seen or done >= _ROUNDS:
                    self._give_up(errors)
                    continue
                seen.add(now)
                self._mend(errors)
            except UnsupportedFormat:
                raise
            except (Corrupt, *_UNEXPECTED):
                # Something else is damaged too, and hides this: the next look says what, or says the same once more.
                continue
        if errors:
            raise errors[0]

    def _mend(self, errors: list[Corrupt]) -> None:
        """Mend what the errors name: the first place in this order, since the others may follow from it."""
        paths = [os.path.relpath(getattr(error, "path", self._path), self._path) for error in errors]
        if STORE_FILE in paths:
            self._mend_identity()
            return
        self._store_id = read_identity(self._files, self._path)
        for folder in (self._topics_directory, self._journal_directory):
            if not self._files.exists(folder):
                self._files.make_directory(folder)
                self._files.sync_directory(self._path)
                self._lost.append(Lost(folder, None, None, "the folder was missing"))
        if any(os.path.basename(path) == TOPIC_FILE for path in paths):
            self._mend_topics()
            return
        if any(path.startswith("checkpoint-") for path in paths):
            self._make_checkpoint()
        elif any(path == "." for path in paths):
            self._mend_layers(errors[0])
        elif any(path.split(os.sep)[0] == JOURNAL for path in paths):
            self._mend_journal(next(error for error, path in zip(errors, paths, strict=True) if path.startswith(JOURNAL)))
        else:
            if TOPICS in paths:
                self._forget_unknown()
            logs = {tuple(path.split(os.sep)[1:3]) for path in paths if path.count(os.sep) >= 2}
            self._mend_logs(logs)

    # -- setting aside ----------------------------------------------------------------------------------------------

    def _set_aside(self, path: str, *, moved: bool = False) -> None:
        """Copy a file into the quarantine folder before it is changed; or move it there."""
        if path in self._aside and not moved:
            return
        self._aside.add(path)
        name = os.path.relpath(path, self._path).replace("/", "_")
        target = os.path.join(self._quarantine_folder(), name)
        while self._files.exists(target):
            target += "~"
        if moved:
            self._files.rename(path, target)
            self._files.sync_directory(os.path.dirname(target))
            self._files.sync_directory(os.path.dirname(path))
        else:
            self._copy(path, target)

    def _quarantine_folder(self) -> str:
        if self._quarantine is None:
            top = os.path.join(self._path, QUARANTINE)
            if not self._files.exists(top):
                self._files.make_directory(top)
                self._files.sync_directory(self._path)
            self._quarantine = os.path.join(top, f"{self._clock.now_us()}-{secrets.token_hex(4)}")
            self._files.make_directory(self._quarantine)
            self._files.sync_directory(top)
        return self._quarantine

    def _copy(self, source: str, target: str) -> None:
        old, new = self._files.open(source), self._files.create(target)
        try:
            for position in range(0, old.size(), _COPY_BYTES):
                write_fully(new, old.pread(_COPY_BYTES, position), position)
            new.sync_data()
        finally:
            old.close()
            new.close()
        self._files.sync_directory(os.path.dirname(target))

    def _clear_places(self) -> bool:
        """
        Move away what has the name of a file and is none, and what has that of a folder and is none; whether there was any.

        If `store.json` is gone then, it is written anew at once: without it what is left may not look like a store any more.
        """
        path, before = self._path, len(self._lost)
        for name in (STORE_FILE, POSITIONS_NAME, *NAMES):
            self._clear_file(os.path.join(path, name))
            self._clear_file(os.path.join(path, name + TEMPORARY_SUFFIX))
        for name in self._names_in(self._journal_directory):
            if name.endswith((SUFFIX, SPARE_SUFFIX, NEW_SUFFIX)):
                self._clear_file(os.path.join(self._journal_directory, name))
        for topic in self._names_in(self._topics_directory):
            folder = os.path.join(self._topics_directory, topic)
            if topic.startswith((NEW_PREFIX, DELETED_PREFIX)):
                self._names_in(folder)
            elif is_name(topic) and self._is_folder(folder):
                self._clear_file(os.path.join(folder, TOPIC_FILE))
                self._clear_file(os.path.join(folder, TOPIC_FILE + TEMPORARY_SUFFIX))
                for partition in filter(str.isdecimal, self._names_in(folder)):
                    directory = os.path.join(folder, partition)
                    for name in self._names_in(directory):
                        if name.endswith((LOG_SUFFIX, INDEX_SUFFIX, TEMPORARY_SUFFIX)):
                            self._clear_file(os.path.join(directory, name))
        if len(self._lost) == before:
            return False
        if not self._files.exists(os.path.join(path, STORE_FILE)):
            self._mend_identity()
        return True

    def _clear_file(self, path: str) -> None:
        try:
            self._files.open(path).close()
        except FileNotFoundError:
            return
        except NotRegular:
            self._move_away(path)

    def _names_in(self, path: str) -> list[str]:
        """The names in a folder; what is no folder is moved away."""
        if self._is_folder(path):
            return self._files.list_directory(path)
        if self._files.exists(path):
            self._lost.append(Lost(path, None, None, "this was no folder; it was moved away"))
            self._set_aside(path, moved=True)
        return []

    def _is_folder(self, path: str) -> bool:
        try:
            self._files.list_directory(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def _move_away(self, path: str) -> None:
        self._lost.append(Lost(path, None, None, "this was no regular file; it was moved away"))
        self._set_aside(path, moved=True)

    # -- the last resort --------------------------------------------------------------------------------------------

    def _give_up(self, errors: list[Corrupt]) -> None:
        """Mending does not help: set aside what is in the way, each time more of it. What is set aside is all in the quarantine."""
        if self._given_up == len(self._LAST_RESORTS):
            raise errors[0]
        resort = self._LAST_RESORTS[self._given_up]
        self._given_up += 1
        self._lost.append(Lost(getattr(errors[0], "path", self._path), None, None, f"{NOT_MENDED}: {errors[0]}"))
        paths = [os.path.relpath(getattr(error, "path", self._path), self._path) for error in errors]
        logs = {
            tuple(path.split(os.sep)[1:3]) for path in paths if path.startswith(TOPICS + os.sep) and path.count(os.sep) >= 2
        }
        self._clear_places()
        with contextlib.suppress(Corrupt, *_UNEXPECTED):
            resort(self, logs)

    def _begin_from_logs(self, logs: set[tuple[str, ...]]) -> None:
        """Journal and checkpoints go, once what the journal has is in the logs."""
        del logs
        self._store_id = read_identity(self._files, self._path)
        self._drop_positions()
        rows: tuple[LogRow, ...] = ()
        with contextlib.suppress(Corrupt):
            rows = self._load().rows
        for name in NAMES:
            if self._files.exists(os.path.join(self._path, name)):
                self._set_aside(os.path.join(self._path, name), moved=True)
        self._make_checkpoint(keeps_journal=False, ends=rows)

    def _set_logs_aside(self, logs: set[tuple[str, ...]]) -> None:
        """The files of the logs that are named go; of all, if none is."""
        self._store_id = read_identity(self._files, self._path)
        for topic, partition in sorted(logs or self._all_logs()):
            directory = os.path.join(self._topics_directory, topic, partition)
            if not self._is_folder(directory):
                continue
            self._lost.append(Lost(directory, None, None, "the files of the log could not be mended; they were set aside"))
            for name in self._files.list_directory(directory):
                self._set_aside(os.path.join(directory, name), moved=True)
        self._begin_from_logs(logs)

    def _set_topics_aside(self, logs: set[tuple[str, ...]]) -> None:
        """The folders of the topics that are named go; all of them, if none is."""
        self._store_id = read_identity(self._files, self._path)
        for topic in sorted({topic for topic, *_ in logs} or set(topic_folders(self._files, self._topics_directory))):
            self._set_folder_aside(
                os.path.join(self._topics_directory, topic), "the topic could not be mended; it was set aside"
            )
        self._begin_from_logs(logs)

    def _set_all_aside(self, logs: set[tuple[str, ...]]) -> None:
        """A store without topics is left."""
        del logs
        for folder in (self._topics_directory, self._journal_directory):
            self._set_folder_aside(folder, "the store could not be mended; all of this was set aside")
        for name in (STORE_FILE, POSITIONS_NAME, *NAMES):
            if self._files.exists(os.path.join(self._path, name)):
                self._set_aside(os.path.join(self._path, name), moved=True)
        create_identity(self._files, self._path)

    def _set_folder_aside(self, path: str, reason: str) -> None:
        if self._files.exists(path):
            self._lost.append(Lost(path, None, None, reason))
            self._set_aside(path, moved=True)

    _LAST_RESORTS = (_begin_from_logs, _set_logs_aside, _set_topics_aside, _set_all_aside)

    # -- store.json and topic.json ----------------------------------------------------------------------------------

    def _identities(self) -> Counter[bytes]:
        """The stores that the other files say they belong to."""
        ids: Counter[bytes] = Counter(journal_identities(self._files, self._journal_directory))
        for name in NAMES:
            checkpoint = self._read_checkpoint(name)
            if checkpoint is not None:
                ids[checkpoint.store_id] += 1
        for header, _ in self._all_segments():
            ids[header.store_id] += 1
        return ids

    def _is_identity_foreign(self) -> bool:
        """Whether `store.json` is that of another store: more of the other files belong together without it than with it."""
        ids = self._identities()
        ids[read_identity(self._files, self._path)] += 1
        return ids.most_common(1)[0][1] > ids[read_identity(self._files, self._path)]

    def _mend_strangers(self) -> bool:
        """Write a `store.json` or `topic.json` again that is whole, and of another store; whether there was one."""
        try:
            self._store_id = read_identity(self._files, self._path)
        except (MissingData, DamagedFile):
            return False
        if self._is_identity_foreign():
            self._mend_identity()
            return True
        if self._is_folder(self._topics_directory) and self._foreign_topics():
            self._mend_topics()
            return True
        return False

    def _mend_identity(self) -> None:
        ids = self._identities()
        path = os.path.join(self._path, STORE_FILE)
        if self._files.exists(path):
            self._set_aside(path)
        else:
            self._quarantine_folder()
        store_id = ids.most_common(1)[0][0] if ids else secrets.token_bytes(16)
        replace_small_file(self._files, path, encode_document(identity_document(store_id)))
        reason = (
            "the store's identity was made anew from its other files; nothing is lost"
            if ids
            else "no file says which store this was; it has a new identity"
        )
        self._lost.append(Lost(path, None, None, reason))

    def _read_checkpoint(self, name: str) -> Checkpoint | None:
        try:
            return Checkpoint.decode(
                read_small_file(self._files, os.path.join(self._path, name), limit_bytes=CHECKPOINT_BYTES_MAX)
            )
        except (OSError, BadBytes, UnsupportedFormat):
            return None

    def _all_segments(self) -> list[tuple[SegmentHeader, str]]:
        """The header and the path of each segment's file whose header can be read, wherever it lies."""
        found = []
        if not self._is_folder(self._topics_directory):
            return []
        for topic in topic_folders(self._files, self._topics_directory):
            folder = os.path.join(self._topics_directory, topic)
            for partition in self._files.list_directory(folder):
                directory = os.path.join(folder, partition)
                if not partition.isdecimal() or not self._is_folder(directory):
                    continue
                for name in self._files.list_directory(directory):
                    header = self._segment_header(os.path.join(directory, name))
                    if header is not None:
                        found.append((header, os.path.join(directory, name)))
        return found

    def _segment_header(self, path: str) -> SegmentHeader | None:
        if not path.endswith(LOG_SUFFIX):
            return None
        try:
            file = self._files.open(path)
        except OSError:
            return None
        try:
            return SegmentHeader.decode(file.pread(SEGMENT_HEADER_BYTES, 0))
        except (BadBytes, UnsupportedFormat):
            return None
        finally:
            file.close()

    def _mend_topic(self, name: str, *, alone: bool, foreign: bool) -> None:
        """*alone*: no other one is damaged or gone. *foreign*: its `topic.json` is whole, and that of a topic of another store."""
        folder = os.path.join(self._topics_directory, name)
        path = os.path.join(folder, TOPIC_FILE)
        if self._files.exists(path):
            self._set_aside(path)
            corrected = None if foreign else corrected_topic(read_small_file(self._files, path), name)
            if corrected is not None:
                replace_small_file(self._files, path, corrected)
                self._lost.append(Lost(path, None, None, "one bit had flipped and was flipped back; nothing is lost"))
                return
        else:
            self._quarantine_folder()
        partitions = {int(one) for one in self._files.list_directory(folder) if one.isdecimal() and int(one) < PARTITIONS_MAX}
        topic_id = self._topic_id(name, alone=alone)
        # It has those that segments or positions name, and all folders up to the first gap; one after that may not be the store's.
        sure = [header.partition for header, _ in self._all_segments() if header.topic_id == topic_id]
        known = {partition for known_id, partition in self._known_positions() if known_id == topic_id}
        # No checksum covers them: a flipped bit makes a partition of any number, and no run from 0 on.
        sure += itertools.takewhile(known.__contains__, itertools.count())
        gap = next(at for at in itertools.count() if at not in partitions)
        least = max([gap - 1, 0, *sure]) + 1
        first_log_id, count = self._first_log_id(name, least, max([least - 1, *partitions]) + 1, topic_id)
        record = TopicRecord(name, topic_id, count, first_log_id, TopicSettings())
        for partition in range(count):
            if partition not in partitions:
                self._files.make_directory(os.path.join(folder, str(partition)))
        replace_small_file(self._files, path, topic_document(record))
        self._lost.append(Lost(path, None, None, "the settings of the topic were lost; it has the default ones now"))

    def _topic_id(self, name: str, *, alone: bool) -> bytes:
        """That which most of its segments have; or else that no other topic has, if this is the only one without."""
        others = {record.topic_id for record in self._readable_topics()}
        ids: Counter[bytes] = Counter()
        prefix = os.path.join(self._topics_directory, name) + os.sep
        for header, path in self._all_segments():
            if path.startswith(prefix) and header.topic_id not in others and header.store_id == self._store_id:
                ids[header.topic_id] += 1
        if ids:
            return ids.most_common(1)[0][0]
        strays = {header.topic_id for header, _ in self._all_segments() if header.store_id == self._store_id} - others
        if len(strays) == 1 and alone:
            return strays.pop()
        unclaimed = {topic_id for topic_id, _ in self._known_positions() if topic_id not in others}
        return unclaimed.pop() if len(unclaimed) == 1 and alone else secrets.token_bytes(16)

    def _foreign_topics(self) -> set[str]:
        """
        The topics whose `topic.json` is of another store.

        No segment has the id that it says, and segments in the topic's folder have one that no topic has; and its logs are not those that
        checkpoints and journal name and no other topic has, or are those that these segments belong to.
        """
        records = self._whole_topics()
        segments = [(header, path) for header, path in self._all_segments() if header.store_id == self._store_id]
        ids = {header.topic_id for header, _ in segments} | {topic_id for topic_id, _ in self._known_positions()}
        known = {record.topic_id for record in records}
        foreign = set()
        for record in records:
            if record.topic_id in ids:
                continue
            prefix = os.path.join(self._topics_directory, record.name) + os.sep
            strays = [header for header, path in segments if path.startswith(prefix) and header.topic_id not in known]
            if strays and not self._has_other_logs(record, strays, records):
                foreign.add(record.name)
        return foreign

    def _has_other_logs(self, record: TopicRecord, strays: list[SegmentHeader], records: list[TopicRecord]) -> bool:
        """Whether the topic has logs of this store, and the *strays* in its folder are not theirs."""
        rows: dict[int, LogRow] = {}
        named: set[int] = set()
        by_uid: dict[int, set[int]] = {}
        for checkpoint in filter(None, map(self._read_checkpoint, NAMES)):
            if checkpoint.store_id == self._store_id:
                rows |= {row.log_id: row for row in checkpoint.rows}
        named |= rows.keys()
        for frame in whole_frames(self._files, self._journal_directory, self._store_id, 0):
            for entry in frame.entries:
                if entry.kind != ENTRY_OTHER:
                    named.add(entry.owner)
                    by_uid.setdefault(_segment_uid(entry) or 0, set()).add(entry.owner)
        mine = {record.first_log_id + partition for partition in range(record.partitions)}
        claimed = {
            one.first_log_id + partition for one in records if one.name != record.name for partition in range(one.partitions)
        }
        proven = {log_id for header in strays for log_id in by_uid.get(header.segment_uid, ())}
        if not mine & named - claimed or proven & mine:
            return False
        if proven:
            return True
        # They may be those of a topic whose folder is gone.
        fits = [self._fit(record.name, at, rows.get(record.first_log_id + at)) for at in range(record.partitions)]
        return self._lacks_folders() and _CERTAIN not in fits

    def _readable_topics(self) -> list[TopicRecord]:
        foreign = self._foreign_topics()
        return [record for record in self._whole_topics() if record.name not in foreign]

    def _whole_topics(self) -> list[TopicRecord]:
        found = []
        for name in topic_folders(self._files, self._topics_directory):
            try:
                found.append(read_topic(self._files, self._topics_directory, name))
            except UnsupportedFormat:
                raise  # to forget it would lose what a newer version has
            except (PenstockError, OSError):
                continue
        return found

    def _mend_topics(self) -> None:
        """Before anything is concluded from which topics there are."""
        readable = {record.name for record in self._readable_topics()}
        foreign = self._foreign_topics()
        damaged = [name for name in topic_folders(self._files, self._topics_directory) if name not in readable]
        documents: dict[str, bytes] = {}
        for name in damaged:
            with contextlib.suppress(OSError, BadBytes):
                if name not in foreign:
                    data = read_small_file(self._files, os.path.join(self._topics_directory, name, TOPIC_FILE))
                    documents[str(decode_document("topic", data).get("name"))] = data
        # First those that lie whole in the folder of another one: then it is known which numbers of logs are theirs.
        for name in [one for one in damaged if one in documents]:
            path = os.path.join(self._topics_directory, name, TOPIC_FILE)
            self._set_aside(path) if self._files.exists(path) else self._quarantine_folder()
            replace_small_file(self._files, path, documents[name])
            self._lost.append(Lost(path, None, None, "it was put back from the folder of another topic; nothing is lost"))
        for name in documents.keys() - readable - set(damaged):
            with contextlib.suppress(KeyError, TypeError):
                values = decode_document("topic", documents[name])
                self._displaced[name] = set(range(values["first_log_id"], values["first_log_id"] + values["partitions"]))
        alone = len(damaged) == 1 and not self._lacks_folders()
        for name in [one for one in damaged if one not in documents]:
            self._mend_topic(name, alone=alone, foreign=name in foreign)

    def _lacks_folders(self) -> bool:
        """Whether something else lies where the folder of a topic may have been: then not all topics are known."""
        folders = topic_folders(self._files, self._topics_directory)
        return any(is_name(name) and name not in folders for name in self._files.list_directory(self._topics_directory))

    def _claimed(self) -> set[int]:
        records = [*self._readable_topics(), *read_deleted(self._files, self._topics_directory)]
        return {record.first_log_id + partition for record in records for partition in range(record.partitions)}

    def _first_log_id(self, name: str, least: int, most: int, topic_id: bytes) -> tuple[int, int]:
        """
        The first of the numbers that its logs have in checkpoints and journal, which no other topic has, and how many these are.

        Not those of a topic whose folder is gone, and whose `topic.json` was found elsewhere. If a folder of another topic is gone too, and
        nothing says which were its own, there are more of them: then those that fit its segments, if no others fit as well; else new
        numbers. What the journal has of it is given up then, rather than given to the wrong topic.
        """
        claimed = self._claimed()
        rows: dict[int, LogRow] = {}
        next_id = max(claimed, default=-1) + 1
        number = 0
        for checkpoint in sorted(filter(None, map(self._read_checkpoint, NAMES)), key=lambda one: one.generation):
            if checkpoint.store_id == self._store_id:
                rows |= {row.log_id: row for row in checkpoint.rows}
                next_id = max(next_id, checkpoint.next_log_id)
                number = checkpoint.frame_number
        owners = {header.segment_uid: header for header, _ in self._all_segments()}
        named: set[int] = set()
        proven: Counter[tuple[int, int]] = Counter()
        others: set[int] = set()
        # Those before the checkpoint too: each batch says in which segment it belongs, and each segment of which partition it is.
        for frame in whole_frames(self._files, self._journal_directory, self._store_id, 0):
            for entry in frame.entries:
                if entry.kind == ENTRY_OTHER:
                    continue
                next_id = max(next_id, entry.owner + 1)
                if frame.number > number:
                    named.add(entry.owner)
                owner = owners.get(_segment_uid(entry) or 0)
                if owner is not None and owner.topic_id == topic_id:
                    named.add(entry.owner)
                    proven[entry.owner, owner.partition] += 1000
                elif owner is not None:
                    others.add(entry.owner)
        candidates = sorted({one for one in [*rows, *named] if one not in claimed and one not in others})
        # A topic without a folder keeps its numbers, unless they overlap with those of one that is there: that is of another store.
        displaced = {one for some in self._displaced.values() if not some & claimed for one in some}
        displaced -= {one for one, _ in proven}
        free = [one for one in candidates if one not in displaced]
        # So it is if those that are left are too few for this topic, and with the others they are as many as it has.
        some_are_gone = self._lacks_folders()
        for some in (free, candidates if free else []):
            if not some_are_gone and least <= len(some) <= most and some == list(range(some[0], some[0] + len(some))):
                return some[0], len(some)
        scores = []
        for start in {*candidates, *[one - partition for one, partition in proven if one >= partition]}:
            run = range(start, start + most)
            if not any(one in claimed or one in others for one in run):
                fits = [self._fit(name, at, rows.get(log_id)) + proven[log_id, at] for at, log_id in enumerate(run)]
                scores.append((sum(fits), start))
        scores.sort(reverse=True)
        if scores and scores[0][0] >= _CERTAIN and (len(scores) == 1 or scores[1][0] < scores[0][0]):
            return scores[0][1], most
        only = None if some_are_gone else _only_run(free, most, claimed | others | displaced)
        return next_id if only is None else only, most

    def _fit(self, name: str, partition: int, row: LogRow | None) -> int:
        """How well a row of a checkpoint fits the files of a partition."""
        if row is None:
            return 0
        directory = os.path.join(self._topics_directory, name, str(partition))
        names = self._files.list_directory(directory) if self._is_folder(directory) else []
        if not row.position:
            return 1 if not any(parse_segment_name(one) is not None for one in names) else 0
        if segment_name(row.segment_first) not in names:
            return 0
        ends: dict[int, int] = {}
        file = self._files.open(os.path.join(directory, segment_name(row.segment_first)))
        try:
            identity = LogIdentity(self._store_id, b"", name, partition, row.log_id)
            walk = Walk(FilePieces(file), row.segment_first, identity)
            walk.run(
                row.end, sealed=False, keep=lambda batch, at: ends.update({at + batch.header.total_bytes: batch.end_offset})
            )
        finally:
            file.close()
        return _CERTAIN if ends.get(row.position) == row.end else 10

    # -- checkpoints and journal ------------------------------------------------------------------------------------

    def _load(self) -> Checkpoint:
        return Checkpoints(self._files, self._path, self._store_id).load()

    def _store_checkpoints(self, checkpoint: Checkpoint) -> None:
        """Two that say the same: neither may name what is not there any more."""
        for name in NAMES:
            if self._files.exists(os.path.join(self._path, name)):
                self._set_aside(os.path.join(self._path, name))
        checkpoints = Checkpoints(self._files, self._path, self._store_id)
        for generation in (checkpoint.generation + 1, checkpoint.generation + 2):
            checkpoints.store(checkpoint._replace(generation=generation, clean=False))

    def _make_checkpoint(self, *, keeps_journal: bool = True, ends: Sequence[LogRow] = ()) -> None:
        """Without *keeps_journal* what it has goes into the logs, and it begins without a frame. *ends*: where logs began and ended."""
        self._lost.append(
            Lost(os.path.join(self._path, NAMES[0]), None, None, "no checkpoint could be read; one was made anew")
        )
        self._lost.append(Lost(self._path, None, None, "groups, their positions and the names of producers were forgotten"))
        self._mend_topics()
        self._put_back()
        frames = whole_frames(self._files, self._journal_directory, self._store_id, 0)
        number = frames[0].number - 1 if frames else 0
        topics = self._readable_topics()
        next_log_id = max([0, *[one + 1 for one in self._claimed()]])
        owner = self._owner_generation()
        empty = Checkpoint(self._store_id, 1, owner, number, 0, 0, clean=False, next_log_id=next_log_id, rows=())
        self._quarantine_folder()
        rows, epoch = [], 0
        evidence = self._evidence(empty if keeps_journal else empty._replace(frame_number=_FRAMES_END), frames)
        for row in ends:
            known = evidence.setdefault(row.log_id, Evidence())
            known.log_start, known.known_end = max(known.log_start, row.log_start), row.end
        for record in topics:
            for partition in range(record.partitions):
                log = self._log_repair(record, partition, evidence)
                log.look()
                rows.append(log.run(keeps_uncommitted=True))
                self._lost += log.lost
                epoch = max(epoch, log.log_epoch)
        # Of groups only the journal's last operations are left, which mean nothing without what was before them.
        self._drops_others = True
        checkpoint = empty._replace(rows=tuple(rows), log_epoch=epoch)
        self._rewrite_journal(frames if keeps_journal else [], checkpoint)

    def _owner_generation(self) -> int:
        reader = PositionsReader(self._files, os.path.join(self._path, POSITIONS_NAME), self._store_id)
        try:
            return max(1, min(reader.owner_generation, 1 << 32))
        except OSError:
            return 1
        finally:
            reader.close()

    def _mend_journal(self, error: Corrupt) -> None:
        self._mend_topics()
        checkpoint = self._load()
        frames = whole_frames(self._files, self._journal_directory, self._store_id, checkpoint.frame_number)
        path = getattr(error, "path", self._journal_directory)
        missing = [
            str(before + 1) for before, frame in zip([checkpoint.frame_number, *[one.number for one in frames]], frames, strict=False)
            if frame.number > before + 1
        ]  # fmt: skip
        self._keeps_uncommitted = True
        lost = f"; given up: frame {', '.join(missing)}" if missing else ""
        self._lost.append(Lost(path, None, None, f"the journal was written anew: {getattr(error, 'reason', error)}{lost}"))
        self._rewrite_journal(frames)

    def _rewrite_journal(self, frames: list[WholeFrame], checkpoint: Checkpoint | None = None) -> None:
        """Write the journal anew with *frames*, and checkpoints that name it; with *checkpoint* the logs are as that says."""
        if checkpoint is None:
            # First: the old files may have, before the last checkpoint, what a log has lost.
            self._mend_logs(self._all_logs(), quiet=True)
            checkpoint = self._load()
        old = journal_sequences(self._files, self._journal_directory)
        self._quarantine_folder()
        known = self._claimed()

        def wanted(entry: FrameEntry) -> bool:
            return not self._drops_others if entry.kind == ENTRY_OTHER else entry.owner in known

        def name_it(sequence: int) -> None:
            rows = tuple([row for row in checkpoint.rows if row.log_id in known])
            sections = () if self._drops_sections else checkpoint.sections
            self._store_checkpoints(checkpoint._replace(journal_sequence=sequence, rows=rows, sections=sections))

        write_journal(
            self._files, self._journal_directory, self._store_id, checkpoint.frame_number, frames, wanted, name_it
        )  # fmt: skip
        for sequence in old:
            self._set_aside(os.path.join(self._journal_directory, file_name(sequence)), moved=True)

    def _mend_layers(self, error: Corrupt) -> None:
        """What groups and producers left cannot be read by them."""
        checkpoint = self._load()
        frames = whole_frames(self._files, self._journal_directory, self._store_id, checkpoint.frame_number)
        self._drops_sections, self._drops_others = self._drops_others, True
        what = "were forgotten" if self._drops_sections else "are as of the last checkpoint"
        self._lost.append(Lost(self._path, None, None, f"groups and producers {what}: {error}"))
        self._rewrite_journal(frames)

    def _forget_unknown(self) -> None:
        """A topic's folder is gone: no checkpoint and no frame may name its logs any more."""
        checkpoint = self._load()
        frames = whole_frames(self._files, self._journal_directory, self._store_id, checkpoint.frame_number)
        known = self._claimed()
        for row in checkpoint.rows:
            if row.log_id not in known:
                reason = f"log {row.log_id} is of a topic whose folder is gone; it was forgotten"
                self._lost.append(Lost(self._topics_directory, row.log_start, row.end, reason))
        named = {entry.owner for frame in frames for entry in frame.entries if entry.kind != ENTRY_OTHER}
        for log_id in sorted(named - known - {row.log_id for row in checkpoint.rows}):
            reason = f"log {log_id} is of a topic whose folder is gone; it was forgotten"
            self._lost.append(Lost(self._topics_directory, None, None, reason))
        self._rewrite_journal(frames)

    # -- logs -------------------------------------------------------------------------------------------------------

    def _put_back(self) -> None:
        """Segments that lie under another's name, and say where they belong, go there."""
        records = {record.topic_id: record for record in self._readable_topics()}
        strays: dict[str, str] = {}
        for header, path in self._all_segments():
            record = records.get(header.topic_id)
            if record is None or header.store_id != self._store_id or not 0 <= header.partition < record.partitions:
                continue
            place = os.path.join(
                self._topics_directory, record.name, str(header.partition), segment_name(header.first_offset)
            )  # fmt: skip
            if place != path:
                strays.setdefault(place, path)
        copies = []
        for place, path in strays.items():
            is_occupied = self._files.exists(place)
            occupant = self._segment_header(place) if is_occupied else None
            record = None if occupant is None else records.get(occupant.topic_id)
            if record is not None and occupant is not None and place == os.path.join(
                self._topics_directory, record.name, str(occupant.partition), segment_name(occupant.first_offset)
            ):  # fmt: skip
                continue  # the one that belongs there is there, and this is a copy
            if is_occupied:
                if occupant is None:
                    copies += self._give_place(place, path, strays)
                self._set_aside(place)
            if not self._files.exists(os.path.dirname(place)):
                self._files.make_directory(os.path.dirname(place))
            copies.append((self._copy_beside(path, place), place, path))
        for copy, place, path in copies:
            self._files.rename(copy, place)
            if self._files.exists(index_path(place)):
                self._files.unlink(index_path(place))
            self._files.sync_directory(os.path.dirname(place))
            self._lost.append(Lost(place, None, None, f"it was put back from {path}; nothing is lost"))

    def _give_place(self, place: str, path: str, strays: dict[str, str]) -> list[tuple[str, str, str]]:
        """The header of the segment at *place* cannot be read: it may have changed places with the stray at *path*."""
        vacated = path
        while vacated in strays:
            vacated = strays[vacated]
        return [(self._copy_beside(place, vacated), vacated, place)]

    def _copy_beside(self, path: str, place: str) -> str:
        """A copy of *path*, under a name that can be changed into *place*."""
        copy = place + ".put-back"
        if self._files.exists(copy):
            self._files.unlink(copy)
        self._copy(path, copy)
        return copy

    def _all_logs(self) -> set[tuple[str, ...]]:
        return {(record.name, str(partition)) for record in self._readable_topics() for partition in range(record.partitions)}

    def _mend_logs(self, logs: set[tuple[str, ...]], *, quiet: bool = False) -> None:
        """Repair these logs; *quiet*: of those that are in order nothing is said."""
        self._put_back()
        checkpoint = self._load()
        # Those before the checkpoint too: they may hold what a log has lost.
        frames = whole_frames(self._files, self._journal_directory, self._store_id, 0)
        evidence = self._evidence(checkpoint, frames)
        rows = {row.log_id: row for row in checkpoint.rows}
        records = {record.name: record for record in self._readable_topics()}
        epoch = checkpoint.log_epoch
        self._quarantine_folder()
        for topic, partition in sorted(logs):
            if not is_name(topic) or topic not in records or not partition.isdecimal():
                continue
            directory = os.path.join(self._topics_directory, topic, partition)
            log = self._log_repair(records[topic], int(partition), evidence)
            log.look()
            if log.journal_lacks_frames and not self._keeps_uncommitted:
                self._keeps_uncommitted = True
                reason = (
                    "the journal lacks frames that committed messages of this log; all messages that the logs hold were kept"
                )
                self._lost += [*log.lost, Lost(directory, None, None, reason)]
                self._mend_logs(self._all_logs(), quiet=True)
                return
            row = log.run(keeps_uncommitted=self._keeps_uncommitted)
            if log.lost:
                self._lost += log.lost
            elif not quiet:
                reason = f"the checkpoint and the journal did not fit the log, which ends at {row.end}; no message is lost"
                self._lost.append(Lost(directory, None, None, reason))
            if log.is_known_end_wrong:
                self._drop_positions()
            rows[row.log_id] = row
            epoch = max(epoch, log.log_epoch)
        self._store_checkpoints(checkpoint._replace(rows=tuple(rows.values()), log_epoch=epoch))

    def _keep_what_opening_cuts(self, verifier: Verifier) -> bool:
        """
        Whether opening would cut good messages off a log, which are kept now.

        In a store that is not damaged, what lies after a bad batch that was never synced is a torn tail. In one that is, that may be damage
        too, and all that can be read is kept.
        """
        if not verifier.cut_ends:
            return False
        self._store_id = read_identity(self._files, self._path)
        checkpoint = self._load()
        evidence = self._evidence(checkpoint, whole_frames(self._files, self._journal_directory, self._store_id, 0))
        records = {record.name: record for record in self._readable_topics()}
        logs: set[tuple[str, ...]] = set()
        for (topic, partition), end in verifier.cut_ends.items():
            log = (topic, str(partition))
            if log not in self._kept and self._log_repair(records[topic], partition, evidence).look() > end:
                logs.add(log)
        self._kept |= logs
        if logs:
            self._mend_logs(logs)
        return bool(logs)

    def _log_repair(self, record: TopicRecord, partition: int, evidence: dict[int, Evidence]) -> LogRepair:
        identity = LogIdentity(self._store_id, record.topic_id, record.name, partition, record.first_log_id + partition)
        directory = os.path.join(self._topics_directory, record.name, str(partition))
        known = evidence.setdefault(identity.log_id, Evidence())
        position = self._known_positions().get((record.topic_id, partition))
        if position is not None:
            known.known_end = position.end
        return LogRepair(self._files, directory, identity, record.settings, known, self._clock, self._set_aside)

    def _known_positions(self) -> dict[tuple[bytes, int], Position]:
        """As opening takes them: of this boot, and of an owner that saw no disk error."""
        reader = PositionsReader(self._files, os.path.join(self._path, POSITIONS_NAME), self._store_id)
        try:
            return {} if reader.failed else (reader.snapshot() or {})
        except (PenstockError, OSError):
            return {}
        finally:
            reader.close()

    @staticmethod
    def _evidence(checkpoint: Checkpoint, frames: list[WholeFrame]) -> dict[int, Evidence]:
        found: dict[int, Evidence] = {row.log_id: Evidence(row, row.log_start) for row in checkpoint.rows}
        for frame in frames:
            for entry in frame.entries:
                if entry.kind == ENTRY_OTHER:
                    continue
                log = found.setdefault(entry.owner, Evidence())
                if entry.kind == ENTRY_BATCH:
                    log.batches.append((Batch(entry.body), frame.number > checkpoint.frame_number))
                elif entry.kind == ENTRY_REFERENCE:
                    reference = decode_reference(entry)
                    log.references.append((reference.first_offset, reference.first_offset + reference.offset_span))
                elif entry.kind == ENTRY_LOG_START:
                    log.log_start = max(log.log_start, decode_log_start(entry))
        return found

    def _drop_positions(self) -> None:
        path = os.path.join(self._path, POSITIONS_NAME)
        if self._files.exists(path):
            self._set_aside(path, moved=True)

    def _report(self) -> None:
        if self._quarantine is None:
            return
        # The numbers of the last owner are of files that are not there any more.
        self._drop_positions()
        report = {"lost": [list(lost) for lost in self._lost], "store": self._path}
        replace_small_file(self._files, os.path.join(self._quarantine, "report.json"), encode_document(report))


def _only_run(named: list[int], length: int, taken: set[int]) -> int | None:
    """The first of the numbers of a topic's logs, of which not all may be *named*: if one run only of free numbers has all that are."""
    starts = range(max(0, named[-1] - length + 1), named[0] + 1) if named else ()
    runs = [start for start in starts if not taken & set(range(start, start + length))]
    return runs[0] if len(runs) == 1 else None


def _segment_uid(entry: FrameEntry) -> int | None:
    """The segment that a batch of the journal was written for."""
    if entry.kind == ENTRY_BATCH:
        return Batch(entry.body).header.segment_uid
    return decode_reference(entry).segment_uid if entry.kind == ENTRY_REFERENCE else None


def read_identity_or_damage(files: FileSystem, path: str) -> None:
    """Raise `StoreNotFound` where there is no store; damage to its identity passes."""
    try:
        read_identity(files, path)
    except UnsupportedFormat:
        raise
    except (Corrupt, NotRegular):
        return


def plan(
    path: str | os.PathLike[str], *, files: FileSystem | None = None, clock: Clock | None = None, layers: Layers = tuple
) -> list[Lost]:
    """What `repair` would do, without doing it; nothing at all: the store is sound. Raises what `repair` raises."""
    with naming_refusals():
        overlay = OverlayFileSystem(files or RealFileSystem(), unmapped=(LOG_SUFFIX,))
        return Repairer(overlay, os.path.abspath(os.fspath(path)), clock or SystemClock(), layers).run().lost


def repair(
    path: str | os.PathLike[str], *, files: FileSystem | None = None, clock: Clock | None = None, layers: Layers = tuple
) -> Repair:
    """
    Set aside what is damaged in the store at *path*, which nobody may own meanwhile, so that it opens and all that is left can be read.

    *layers* makes the layers above that it is opened with: `penstock.store.checking.repair` gives those that every store has.

    Raises:
        StoreLocked: somebody owns it.
        StoreNotFound: there is none.
        NoAccess: this user may not change it.
        UnsupportedFormat: a newer version wrote it.
        Corrupt: it cannot be repaired; nothing that could be read is lost.
    """
    with naming_refusals():
        return Repairer(files or RealFileSystem(), os.path.abspath(os.fspath(path)), clock or SystemClock(), layers).run()
