"""The pages about Spark are true."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(("page", "shows"), [("spark.md", "|user-0|   250| 1499|"), ("pipelines.md", "")])
def test_the_python_of_a_page_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], page: str, shows: str
) -> None:
    """Where Spark was started, which is what relative paths are relative to, in the code of the page as for Spark itself."""
    jvm = spark._jvm
    assert jvm is not None
    monkeypatch.chdir(jvm.java.lang.System.getProperty("user.dir"))
    for folder in ("data", "archive"):
        shutil.rmtree(folder, ignore_errors=True)
    names: dict[str, object] = {}
    for number, block in enumerate(blocks((ROOT / "docs" / page).read_text(), "python"), 1):
        exec(compile(block, f"docs/{page} block {number}", "exec"), names)
    assert shows in capfd.readouterr().out
