"""
A part of the conformance suite, for a process that is not the owner.

The calls go the way that `tests/conformance` walks for a server, whole; what differs is how it is reached, and that is seen by a few.
How work is shared is in tests/conformance/test_fairness.py.
"""

# ruff: noqa: F401 - fixtures and tests that run here because they are imported

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conformance.conftest import backend, lasting, live, live_store, store
from tests.conformance.interfaces import SharedBackend
from tests.conformance.test_acks import test_acks_out_of_order_finish_each_its_own_message
from tests.conformance.test_burials import test_a_message_is_buried_once_and_replayed_with_all_it_had
from tests.conformance.test_failures import test_an_unfinished_message_comes_again_after_its_lease_its_delay_or_its_consumer
from tests.conformance.test_looping import (
    test_a_loop_goes_on_for_many_leases,
    test_a_loop_with_blocks_goes_on_for_many_leases,
    test_the_end_of_a_lease_is_seen_though_nobody_asks,
    test_who_stops_asking_for_a_while_goes_on_where_it_was,
)
from tests.conformance.test_options import (
    test_a_dedup_key_and_options_together,
    test_several_messages_take_columns_or_one_for_all,
)
from tests.conformance.test_ordered_groups import test_partitions_move_to_those_who_come
from tests.conformance.test_partitions import test_a_consumer_gets_all_partitions_each_in_order
from tests.conformance.test_prefetch import test_the_window_bounds_what_is_in_flight
from tests.conformance.test_publishing_together import (
    test_a_call_that_is_refused_stored_nothing,
    test_a_reader_never_sees_a_part_of_a_call,
    test_receipts_say_where_each_message_of_a_call_lies,
    test_the_strict_way_of_a_weaker_topic_is_one_step_too,
)
from tests.conformance.test_restart import (
    test_a_key_that_is_published_again_after_a_kill_is_the_first_message,
    test_the_first_message_stays_acked_over_restarts_and_the_end_of_its_lease,
)
from tests.conformance.test_seeking import test_a_seek_goes_to_an_offset_or_a_time_and_is_remembered
from tests.conformance.test_transactions import (
    test_a_transaction_wakes_those_who_wait,
    test_publishing_and_acking_are_one,
)
from tests.conformance.test_waiting import test_a_nack_wakes_a_consumer_that_waits

if TYPE_CHECKING:
    from tests.conformance.backends import Backend


@pytest.fixture
def backend_type() -> type[Backend]:
    """The one way that is looked at here."""
    return SharedBackend
