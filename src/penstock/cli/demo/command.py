"""`penstock demo`: list the demonstrations, and show them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from penstock.cli import failures, output, parameters
from penstock.cli.demo import back_pressure, broker_crash, consumer_crash, dead_letters, load_balancing
from penstock.cli.demo.claims import Claim, Finding
from penstock.cli.demo.screen import Screen, line
from penstock.cli.demo.stage import Stage, Stalled
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.cli.demo.claims import Demonstration

DEMONSTRATIONS: tuple[Demonstration, ...] = (
    load_balancing.DEMONSTRATION,
    consumer_crash.DEMONSTRATION,
    broker_crash.DEMONSTRATION,
    dead_letters.DEMONSTRATION,
    back_pressure.DEMONSTRATION,
)
ALL = "all"


@click.command(
    epilog=parameters.examples("penstock demo", "penstock demo broker-crash", "penstock demo all --json | jq .figures")
)
@click.argument("name", metavar="[NAME]", required=False, type=click.Choice([*[one.name for one in DEMONSTRATIONS], ALL]))
@parameters.json_output
@click.pass_context
def demo(ctx: click.Context, *, name: str | None, as_json: bool) -> None:
    """
    Show what happens when things go wrong, on a server of its own; without NAME list what there is to see.

    It starts a server in a temporary folder, and consumers that are processes, kills some of them, draws what happens and checks what
    it claims. Exits with 1 if a claim does not hold. Everything is gone afterwards.
    """
    if name is None:
        _list(as_json=as_json)
        return
    chosen = [one for one in DEMONSTRATIONS if name in (one.name, ALL)]
    # Not any(): all of them are shown.
    failed = [one.name for one in chosen if not _show(one, as_json=as_json)]
    if failed:
        ctx.exit(failures.EXIT_FAILED)


def _list(*, as_json: bool) -> None:
    if as_json:
        for one in DEMONSTRATIONS:
            output.write_json({"name": one.name, "about": one.about})
        return
    output.write_table(["demo", "what it shows"], [(one.name, one.about) for one in DEMONSTRATIONS])
    output.write_line(f"Show one: penstock demo {DEMONSTRATIONS[0].name}; all: penstock demo {ALL}")


def _show(demonstration: Demonstration, *, as_json: bool) -> bool:
    """Whether all that it claims holds."""
    screen = Screen(silent=as_json)
    screen.say(f"{demonstration.name}: {demonstration.about}", "bold")
    began = time.monotonic()
    try:
        with Stage(screen) as stage:
            screen.say(f"  a server on {stage.url}", "dim")
            found = demonstration.perform(stage)
    except (Stalled, PenstockError, OSError) as error:
        found = Finding([Claim(str(error) or type(error).__name__, holds=False)])
    seconds = round(time.monotonic() - began, 2)
    if as_json:
        output.write_json(
            {"demo": demonstration.name, "holds": found.holds, "seconds": seconds, "figures": found.figures,
             "claims": [claim._asdict() for claim in found.claims]}
        )  # fmt: skip
        output.flush()
        return found.holds
    screen.show([line(*_mark(claim), claim.text) for claim in found.claims])
    screen.say(
        f"  {seconds:.1f} s\n" if found.holds else f"  a claim does not hold, after {seconds:.1f} s\n",
        "dim" if found.holds else "red",
    )
    return found.holds


def _mark(claim: Claim) -> list[str | tuple[str, str]]:
    return ["  ", ("✓ ", "bold green") if claim.holds else ("✗ does not hold: ", "bold red")]
