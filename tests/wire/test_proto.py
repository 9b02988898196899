"""The generated code that is checked in is that of the proto, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.docs.pages import ROOT, SOURCE

if TYPE_CHECKING:
    from pathlib import Path


def test_the_generated_code_is_that_of_the_proto(tmp_path: Path) -> None:
    """If this fails: scripts/generate-grpc, and check in what it wrote."""
    environment = {"PYTHON": sys.executable, "PATH": "/bin:/usr/bin"}
    subprocess.run([ROOT / "scripts" / "generate-grpc", str(tmp_path)], check=True, capture_output=True, env=environment)
    made = {path.relative_to(tmp_path / "penstock"): path.read_text() for path in tmp_path.rglob("penstock_pb2*")}
    assert len(made) == 3
    assert made == {path: (SOURCE / path).read_text() for path in made}
