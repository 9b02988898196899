"""Where what Spark needs is kept between runs: small files that are made again when they are gone."""

from __future__ import annotations

import contextlib
import os
import tempfile


def cache_folder(name: str) -> str:
    """A folder for *name*, in the user's cache if it can be written, else one of this process."""
    chosen = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "penstock", name)
    with contextlib.suppress(OSError):
        os.makedirs(chosen, exist_ok=True)
        if os.access(chosen, os.W_OK):
            return chosen
    return tempfile.mkdtemp(prefix=f"penstock-{name}-")
