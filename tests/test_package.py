"""The package as a whole."""

import importlib.metadata

import penstock


def test_version_is_the_same_in_code_and_metadata() -> None:
    """`penstock.__version__` is the version that pip knows."""
    assert penstock.__version__ == importlib.metadata.version("penstock")
