"""
Makes a store with many topics, each with a message, quickly: without waiting for the disk, which is not what is measured.

Run as a process of its own; prints what it took, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time


def _no_sync(descriptor: int) -> None:
    """As on a disk that is quick."""


def main() -> None:
    """Arguments: the folder, and how many."""
    path, count = sys.argv[1], int(sys.argv[2])
    os.fsync = os.fdatasync = _no_sync  # type: ignore[assignment]
    import penstock

    creating_s = []
    descriptors_max = 0
    with penstock.open(path) as store:
        for number in range(count):
            begun_s = time.process_time()
            store.create_topic(f"t{number}")
            creating_s.append(time.process_time() - begun_s)
        for number in range(count):
            store.publish(f"t{number}", b"%d" % number)
            if number % 100 == 0:
                descriptors_max = max(descriptors_max, len(os.listdir("/proc/self/fd")))
    tenth = count // 10
    print(
        json.dumps(
            {
                "first_s": sum(creating_s[:tenth]) / tenth,
                "last_s": sum(creating_s[-tenth:]) / tenth,
                "descriptors_max": descriptors_max,
            }
        )
    )


if __name__ == "__main__":
    main()
