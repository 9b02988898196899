"""What a command says when it fails, and the code that it exits with."""

from __future__ import annotations

import os

import click

from penstock.errors import (
    Corrupt,
    GroupNotFound,
    NotFound,
    OffsetOutOfRange,
    PenstockError,
    StoreLocked,
    StoreNotFound,
    TopicNotFound,
    Unavailable,
    UsageError,
)

EXIT_FAILED = 1
EXIT_CODES: tuple[tuple[type[PenstockError], int], ...] = ((UsageError, 2), (NotFound, 3), (Unavailable, 4), (Corrupt, 5))
"""By what the caller can do about it, as the tree of errors is ordered; all others are `EXIT_FAILED`."""
EXIT_CORRUPT = 5
EXIT_BROKEN_PIPE = 141
"""What a shell says of a program that SIGPIPE ended."""

_REMEDIES: dict[type[PenstockError], str] = {
    StoreNotFound: "check the path; `penstock publish` and `penstock topics create` make a store",
    TopicNotFound: "`penstock topics list` shows what there is",
    GroupNotFound: "`penstock groups list` shows what there is",
    OffsetOutOfRange: "`penstock topics describe` shows what there is",
}


def exit_code(error: Exception) -> int:
    """The code for an error."""
    if isinstance(error, click.UsageError):
        return error.exit_code
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), EXIT_FAILED)


def line(error: Exception) -> str:
    """One line: what happened, where, what to do, and the code that never changes."""
    if isinstance(error, click.UsageError):
        command = "penstock" if error.ctx is None else error.ctx.command_path
        return f"{error.format_message().rstrip('.')} (see `{command} --help`) [{UsageError.code}]"
    if isinstance(error, PenstockError):
        return f"{_text(error)} [{error.code}]"
    assert isinstance(error, OSError)
    where = "" if error.filename is None else f": {os.fsdecode(error.filename)}"
    return f"{error.strerror or error}{where} [OS_ERROR]"


def _text(error: PenstockError) -> str:
    if isinstance(error, StoreLocked):
        # The library's own text names an argument of `penstock.open`.
        who = "another process" if error.owner_pid is None else f"process {error.owner_pid} on {error.owner_host}"
        if error.url is not None:
            return f"{error.path} is owned by a server, {who}: give its URL, {error.url}, as TARGET instead of the folder"
        return f"{error.path} is owned by {who}; stop it, or use what only reads: read, topics list, topics describe, stats, top, verify"
    remedy = _REMEDIES.get(type(error))
    return str(error) if remedy is None else f"{error}; {remedy}"
