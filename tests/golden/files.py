"""Where golden files are, and how missing ones are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.testing import SimulatedFileSystem

FOLDER = Path(__file__).parent
REGENERATE_VARIABLE = "PENSTOCK_REGENERATE_GOLDEN"


def may_write() -> bool:
    """Whether missing files are to be written."""
    return os.environ.get(REGENERATE_VARIABLE) == "1"


def golden(name: str, encoded: bytes) -> bytes:
    """The bytes of a golden file; a missing one is made from *encoded* if that was ordered."""
    path = FOLDER / name
    if not path.exists():
        assert may_write(), f"{path} is missing; {REGENERATE_VARIABLE}=1 writes it"
        path.write_bytes(encoded)
    return path.read_bytes()


def write_files(folder: Path, files: SimulatedFileSystem) -> None:
    """Write the store that lies in `/store` of *files*, without `LOCK`, `positions` and `hands`, which name a process and a boot."""
    for path, content in files.files().items():
        if not path.endswith(("/LOCK", "/positions", "/hands")):
            target = folder / path.removeprefix("/store/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
