"""The page about Spark is true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


def test_the_python_of_the_page_runs(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Where Spark was started, which is what relative paths are relative to, in the code of the page as for Spark itself."""
    jvm = spark._jvm
    assert jvm is not None
    monkeypatch.chdir(jvm.java.lang.System.getProperty("user.dir"))
    names: dict[str, object] = {}
    for number, block in enumerate(blocks((ROOT / "docs" / "spark.md").read_text(), "python"), 1):
        exec(compile(block, f"docs/spark.md block {number}", "exec"), names)
    assert "|user-0|   250| 1499|" in capfd.readouterr().out
