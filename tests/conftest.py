"""
What every test can use: one seed for the whole run, random numbers made from it, and the settings of hypothesis.

The seed is chosen once, by the process that was started, and handed to the test processes of xdist through the environment.
It is printed at the top of the run and again below failures; `PENSTOCK_TEST_SEED=... pytest ...` repeats the run.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _pytest.terminal import TerminalReporter

SEED_VARIABLE = "PENSTOCK_TEST_SEED"
# Servers that tests start as processes do not listen for gRPC, on its one default port, unless the test says so.
os.environ.setdefault("PENSTOCK_SERVE_NO_GRPC", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has it ignored, and the programs under test would inherit that.
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGINT, signal.default_int_handler)

# No deadlines and no check for slow data: time on a shared machine says nothing about the code.
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=False, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", parent=settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or "ci")


# First, so that hypothesis' own hook sees the seed.
@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Choose the seed of the run, unless it is given, and use it for hypothesis too."""
    if not os.environ.get(SEED_VARIABLE):
        os.environ[SEED_VARIABLE] = str(secrets.randbits(32))
    if config.getoption("hypothesis_seed", default=None) is None:
        config.option.hypothesis_seed = str(run_seed())


# Before xdist deals the tests out.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the soak: it takes minutes and little of the machine, so the other tests run beside it."""
    items.sort(key=lambda item: "tests/soak/" not in item.nodeid)


def pytest_report_header() -> str:
    """Print the seed at the top of the run."""
    return f"seed: {SEED_VARIABLE}={run_seed()}"


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Print the seed again where the eye is after a failure."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"Repeat with {SEED_VARIABLE}={run_seed()}")


@pytest.fixture(autouse=True)
def _process_is_left_as_it_was() -> Iterator[None]:
    """Fail the test that leaves a level, a log handler or a switch interval behind, not the one that meets it later; and put it back."""
    loggers = [logging.getLogger(), logging.getLogger("penstock")]
    before = _process_state(loggers)
    yield
    after = _process_state(loggers)
    levels, handlers, interval = before
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)
    loggers[1].handlers[:] = handlers
    sys.setswitchinterval(interval)
    assert after == before, "the test leaves the process otherwise than it found it"


def _process_state(loggers: list[logging.Logger]) -> tuple[list[int], list[logging.Handler], float]:
    return [logger.level for logger in loggers], list(loggers[1].handlers), sys.getswitchinterval()


@pytest.fixture(scope="session")
def seed() -> int:
    """The seed of this run, the same in every test process."""
    return run_seed()


@pytest.fixture
def rng(seed: int, request: pytest.FixtureRequest) -> random.Random:
    """Random numbers that depend on the seed and the test only, not on the tests that ran before it."""
    return random.Random(f"{seed} {request.node.nodeid}")


def run_seed() -> int:
    """The seed of this run, for what is made when a module is imported."""
    return int(os.environ[SEED_VARIABLE], 0)
