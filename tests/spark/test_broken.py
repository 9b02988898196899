"""Tests that meet a fault of Spark are run again, and no others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.broken import LATE, TRIES, USELESS, patiently, says
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVAS: list[int] = []


def test_only_two_faults_are_tried_again() -> None:
    """So many times, also where another error tells of them; what else fails fails at once."""
    for fault in (LATE, USELESS):
        left = [fault] * (TRIES - 1)

        def work(left: list[str] = left) -> str:
            if left:
                raise ValueError("ours") from RuntimeError(f"Python {left.pop()} in time")
            return "done"

        seen: list[Exception] = []
        assert patiently(work, seen.append) == "done"
        assert len(seen) == TRIES - 1
        assert says(seen[0], fault)
        left += [fault] * TRIES
        with pytest.raises(ValueError, match="ours"):
            patiently(work)
        assert not left

    def wrong() -> None:
        seen.append(ValueError())
        raise ValueError("of the test")

    seen.clear()
    with pytest.raises(ValueError, match="of the test"):
        patiently(wrong)
    assert len(seen) == 1


@pytest.mark.long
def test_a_test_that_met_a_fault_begins_again(spark: SparkSession, path: str, tmp_path: Path) -> None:
    """With an empty folder, and another Java where the old one is of no use; that one ends."""
    jvm = spark._jvm
    assert jvm is not None
    JAVAS.append(jvm.java.lang.ProcessHandle.current().pid())
    assert sorted(os.listdir(tmp_path)) == ["store"]
    with open_store(path) as store:
        assert not store.topics()
        store.publish("t", b"1")
    assert spark.range(3).count() == 3
    if len(JAVAS) < 3:
        raise RuntimeError([LATE, USELESS][len(JAVAS) - 1])
    assert JAVAS[0] == JAVAS[1] != JAVAS[2]
    assert not Path(f"/proc/{JAVAS[0]}").exists()
