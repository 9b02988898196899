"""What the soak judges by."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from tests.soak.vitals import growth, look

if TYPE_CHECKING:
    from pathlib import Path


def test_what_levels_off_has_not_grown_and_a_steady_leak_has() -> None:
    levels_off = [*range(0, 400, 10), *[400] * 160]
    assert growth(levels_off) == 0
    assert growth([10 * at for at in range(200)]) == pytest.approx(800, abs=20)


def test_a_peak_of_a_moment_says_nothing() -> None:
    assert growth([*[5] * 195, 1000, 1000, 1000, 5, 5]) == 0


def test_too_few_looks_are_not_judged() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth([1, 2, 3])


def test_a_look_sees_descriptors_threads_memory_and_disk(tmp_path: Path) -> None:
    before = look(os.getpid(), tmp_path)
    held = bytearray(b"x" * (16 << 20))
    (tmp_path / "file").write_bytes(b"x" * (1 << 20))
    (tmp_path / "t.dlq").mkdir()
    (tmp_path / "t.dlq" / "file").write_bytes(b"x" * (1 << 20))
    ends = threading.Event()
    thread = threading.Thread(target=ends.wait)
    thread.start()
    with (tmp_path / "file").open("rb"):
        after = look(os.getpid(), tmp_path)
    ends.set()
    thread.join()
    assert after.anonymous_kib - before.anonymous_kib >= len(held) // 1024 - 2048
    assert after.descriptors > before.descriptors
    assert after.threads > before.threads
    assert 1024 <= after.disk_kib - before.disk_kib < 2048
