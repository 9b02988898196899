"""The package as a whole."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import json
import subprocess
import sys

import pytest

import penstock


def test_version_is_the_same_in_code_and_metadata() -> None:
    """`penstock.__version__` is the version that pip knows."""
    assert penstock.__version__ == importlib.metadata.version("penstock")


def _declared() -> dict[str, tuple[str, str]]:
    """The module and name behind each public name, as type checkers read them."""
    assert penstock.__file__ is not None
    with open(penstock.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        name.asname or name.name: (node.module or "", name.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def test_every_public_name_is_declared_for_type_checkers() -> None:
    assert sorted(_declared()) == sorted(penstock.__all__)


@pytest.mark.parametrize("name", penstock.__all__)
def test_a_public_name_is_what_type_checkers_take_it_for(name: str) -> None:
    module, inner = _declared()[name]
    expected = (
        importlib.import_module("penstock.errors") if name == "errors" else getattr(importlib.import_module(module), inner)
    )
    assert getattr(penstock, name) is expected
    assert name in dir(penstock)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Storre'"):
        penstock.Storre  # noqa: B018 - the look-up is what fails
    with pytest.raises(ImportError, match="Storre"):
        exec("from penstock import Storre")


def _loaded_by(program: str) -> set[str]:
    """The modules that *program* loads in a new process."""
    run = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(json.loads(run.stdout))


def test_importing_the_package_loads_none_of_its_modules() -> None:
    """Each public name is loaded when it is first used."""
    assert [name for name in _loaded_by("import penstock") if name.startswith("penstock.")] == []


def test_opening_a_store_of_ones_own_loads_neither_client_nor_server() -> None:
    loaded = _loaded_by('import penstock\npenstock.open("memory:").close()')
    assert "penstock.store.store" in loaded
    assert loaded.isdisjoint(
        {"penstock.client.store", "penstock.client.connection", "penstock.broker", "penstock.server", "grpc"}
    )


def test_the_errors_can_be_named_without_importing_them() -> None:
    """As in ``except penstock.errors.StoreLocked``."""
    assert "penstock.errors" in _loaded_by("import penstock\npenstock.errors.StoreLocked")
