"""One partition's log: segments, index, recovery, retention."""
