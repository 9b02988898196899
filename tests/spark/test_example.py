"""The example of `make demo`."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.docs.pages import ROOT


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_the_pipeline_of_the_demo_shows_a_table() -> None:
    """It checks its own numbers."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark" / "pipeline.py")],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "|user-0|  2000|145000|  2000|" in done.stdout
