"""A Spark session with what the data source wants: a Java, this Python for its workers, which start quickly, and UTC."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING

from penstock.spark.home import quick_home
from penstock.spark.java import ensure_java, quiet_home

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

# Not spark.python.unix.domain.socket.enabled: a tenth more rows a second, and a traceback of a broken pipe at the end of many a query,
# from processes that do not go by spark.python.daemon.module.
_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS = "spark.driver.defaultJavaOptions"


def get_session(
    name: str = "penstock", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """
    The session of this process, made if there is none: on *master*, or on what Spark's own configuration says, else on all cores here.

    It logs warnings and errors, and nothing about its start; a `log4j2.properties` in SPARK_CONF_DIR counts more. A SQL error is told by
    its exception alone. *settings* are Spark's. Raises `Unavailable` if there is no Java.
    """
    from pyspark.sql import SparkSession

    java = ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None and master.startswith("local"):
        # Nobody else has to reach it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ["JAVA_HOME"] = quiet_home(java)
        home = quick_home() if "SPARK_HOME" not in os.environ else None
        if home is not None:
            os.environ["SPARK_HOME"] = home
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **_quiet(), **_daemon(master), **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _daemon(master: str | None) -> dict[str, str]:
    """
    The daemon that ends workers in silence when Spark hangs up on them: see `daemon.py`.

    On a cluster, or with another Python than this one, the workers may have no Penstock, or an older one, and would not start.
    """
    from pyspark import daemon

    is_here = master is not None and master.startswith("local") and os.environ.get("PYSPARK_PYTHON") == sys.executable
    if not (is_here and hasattr(daemon, "worker") and hasattr(daemon, "manager")):
        return {}
    return {"spark.python.daemon.module": "penstock.spark.daemon"}


def _quiet() -> dict[str, str]:
    """What keeps Spark from talking where nothing is wrong."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They print an exception that is raised anyway as JSON, with ten kilobytes of Java's stack.
        logger = PySparkLogger.getLogger(name)
        if logger.level == logging.WARNING:
            logger.setLevel(logging.CRITICAL)
    homes = [os.environ.get("SPARK_CONF_DIR"), os.path.join(os.environ.get("SPARK_HOME", ""), "conf")]
    if any(folder and os.path.exists(os.path.join(folder, "log4j2.properties")) for folder in homes):
        return {}
    return {_JAVA_OPTIONS: f'"-Dlog4j2.configurationFile=file:{os.path.join(os.path.dirname(__file__), "log4j2.properties")}"'}
