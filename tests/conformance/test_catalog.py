"""A catalog of what a queue must not get wrong: each entry names the tests that show it, or the reason why it needs none."""

from __future__ import annotations

from pathlib import Path

ROWS = {
    "B1": "tests/conformance/test_partitions.py::test_every_message_of_every_partition_is_consumed",
    "B2": "tests/conformance/test_burials.py::test_a_message_that_always_fails_is_buried_and_not_called_handled",
    "B3": "tests/conformance/test_failures.py::test_a_shutdown_is_no_failure",
    "B4": "tests/conformance/test_failures.py::test_a_message_is_tried_as_often_as_was_allowed",
    "B5": "tests/conformance/test_disk_failures.py::test_a_dead_letter_that_cannot_be_written_is_no_loss",
    "B6": "tests/conformance/test_failures.py::test_what_one_group_does_to_a_message_no_other_sees",
    "B7": "tests/conformance/test_publishing.py::test_threads_get_dense_offsets_and_keep_their_own_order",
    "B8": "tests/conformance/test_partitions.py::test_any_key_finds_a_partition_and_always_the_same",
    "B9": "tests/conformance/test_segments.py::test_old_segments_are_found_and_offsets_go_on",
    "B10": "tests/conformance/test_retention.py::test_offsets_stay_when_older_ones_go",
    "B11": "tests/conformance/test_restart.py::test_messages_come_back_with_all_they_had",
    "B12": "tests/conformance/test_publishing.py::test_any_bytes_come_back_as_they_are",
    "B13": "tests/conformance/test_restart.py::test_every_mode_survives_the_end_of_the_process",
    "B14": "tests/conformance/test_segments.py::test_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after",
    "B15": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "B16": "tests/conformance/test_segments.py::test_reading_goes_on_into_the_next_segment",
    "B17": "tests/bad_bytes/test_damaged_files.py::test_caches_may_hold_anything",
    "B18": "tests/conformance/test_waiting.py::test_waiting_ends_with_nothing_when_its_time_is_over",
    "B19": "tests/conformance/test_bad_input.py::test_a_partition_that_is_none_is_refused",
    "B20": "tests/conformance/test_producers.py::test_a_full_batch_goes_without_waiting",
    "B21": "tests/conformance/test_producers.py::test_sending_beside_closing_never_hangs",
    "B22": "tests/conformance/test_restart.py::test_positions_of_groups_with_similar_names_survive",
    "B23": "tests/conformance/test_seeking.py::test_a_commit_never_rewinds_and_a_seek_does",
    "B25": "tests/server/test_administering.py::test_an_offset_is_committed_and_never_goes_back",
    "B26": "tests/conformance/test_partitions.py::test_two_members_do_not_both_read_everything",
    "B27": "tests/conformance/test_housekeeping.py::test_compaction_keeps_the_latest_of_each_key_at_its_offset",
    "B28": "tests/conformance/test_housekeeping.py::test_a_tombstone_goes_when_its_grace_is_over",
    "B29": "tests/conformance/test_restart.py::test_messages_of_a_named_producer_after_a_restart_are_not_taken_for_old_ones",
    "B30": "tests/conformance/test_acks.py::test_the_same_offset_in_two_partitions_is_two_messages",
    "B31": "tests/bad_bytes/test_readers.py::test_a_reader_misses_what_was_cut_off",
    "C1": "tests/bad_bytes/test_damaged_files.py::test_an_overwritten_sector_is_reported_or_not_needed",
    "C2": "tests/crash/test_crash_states.py::test_every_acknowledged_message_survives_every_crash_state",
    "C3": "tests/conformance/test_restart.py::test_the_next_offset_comes_from_the_log",
    "C4": "tests/crash/test_damage.py::test_torn_tail_is_truncated_and_the_second_reopening_keeps_what_came_after",
    "C5": "tests/crash/test_damage.py::test_damage_below_the_durable_end_is_reported_with_its_place",
    "C6": "tests/conformance/test_retention.py::test_retention_keeps_what_nobody_has_read",
    "C7": "tests/conformance/test_retention.py::test_a_topic_without_retention_keeps_everything",
    "C8": "tests/conformance/test_topics.py::test_the_first_publish_makes_the_topic",
    "C10": "tests/groups/test_lanes.py::test_nothing_is_lost_when_it_is_partly_drained_and_opened_again",
    "C11": "tests/conformance/test_urgency.py::test_delay_lane_expiry_failure_and_restart_across_segments",
    "C12": "tests/conformance/test_seeking.py::test_what_a_seek_skipped_does_not_come_back",
    "C13": "tests/groups/test_lanes.py::test_nothing_starves_and_an_old_backlog_does_not_invert_the_order",
    "C14": "tests/conformance/test_iteration.py::test_iterating_hands_out_all_that_is_there",
    "C16": "tests/conformance/test_segments.py::test_a_segment_ends_when_it_has_its_bytes",
    "C17": "tests/golden/test_formats.py::test_a_data_batch",
    "C18": "tests/golden/test_formats.py::test_a_data_batch",
    "C19": "tests/conformance/test_burials.py::test_a_dead_letter_has_the_bytes_of_its_message",
    "C20": "tests/conformance/test_message_fields.py::test_every_way_of_publishing_takes_every_field",
    "C22": "tests/conformance/test_deduplication.py::test_keys_over_the_limit_are_forgotten_oldest_first",
    "C23": "tests/docs/test_reference.py::test_every_setting_is_documented_and_none_is_unknown",
    "C24": "tests/conformance/test_restart.py::test_a_store_has_one_owner",
    "C25": "tests/conformance/test_readers.py::test_looking_changes_no_file",
    "C26": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "C29": "tests/real_disk/test_kill_at_every_syscall.py::test_a_kill_at_any_system_call_loses_and_tears_nothing",
    "D1": "tests/conformance/test_disk_failures.py::test_a_full_disk_loses_nothing_and_consuming_goes_on",
    "D2": "tests/conformance/test_disk_failures.py::test_after_a_failed_sync_nothing_is_called_stored",
    "D3": "tests/conformance/test_syncs.py::test_many_publishers_share_a_sync",
    "D4": "tests/conformance/test_burials.py::test_a_dead_letter_does_not_hold_the_position_back",
    "D5": "tests/conformance/test_burials.py::test_a_crash_anywhere_in_a_burial_leaves_one_of_source_and_grave",
    "D6": "tests/conformance/test_retention.py::test_a_fresh_group_behind_the_floor_makes_durable_progress",
    "D7": "tests/conformance/test_acks.py::test_what_was_acked_above_a_gap_does_not_come_again",
    "D8": "tests/conformance/test_failures.py::test_a_group_without_members_fails_at_nothing",
    "D9": "tests/conformance/test_prefetch.py::test_a_member_that_comes_after_another_has_a_window_of_its_own",
    "D10": "tests/conformance/test_failures.py::test_attempts_are_not_forgotten",
    "D11": "tests/client/test_hostile.py::test_a_frame_that_is_too_long_ends_the_connection",
    "D12": "tests/wire/test_frame.py::test_a_frame_that_is_too_long_is_refused_by_its_head",
    "D13": "tests/conformance/test_bad_input.py::test_names_stay_inside_the_folder",
    "D14": "tests/client/test_strange_servers.py::test_answers_that_nobody_asked_for_are_ignored",
    "D15": "tests/conformance/test_iteration.py::test_iterating_over_a_backlog_larger_than_the_window_with_acks_that_wait",
    "D16": "tests/conformance/test_disk_failures.py::test_an_ack_that_could_not_be_stored_is_told",
    "D17": "tests/real_disk/test_syscall_order.py::test_no_step_of_a_single_thread_comes_before_the_sync_it_needs",
    "D18": "tests/conformance/test_retention.py::test_a_consumer_below_the_floor_is_told_each_time",
    "D19": "tests/conformance/test_waiting.py::test_a_get_that_waits_ends_when_the_consumer_is_closed",
    "D20": "tests/client/test_hostile.py::test_every_call_has_a_handler_and_a_rule",
    "D22": "tests/conformance/test_failures.py::test_a_message_that_waits_does_not_hold_up_those_behind_it",
    "E1": "tests/conformance/test_segments.py::test_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after",
    "E2": "tests/conformance/test_failures.py::test_a_message_that_was_retried_comes_back_once_after_a_restart",
    "E3": "tests/conformance/test_burials.py::test_the_dead_stay_dead_over_restarts",
    "E4": "tests/conformance/test_acks.py::test_an_ack_that_was_answered_is_stored",
    "E5": "tests/grpc/test_refusals.py::test_an_enum_that_says_nothing_is_refused",
    "E6": "tests/conformance/test_acks.py::test_a_late_ack_of_one_does_not_settle_the_delivery_of_another",
    "E7": "tests/conformance/test_burials.py::test_a_consumer_that_comes_and_goes_buries_nothing",
    "E8": "tests/server/test_stopping.py::test_while_draining_acks_are_taken_and_new_work_is_not",
    "E9": "tests/conformance/test_retention.py::test_a_queue_that_is_emptied_does_not_grow_for_ever",
    "E12": "tests/conformance/test_restart.py::test_the_order_after_a_restart_is_the_order_before",
    "E13": "tests/conformance/test_burials.py::test_dead_letters_have_no_dead_letters_and_nobody_publishes_them",
    "E14": "tests/conformance/test_failures.py::test_a_failed_message_waits_before_it_comes_again",
    "E16": "tests/conformance/test_waiting.py::test_a_waiting_consumer_is_woken_by_an_ack_that_makes_room",
}
"""Bugs that other queues shipped, by their row in the list of pitfalls, and the test that would find each here."""
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
"""Rows that ask for nothing, and why."""
FRAMES = {
    "a torn batch": "tests/format/test_batch.py::test_a_batch_cut_at_any_byte_is_refused",
    "a torn frame": "tests/format/test_frame.py::test_a_frame_cut_at_any_byte_is_refused",
    "a torn frame on the wire": "tests/wire/test_frame.py::test_a_frame_that_is_cut_off_is_refused",
    "a flipped bit in a frame": "tests/format/test_frame.py::test_each_flipped_bit_of_a_frame_is_noticed",
    "a flipped bit in any file": "tests/bad_bytes/test_flipped_bits.py::test_a_flipped_bit_in_each_byte_is_harmless_or_reported",
    "a forged length": "tests/bad_bytes/test_decoders.py::test_a_forged_number_costs_no_more_memory_than_the_bytes_it_came_with",
    "a forged length on the wire": "tests/wire/test_frame.py::test_a_long_frame_that_has_not_come_allocates_nothing",
    "random bytes": "tests/bad_bytes/test_decoders.py::test_random_bytes_are_refused_with_a_typed_error",
    "random bytes on the wire": "tests/wire/test_fuzzing.py::test_random_bytes_are_no_frame",
}
"""By class of frame: the tests below the public face."""
ESSENTIALS = {
    "the ack of the first message": [
        "tests/conformance/test_restart.py::test_the_first_message_stays_acked_over_restarts_and_the_end_of_its_lease"
    ],
    "half of a thousand acked": [
        "tests/conformance/test_restart.py::test_after_a_restart_exactly_the_half_of_a_thousand_comes_that_was_not_acked"
    ],
    "a torn tail": ["tests/conformance/test_segments.py::test_a_torn_tail_is_cut_and_the_second_restart_keeps_what_came_after"],
    "the classes of frames": ["tests/conformance/test_segments.py::test_an_empty_log_ends_cleanly", *FRAMES.values()],
    "kills, again and again": ["tests/conformance/test_kills.py::test_what_was_answered_before_kills_is_stored_once_and_seen"],
    "publishing and the sync": [
        "tests/conformance/test_syncs.py::test_a_message_is_invisible_and_unanswered_until_the_sync",
        "tests/conformance/test_syncs.py::test_many_publishers_share_a_sync",
        "tests/conformance/test_syncs.py::test_closing_commits_what_waits",
    ],
    "deduplication over a restart": [
        "tests/conformance/test_restart.py::test_a_key_that_is_published_again_after_a_kill_is_the_first_message",
        "tests/conformance/test_restart.py::test_a_full_table_keeps_the_newest_keys_over_a_restart",
    ],
    "leases and nacks": [
        "tests/conformance/test_failures.py::test_an_unfinished_message_comes_again_after_its_lease_its_delay_or_its_consumer",
        "tests/conformance/test_waiting.py::test_a_nack_wakes_a_consumer_that_waits",
    ],
    "acks out of order": ["tests/conformance/test_acks.py::test_acks_out_of_order_finish_each_its_own_message"],
    "the window of a consumer": ["tests/conformance/test_prefetch.py::test_the_window_bounds_what_is_in_flight"],
    "many partitions": ["tests/conformance/test_partitions.py::test_a_consumer_gets_all_partitions_each_in_order"],
    "retention beside consumers": [
        "tests/conformance/test_retention.py::test_retention_takes_unread_messages_from_a_stream_and_not_from_a_queue",
        "tests/conformance/test_retention.py::test_a_delayed_message_keeps_its_segment",
    ],
    "the ends of segments": [
        "tests/conformance/test_segments.py::test_a_segment_ends_when_it_has_its_bytes",
        "tests/conformance/test_segments.py::test_a_segment_ends_when_it_has_its_messages",
        "tests/conformance/test_segments.py::test_segments_that_end_beside_concurrent_publishers_lose_nothing",
    ],
    "dead letters": [
        "tests/conformance/test_burials.py::test_a_message_is_buried_once_and_replayed_with_all_it_had",
        "tests/conformance/test_burials.py::test_a_dead_letter_of_a_compressed_source_is_byte_equal",
    ],
    "seeking": [
        "tests/conformance/test_seeking.py::test_a_seek_goes_to_an_offset_or_a_time_and_is_remembered",
        "tests/conformance/test_seeking.py::test_a_seek_back_keeps_priorities_and_brings_back_nothing_that_expired",
    ],
}
"""The fifteen subjects that a new implementation of a queue is tested on first."""


def assert_exists(place: str) -> None:
    """The test that *place* names must be in its file."""
    path, _, name = place.partition("::")
    assert f"def {name}(" in (Path(__file__).parents[2] / path).read_text(), place


def test_each_row_has_a_test_or_a_reason() -> None:
    """B1 to B31, C1 to C29, D1 to D22, E1 to E16: none is forgotten or told twice, and the tests exist."""
    rows = {
        f"{letter}{number}" for letter, last in (("B", 31), ("C", 29), ("D", 22), ("E", 16)) for number in range(1, last + 1)
    }
    assert set(ROWS) | set(NEVER) == rows
    assert len(ROWS) + len(NEVER) == len(rows), "a row is told twice"
    for place in ROWS.values():
        assert_exists(place)


def test_each_essential_subject_has_its_tests() -> None:
    """None of the fifteen is forgotten, nor a class of frames, and the tests exist."""
    assert len(ESSENTIALS) == 15
    for places in ESSENTIALS.values():
        assert places
        for place in places:
            assert_exists(place)
