"""Stand-ins for time and disk, so that tests decide when a second passes and what a power cut leaves behind."""

from __future__ import annotations

from penstock.testing.fake_clock import FakeClock
from penstock.testing.simulated_files import Operation, SimulatedFile, SimulatedFileSystem

__all__ = ["FakeClock", "Operation", "SimulatedFile", "SimulatedFileSystem"]
