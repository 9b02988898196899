"""
The plots of docs/benchmarks.md, made from the results that are checked in: `python -m benchmarks.plot`.

benchmarks/results/NAME.json becomes docs/benchmarks/NAME.svg. It needs nothing but Python, and always makes the same bytes of the same
results, so a test can say whether a plot is up to date; `--check` says it too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.measure import OTHERS_CORES, UNSTEADY
from benchmarks.queue_peers import PEERS as QUEUES
from benchmarks.server_peers import TITLES
from benchmarks.server_report import ServerRow, svg_plot

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESULTS = os.path.join(ROOT, "benchmarks", "results")
PLOTS = os.path.join(ROOT, "docs", "benchmarks")

QUEUE_ROWS = {
    "fsync": "durable publish, 64 threads",
    "os": "publish, survives SIGKILL",
    "many": "publish_many, 1000 at once",
    "get": "get and durable ack, one by one",
    "get-many": "get_many(100), one durable ack",
}
"""The rows of `benchmarks.run` with a figure for each peer, by what their names begin with."""


def server_plot(stored: dict[str, Any]) -> str:
    """Our server and others."""
    return svg_plot([ServerRow.from_json(row) for row in stored["rows"]], TITLES)


def queue_plot(stored: dict[str, Any]) -> str:
    """Our embedded queue and others."""
    titles = {"penstock": "Penstock", **{peer.name: peer.name for peer in QUEUES}}
    by_name = {row["name"]: row for row in stored["rows"]}
    rows = []
    for prefix, title in QUEUE_ROWS.items():
        row = ServerRow(prefix, title)
        for peer in QUEUES:
            found = by_name.get(f"{prefix}-{peer.name}")
            if found is not None and found["value"] is not None:
                theirs = float(found["peer_per_second"])
                # Each repeat as ours to theirs, in turns; the peer's rate is the median of all.
                row.pairs[peer.name] = [(ratio * theirs, theirs) for ratio in found["values"]]
        rows.append(row)
    noisy = sum(
        row.get("unsteadiness", 1.0) > UNSTEADY or row.get("cores_of_others", 0.0) > OTHERS_CORES for row in by_name.values()
    )
    heading = "Embedded queues on one disk; messages of 100 bytes"
    if noisy:
        heading += f"; others used the machine: {noisy} of {len(by_name)} rows are noisy"
    return svg_plot(rows, titles, heading=heading, label="Penstock and other embedded queues of Python")


class Plot(NamedTuple):
    """A plot, and the results that it is made of."""

    name: str
    draw: Callable[[dict[str, Any]], str]

    @property
    def source(self) -> str:
        """The results."""
        return os.path.join(RESULTS, f"{self.name}.json")

    @property
    def path(self) -> str:
        """The plot."""
        return os.path.join(PLOTS, f"{self.name}.svg")

    def drawn(self) -> str:
        """The plot as it should be."""
        with open(self.source, encoding="utf-8") as file:
            return self.draw(json.load(file))

    @property
    def is_current(self) -> bool:
        """Whether the plot that is there is that of the results."""
        try:
            with open(self.path, encoding="utf-8") as file:
                return file.read() == self.drawn()
        except FileNotFoundError:
            return False

    def write(self) -> None:
        """Make it anew."""
        os.makedirs(PLOTS, exist_ok=True)
        drawn = self.drawn()
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(drawn)


ALL = (Plot("server", server_plot), Plot("queue", queue_plot))


def main(arguments: list[str] | None = None) -> int:
    """Make the plots; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plot", description="Make the plots of the results that are stored."
    )
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date; exit with 1 if one is not")
    options = parser.parse_args(arguments)
    stale = [plot for plot in ALL if not plot.is_current]
    for plot in stale:
        if options.check:
            print(f"{os.path.relpath(plot.path, ROOT)} is not that of {os.path.relpath(plot.source, ROOT)}")
        else:
            plot.write()
            print(f"wrote {os.path.relpath(plot.path, ROOT)}")
    return 1 if stale and options.check else 0


if __name__ == "__main__":
    sys.exit(main())
