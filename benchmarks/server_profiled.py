"""
`penstock serve` under cProfile: `python -m benchmarks.server_profiled FILE ARGUMENTS...`.

SIGUSR1 begins, and the next SIGUSR1 ends and stores the profile in FILE; so starting and stopping are not in it. It sees the thread of
the event loop, not those that sync and read files.
"""

from __future__ import annotations

import cProfile
import os
import signal
import sys

from penstock.cli.__main__ import main


def _listen(path: str) -> None:
    profile = cProfile.Profile()
    runs = False

    def switch(*_: object) -> None:
        nonlocal runs
        runs = not runs
        if runs:
            profile.enable()
        else:
            profile.disable()
            profile.dump_stats(f"{path}.new")
            os.replace(f"{path}.new", path)

    signal.signal(signal.SIGUSR1, switch)


if __name__ == "__main__":
    _listen(sys.argv[1])
    sys.argv[1:] = sys.argv[2:]
    sys.exit(main())
