"""
Measure the storage core against what this machine can do at best, and the queue against others: `python -m benchmarks.run`.

Each row gives what ours did, what the raw limit or the other queue did in turns with it, the median of their ratios (or a time),
how far the repeats lie apart, the target and whether it is met. Rows about durability are refused on a file system in memory. A
queue that is not installed has rows that say so. The result does not change the exit code, unless --strict is given; a row that
breaks does.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
import traceback
from dataclasses import replace

from benchmarks import append, arrow, coalesce, commit, compaction, consume, publish, read, reopen, transactions, urgency, wake
from benchmarks.measure import (
    FULL,
    HEADINGS,
    OTHERS_CORES,
    QUICK,
    TINY,
    UNSTEADY,
    Bench,
    Group,
    OthersWatch,
    Row,
    file_system_of,
    is_in_memory,
    line_of,
    machine_facts,
    wait_until_quiet,
)

GROUPS: tuple[Group, ...] = (
    *append.GROUPS,
    *commit.GROUPS,
    *read.GROUPS,
    *arrow.GROUPS,
    *reopen.GROUPS,
    *coalesce.GROUPS,
    *publish.GROUPS,
    *consume.GROUPS,
    *wake.GROUPS,
    *transactions.GROUPS,
    *urgency.GROUPS,
    *compaction.GROUPS,
)
DIRECTORY = "/var/tmp"


def _chosen(names: list[str] | None) -> list[Group]:
    if not names:
        return list(GROUPS)
    known = {group.name for group in GROUPS}
    for name in names:
        if name not in known:
            raise SystemExit(f"no group is named {name!r}; there are: {', '.join(group.name for group in GROUPS)}")
    return [group for group in GROUPS if group.name in names]


def _measure(group: Group, bench: Bench) -> list[Row]:
    if group.is_durable and is_in_memory(bench.directory):
        reason = f"refused: {file_system_of(bench.directory)} makes nothing durable, use --directory"
        return [Row(name, [], "", refused=reason) for name in group.rows]
    rows: list[Row] = []
    try:
        rows.extend(group.run(bench))
    except Exception as error:  # noqa: BLE001 - the other rows are still worth having
        traceback.print_exc()
        done = {row.name for row in rows}
        reason = f"error: {type(error).__name__}: {error}"
        return [*rows, *[Row(name, [], "", refused=reason) for name in group.rows if name not in done]]
    assert tuple(row.name for row in rows) == group.rows
    return rows


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run", description="Measure the core against raw limits, the queue against others."
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="less of everything: about three minutes")
    size.add_argument("--tiny", action="store_true", help="hardly anything, to see that it runs; the figures mean nothing")
    parser.add_argument("--directory", default=DIRECTORY, help=f"where to write, on the disk to measure (default {DIRECTORY})")
    parser.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help=f"one group, may be repeated: {', '.join(group.name for group in GROUPS)}",
    )
    parser.add_argument("--json", metavar="FILE", help="also store facts, rows and every repeat")
    parser.add_argument(
        "--patience", type=float, default=0.0, metavar="SECONDS", help="wait so long for a quiet machine before each group"
    )
    parser.add_argument("--strict", action="store_true", help="exit with 1 if a target is missed")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run what the command line asks for; returns the exit code."""
    options = _parse(arguments)
    groups = _chosen(options.only)
    # So that files are removed when it is stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    bench = Bench(os.path.abspath(options.directory), TINY if options.tiny else QUICK if options.quick else FULL)
    facts = machine_facts(bench.directory)
    print("\n".join(f"{name}: {fact}" for name, fact in facts.items()), end="\n\n")
    print(line_of(HEADINGS))
    rows: list[Row] = []
    started = time.monotonic()
    for group in groups:
        wait_until_quiet(options.patience)
        watch = OthersWatch()
        measured = _measure(group, bench)
        others = watch.cores
        for row in measured:
            rows.append(replace(row, others=0.0 if row.refused else others))
            print(line_of(rows[-1].cells()), flush=True)
    verdicts = [row.verdict for row in rows]
    met, missed, refused, absent, broken = (verdicts.count(each) for each in ("pass", "miss", "refused", "absent", "error"))
    print(f"\n{met} targets met, {missed} missed", end="")
    for count, what in ((refused, "refused"), (absent, "without their peer"), (broken, "broken")):
        print(f", {count} rows {what}" if count else "", end="")
    print(f" ({time.monotonic() - started:.0f} s)")
    noisy = sum(row.is_noisy for row in rows)
    if noisy:
        print(
            f"{noisy} of {len(rows)} rows are noisy and prove nothing: their raw limit moved by more than {UNSTEADY:g}x, "
            f"or others used more than {OTHERS_CORES:g} cores"
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"facts": facts, "rows": [row.to_json() for row in rows]}, file, indent=1)
    return 1 if broken or (options.strict and missed) else 0


if __name__ == "__main__":
    sys.exit(main())
