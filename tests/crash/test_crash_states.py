"""The engine keeps its promises in every state that a crash may leave the disk in."""

from __future__ import annotations

import pytest

from tests.crash.explorer import Explorer, explore_until

STATES, FIXED_STATES = 4_500, 16_000
"""Checked by the two tests below: together more than 20,000 in a run of CI."""


def _explore(seed: int, states: int) -> dict[str, int]:
    checked, in_recovery, done = explore_until(states, seed)
    print(f"{checked} crash states, {in_recovery} of them in recovery, seed {seed}, steps {done}")
    assert checked >= states
    assert in_recovery > 100
    return done


def test_every_acknowledged_message_survives_every_crash_state(seed: int) -> None:
    """I1-I4, I6-I8, I10, R1, R3, R4: acknowledged messages are there, offsets are dense, batches are whole."""
    _explore(seed % 1_000_000, STATES)


def test_a_name_of_a_journal_file_that_a_killed_owner_did_not_make_durable_is_made_so_before_a_checkpoint_names_it() -> None:
    """A kill between the rename and the sync of the folder, then power loss in the recovery."""
    explorer = Explorer(580_898, steps=60, states=5)
    explorer.run()
    assert explorer.recovery_checked > 100


@pytest.mark.long
@pytest.mark.timeout(900)
def test_crash_states_of_a_fixed_seed() -> None:
    """The same for workloads that are the same in every run, and that are known to do everything."""
    done = _explore(77_000_000, FIXED_STATES)
    for step in ("append_large", "append_to_many", "checkpoint", "retain", "merged segments", "close_and_open"):
        assert done.get(step, 0) > 0, f"the workload never did {step}"
