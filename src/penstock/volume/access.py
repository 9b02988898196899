"""What the operating system refuses while a store is opened, as errors that say so and name the path."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from penstock.errors import BadArgument, DamagedFile, NoAccess
from penstock.files import NOT_REGULAR, NotRegular

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.files import FileSystem


def check_folder(files: FileSystem, path: str) -> None:
    """Raise `BadArgument` where *path* is a file: somebody else's, so nobody may call it damaged and tell users to remove it."""
    try:
        files.list_directory(path)
    except NotADirectoryError:
        raise BadArgument("path", path, "this is a file, or lies in one; a store is a folder") from None
    except OSError:
        return  # missing, or not to be read: whoever needs it says so


@contextlib.contextmanager
def naming_refusals() -> Iterator[None]:
    """Raise `NoAccess` for want of permission, and `DamagedFile` where a folder has the name of a file, or a file that of a folder."""
    try:
        yield
    except PermissionError as error:
        if error.filename is None:
            raise
        raise NoAccess(os.fsdecode(error.filename), error.strerror or "permission denied", os.geteuid()) from None
    except NotRegular as error:
        raise not_regular(error) from None
    except IsADirectoryError as error:
        if error.filename is None:
            raise
        raise DamagedFile(os.fsdecode(error.filename), 0, None, NOT_REGULAR) from None
    except NotADirectoryError as error:
        if error.filename is None:
            raise
        raise DamagedFile(os.fsdecode(error.filename), 0, None, "this is no folder, or lies in a file; remove it") from None


def not_regular(error: NotRegular) -> DamagedFile:
    """The error for something that has the name of one of the store's files."""
    return DamagedFile(os.fsdecode(error.filename), 0, None, NOT_REGULAR)
