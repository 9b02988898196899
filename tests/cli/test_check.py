"""`penstock verify` and `penstock repair`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.volume.document import decode_document, encode_document

if TYPE_CHECKING:
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    """A store that was closed in order."""
    with penstock.open(path) as store:
        for number in range(20):
            store.publish("orders", b"order %d" % number)
    return path


def segment(path: str) -> str:
    return os.path.join(path, "topics", "orders", "0", "00000000000000000000.log")


@pytest.fixture
def damaged(orders: str) -> str:
    """The same with one wrong bit."""
    with open(segment(orders), "r+b") as file:
        file.seek(600)
        byte = file.read(1)[0]
        file.seek(600)
        file.write(bytes([byte ^ 1]))
    return orders


def content(path: str) -> dict[str, bytes]:
    """All files of the store, but for the name of its last owner."""
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                found[os.path.join(folder, name)] = file.read()
    found.pop(os.path.join(path, "LOCK"), None)
    return found


def test_a_sound_store(run: Commands, orders: str) -> None:
    assert run.text("verify", orders).endswith(" bytes: sound\n")
    (found,) = run.json("verify", orders)
    assert found["sound"]
    assert (found["topics"], found["messages"], found["findings"]) == (1, 20, [])


def test_damage_is_reported_and_nothing_changed(run: Commands, damaged: str) -> None:
    """The exit code is 5; the report is data, and goes to stdout."""
    before = content(damaged)
    result = run("verify", damaged)
    assert result.exit_code == 5
    assert result.stdout.startswith(f"damage: {segment(damaged)} is damaged at byte ")
    assert f"repair would do: {segment(damaged)} from offset 2: bytes [" in result.stdout
    assert result.stdout.endswith(" 1 damaged\n")
    assert not result.stderr
    result = run("verify", damaged, "--json")
    assert result.exit_code == 5
    assert '"sound": false' in result.stdout
    assert content(damaged) == before


def test_a_bad_cache_is_no_damage(run: Commands, orders: str) -> None:
    with open(segment(orders).replace(".log", ".idx"), "wb") as file:
        file.write(bytes(100))
    assert run.text("verify", orders).startswith("harmless: ")


def test_repair_says_what_it_would_do_and_does_nothing_untold(run: Commands, damaged: str) -> None:
    before = content(damaged)
    result = run("repair", damaged)
    assert result.exit_code == 2
    assert result.stdout.startswith("damage: ")
    assert f"repair would do: {segment(damaged)} from offset 2: bytes [" in result.stdout
    assert "--yes" in result.stderr
    assert content(damaged) == before


def test_repair_by_order(run: Commands, damaged: str) -> None:
    """What is damaged is set aside, and the rest can be read again."""
    text = run.text("repair", damaged, "--yes")
    assert "\ndone: " in text
    assert text.endswith("\nrepaired\n")
    assert os.listdir(os.path.join(damaged, "quarantine"))
    assert run("verify", damaged).exit_code == 0
    assert len(run.text("read", damaged, "orders").splitlines()) == 20, "the journal still had the message"


def test_repair_as_json(run: Commands, damaged: str) -> None:
    (done,) = run.json("repair", damaged, "--yes")
    assert done["lost"][0]["path"] == segment(damaged)
    assert done["quarantine"].startswith(damaged)


def test_repair_of_a_sound_store_changes_nothing(run: Commands, orders: str) -> None:
    before = content(orders)
    assert run.text("repair", orders, "--yes").endswith("the store is sound; nothing was changed\n")
    assert content(orders) == before


def test_what_cannot_be_repaired_is_told(run: Commands, orders: str) -> None:
    path = os.path.join(orders, "store.json")
    with open(path, "rb") as file:
        newer = decode_document("store", file.read()) | {"required": ["something new"]}
    with open(path, "wb") as file:
        file.write(encode_document(newer))
    assert run("verify", orders).exit_code == 5
    assert "UNSUPPORTED_FORMAT" in run.fails(5, "repair", orders, "--yes")
    assert "UNSUPPORTED_FORMAT" in run.fails(5, "read", orders, "orders")


def test_repair_beside_an_owner_is_refused(run: Commands, orders: str) -> None:
    with penstock.open(orders):
        assert "STORE_LOCKED" in run.fails(4, "repair", orders, "--yes")
        assert run("verify", orders).exit_code == 0


@pytest.mark.parametrize("command", [["verify"], ["repair", "--yes"]])
def test_a_folder_without_a_store_is_left_alone(run: Commands, tmp_path, command: list[str]) -> None:
    assert "STORE_NOT_FOUND" in run.fails(3, *command, tmp_path)
    assert "STORE_NOT_FOUND" in run.fails(3, *command, tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())
    assert "is a server" in run.fails(2, *command, "penstock://127.0.0.1:7420")
    assert "empty" in run.fails(2, *command, "")
