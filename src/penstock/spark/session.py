"""A Spark session with what the data source wants: a Java, this Python for its workers, which start quickly, and UTC."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from penstock.spark.home import quick_home
from penstock.spark.java import ensure_java

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.ui.showConsoleProgress": "false",
}


def get_session(
    name: str = "penstock", *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """
    The session of this process, made if there is none: on *master*, or on what Spark's own configuration says, else on all cores here.

    *settings* are Spark's. Raises `Unavailable` if there is no Java.
    """
    from pyspark.sql import SparkSession

    ensure_java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    if master is not None and master.startswith("local"):
        # Nobody else has to reach it.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        home = quick_home() if "SPARK_HOME" not in os.environ else None
        if home is not None:
            os.environ["SPARK_HOME"] = home
    if master is not None:
        builder = builder.master(master)
    for key, value in {**_SETTINGS, **(settings or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
