"""
The threads, locks and waits of the engine: those of `threading`, by names that a test can replace.

Modules of the engine import this one under the name of the standard one (``from penstock import threads as threading``). That costs
nothing: a name is looked up in a module in either case. `penstock.testing.interleaving` replaces the names by its own, and decides then
which thread runs when; what goes around them is invisible to it.
"""

from __future__ import annotations

from threading import Condition, Event, Lock, RLock, Thread, current_thread, get_ident, main_thread
from time import monotonic

__all__ = ["Condition", "Event", "Lock", "RLock", "Thread", "current_thread", "get_ident", "main_thread", "monotonic"]
