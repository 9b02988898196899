"""What the operating system refuses while a store is opened, as errors that say so and name the path."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from penstock.errors import AccessDenied, DamagedFile
from penstock.files import NotRegular

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def naming_refusals() -> Iterator[None]:
    """Raise `AccessDenied` for want of permission, and `DamagedFile` where something that is no file has the name of one."""
    try:
        yield
    except PermissionError as error:
        if error.filename is None:
            raise
        raise AccessDenied(os.fsdecode(error.filename)) from None
    except NotRegular as error:
        raise not_regular(error) from None


def not_regular(error: NotRegular) -> DamagedFile:
    """The error for something that has the name of one of the store's files."""
    return DamagedFile(
        os.fsdecode(error.filename), 0, None, "this is no regular file but a folder, a link, a FIFO or a device; remove it"
    )
