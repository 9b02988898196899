"""What the docstrings of the package show happens."""

from __future__ import annotations

import ast
import doctest
import re

import pytest

import penstock
from penstock import aio, database
from tests.docs.pages import ROOT, blocks


@pytest.mark.parametrize("module", [penstock, aio, database], ids=lambda module: module.__name__)
def test_the_examples_in_a_docstring_are_true(module) -> None:
    """Each line is run, and what it prints is compared."""
    found = doctest.testmod(module)
    assert found.attempted >= 3
    assert found.failed == 0


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/how-to.md"])
def test_a_page_to_type_along_has_code(page: str) -> None:
    """Else the test that runs the code of pages would have nothing to run there."""
    assert len(blocks((ROOT / page).read_text(), "python")) >= 10


@pytest.mark.parametrize(
    "name",
    [
        "async_queue", "database_consumer", "dead_letters", "deduplication", "demo", "metrics", "ordered", "outbox", "producer_consumer",
        "queue_face", "replay", "server", "simple", "tracing", "transactions", "workers",
    ],
)  # fmt: skip
def test_each_feature_has_an_example(name: str) -> None:
    """`test_an_example_runs_to_its_end` runs all that are there; these are there."""
    text = (ROOT / "examples" / f"{name}.py").read_text()
    assert text.startswith('"""')
    assert "assert " in text, "an example checks what it shows"


def test_the_list_of_examples_has_each_with_its_first_line() -> None:
    """In the order in which to read them."""
    listed = dict(
        re.findall(r"^\| \[`(\w+)\.py`\]\(\1\.py\) \| (.*) \|$", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    )
    first = {
        path.stem: (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
        for path in (ROOT / "examples").glob("*.py")
    }
    assert listed == first
