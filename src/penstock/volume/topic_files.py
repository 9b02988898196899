"""
A topic on disk: `topics/NAME/topic.json` and a folder for each partition.

A topic is made under a temporary name and renamed into place when it is whole, so that it exists entirely or not at all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import BadBytes, BadSetting, DamagedFile, MissingData, UnsupportedFormat
from penstock.files import is_out_of_descriptors
from penstock.journal.small_file import read_small_file, replace_small_file
from penstock.settings import TopicSettings
from penstock.values import check_name, is_name
from penstock.volume.document import decode_document, encode_document

if TYPE_CHECKING:
    from penstock.files import FileSystem

TOPIC_FILE = "topic.json"
NEW_PREFIX = ".new-"
DELETED_PREFIX = ".deleted-"
PARTITIONS_MAX = 10_000
_CORRECTED_BYTES_MAX = 16 * 1024
_PRINTABLE = frozenset([0x0A, *range(0x20, 0x7F)])


class TopicRecord(NamedTuple):
    """What `topic.json` says; partition p has the log id `first_log_id` + p."""

    name: str
    topic_id: bytes
    partitions: int
    first_log_id: int
    settings: TopicSettings


def create_topic_files(files: FileSystem, directory: str, record: TopicRecord) -> None:
    """Make a topic's folders and file; durable when it returns. Raises `OSError`; nothing is visible then."""
    building = os.path.join(directory, NEW_PREFIX + secrets.token_hex(8))
    try:
        _build(files, building, record)
        files.rename(building, os.path.join(directory, record.name))
    except OSError:
        with contextlib.suppress(OSError):
            _remove_building(files, building)
        raise
    try:
        files.sync_directory(directory)
    except OSError as error:
        if is_out_of_descriptors(error):
            # It passes, so nothing must be left. A crash may bring the name back: then there is a topic without messages.
            files.rename(os.path.join(directory, record.name), building)
            with contextlib.suppress(OSError):
                _remove_building(files, building)
        raise


def _build(files: FileSystem, building: str, record: TopicRecord) -> None:
    files.make_directory(building)
    for partition in range(record.partitions):
        files.make_directory(os.path.join(building, str(partition)))
    replace_small_file(files, os.path.join(building, TOPIC_FILE), topic_document(record))


def topic_document(record: TopicRecord) -> bytes:
    """What `topic.json` holds."""
    values = {
        "name": record.name,
        "id": record.topic_id.hex(),
        "partitions": record.partitions,
        "first_log_id": record.first_log_id,
        "settings": record.settings.to_json(),
        "generation": 1,
        "required": [],
    }
    return encode_document(values)


def corrected_topic(data: bytes, name: str) -> bytes | None:
    """
    A damaged `topic.json` with one bit flipped back, if that makes it whole; None if no bit does, or more than one.

    CRC-32C tells any two documents of this length apart that differ in up to three bits, so one that one bit makes whole was that one.
    """
    # Printable all over, and with this beginning and this end: what differs from that is where the bit is, or too much.
    odd = [at for at, byte in enumerate(data) if byte not in _PRINTABLE]
    if len(odd) > 1 or _distance(data[:14], b'{\n "crc32c": "') + _distance(data[-3:], b"\n}\n") > 1:
        return None
    whole: list[bytes] = []
    for at in odd or range(min(len(data), _CORRECTED_BYTES_MAX)):
        for bit in range(8):
            if data[at] ^ 1 << bit not in _PRINTABLE:
                continue
            candidate = b"%b%c%b" % (data[:at], data[at] ^ 1 << bit, data[at + 1 :])
            with contextlib.suppress(BadBytes, BadSetting, AttributeError, KeyError, TypeError, ValueError, OverflowError):
                _record(decode_document("topic", candidate), name)
                whole.append(candidate)
    return whole[0] if len(set(whole)) == 1 else None


def _distance(one: bytes, other: bytes) -> int:
    """How many bits differ; as many as there are if one is longer."""
    if len(one) != len(other):
        return 8 * max(len(one), len(other))
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


def read_topics(files: FileSystem, directory: str) -> list[TopicRecord]:
    """All topics. Raises `Corrupt`."""
    records = [read_listed_topic(files, directory, name) for name in topic_folders(files, directory)]
    return [record for record in records if record is not None]


def topic_folders(files: FileSystem, directory: str) -> list[str]:
    """The names of the topics' folders; what cannot be one (unfinished, a file, a name no topic can have) is passed over."""
    return [name for name in _names(files, directory) if is_name(name) and _is_folder(files, os.path.join(directory, name))]


def _names(files: FileSystem, directory: str) -> list[str]:
    try:
        return files.list_directory(directory)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingData(directory, "the folder of the topics is missing") from None


def _is_folder(files: FileSystem, path: str) -> bool:
    try:
        files.list_directory(path)
    except (NotADirectoryError, FileNotFoundError):  # a file; or deleted at this moment
        return False
    return True


def remove_unfinished(files: FileSystem, directory: str) -> None:
    """Remove what a crash left of topics that were being made. Raises `MissingData`."""
    for name in _names(files, directory):
        if name.startswith(NEW_PREFIX):
            _remove_building(files, os.path.join(directory, name))


def set_aside(files: FileSystem, directory: str, record: TopicRecord) -> None:
    """Take a topic out of the store by one rename; durable when it returns. Its files are still there. Raises `OSError`."""
    # A process without descriptors finds out now, and not when the name is gone and it is not known for how long.
    files.sync_directory(directory)
    files.rename(os.path.join(directory, record.name), set_aside_path(directory, record.topic_id))
    files.sync_directory(directory)


def set_aside_path(directory: str, topic_id: bytes) -> str:
    """Where the folder of a topic lies from when it is deleted until its files go."""
    return os.path.join(directory, DELETED_PREFIX + topic_id.hex())


def read_deleted(files: FileSystem, directory: str) -> list[TopicRecord]:
    """
    The topics that were deleted and whose files are not all gone: checkpoints and journal may still name their logs.

    `topic.json` goes last, when nothing names them any more; so one that is without it, or unreadable, says nothing.
    """
    found = []
    for name in files.list_directory(directory):
        if name.startswith(DELETED_PREFIX):
            with contextlib.suppress(FileNotFoundError, BadBytes, BadSetting, KeyError, TypeError, ValueError):
                values = decode_document("topic", read_small_file(files, os.path.join(directory, name, TOPIC_FILE)))
                found.append(_record(values, values["name"]))
    return found


def remove_deleted(files: FileSystem, directory: str) -> None:
    """Remove the files of deleted topics, which nothing names any more. Raises `OSError`; what is left goes at the next opening."""
    removed = False
    for name in files.list_directory(directory):
        if name.startswith(DELETED_PREFIX):
            _remove_topic(files, os.path.join(directory, name))
            removed = True
    if removed:
        files.sync_directory(directory)


def _remove_topic(files: FileSystem, path: str) -> None:
    entries = files.list_directory(path)
    for entry in sorted(entries, key=lambda entry: entry == TOPIC_FILE):
        inner = os.path.join(path, entry)
        if not _is_folder(files, inner):
            files.unlink(inner)
            continue
        for file in files.list_directory(inner):
            files.unlink(os.path.join(inner, file))
        files.remove_directory(inner)
    files.remove_directory(path)


def _remove_building(files: FileSystem, building: str) -> None:
    for entry in files.list_directory(building):
        path = os.path.join(building, entry)
        if entry.isdecimal():
            files.remove_directory(path)
        else:
            files.unlink(path)
    files.remove_directory(building)


def read_topic(files: FileSystem, directory: str, name: str) -> TopicRecord:
    """One topic. Raises `Corrupt`, `BadName`."""
    check_name("topic", name)
    path = os.path.join(directory, name, TOPIC_FILE)
    try:
        values = decode_document("topic", read_small_file(files, path))
        return _record(values, name)
    except FileNotFoundError:
        raise DamagedFile(path, 0, None, "the topic's folder has no topic.json") from None
    except (BadBytes, BadSetting, AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFile(path, 0, None, f"{type(error).__name__}: {error}") from None


def read_listed_topic(files: FileSystem, directory: str, name: str) -> TopicRecord | None:
    """One topic whose folder was seen; None if its owner has deleted it since. Raises `Corrupt`."""
    try:
        return read_topic(files, directory, name)
    except DamagedFile:
        if not files.exists(os.path.join(directory, name)):
            return None
    # Damaged, or deleted and made again in between.
    return read_topic(files, directory, name)


def _record(values: dict[str, Any], name: str) -> TopicRecord:
    if values["required"]:
        raise UnsupportedFormat(f"topic {name}", f"features {values['required']}")
    if values["name"] != name:
        raise BadBytes("topic", f"says that its name is {values['name']!r}")
    topic_id = bytes.fromhex(values["id"])
    partitions, first_log_id = int(values["partitions"]), int(values["first_log_id"])
    if len(topic_id) != 16 or not 1 <= partitions <= PARTITIONS_MAX or first_log_id < 0:
        raise BadBytes("topic", "has an impossible id or number of partitions")
    return TopicRecord(name, topic_id, partitions, first_log_id, TopicSettings.from_json(values["settings"]))
