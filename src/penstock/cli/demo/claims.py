"""What a demonstration claims, and what it found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.cli.demo.stage import Stage


class Claim(NamedTuple):
    """One sentence that must be true of what happened."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """What happened: figures for people and programs, and what must hold of them."""

    claims: list[Claim]
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Whether every claim does."""
        return all(claim.holds for claim in self.claims)


class Demonstration(NamedTuple):
    """A play on a stage: *perform* lets it happen and draws it, and returns what was found."""

    name: str
    about: str
    perform: Callable[[Stage], Finding]
