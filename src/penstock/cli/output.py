"""What a command writes: data to stdout, everything else to stderr. Tables and colours on a terminal, plain text in a pipe."""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import os
import stat
import sys
from typing import TYPE_CHECKING, Any, TextIO

import click

from penstock.cli import interrupts
from penstock.cli.escapes import json_line, printable
from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.table import Table


def prepare_streams() -> None:
    """Let no character stop the program, and show the engine's warnings as one line each."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    logging.getLogger("penstock").addHandler(handler)


# -- stdout ---------------------------------------------------------------------------------------------------------


class ReaderGone(Exception):
    """Whoever read our pipe has closed it. No `OSError`: click would end the program itself on EPIPE."""


@contextlib.contextmanager
def _to_pipe() -> Iterator[None]:
    try:
        with interrupts.allowed():
            yield
    except BrokenPipeError:
        raise ReaderGone from None


def _stdout() -> TextIO:
    # Python has no stdout if its starter closed it. To write nowhere, and ack what was written, would lose messages.
    if sys.stdout is None:
        raise OSError(errno.EBADF, "stdout is closed")
    return sys.stdout


def write(data: bytes) -> None:
    """Write *data* as it is."""
    with _to_pipe():
        stream, left = _stdout().buffer, memoryview(data)
        # With PYTHONUNBUFFERED there is no buffer behind stdout, and one call may take only a part.
        while left:
            taken = stream.write(left)
            if taken is None:
                raise OSError(errno.EAGAIN, "stdout is not ready, and does not wait")
            left = left[taken:]


def write_line(text: str) -> None:
    """Write one line of text."""
    write(text.encode("utf-8", "backslashreplace") + b"\n")


def write_json(value: object) -> None:
    """Write *value* as one line of JSON."""
    write(json_line(value) + b"\n")


def flush() -> None:
    """Return when everything written is with the terminal, the file or the pipe. Raises `OSError`, `ReaderGone`."""
    with _to_pipe():
        if sys.stdout is not None:
            sys.stdout.flush()


def is_terminal() -> bool:
    """Whether a person is looking at stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def goes_to_file() -> bool:
    """Whether stdout is a file: nobody sees how far it is. A pipe may end at the terminal, where a bar would be in the way."""
    try:
        return sys.stdout is not None and stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def has_colour() -> bool:
    """Whether stdout may have colours; see https://no-color.org."""
    return is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def drop() -> None:
    """Nobody reads stdout any more: what is still buffered must not raise again when the program ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


# -- tables ---------------------------------------------------------------------------------------------------------


def write_table(columns: Sequence[str], rows: Sequence[Sequence[object]], *, title: str | None = None) -> None:
    """Write a table. A column is named in lower case; where its name ends in ``>`` its cells stand to the right."""
    cells = [[shown(cell) for cell in row] for row in rows]
    if is_terminal():
        from rich.console import Console

        with interrupts.allowed():
            Console().print(rich_table(columns, cells, title=title))
        return
    if title is not None:
        write_line(f"{title}:")
    lines = [[name.rstrip(">").upper() for name in columns], *cells]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        padded = [
            cell.rjust(width) if name.endswith(">") else cell.ljust(width)
            for name, cell, width in zip(columns, line, widths, strict=True)
        ]
        write_line("  ".join(padded).rstrip())


def rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]], *, title: str | None = None) -> Table:
    """The same as a table of rich."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold", header_style="bold cyan")
    for name in columns:
        table.add_column(name.rstrip(">"), justify="right" if name.endswith(">") else "left")
    for row in cells:
        # As Text: brackets in a cell are no markup.
        table.add_row(*[Text(cell) for cell in row])
    return table


def shown(cell: object) -> str:
    """A cell as text. Numbers in a pipe have no commas."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:,}" if isinstance(cell, int) and is_terminal() else printable(str(cell))


def write_details(pairs: Sequence[tuple[str, object]]) -> None:
    """Write names and what they are, one a line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        label = f"{name}:".ljust(width + 2)
        write_line((click.style(label, bold=True) if has_colour() else label) + shown(value))


# -- stderr ---------------------------------------------------------------------------------------------------------


def is_watched() -> bool:
    """Whether a person is looking at stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def say(kind: str, text: str) -> None:
    """Write one line to stderr: ``note: ...``, ``error: ...``."""
    styled = click.style(f"{kind}:", fg={"error": "red", "warning": "yellow"}.get(kind, "cyan"), bold=True)
    coloured = is_watched() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    with contextlib.suppress(OSError):
        click.echo(f"{styled if coloured else f'{kind}:'} {printable(text)}", err=True, color=coloured)


@contextlib.contextmanager
def progress(what: str, total: int | None, *, wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """A bar on stderr while the block runs, if that is a terminal. What it gives is called with how far it is."""
    if not wanted or not is_watched():
        yield lambda _so_far: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns: list[Any] = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()]
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        task = bar.add_task(what, total=total)
        yield lambda so_far: bar.update(task, completed=so_far)


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user said yes, by ``--yes`` or now. Raises `UsageError`: nothing is to be done."""
    if yes:
        return
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(f"{question} Nothing was changed; say --yes to do it")
    flush()
    with interrupts.allowed():
        agreed = click.confirm(question, err=True)
    if not agreed:
        raise UsageError("nothing was changed")
