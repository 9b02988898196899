"""
A SPARK_HOME whose Python processes start in a quarter of the time.

Spark lets its Python processes import PySpark from `python/lib/pyspark.zip`, and Python keeps no compiled code for what comes from a zip:
each process compiles all of it again, a second of processor time, and a streaming query fails if that takes longer than ten seconds on a
busy machine. A folder of that name that holds the installed package is imported like any other.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile

from penstock.spark.cache import cache_folder


def quick_home() -> str | None:
    """The folder, made of links into the installed PySpark; None where it cannot be made, or PySpark is no folder of that form."""
    import pyspark

    installed = os.path.dirname(os.path.abspath(pyspark.__file__))
    archive = os.path.join(installed, "python", "lib", "pyspark.zip")
    if not os.path.isfile(archive):
        return None
    name = hashlib.sha256(f"{installed} {pyspark.__version__} {os.stat(archive).st_mtime_ns}".encode()).hexdigest()[:16]
    home = os.path.join(cache_folder("spark"), name)
    if os.path.isdir(home):
        return home
    with contextlib.suppress(OSError):
        building = tempfile.mkdtemp(dir=os.path.dirname(home))
        try:
            _link_all(installed, building, but="python")
            library = os.path.join(building, "python", "lib")
            os.makedirs(os.path.join(library, "pyspark.zip"))
            os.symlink(installed, os.path.join(library, "pyspark.zip", "pyspark"))
            _link_all(os.path.join(installed, "python"), os.path.join(building, "python"), but="lib")
            _link_all(os.path.join(installed, "python", "lib"), library, but="pyspark.zip")
            os.rename(building, home)
        except FileExistsError:
            shutil.rmtree(building)  # another process was faster
        except OSError:
            shutil.rmtree(building, ignore_errors=True)
            if not os.path.isdir(home):
                raise
        return home
    return None


def _link_all(source: str, target: str, *, but: str) -> None:
    for name in os.listdir(source):
        if name != but:
            os.symlink(os.path.join(source, name), os.path.join(target, name))
