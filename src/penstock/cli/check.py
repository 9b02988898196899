"""`penstock verify` and `penstock repair`: look for damage, and set it aside by explicit order."""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING

import click

from penstock.cli import failures, interrupts, output, parameters
from penstock.cli.target import local_path
from penstock.errors import UsageError
from penstock.volume import repair as repairing
from penstock.volume import verification
from penstock.volume.identity import TOPICS

if TYPE_CHECKING:
    from penstock.volume.verification import Verification


@click.command(epilog=parameters.examples("penstock verify data", "penstock verify data --json | jq '.findings[]'"))
@click.argument("path")
@parameters.json_output
@click.pass_context
def verify(ctx: click.Context, *, path: str, as_json: bool) -> None:
    """
    Read every byte of a store and report what is damaged. It changes nothing, and works beside the owner.

    Exits with 5 if something is damaged. A bad cache is reported too, but the store mends that by itself.
    """
    found = _verify(path)
    if as_json:
        output.write_json(
            {"sound": found.is_sound, "topics": found.topics, "segments": found.segments, "batches": found.batches,
             "messages": found.messages, "bytes": found.bytes, "findings": [finding._asdict() for finding in found.findings]}
        )  # fmt: skip
    else:
        _report(found)
    if not found.is_sound:
        ctx.exit(failures.EXIT_CORRUPT)


@click.command(epilog=parameters.examples("cp -a data data.copy && penstock repair data", "penstock repair data --yes --json"))
@click.argument("path")
@parameters.yes
@parameters.json_output
def repair(*, path: str, yes: bool, as_json: bool) -> None:
    """
    Set aside what is damaged, so that the rest of a store can be used again. Make a copy of the store first.

    First it verifies and says what it would do; it does it only after a yes. Files are copied to PATH/quarantine before
    they are changed. Messages in damaged ranges are lost; their offsets stay a gap.
    """
    found = _verify(path)
    if not as_json:
        _report(found)
        if found.is_sound:
            output.write_line(
                "repair would find nothing to set aside; it would only look whether the last checkpoint fits the logs"
            )
        else:
            output.write_line("repair would copy the files named above to quarantine/, and give up the damaged ranges in them")
    output.confirm(f"{path} would be repaired.", yes=yes)
    done = repairing.repair(local_path(path))
    if as_json:
        output.write_json({"lost": [lost._asdict() for lost in done.lost], "quarantine": done.quarantine})
        return
    for lost in done.lost:
        where = "" if lost.first_offset is None else f" from offset {lost.first_offset}"
        until = "" if lost.end_offset is None else f" to {lost.end_offset}"
        output.write_line(f"given up: {output.shown(lost.path)}{where}{until}: {output.shown(lost.reason)}")
    if done.quarantine is not None:
        output.write_line(f"the files as they were: {output.shown(done.quarantine)}")
    output.write_line("repaired" if done.lost else "nothing had to be changed")


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

        return verification.verify(folder, progress=step)


def _report(found: Verification) -> None:
    for finding in found.findings:
        output.write_line(output.shown(str(finding)))
    bad = sum(finding.is_damage for finding in found.findings)
    output.write_line(
        f"{found.topics:,} topics, {found.segments:,} segments, {found.batches:,} batches, {found.messages:,} messages, "
        f"{found.bytes:,} bytes: {'sound' if found.is_sound else f'{bad:,} damaged'}"
    )
