"""
Bugs that real queues shipped: each row of the list of pitfalls has a test, or a reason why it has none.

A test in `test_pitfalls_b.py` to `test_pitfalls_e.py` is named after its row. `ELSEWHERE` says which tests have the other rows, `NEVER`
why a row asks for nothing. The test checks that no row is forgotten and that every test named here exists.
"""

from __future__ import annotations

import re
from pathlib import Path

ELSEWHERE = {
    "B7": "tests/conformance/test_publishing.py::test_threads_get_dense_offsets_and_keep_their_own_order",
    "B11": "tests/conformance/test_restart.py::test_messages_come_back_with_all_they_had",
    "B12": "tests/conformance/test_publishing.py::test_any_bytes_come_back_as_they_are",
    "B13": "tests/conformance/test_restart.py::test_every_mode_survives_the_end_of_the_process",
    "B14": "tests/conformance/test_fifteen.py::test_3_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after",
    "B15": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "B17": "tests/bad_bytes/test_damaged_files.py::test_caches_may_hold_anything",
    "B18": "tests/conformance/test_waiting.py::test_waiting_ends_with_nothing_when_its_time_is_over",
    "B19": "tests/conformance/test_bad_input.py::test_a_partition_that_is_none_is_refused",
    "B20": "tests/conformance/test_producers.py::test_a_full_batch_goes_without_waiting",
    "B21": "tests/conformance/test_producers.py::test_sending_beside_closing_never_hangs",
    "B25": "tests/server/test_administering.py::test_an_offset_is_committed_and_never_goes_back",
    "B27": "tests/conformance/test_housekeeping.py::test_compaction_keeps_the_latest_of_each_key_at_its_offset",
    "B28": "tests/conformance/test_housekeeping.py::test_a_tombstone_goes_when_its_grace_is_over",
    "B31": "tests/bad_bytes/test_readers.py::test_a_reader_misses_what_was_cut_off",
    "C1": "tests/bad_bytes/test_damaged_files.py::test_an_overwritten_sector_is_reported_or_not_needed",
    "C2": "tests/crash/test_crash_states.py::test_every_acknowledged_message_survives_every_crash_state",
    "C4": "tests/crash/test_damage.py::test_torn_tail_is_truncated_and_the_second_reopening_keeps_what_came_after",
    "C5": "tests/crash/test_damage.py::test_damage_below_the_durable_end_is_reported_with_its_place",
    "C8": "tests/conformance/test_topics.py::test_the_first_publish_makes_the_topic",
    "C10": "tests/groups/test_lanes.py::test_nothing_is_lost_when_it_is_partly_drained_and_opened_again",
    "C11": "tests/conformance/test_urgency.py::test_delay_lane_expiry_failure_and_restart_across_segments",
    "C13": "tests/groups/test_lanes.py::test_nothing_starves_and_an_old_backlog_does_not_invert_the_order",
    "C16": "tests/conformance/test_fifteen.py::test_13_rotation_by_bytes",
    "C17": "tests/golden/test_formats.py::test_a_data_batch",
    "C18": "tests/golden/test_formats.py::test_a_data_batch",
    "C22": "tests/conformance/test_deduplication.py::test_keys_over_the_limit_are_forgotten_oldest_first",
    "C23": "tests/docs/test_reference.py::test_every_setting_is_documented_and_none_is_unknown",
    "C24": "tests/conformance/test_restart.py::test_a_store_has_one_owner",
    "C26": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "C29": "tests/real_disk/test_kill_at_every_syscall.py::test_a_kill_at_any_system_call_loses_and_tears_nothing",
    "D3": "tests/conformance/test_fifteen.py::test_6_many_publishers_share_a_sync",
    "D11": "tests/client/test_hostile.py::test_a_frame_that_is_too_long_ends_the_connection",
    "D12": "tests/wire/test_frame.py::test_a_frame_that_is_too_long_is_refused_by_its_head",
    "D13": "tests/conformance/test_bad_input.py::test_names_stay_inside_the_folder",
    "D14": "tests/client/test_strange_servers.py::test_answers_that_nobody_asked_for_are_ignored",
    "D17": "tests/real_disk/test_syscall_order.py::test_no_step_of_a_single_thread_comes_before_the_sync_it_needs",
    "D20": "tests/client/test_hostile.py::test_every_call_has_a_handler_and_a_rule",
    "D19": "tests/conformance/test_waiting.py::test_a_get_that_waits_ends_when_the_consumer_is_closed",
    "E1": "tests/conformance/test_fifteen.py::test_3_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after",
    "E5": "tests/grpc/test_refusals.py::test_an_enum_that_says_nothing_is_refused",
    "E8": "tests/server/test_stopping.py::test_while_draining_acks_are_taken_and_new_work_is_not",
    "E16": "tests/conformance/test_waiting.py::test_a_waiting_consumer_is_woken_by_an_ack_that_makes_room",
}
NEVER = {
    "B24": "a lock on the fast path costs speed and no result: benchmarks",
    "C9": "dead letters have no path of their own",
    "C15": "the cost of draining: benchmarks",
    "C21": "the cost of an ack: benchmarks",
    "C27": "a figure in a text",
    "C28": "a benchmark of another project",
    "D21": "texts of another project",
    "E10": "memory for a backlog: benchmarks",
    "E11": "a format of another project",
    "E15": "a scenario that asserts nothing",
}


def test_no_row_is_forgotten() -> None:
    """B1 to B31, C1 to C29, D1 to D22, E1 to E16: each has a test of its name, a test elsewhere, or a reason; and those tests exist."""
    rows = {
        f"{letter}{number}" for letter, last in (("B", 31), ("C", 29), ("D", 22), ("E", 16)) for number in range(1, last + 1)
    }
    here: set[str] = set()
    for letter in "bcde":
        text = Path(__file__).with_name(f"test_pitfalls_{letter}.py").read_text()
        here |= {row.upper() for row in re.findall(rf"^def test_({letter}\d+)_", text, re.MULTILINE)}
    told = [here, set(ELSEWHERE), set(NEVER)]
    assert set().union(*told) == rows
    assert sum(map(len, told)) == len(rows), "a row is told twice"
    root = Path(__file__).parents[2]
    for place in ELSEWHERE.values():
        path, _, name = place.partition("::")
        assert f"def {name}(" in (root / path).read_text(), place
