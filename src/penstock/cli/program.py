"""The program `penstock`: its commands, how their errors are told, and the codes they exit with."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from penstock.cli import failures, interrupts, output
from penstock.cli.about import completion, version
from penstock.cli.bench.command import bench
from penstock.cli.check import repair, verify
from penstock.cli.compact import compact
from penstock.cli.consume import consume
from penstock.cli.demo.command import demo
from penstock.cli.dlq import dlq
from penstock.cli.groups import groups
from penstock.cli.outbox import outbox
from penstock.cli.pipeline import pipeline
from penstock.cli.publish import publish
from penstock.cli.read import read
from penstock.cli.serve import serve
from penstock.cli.stats import stats
from penstock.cli.top.command import top
from penstock.cli.topics import topics
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Sequence

_ASKED_NOTHING: tuple[type[click.UsageError], ...] = tuple(
    getattr(click.exceptions, name) for name in ("NoArgsIsHelpError",) if hasattr(click.exceptions, name)
)
"""What newer versions of click raise for a group without a command; older ones print the help themselves."""


class Program(click.Group):
    """A group that tells every error in one line and exits with the code that fits it."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)  # In the order of their importance, not of the alphabet.

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run, and exit: 0, or what docs/reference/cli.md says."""
        extra.pop("standalone_mode", None)
        sys.exit(self._run(args, prog_name, **extra))

    def _run(self, args: Sequence[str] | None, prog_name: str | None, **extra: Any) -> int:
        try:
            code = super().main(args, prog_name, standalone_mode=False, **extra)
            output.flush()
        except output.ReaderGone:
            output.drop()
            return failures.EXIT_BROKEN_PIPE
        except interrupts.Interrupted as interrupted:
            self._flush_quietly()
            return 128 + interrupted.number
        except (click.Abort, KeyboardInterrupt):
            self._flush_quietly()
            return 130
        except (click.UsageError, PenstockError, OSError) as error:
            if isinstance(error, _ASKED_NOTHING) and error.ctx is not None:
                click.echo(error.ctx.get_help())
                return 0
            self._flush_quietly()
            output.say("error", failures.line(error))
            return failures.exit_code(error)
        return code if isinstance(code, int) else 0

    @staticmethod
    def _flush_quietly() -> None:
        """What was printed before an error comes before it."""
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            output.drop()


@click.group("penstock", cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="penstock", prog_name="penstock", message="%(prog)s %(version)s")
def program() -> None:
    """
    Penstock, a durable message queue.

    TARGET is the path of a store's folder, or a server: penstock://host:port. Exit codes: 0 done, 1 failed, 2 wrong use, 3 not
    found, 4 not now (owned by another process, disk full, server away), 5 damaged, 130 interrupted.
    """


for command in (
    serve,
    publish,
    consume,
    read,
    topics,
    groups,
    dlq,
    outbox,
    stats,
    top,
    compact,
    verify,
    repair,
    pipeline,
    bench,
    demo,
    version,
    completion,
):
    program.add_command(command)
