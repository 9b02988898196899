"""
Threads whose interleaving a seed decides: the same seed, the same schedule.

Theory of operation
-------------------
*One runs at a time.* `Interleaving.run` runs a program in threads of its own making. Each is a real thread that waits for its turn (a
lock), so what it runs is ordinary Python; but only the one whose turn it is runs. It gives up its turn at **switch points**: each operation
of a lock, condition, event or thread, each call of the file system (`switching_files`), and, in files that are named, each line. There the
**strategy** says who is next, from what a seed gives it. So a schedule is a list of choices, and the same choices give the same run.

*The seam.* The engine takes its primitives from `penstock.threads`, whose names are replaced by the simulated ones while a program runs
(`primitives.py`). They know nothing of each other: a lock is a flag, and who finds it set is *blocked* until it is released. All who waited
may then run and compete for it, which is more than a real lock allows, and so are all orders that a real one has.

*Time.* `Interleaving.clock` is the clock of the program. It stands still but for a microsecond at each switch point. A wait with a timeout
ends when nobody else can run (then the clock jumps to the earliest deadline), and now and then also while others can: real threads may be
that slow.

*What is found.* A **deadlock**: all are blocked, and none of them with a timeout. A **livelock**: too many steps. An exception that no
code of its thread caught. And what the program itself checks. The error names the seed, the strategy and the last choices; `schedule` has
all of them, and `Interleaving(schedule=...)` runs exactly those again.

*Strategies* (`strategies.py`). `RandomWalk` switches at each point with a probability of the run. `Priorities` is PCT (Burckhardt and
others, ASPLOS 2010): the thread with the highest of random priorities runs, and at a few random points it becomes the lowest; a bug that
takes *d* points in a certain order is found with a probability that does not sink with the number of the others. With *bursts* there are
many such points, for bugs that take more of them. Seeds take turns.

Simplifications: what no switch point separates is atomic; without lines that includes races of plain attributes. Memory is consistent, as
under the GIL. Threads that are left when the program has returned, or when it failed, are ended by an exception at their next switch point.
"""

from __future__ import annotations

from penstock.testing.interleaving.scheduler import Deadlock, Interleaving, Livelock, Replayed, ScheduleFailure
from penstock.testing.interleaving.strategies import Priorities, RandomWalk, Strategy
from penstock.testing.interleaving.switching_files import switching_files

__all__ = [
    "Deadlock",
    "Interleaving",
    "Livelock",
    "Priorities",
    "RandomWalk",
    "Replayed",
    "ScheduleFailure",
    "Strategy",
    "switching_files",
]
