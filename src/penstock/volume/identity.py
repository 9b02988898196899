"""
The identity of a store: `store.json`, written once, as the last step of making a store.

So a folder with `store.json` is a whole store, and a folder without it is new only if it also holds no topics and no journal: a
store whose identity was lost is reported, never taken for an empty one.
"""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from penstock.errors import BadBytes, DamagedFile, MissingData, StoreNotFound, UnsupportedFormat
from penstock.format.checkpoint import Checkpoint
from penstock.journal.checkpoints import Checkpoints
from penstock.journal.small_file import read_small_file, replace_small_file
from penstock.volume.document import decode_document, encode_document

if TYPE_CHECKING:
    from penstock.files import FileSystem

STORE_FILE = "store.json"
JOURNAL = "journal"
TOPICS = "topics"
LOCK_NAME = "LOCK"
POSITIONS_NAME = "positions"
FORMAT_VERSION = 1
KNOWN_FEATURES: frozenset[str] = frozenset()


def read_identity(files: FileSystem, directory: str) -> bytes:
    """The store's id. Raises `StoreNotFound`, `MissingData`, `DamagedFile` or `UnsupportedFormat`."""
    path = os.path.join(directory, STORE_FILE)
    if not files.exists(path):
        if files.exists(directory) and _holds_data(files, directory):
            raise MissingData(path, "the folder holds topics or a journal, but the store's identity is gone")
        raise StoreNotFound(directory)
    try:
        values = decode_document("store", read_small_file(files, path))
        if values["format"] != FORMAT_VERSION:
            raise UnsupportedFormat(path, f"format {values['format']}")
        unknown = set(values["required"]) - KNOWN_FEATURES
        if unknown:
            raise UnsupportedFormat(path, f"features {sorted(unknown)}")
        store_id = bytes.fromhex(values["id"])
        if len(store_id) != 16:
            raise BadBytes("store", "has an impossible id")
    except (BadBytes, KeyError, TypeError, ValueError) as error:
        raise DamagedFile(path, 0, None, f"{type(error).__name__}: {error}") from None
    return store_id


def create_identity(files: FileSystem, directory: str) -> bytes:
    """Make a new store in a folder that is there; durable when it returns. Raises `OSError`."""
    for name in (JOURNAL, TOPICS):
        path = os.path.join(directory, name)
        if not files.exists(path):
            files.make_directory(path)
    store_id = secrets.token_bytes(16)
    first = Checkpoint(store_id, 1, 0, 0, 0, 0, clean=True, next_log_id=0, rows=())
    Checkpoints(files, directory, store_id).store(first)
    files.sync_directory(directory)
    replace_small_file(files, os.path.join(directory, STORE_FILE), encode_document(identity_document(store_id)))
    return store_id


def identity_document(store_id: bytes) -> dict[str, object]:
    """What `store.json` holds."""
    return {"format": FORMAT_VERSION, "id": store_id.hex(), "required": [], "generation": 1}


def _holds_data(files: FileSystem, directory: str) -> bool:
    for name in (JOURNAL, TOPICS):
        path = os.path.join(directory, name)
        try:
            names = files.list_directory(path)
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            return True  # no new store has a file of this name
        if any(not entry.startswith(".") for entry in names):
            return True
    return False
