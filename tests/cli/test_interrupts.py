"""A signal is noted, and raised only where nothing is half done; a second one is raised at once."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from penstock.cli import interrupts
from penstock.cli.interrupts import Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The handlers of the program, for one test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(interrupts, "_state", interrupts._State())
    interrupts.install()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_the_first_signal_is_only_noted() -> None:
    """The engine is not broken into."""
    interrupts.check()
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Interrupted) as raised:
        interrupts.check()
    assert raised.value.number == signal.SIGINT


def test_a_second_signal_is_raised_wherever_it_comes() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(Interrupted):
        os.kill(os.getpid(), signal.SIGTERM)


def test_where_it_is_allowed_a_signal_is_raised_at_once() -> None:
    with pytest.raises(Interrupted), interrupts.allowed():
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("it was not raised")


def test_a_signal_that_came_before_is_raised_where_it_is_allowed() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Interrupted), interrupts.allowed():
        pytest.fail("it was not raised")


def test_after_the_block_signals_are_noted_again() -> None:
    with interrupts.allowed():
        pass
    os.kill(os.getpid(), signal.SIGINT)


def test_being_stopped_is_no_exception() -> None:
    """What handles failures, such as `with message`, must not take it for one."""
    assert not issubclass(Interrupted, Exception)
