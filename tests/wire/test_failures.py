"""Every error comes out on the other side as what it was."""

from __future__ import annotations

import inspect
import json
from typing import Any

import pytest

from penstock import errors as tree
from penstock.errors import BadSetting, BatchTooLarge, PenstockError, Unavailable
from penstock.volume.tickets import Outgrown
from penstock.wire import failures
from penstock.wire.failures import decode_error, encode_error


def all_errors() -> list[type[PenstockError]]:
    """The classes of the tree, without those that other modules add."""
    return [one for _, one in inspect.getmembers(tree, inspect.isclass) if issubclass(one, PenstockError)]


def example(kind: type[PenstockError]) -> PenstockError:
    """An error of a class, with arguments of the types that it declares."""
    if kind.__init__ is Exception.__init__ or "__init__" not in vars(kind):
        return kind("something happened")
    values: list[Any] = []
    for number, parameter in enumerate(list(inspect.signature(kind).parameters.values())):
        annotation = str(parameter.annotation)
        values.append(
            number + 7 if annotation.startswith("int") else 1.5 if annotation == "float" else f"{parameter.name} \N{SNOWMAN}"
        )
    return kind(*values)


def over_the_wire(error: PenstockError) -> PenstockError:
    return decode_error(json.loads(json.dumps(encode_error(error), allow_nan=False)))


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_error_keeps_its_class_and_its_fields(kind: type[PenstockError]) -> None:
    """And what it says."""
    error = example(kind)
    found = over_the_wire(error)
    assert type(found) is kind
    assert found.args == error.args
    assert vars(found) == vars(error)
    assert str(found) == str(error)


@pytest.mark.parametrize("kind", all_errors(), ids=lambda kind: kind.__name__)
def test_an_error_keeps_what_is_none(kind: type[PenstockError]) -> None:
    """Fields that may be missing."""
    signature = inspect.signature(kind) if "__init__" in vars(kind) else None
    if signature is None or not any("None" in str(one.annotation) for one in signature.parameters.values()):
        return
    kinds = [str(one.annotation) for one in signature.parameters.values()]
    error = kind(*[None if "None" in one else 1 if "int" in one else "x" for one in kinds])
    assert over_the_wire(error).args == error.args
    assert str(over_the_wire(error)) == str(error)


def test_codes_are_all_different() -> None:
    """Else one class would come out as another."""
    codes = [kind.code for kind in all_errors()]
    assert len(set(codes)) == len(codes) > 30


def test_an_unknown_code_becomes_unavailable() -> None:
    """With the words of the other side."""
    found = decode_error({"code": "SOME_DAY", "arguments": [1], "text": "it is something new"})
    assert type(found) is Unavailable
    assert str(found) == "it is something new"


def check_shown(fields: dict[str, Any]) -> None:
    found = decode_error({"text": "in words", **fields})
    assert isinstance(found, PenstockError)
    assert str(found)
    assert repr(found)


@pytest.mark.parametrize(
    "fields",
    [
        {}, {"code": None}, {"code": 5, "arguments": []}, {"code": ["x"], "text": "a"}, {"code": "BAD_NAME"},
        {"code": "BAD_NAME", "arguments": None}, {"code": "BAD_NAME", "arguments": {"a": 1}}, {"code": "BAD_NAME", "arguments": []},
        {"code": "BAD_NAME", "arguments": ["a", "b", "c", "d"]}, {"code": "CLOSED", "arguments": [{"a": []}]},
    ],
)  # fmt: skip
def test_an_error_that_lies_is_still_an_error_that_can_be_shown(fields: dict[str, Any]) -> None:
    """Whatever its arguments are, it is raised, and its text can be printed."""
    check_shown(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"code": "BAD_NAME", "arguments": [1, 2]}, {"code": "MESSAGE_TOO_LARGE", "arguments": ["a", "b", "c"]},
        {"code": "STORAGE_FULL", "arguments": ["a", "b", "c"]}, {"code": "WAIT_TIMEOUT", "arguments": ["a", "b"]},
    ],
)  # fmt: skip
def test_an_error_with_arguments_of_other_types_can_be_shown(fields: dict[str, Any]) -> None:
    """It is `Unavailable` with its text, or shows what it was given."""
    check_shown(fields)


def test_arguments_that_json_does_not_know_travel_as_text() -> None:
    """A setting may have had any value."""
    found = over_the_wire(BadSetting("sync", {1, 2}, "must be text"))
    assert isinstance(found, BadSetting)
    assert found.value == "{1, 2}"


def test_a_class_of_another_module_travels_as_its_parent() -> None:
    """One that only the server knows is the nearest that all know."""

    class Inner(tree.TopicNotFound):
        """Known here only."""

    found = over_the_wire(Inner("orders", 3))
    assert type(found) is tree.TopicNotFound
    assert found.args == ("orders", 3)


def test_an_error_that_is_defined_elsewhere_does_not_hide_the_one_it_is_derived_from() -> None:
    """It has the same code; a store that was imported before has such."""
    assert issubclass(Outgrown, BatchTooLarge)
    assert failures._all(BatchTooLarge) == {"BATCH_TOO_LARGE": BatchTooLarge}
