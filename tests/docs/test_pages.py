"""The documents are true: their code runs, their links lead somewhere, what they name exists."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import PAGES, ROOT, SOURCE, blocks, name_of, prose

if TYPE_CHECKING:
    from pathlib import Path

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


RUNNING = [
    # The pages about Spark are run by tests/spark.
    pytest.param(page, id=name_of(page))
    for page in PAGES
    if blocks(page.read_text(), "python") and page.name not in ("spark.md", "pipelines.md")
]


@pytest.mark.parametrize("page", RUNNING)
def test_the_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page, one after the other, as a reader would type them into an empty folder."""
    monkeypatch.chdir(tmp_path)
    # A page may show how to add one.
    monkeypatch.setattr(logging.getLogger("penstock"), "handlers", [])
    names: dict[str, object] = {}
    for number, block in enumerate(blocks(page.read_text(), "python"), 1):
        exec(compile(block, f"{name_of(page)} block {number}", "exec"), names)


def test_the_readme_has_a_tour() -> None:
    """Else the test above would have nothing to run."""
    assert len(blocks((ROOT / "README.md").read_text(), "python")) >= 5


def headings(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings."""
    found = re.findall(r"^#+ (.*)$", prose(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_to_files_and_headings_resolve(page: Path) -> None:
    """A relative link leads to a file of the project, and its anchor to a heading there."""
    broken = []
    for link in LINK.findall(prose(page.read_text())):
        target, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        path = (page.parent / target).resolve() if target else page
        if not path.exists() or (anchor and anchor not in headings(path)):
            broken.append(link)
    assert not broken


def test_every_page_can_be_reached_from_the_index() -> None:
    """docs/index.md links every page, or a page that does."""
    reached: set[Path] = set()
    waiting = [ROOT / "docs" / "index.md"]
    while waiting:
        page = waiting.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        links = [link.partition("#")[0] for link in LINK.findall(prose(page.read_text())) if not re.match(r"[a-z]+:", link)]
        waiting += [(page.parent / link).resolve() for link in links if link]
    assert set(PAGES) <= reached


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_and_tests_that_a_page_names_exist(page: Path) -> None:
    """`journal/journal.py` and `test_this_and_that` in backquotes are files and tests of the project."""
    words = re.findall(r"`([^`\n]+)`", prose(page.read_text()))
    paths = [word for word in words if re.fullmatch(r"[\w/]+\.py", word)]
    missing = [path for path in paths if not any((folder / path).exists() for folder in (ROOT, SOURCE, page.parent))]
    assert not missing
    if page.name == "CONTRIBUTING.md":
        return  # It invents names of tests as examples.
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert not [word for word in words if re.fullmatch(r"test_\w+", word) and f"def {word}(" not in sources]


def test_the_list_of_decisions_is_complete() -> None:
    """Each decision is in the index with its title, and has a date, a status and its three parts."""
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    for number, page in enumerate(sorted(folder.glob("[0-9]*.md")), 1):
        text = page.read_text()
        title = text.splitlines()[0].removeprefix(f"# {page.name[:4]}: ")
        status = re.search(r"^- Status: (\w+)", text, re.MULTILINE)
        assert int(page.name[:4]) == number
        assert status is not None
        assert re.search(r"^- Date: \d{4}-\d{2}-\d{2}$", text, re.MULTILINE)
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]
        assert f"| [{page.name[:4]}]({page.name}) | {title} | {status[1]}" in index


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=name_of)
def test_an_example_runs_to_its_end(script: Path, tmp_path: Path) -> None:
    """As a user would start it, with its temporary files in a folder that is empty again afterwards."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env={"TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=240, check=False
    )  # fmt: skip
    print(f"{time.monotonic() - started:.1f} s\n{done.stdout}")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("missing", ["opentelemetry.sdk", "opentelemetry"])
def test_the_example_of_tracing_says_in_one_line_what_it_needs(missing: str) -> None:
    """Where the SDK, or the API too, is not installed."""
    program = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_path({str(ROOT / 'examples' / 'tracing.py')!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "pip install opentelemetry-sdk" in done.stderr
