"""`penstock demo`: each demonstration holds on a real server, and one whose claim is false fails."""

from __future__ import annotations

import glob
import json
import os
import signal
import subprocess
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

from penstock.cli.demo import back_pressure, broker_crash, consumer_crash, dead_letters, load_balancing
from penstock.cli.demo.command import DEMONSTRATIONS
from penstock.cli.demo.screen import bar, heights
from penstock.cli.demo.stage import Event, Hand, Stage
from tests.cli.conftest import SCRIPT, Commands

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from penstock.cli.demo.claims import Finding

NAMES = [one.name for one in DEMONSTRATIONS]


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Where demonstrations make their folders; nothing may be left in it."""
    place = tempfile.mkdtemp(prefix="demo-", dir="/tmp")
    monkeypatch.setenv("TMPDIR", place)
    monkeypatch.setattr(tempfile, "tempdir", place)
    yield place
    left = os.listdir(place)
    os.rmdir(place)
    assert left == []


def processes_in(folder: str) -> list[str]:
    """The processes that were started for a stage in *folder*."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                line = file.read().decode("utf-8", "replace")
        except OSError:
            continue
        if folder in line:
            found.append(line)
    return found


# -- all of it, on real processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_a_demonstration_holds_what_it_claims(name: str, folder: str) -> None:
    """And leaves neither files nor processes behind."""
    done = subprocess.run([SCRIPT, "demo", name, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["demo"], found["holds"]) == (name, True)
    assert len(found["claims"]) >= 4
    assert all(claim["holds"] for claim in found["claims"])
    assert found["figures"]
    assert processes_in(folder) == []


def test_it_draws_what_happens(run: Commands, folder: str) -> None:
    """In a pipe the last state of the picture, and each claim, without colours."""
    text = run.text("demo", "dead-letters")
    assert text.startswith("dead-letters: ")
    assert "a server on penstock+unix:///" in text
    assert text.count("dead letter\n") == len(dead_letters.POISONED)
    assert text.count("\n  ✓ ") == 5
    assert "\x1b" not in text


def test_a_demonstration_that_does_not_hold_fails(run: Commands, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the server sets messages aside after two deliveries, where four are claimed."""

    class Impatient(Hand):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **{**options, "max_deliveries": 2})

    monkeypatch.setattr(dead_letters, "Hand", Impatient)
    result = run("demo", "dead-letters", "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["holds"]) == (1, False)
    assert [claim["holds"] for claim in found["claims"]] == [True, False, True, False, False]
    shown = run("demo", "dead-letters")
    assert shown.exit_code == 1
    assert "✗ does not hold: what fails 4 times is a dead letter" in shown.stdout


def test_a_server_that_does_not_begin_fails_the_demonstration(
    run: Commands, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the reason that it gave."""
    monkeypatch.setattr(Stage, "_choose_address", lambda _: "unix:/there/is/no/such/folder/socket")
    result = run("demo", "dead-letters")
    assert result.exit_code == 1
    assert "the server did not begin" in result.stdout
    assert "cannot listen there" in result.stdout


def test_ctrl_c_ends_a_demonstration_and_all_its_processes(folder: str) -> None:
    process = subprocess.Popen([SCRIPT, "demo", "broker-crash"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    assert "a server on" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert processes_in(folder) == []


def test_a_folder_with_a_long_path_gets_a_port_instead_of_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    with Stage(None) as stage:  # type: ignore[arg-type]
        assert stage.url.startswith("penstock://127.0.0.1:")


# -- the command ----------------------------------------------------------------------------------------------------


def test_without_a_name_it_lists_them(run: Commands) -> None:
    assert [one["name"] for one in run.json("demo")] == NAMES
    assert all(name in run.text("demo") for name in NAMES)


def test_an_unknown_name_is_wrong_use(run: Commands) -> None:
    assert "load-balancing" in run.fails(2, "demo", "nothing")


# -- claims that are false ------------------------------------------------------------------------------------------

SHARED = {"1, quick": list(range(100)), "2, quick": list(range(100, 180)), "3, slow": list(range(180, 200)),
          "4, comes late": list(range(200, 240))}  # fmt: skip
EVERYTHING = list(range(load_balancing.MESSAGES))
FINISHED_BY_A = [Event(what, 0, offset, 1, 0.0) for offset in range(6) for what in ("got", "done")]
CRASHED = consumer_crash.Seen(
    [*FINISHED_BY_A, Event("got", 0, 6, 1, 0.0)],
    [Event(what, 0, offset, 2 if offset == 6 else 1, 0.0) for offset in range(6, 40) for what in ("got", "done")],
    -9,
    0.2,
)
STORED = [b"%d" % number for number in range(10)]
KILLED = broker_crash.Seen({value: at for at, value in enumerate(STORED)}, STORED, [*STORED, STORED[3]], [], [0.5] * 3, 0, True)
HELD = back_pressure.Seen(
    20, 1 << 20, back_pressure.MESSAGES, 0.1, 200, list(range(back_pressure.MESSAGES + back_pressure.WARM_UP))
)


def tries_of(task: int) -> list[dead_letters.Try]:
    moments = [0.0, 0.15, 0.45, 1.05]
    if task in dead_letters.POISONED:
        return [dead_letters.Try(task, at + 1, moments[at], True) for at in range(4)]
    if task in dead_letters.SHAKY:
        return [dead_letters.Try(task, at + 1, moments[at], at < 2) for at in range(3)]
    return [dead_letters.Try(task, 1, 0.0, False)]


TRIED = dead_letters.Seen(
    [one for task in range(dead_letters.TASKS) for one in tries_of(task)],
    dict.fromkeys(dead_letters.POISONED, ("4", "cannot be parsed")), 2, [42, 7], 0,
)  # fmt: skip


def balanced(handled: dict[str, list[int]] = SHARED, audited: list[int] = EVERYTHING) -> Finding:
    return load_balancing.judge(handled, audited)


TRUE: list[Callable[[], Finding]] = [
    balanced,
    lambda: consumer_crash.judge(CRASHED),
    lambda: broker_crash.judge(KILLED),
    lambda: dead_letters.judge(TRIED),
    lambda: back_pressure.judge(HELD),
]
FALSE: dict[str, Callable[[], Finding]] = {
    "went to one consumer": lambda: balanced({**SHARED, "3, slow": [0, *range(181, 200)]}),
    "holds nobody up": lambda: balanced({**SHARED, "1, quick": [0], "3, slow": [*range(1, 100), *range(180, 200)]}),
    "came late took": lambda: balanced({**SHARED, "1, quick": [*range(100), *range(200, 240)], "4, comes late": []}),
    "other group got": lambda: balanced(audited=EVERYTHING[1:]),
    "while it had a message in hand": lambda: consumer_crash.judge(CRASHED._replace(status=0)),
    "nothing is lost": lambda: consumer_crash.judge(CRASHED._replace(heir=CRASHED.heir[:-1])),
    "acknowledged came again": lambda: consumer_crash.judge(
        CRASHED._replace(victim=[*CRASHED.victim, Event("got", 0, 7, 1, 0), Event("done", 0, 7, 1, 0)])
    ),
    "had in hand came to b": lambda: consumer_crash.judge(
        CRASHED._replace(heir=[one._replace(attempt=1) for one in CRASHED.heir])
    ),
    "came to b uncounted": lambda: consumer_crash.judge(CRASHED._replace(heir=[*CRASHED.heir, Event("got", 0, 39, 1, 0)])),
    "before the lease": lambda: consumer_crash.judge(CRASHED._replace(seconds=120)),
    "was killed 3 times": lambda: broker_crash.judge(KILLED._replace(restart_seconds=[0.5])),
    "no client saw an error": lambda: broker_crash.judge(KILLED._replace(errors=["a producer: gone"])),
    "lies where its receipt says": lambda: broker_crash.judge(
        KILLED._replace(acknowledged={**KILLED.acknowledged, b"gone": 10})
    ),
    "none is stored twice": lambda: broker_crash.judge(KILLED._replace(stored=[*STORED, STORED[0]])),
    "every stored message was handled": lambda: broker_crash.judge(KILLED._replace(handled=STORED[1:])),
    "each byte of its store is sound": lambda: broker_crash.judge(KILLED._replace(is_sound=False)),
    "is delivered once": lambda: dead_letters.judge(TRIED._replace(tries=[*TRIED.tries, dead_letters.Try(1, 1, 2.0, False)])),
    "at its third delivery": lambda: dead_letters.judge(
        TRIED._replace(tries=[one for one in TRIED.tries if (one.task, one.attempt) != (10, 2)])
    ),
    "as long as the backoff says": lambda: dead_letters.judge(
        TRIED._replace(tries=[one._replace(seconds=one.seconds / 2) for one in TRIED.tries])
    ),
    "is a dead letter": lambda: dead_letters.judge(TRIED._replace(letters={**TRIED.letters, 7: ("3", "cannot be parsed")})),
    "sent back and handled": lambda: dead_letters.judge(TRIED._replace(letters_after=1)),
    "was sent 20 messages ahead": lambda: back_pressure.judge(HELD._replace(held=21)),
    "the server grew by less": lambda: back_pressure.judge(HELD._replace(growth_bytes=back_pressure.GROWTH_BYTES_MAX)),
    "got everything meanwhile": lambda: back_pressure.judge(HELD._replace(quick=10)),
    "says that it is full": lambda: back_pressure.judge(HELD._replace(accepted=100_000)),
    "got every message, once": lambda: back_pressure.judge(HELD._replace(handled=[*HELD.handled, 3])),
}


@pytest.mark.parametrize("judge", TRUE, ids=NAMES)
def test_what_should_happen_satisfies_every_claim(judge: Callable[[], Finding]) -> None:
    assert [claim.text for claim in judge().claims if not claim.holds] == []


@pytest.mark.parametrize("claim", FALSE)
def test_a_claim_fails_when_it_is_not_so(claim: str) -> None:
    found = FALSE[claim]()
    assert not found.holds
    (named,) = [one for one in found.claims if claim in one.text]
    assert not named.holds


def test_every_claim_has_a_case_in_which_it_is_false() -> None:
    claims = [claim.text for judge in TRUE for claim in judge().claims]
    assert [text for text in claims if not any(part in text for part in FALSE)] == []
    assert len(claims) == len(FALSE)


# -- pictures -------------------------------------------------------------------------------------------------------


def test_a_bar_is_as_long_as_its_share() -> None:
    assert bar("half", 5, 10, "5").plain.count("█") == 22
    assert bar("full", 99, 10, "99").plain.count("█") == 44
    assert bar("nothing", 0, 0, "-").plain.count("█") == 0


def test_a_row_of_heights_has_a_cell_for_each_amount() -> None:
    assert heights([0, 1, 4, 8]) == " ▁▄█"
    assert heights([]) == ""
