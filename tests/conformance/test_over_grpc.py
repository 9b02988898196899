"""
The suite over gRPC, by an adapter over the generated stub: delivery here, how it is shared in test_fairness.py, the rest in
test_over_grpc_long.py.

Tests that ask for what the proto does not have are skipped with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.conformance import test_delivery, test_looping, test_members, test_topics_to_come
from tests.conformance.interfaces import GrpcBackend

if TYPE_CHECKING:
    from types import ModuleType

    from tests.conformance.backends import Backend

NOT_OVER_GRPC = {
    "test_fetching_is_not_delivering_however_often_members_come_and_go": "a thousand streams take too long",
    "test_keys_over_the_limit_are_forgotten_oldest_first": "a hundred thousand publishes take too long",
    "test_a_list_may_be_acked_in_any_order": "many examples, of what the engine does",
    "test_who_stops_asking_for_a_while_goes_on_where_it_was": "the lease of the oldest runs: gRPC clients do not say what they have begun",
    "test_a_pair": "told on quick backends only",
    "test_alone": "each feature is in stories of several",
    "test_any_features_at_once": "told on quick backends only",
    "test_every_feature_is_in_pairs_with_every_other_or_there_is_a_reason": "about the tests",
}
"""Tests that are left out, and why."""


@pytest.fixture
def backend_type() -> type[Backend]:
    """This one instead of the others."""
    return GrpcBackend


def collect(module: ModuleType) -> dict[str, Any]:
    """The tests of a module, under names that no other module has."""
    prefix = module.__name__.rpartition(".")[2]
    return {
        f"{prefix}_{name.removeprefix('test_')}": found
        for name, found in vars(module).items()
        if name.startswith("test_") and callable(found) and name not in NOT_OVER_GRPC
    }


for _module in (test_delivery, test_looping, test_topics_to_come, test_members):
    globals().update(collect(_module))
