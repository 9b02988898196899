"""One Spark for all tests of a process, and stores for them."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from penstock.settings import StoreSettings
from penstock.spark.session import get_session
from penstock.store.store import Store
from tests.docs.pages import ROOT
from tests.spark.broken import USELESS, patiently, says

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


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that one of Spark's two faults ended is run again, with its folder empty; and with another Java where nothing else helps."""
    if "spark" not in pyfuncitem.fixturenames:
        return None
    given: dict[str, Any] = pyfuncitem.funcargs

    def work() -> None:
        pyfuncitem.obj(**{name: given[name] for name in pyfuncitem._fixtureinfo.argnames})

    def again(error: Exception) -> None:
        print(f"a fault of Spark, so the test is run again: {error}")
        given["spark"] = given["sessions"].renew(another=says(error, USELESS))
        if "tmp_path" in given:
            shutil.rmtree(given["tmp_path"])
            given["tmp_path"].mkdir()
        if "path" in given:
            open_store(given["path"]).close()

    patiently(work, again)
    return True


class Sessions:
    """The session of a process, with two cores, whose tasks are tried three times. Its Java, and its Python processes, work in *folder*."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """The one that there is, made if there is none."""
        if self._session is None:
            folder = self._folder
            places = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                patch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
                self._session = get_session("tests", master="local[2,3]", settings={**SETTINGS, **places})
        return self._session

    def renew(self, *, another: bool) -> SparkSession:
        """The same without the queries that run; or another one, of another Java."""
        for query in self.get().streams.active:
            query.stop()
        if another:
            from pyspark import SparkContext

            self.close()
            gateway: Any = SparkContext._gateway
            SparkContext._gateway = SparkContext._jvm = None
            gateway.shutdown()
            gateway.proc.stdin.close()  # it ends with that
            gateway.proc.wait()
        return self.get()

    def close(self) -> None:
        if self._session is not None:
            self._session.stop()
            self._session = None


@pytest.fixture(scope="session")
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sessions]:
    """One for all tests."""
    found = Sessions(tmp_path_factory.mktemp("spark"))
    yield found
    found.close()


@pytest.fixture
def spark(sessions: Sessions) -> SparkSession:
    """Its session."""
    return sessions.get()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The folder of a new, empty store."""
    place = str(tmp_path / "store")
    open_store(place).close()
    return place


def open_store(path: str, **options: Any) -> Store:
    """Own the store in *path*."""
    return Store.open(path, settings=SMALL, **options)
