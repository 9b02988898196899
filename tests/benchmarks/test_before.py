"""The comparison with an earlier commit runs, says whether its limits are met, and writes its table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import before
from benchmarks.before import CallsRow, Row, Turn

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]


def row(ratios: Sequence[float]) -> Row:
    return Row("publish", "folder", [Turn(1e-6, 1e-6) for _ in ratios], [Turn(1e-6 * ratio, 2e-6) for ratio in ratios])


def test_the_median_of_the_ratios_is_held_against_the_limit() -> None:
    assert row([1.0, 1.09, 5.0]).is_met
    missed = row([1.0, 1.11, 1.2])
    assert not missed.is_met
    assert missed.cells() == ["publish", "folder", "1 us", "1.11 us", "1.110", "1.00..1.20", "2.000", "<= 1.10", "missed"]


def test_more_system_calls_than_before_are_missed() -> None:
    assert CallsRow("publish", 3.0, 3.0).is_met
    assert not CallsRow("publish", 3.0, 3.1).is_met


def test_the_table_goes_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{before.BEGIN}\nearlier figures\n{before.END}\nbelow\n")
    for _ in range(2):
        before.write_page(before.table([row([1.0])], [CallsRow("send", 1, 1)], {"cores": "2"}, "4f29132"), page)
    text = page.read_text()
    assert text.startswith(f"above\n{before.BEGIN}\n\nNow and 4f29132: cores 2.\n\n| row | topic in |")
    assert text.endswith(f"{before.END}\nbelow\n")
    assert text.count("| publish | folder |") == text.count("| send | 1.0000 | 1.0000 | met |") == 1
    assert "earlier figures" not in text
    assert before.BEGIN in before.PAGE.read_text()
    assert before.END in before.PAGE.read_text()


def test_a_commit_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="cannot be had"):
        before.unpack("no-such-commit", tmp_path)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository")
@pytest.mark.parametrize("names", [["get_many and ack"], pytest.param(list(before.MESSAGES), marks=pytest.mark.long)])
def test_rows_are_measured_on_both_sides(tmp_path: Path, names: list[str]) -> None:
    """With hardly any messages: the figures mean nothing, and so does which limits are met."""
    found = tmp_path / "found.json"
    work = tmp_path / "work"
    work.mkdir()
    options = [option for name in names for option in ("--only", name)]
    options += ["--processes", "1", "--turns", "1", "--share", "0.001", "--no-calls"]
    options += ["--directory", str(work), "--json", str(found)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.before", *options], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    stored = json.loads(found.read_text())
    assert [(one["name"], one["place"]) for one in stored["rows"]] == [
        (name, place) for name in names for place in before.PLACES
    ]
    assert done.returncode == int(not all(one["met"] for one in stored["rows"]))
    assert not list(work.iterdir())
