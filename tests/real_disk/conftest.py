"""What the tests of this folder share: a folder on a real disk, or a reason to be skipped."""

from __future__ import annotations

import shutil
import tempfile
from typing import TYPE_CHECKING

import pytest

from tests.real_disk.loop_disk import MemoryFileSystem, missing_for_crash_tests, missing_for_kind, refuse_memory

if TYPE_CHECKING:
    import pathlib
    from collections.abc import Iterator


@pytest.fixture
def folder(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """An empty folder on a real disk, for images and histories; emptied at the end, since images are large."""
    reason = missing_for_crash_tests()
    if reason is not None:
        pytest.skip(reason)
    chosen = str(tmp_path)
    try:
        refuse_memory(chosen)
    except MemoryFileSystem:
        chosen = tempfile.mkdtemp(dir="/var/tmp")
        try:
            refuse_memory(chosen)
        except MemoryFileSystem as error:
            shutil.rmtree(chosen)
            pytest.skip(str(error))
    try:
        # Nearly every test needs ext4; one that is about another kind says so in its parameters.
        callspec = getattr(request.node, "callspec", None)
        reason = missing_for_kind("ext4" if callspec is None else callspec.params.get("kind", "ext4"), chosen)
        if reason is not None:
            pytest.skip(reason)
        yield chosen
    finally:
        shutil.rmtree(chosen, ignore_errors=True)
