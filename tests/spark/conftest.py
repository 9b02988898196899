"""One Spark for all tests of a process, and stores for them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from penstock.settings import StoreSettings
from penstock.spark.session import get_session
from penstock.store.store import Store
from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SMALL = StoreSettings(
    journal_file_bytes=1024 * 1024, frame_bytes=256 * 1024, reference_bytes=64 * 1024, free_bytes_floor=0, reserve_bytes=0,
    retention_interval_ms=86_400_000,
)  # fmt: skip
"""Small files, so that stores are made in milliseconds. Retention and compaction come when a test calls for them, and not before."""
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.adaptive.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.log.level": "ERROR",
}
"""Quick to start, and quick with few rows."""


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All on one process, where tests run on several: each would start a Java of its own."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores, whose tasks are tried three times. Its Java works in a folder of its own, as do its Python processes."""
    folder = tmp_path_factory.mktemp("spark")
    places = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
        session = get_session("tests", master="local[2,3]", settings={**SETTINGS, **places})
    yield session
    session.stop()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The folder of a new, empty store."""
    place = str(tmp_path / "store")
    open_store(place).close()
    return place


def open_store(path: str, **options: Any) -> Store:
    """Own the store in *path*."""
    return Store.open(path, settings=SMALL, **options)
