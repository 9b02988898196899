"""
What sharing a folder costs who does not share it, and who does: `python -m benchmarks.sharing`.

Opening and closing with and without a door in turns, so that a busy machine slows both; then publishes of an owner and of a sibling,
in turns too. The ratio is the figure; the times are of this machine and this moment.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="penstock-sharing-") as folder:
        path = Path(folder) / "store"
        penstock.open(path).close()
        for what, clock in (("elapsed", time.perf_counter), ("processor", time.process_time)):
            times: dict[bool, list[float]] = {True: [], False: []}
            for number in range(2 * rounds):
                share = number % 2 == 0
                begun = clock()
                penstock.open(path, share=share).close()
                times[share].append(clock() - begun)
            shared, alone = (statistics.median(times[share]) * 1e3 for share in (True, False))
            print(f"open and close, {what}: {alone:.2f} ms alone, {shared:.2f} ms shared, ratio {shared / alone:.3f}")
        with penstock.open(path) as owner, penstock.open(path) as sibling:
            taken: list[list[float]] = [[], []]
            for number in range(2 * rounds):
                begun = time.perf_counter()
                (owner, sibling)[number % 2].publish("t", b"x" * 100)
                taken[number % 2].append(time.perf_counter() - begun)
            own, others = (statistics.median(one) * 1e3 for one in taken)
            print(f"publish: {own:.2f} ms by the owner, {others:.2f} ms by a sibling")


if __name__ == "__main__":
    main()
