"""The example of `make demo`."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from tests.docs.pages import ROOT


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.xdist_group("spark")
def test_the_pipeline_of_the_demo_shows_a_table_and_a_picture() -> None:
    """It checks its own numbers; run again it does the same, since nothing but the picture is left of it."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "spark" / "pipeline.py")],
        capture_output=True,
        text=True,
        timeout=840,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\| ada  \| +\d+ \| +\d+ \|$", done.stdout, re.MULTILINE)
    assert "20,000 messages, and 0 when it was run again" in done.stdout
    assert "█" in done.stdout
    found = re.search(r"^The picture: (.*)$", done.stdout, re.MULTILINE)
    assert found is not None
    bars = [one for one in ET.parse(found[1]).iter("{http://www.w3.org/2000/svg}rect") if float(one.attrib["width"]) > 20]
    assert len(bars) > 24
