"""The suite over gRPC: publishing, leases, groups, moving them, dead letters, reading, recording and topics."""

from __future__ import annotations

import pytest

from tests.conformance import (
    test_dead_letter_attributes,
    test_dead_letters,
    test_deduplication,
    test_features_together,
    test_groups,
    test_leases,
    test_options,
    test_ordered_groups,
    test_pairs,
    test_publishing,
    test_publishing_together,
    test_reading,
    test_recording,
    test_topics,
)
from tests.conformance.test_over_grpc import backend_type, collect

__all__ = ["backend_type"]
pytestmark = pytest.mark.long
MODULES = (
    test_dead_letter_attributes,
    test_features_together, test_pairs,
    test_dead_letters, test_deduplication, test_groups, test_leases, test_options, test_ordered_groups, test_publishing, test_reading,
    test_recording, test_topics, test_publishing_together,
)  # fmt: skip
for _module in MODULES:
    globals().update(collect(_module))
