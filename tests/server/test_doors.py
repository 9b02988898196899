"""What one door can say, the others can: settings, numbers and filters, compared with the engine's own."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import Any

from penstock.cli.topics import create as create_command
from penstock.client import store as client_store
from penstock.server.grpc.router import METHODS
from penstock.server.http.app import HANDLERS
from penstock.server.http.operations import OPERATIONS
from penstock.settings import TOPIC_SETTINGS, GroupSettings, TopicSettings
from penstock.store.dead_letter_filter import DeadLetterFilter
from penstock.store.metrics import GroupMetrics, Latency, StoreMetrics, TopicMetrics
from penstock.store.stats import GroupStats, StoreStats, TopicStats
from penstock.store.store import Store
from penstock.wire import penstock_pb2 as pb
from penstock.wire.calls import Call
from tests.cli.test_reference import COMMANDS
from tests.docs.pages import ROOT, rows

DOORS = rows((ROOT / "docs" / "reference" / "doors.md").read_text(), "store")
WITHIN = {"begin_publish", "forget", "has_threads", "open"}
"""Public names of a store that are for other parts of Penstock, and `open`, which `penstock.open` stands for."""
TOPIC = {field.name for field in fields(TopicSettings)}
GROUP = {field.name for field in fields(GroupSettings)}


def in_seconds(names: set[str]) -> set[str]:
    """As calls for people take them: times in seconds, without a unit."""
    return {name.removesuffix("_ms") for name in names}


def of_proto(message: Any) -> set[str]:
    return {field.name for field in message.DESCRIPTOR.fields}


def body_of(name: str) -> set[str]:
    (found,) = [one for one in OPERATIONS if one.name == name]
    assert found.body is not None
    return set(found.body["properties"])


def parameters_of(name: str) -> set[str]:
    (found,) = [one for one in OPERATIONS if one.name == name]
    return {parameter.name for parameter in found.parameters}


def numbers(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def test_every_setting_of_a_topic_can_be_given_by_grpc_and_is_told() -> None:
    assert of_proto(pb.TopicSettings) == TOPIC


def test_every_setting_of_a_topic_can_be_given_by_http() -> None:
    assert body_of("create_topic") - {"name", "partitions"} == in_seconds(TOPIC)


def test_every_setting_of_a_topic_can_be_given_by_the_command_line() -> None:
    options = {one.name for one in create_command.params} - {"target", "name", "others", "as_json", "partitions"}
    by_number = {setting.name for setting in TOPIC_SETTINGS if setting.least is not None}
    assert {name for name in TOPIC if name.removesuffix("_ms") not in options and name not in by_number} == set()
    assert options <= in_seconds(TOPIC)


def test_every_time_of_a_topic_is_taken_in_seconds_by_stores_here_and_on_a_server() -> None:
    times = {name for name in in_seconds(TOPIC) if f"{name}_ms" in TOPIC}
    assert times <= set(inspect.signature(Store.create_topic).parameters)
    assert times == client_store._SECONDS_OF_TOPIC


def test_every_setting_of_a_group_can_be_given_by_every_door_and_is_told() -> None:
    assert set(inspect.signature(Store.subscribe).parameters) >= in_seconds(GROUP)
    assert of_proto(pb.GroupSettings) == GROUP
    assert of_proto(pb.Subscription) >= GROUP
    assert body_of("configure_group") - {"start", "create", "topic_settings"} == in_seconds(GROUP)


def test_grpc_tells_every_number_of_a_store() -> None:
    assert of_proto(pb.GroupStats) == numbers(GroupStats)
    assert of_proto(pb.TopicStats) == numbers(TopicStats)
    # Where the store lies is no business of clients.
    assert of_proto(pb.GetStatsResponse) == numbers(StoreStats) - {"path"}


def test_grpc_tells_every_metric() -> None:
    assert of_proto(pb.Latency) == numbers(Latency)
    # The numbers are those of GetStats.
    assert of_proto(pb.GroupMetrics) == numbers(GroupMetrics) - {"stats"}
    assert of_proto(pb.TopicMetrics) == numbers(TopicMetrics) - {"stats"}
    assert of_proto(pb.GetMetricsResponse) == numbers(StoreMetrics) - {"stats"} | {"bounds_s"}


def test_dead_letters_are_chosen_by_the_same_filter() -> None:
    wanted = set(inspect.signature(DeadLetterFilter).parameters)
    assert {name.removesuffix("_us") for name in of_proto(pb.DeadLetterFilter)} == wanted
    other_names = {"source_start": "start", "source_end": "end", "since_us": "since", "until_us": "until", "header": "headers"}
    for operation in ("list_dead_letters", "replay_all_dead_letters", "discard_all_dead_letters"):
        given = parameters_of(operation) - {"max_messages", "start", "look", "base64", "key_base64"}
        assert {other_names.get(name, name) for name in given} == wanted


def told(column: int, form: str) -> set[str]:
    """What the table of doors names in a column."""
    assert HANDLERS
    return {name for row in DOORS for name in re.findall(f"`({form})`", row[column])}


def test_the_table_of_doors_has_every_name_of_a_store() -> None:
    assert told(0, r"\w+") == {name for name in dir(Store) if not name.startswith("_")} - WITHIN


def test_the_table_of_doors_has_every_call_method_and_path() -> None:
    assert told(1, "[A-Z_]+") == {call.name for call in Call}
    assert told(2, r"\w+\.\w+") == {method.removeprefix("/penstock.v1.").replace("/", ".") for method in METHODS}
    paths = told(3, r"[A-Z]+ \S+")
    whole = {path.replace(" {group}", " {topic}/groups/{group}").replace(" {topic}", " /v1/topics/{topic}") for path in paths}
    assert whole == {f"{operation.method} {operation.path}" for operation in OPERATIONS}


def test_the_table_of_doors_names_commands_that_there_are() -> None:
    assert {f"penstock {name}" for name in told(4, "[a-z ]+")} <= set(COMMANDS)
