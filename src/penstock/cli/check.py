"""`penstock verify` and `penstock repair`: look for damage, and set it aside by explicit order."""

from __future__ import annotations

import contextlib
import glob
import os
from typing import TYPE_CHECKING

import click

from penstock.cli import failures, interrupts, output, parameters
from penstock.cli.target import local_path
from penstock.errors import PenstockError, StoreLocked, UsageError
from penstock.files import lock_owner
from penstock.store import checking
from penstock.volume.identity import LOCK_NAME, TOPICS

if TYPE_CHECKING:
    from penstock.volume.log_repair import Lost
    from penstock.volume.verification import Verification


@click.command(epilog=parameters.examples("penstock verify data", "penstock verify data --json | jq '.findings[]'"))
@click.argument("path")
@parameters.json_output
@click.pass_context
def verify(ctx: click.Context, *, path: str, as_json: bool) -> None:
    """
    Look whether a store opens and every committed message can be read. It changes nothing, and works beside the owner.

    Exits with 5 if not, and says what is damaged, in the words of opening, and what `repair` would do about it. What the
    store mends by itself (a bad cache) is reported too, and is no damage.
    """
    found = _verify(path)
    planned: list[Lost] = []
    if not found.is_sound:
        # Beside an owner, or of a store that cannot be repaired, there is no plan.
        with contextlib.suppress(PenstockError):
            planned = checking.plan(local_path(path))
    if as_json:
        output.write_json(
            {"sound": found.is_sound, "repair": [lost._asdict() for lost in planned],
             "topics": found.topics, "segments": found.segments, "batches": found.batches,
             "messages": found.messages, "bytes": found.bytes, "findings": [finding._asdict() for finding in found.findings]}
        )  # fmt: skip
    else:
        _report(found, planned)
    if not found.is_sound:
        ctx.exit(failures.EXIT_CORRUPT)


@click.command(epilog=parameters.examples("cp -a data data.copy && penstock repair data", "penstock repair data --yes --json"))
@click.argument("path")
@parameters.yes
@parameters.json_output
def repair(*, path: str, yes: bool, as_json: bool) -> None:
    """
    Set aside what is damaged, so that the store opens with every message that can still be read. Make a copy of it first.

    First it verifies and says what it will do; it does it only after a yes. Files are copied to PATH/quarantine before they
    are changed. Messages in damaged ranges are lost; their offsets stay a gap. A sound store is not changed.
    """
    folder = local_path(path)
    _check_not_owned(folder)
    found = _verify(path)
    planned = [] if found.is_sound else checking.plan(folder)
    if not as_json:
        _report(found, planned)
    if not found.is_sound:
        output.confirm(f"{path} would be repaired.", yes=yes)
    done = checking.repair(folder)
    if as_json:
        output.write_json({"lost": [lost._asdict() for lost in done.lost], "quarantine": done.quarantine})
        return
    for lost in done.lost:
        output.write_line(f"done: {_told(lost)}")
    if done.quarantine is not None:
        output.write_line(f"the files as they were: {output.shown(done.quarantine)}")
    output.write_line("repaired" if done.lost else "the store is sound; nothing was changed")


def _told(lost: Lost) -> str:
    where = "" if lost.first_offset is None else f" from offset {lost.first_offset}"
    until = "" if lost.end_offset is None else f" to {lost.end_offset}"
    return f"{output.shown(lost.path)}{where}{until}: {output.shown(lost.reason)}"


def _check_not_owned(folder: str) -> None:
    """Before anything is planned. Raises `StoreLocked`."""
    owner = None
    with contextlib.suppress(OSError):
        owner = lock_owner(os.path.join(folder, LOCK_NAME))
    if owner is not None:
        raise StoreLocked(folder, owner.get("pid"), owner.get("host"))


def _verify(path: str) -> Verification:
    folder = local_path(path)
    if not folder:
        raise UsageError("PATH is empty; give the path of a store's folder")
    total = len(glob.glob(os.path.join(glob.escape(folder), TOPICS, "*", "*", "*.log")))
    with output.progress("verifying (segments)", total) as move:
        seen = 0

        def step(_path: str) -> None:
            nonlocal seen
            seen += 1
            move(seen)
            interrupts.check()

        return checking.verify(folder, progress=step)


def _report(found: Verification, planned: list[Lost]) -> None:
    for finding in found.findings:
        output.write_line(output.shown(str(finding)))
    for lost in planned:
        output.write_line(f"repair would do: {_told(lost)}")
    bad = sum(finding.is_damage for finding in found.findings)
    output.write_line(
        f"{found.topics:,} topics, {found.segments:,} segments, {found.batches:,} batches, {found.messages:,} messages, "
        f"{found.bytes:,} bytes: {'sound' if found.is_sound else f'{bad:,} damaged'}"
    )
