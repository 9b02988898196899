"""The pages about Spark are true."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    ("page", "language", "shows"),
    [
        ("README.md", "py", "|ada|/cart|     0|"),
        ("docs/spark.md", "python", "|user-0|   250| 1499|"),
        ("docs/pipelines.md", "python", ""),
    ],
)
def test_the_python_of_a_page_runs(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    page: str,
    language: str,
    shows: str,
) -> None:
    """Where Spark was started, which is what relative paths are relative to, in the code of the page as for Spark itself."""
    jvm = spark._jvm
    assert jvm is not None
    monkeypatch.chdir(jvm.java.lang.System.getProperty("user.dir"))
    for folder in ("data", "archive", "checkpoint"):
        shutil.rmtree(folder, ignore_errors=True)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks((ROOT / page).read_text(), language), 1):
        exec(compile(block, f"{page} block {number}", "exec"), names)
    assert shows in capfd.readouterr().out
