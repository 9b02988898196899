"""Keys."""

from __future__ import annotations

import pytest

from penstock.cli.top.controls import SORTS, Controls, Keys


def pressed(controls: Controls, *keys: str, page: int = 10, last: int = 30) -> list[bool]:
    return [controls.press(key, page=page, last=last) for key in keys]


@pytest.mark.parametrize(
    ("data", "keys"),
    [
        (b"qsp", ["q", "s", "p"]),
        (b"\x1b[A\x1b[Bj", ["up", "down", "j"]),
        (b"\x1bOA\x1bOB\x1bOH", ["up", "down", "home"]),
        (b"\x1b[5~\x1b[6~\x1b[1~\x1b[4~", ["page up", "page down", "home", "end"]),
        (b"\x1b[1;5A", ["up"]),
        (b"\x1b[15~\x1b[Zq", ["q"]),
        (b"\x1b\x1b[A", ["up"]),
        (b"\x1bq", ["q"]),
        (b"\x1a", ["\x1a"]),
        (b"\xff\x00", ["\xff", "\0"]),
    ],
)
def test_bytes_become_keys(data: bytes, keys: list[str]) -> None:
    assert Keys().decode(data) == keys
    one_by_one = Keys()
    assert [key for byte in data for key in one_by_one.decode(bytes([byte]))] == keys


def test_a_sequence_without_end_is_not_kept_for_ever() -> None:
    keys = Keys()
    for _ in range(1000):
        keys.decode(b"\x1b[" + b"1" * 100)
    assert len(keys._begun) < 100
    assert keys.decode(b"Aq")[-1] == "q"


def test_random_bytes_do_no_harm(rng) -> None:
    keys, controls = Keys(), Controls()
    for _ in range(2000):
        for key in keys.decode(bytes(rng.choices(b"\x1b[O~1;A\xffqsjkG?", k=rng.randint(0, 6)))):
            controls.press(key, page=5, last=7)
            assert 0 <= controls.first <= 7
            assert controls.sort in SORTS


def test_s_goes_through_the_orders() -> None:
    controls, seen = Controls(), []
    for _ in range(5):
        seen.append(controls.sort)
        pressed(controls, "s")
    assert seen == ["lag", "rate", "bytes", "name", "lag"]


def test_p_pauses_and_goes_on() -> None:
    controls = Controls()
    pressed(controls, "p")
    assert controls.paused
    pressed(controls, "p")
    assert not controls.paused


def test_scrolling_stays_within_what_there_is() -> None:
    controls = Controls()
    positions = []
    for key in ["k", "j", "down", "up", "page down", " ", "page down", "page down", "page up", "home", "end", "g", "G"]:
        pressed(controls, key)
        positions.append(controls.first)
    assert positions == [0, 1, 2, 1, 11, 21, 30, 30, 20, 0, 30, 0, 30]
    pressed(controls, "k", last=5)
    assert controls.first == 4, "the list became shorter: from its end, at once"
    pressed(controls, "j", last=0)
    assert controls.first == 0


def test_q_quits_and_other_keys_do_nothing() -> None:
    controls = Controls()
    assert pressed(controls, "x", "\0", "\xff") == [False] * 3
    assert controls == Controls()
    assert pressed(controls, "q") == [True]
    assert controls.quit


def test_help_begins_at_its_top_and_goes_away() -> None:
    controls = Controls(first=7)
    pressed(controls, "?")
    assert (controls.help, controls.first) == (True, 0)
    pressed(controls, "?")
    assert not controls.help
