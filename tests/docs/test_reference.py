"""The pages of settings and errors say what the code says, and nothing else."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import TYPE_CHECKING, Any

import pytest

from penstock import errors
from penstock.errors import PenstockError
from penstock.settings import (
    GROUP_SETTINGS,
    STORE_SETTINGS,
    TOPIC_SETTINGS,
    GroupSettings,
    Setting,
    StoreSettings,
    TopicSettings,
)
from penstock.values import KIB, MIB
from tests.docs.pages import ROOT, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS_PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text()
ERRORS_PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()


def shown(value: object, unit: str) -> str:
    """A value as the page writes it."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, int):
        return f"`{value}`"
    for size, name in ((MIB, "MiB"), (KIB, "KiB")):
        if unit == "bytes" and value and value % size == 0:
            return f"{value // size:,} {name}"
    return f"{value:,}"


def row_of(setting: Setting) -> list[str]:
    limits = [shown(limit, setting.unit) for limit in (setting.least, setting.most)]
    return [f"`{setting.name}`", shown(setting.default, setting.unit), setting.unit, *limits, setting.help]


def test_every_setting_is_documented_and_none_is_unknown() -> None:
    """The three tables of the page are the three tables of the code: default, unit, limits and meaning."""
    settings = (*STORE_SETTINGS, *TOPIC_SETTINGS, *GROUP_SETTINGS)
    assert rows(SETTINGS_PAGE, "name") == [row_of(setting) for setting in settings]


@pytest.mark.parametrize(
    ("settings", "table"),
    [(StoreSettings(), STORE_SETTINGS), (TopicSettings(), TOPIC_SETTINGS), (GroupSettings(), GROUP_SETTINGS)],
)
def test_the_tables_of_settings_are_the_fields_of_their_classes(
    settings: StoreSettings | TopicSettings | GroupSettings, table: tuple[Setting, ...]
) -> None:
    """A setting has one default, which stands in the table and in the class."""
    values = {name: getattr(settings, name) for name in settings.__slots__}
    assert {name: getattr(value, "value", value) for name, value in values.items()} == {row.name: row.default for row in table}


def tree(error: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    """All classes of errors, each before those under it."""
    yield error
    for child in error.__subclasses__():
        # Tests elsewhere may define errors of their own.
        if child.__module__ == errors.__name__:
            yield from tree(child)


ERRORS = list(tree())


def test_every_error_is_documented_and_none_is_unknown() -> None:
    """Each class stands on the page with its base, its code, its meaning as the code gives it, and what to do."""
    documented = rows(ERRORS_PAGE, "error")
    expected = [
        [f"`{error.__name__}`", f"`{error.__bases__[0].__name__}`", f"`{error.code}`", (inspect.getdoc(error) or "").splitlines()[0]]
        for error in ERRORS
    ]  # fmt: skip
    assert [row[:4] for row in documented] == expected
    assert all(row[4] for row in documented), "an error without a word on what to do"


def test_every_error_in_the_module_is_in_the_tree_and_has_a_code_of_its_own() -> None:
    """Nobody catches an error that is not under `PenstockError`; a code names one class, in the same words."""
    defined = {one for one in vars(errors).values() if inspect.isclass(one) and one.__module__ == errors.__name__}
    assert defined == set(ERRORS)
    codes = [vars(error)["code"] for error in ERRORS]
    assert len(set(codes)) == len(codes)
    for error in ERRORS:
        assert error.code == re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).upper()


def test_the_tree_at_the_top_of_the_module_lists_every_error_under_its_base() -> None:
    """The docstring of errors.py is the tree."""
    listed: list[tuple[str, str | None]] = []
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.fullmatch(r"((?:[│ ]   )*)(?:[├└]── )?(\w+)(?:  +\S.*)?", line)
        if found is None or not hasattr(errors, found[2]):
            continue
        depth = len(found[1]) // 4 + (1 if "── " in line else 0)
        path[depth:] = [found[2]]
        listed.append((found[2], path[depth - 1] if depth else None))
    assert listed == [(error.__name__, None if error is PenstockError else error.__bases__[0].__name__) for error in ERRORS]


def example(error: type[PenstockError]) -> PenstockError:
    """One of these errors, with a value of the right type for each of its arguments."""
    values: dict[str, Any] = {"str": "text", "int": 7, "float": 1.5, "object": (1, "two")}
    if "__init__" not in vars(error):
        return error("something")
    parameters = list(inspect.signature(error).parameters.values())
    return error(*[values[str(parameter.annotation).partition(" | ")[0]] for parameter in parameters])


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_every_error_survives_pickling(error: type[PenstockError]) -> None:
    """Spark and multiprocessing send errors between processes: type, fields and text arrive."""
    before = example(error)
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is error
    assert after.args == before.args
    assert vars(after) == vars(before)
    assert str(after) == str(before) != ""
