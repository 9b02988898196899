"""Small durable files, and folders that one pipeline has at a time. For folders of this machine, or that are mounted on it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
from typing import TYPE_CHECKING, Any

from penstock.errors import Unavailable
from penstock.volume.document import decode_document, encode_document

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def sync(path: str) -> None:
    """Return when what a file or a folder holds is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[str]) -> None:
    """The same for several, each once."""
    for path in dict.fromkeys(paths):
        sync(path)


def make_folder(path: str) -> None:
    """Make a folder and those above it; durable when it returns. One that is there is left alone."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    make_folder(parent)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    sync(parent)


def write_document(path: str, values: dict[str, Any]) -> None:
    """Put *values* in the place of what the file held, as a whole; durable when it returns."""
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(encode_document(values))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync(os.path.dirname(path))


def read_document(path: str) -> dict[str, Any] | None:
    """What the file holds; None if there is none. Raises `BadBytes`."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return None
    return decode_document(path, data)


@contextlib.contextmanager
def only_one(path: str, what: str) -> Iterator[None]:
    """Nobody else is in such a block with this file at the same time. Raises `Unavailable`. A process that dies leaves it."""
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Unavailable(f"another process is at work on {what}; let it end first") from None
        yield
