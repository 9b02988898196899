"""Health, metrics, the description of all paths, and the table of errors."""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.routing import Route

from penstock import errors
from penstock.errors import BadArgument, DamagedFile, PenstockError, StorageFailed
from penstock.server.http.app import Endpoint, HostGuard, make_app
from penstock.server.http.openapi import document
from penstock.server.http.operations import OPERATIONS
from penstock.server.http.problems import HTTP_CODES, STATUS_OF, HttpProblem, problem
from penstock.server.http.schemas import COMPONENTS
from penstock.server.http.settings import HTTP_SETTINGS, HttpSettings
from tests.docs.pages import ROOT, rows
from tests.server.running import Running, running, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx


def samples(client: httpx.Client) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_the_metrics_tell_what_has_happened(server: Running, http: httpx.Client) -> None:
    server.store.sync.publish_many("t", [b"1", b"2", b"3", b"4"])
    found = http.post("/v1/topics/t/groups/g/receive", json={"max": 3}).json()["messages"]
    http.post("/v1/topics/t/groups/g/ack", json={"receipts": [found[0]["receipt"]]})
    http.post("/v1/topics/t/groups/g/reject", json={"receipts": [found[1]["receipt"]]})
    until(lambda: http.get("/v1/topics/t/dlq").json()["count"])
    values = samples(http)
    group = (("group", "g"), ("topic", "t"))
    for name, value in {
        "messages_delivered_total": 3, "messages_acked_total": 1, "messages_nacked_total": 1, "messages_dead_lettered_total": 1,
        "messages_redelivered_total": 0, "group_lag_messages": 2, "group_in_flight_messages": 1, "group_members": 1,
    }.items():  # fmt: skip
        assert values[f"penstock_{name}", group] == value, name
    assert 0 < values["penstock_group_oldest_unacked_age_seconds", group] < 60
    topic = (("topic", "t"),)
    assert values["penstock_messages_published_total", topic] == 4
    assert values["penstock_dead_letters", topic] == 1
    assert 0 < values["penstock_dead_letters_oldest_age_seconds", topic] < 60
    received = (("method", "POST"), ("path", "/v1/topics/{topic}/groups/{group}/receive"), ("status", "200"))
    assert values["penstock_http_requests_total", received] == 1
    assert values["penstock_http_receipts", ()] == 1
    assert values["penstock_http_connections", ()] >= 1
    assert values["penstock_store_failed", ()] == 0


def test_a_group_without_lag_has_no_age(server: Running, http: httpx.Client) -> None:
    server.store.sync.publish("t", b"1")
    (found,) = http.post("/v1/topics/t/groups/g/receive").json()["messages"]
    http.post("/v1/topics/t/groups/g/ack", json={"receipts": [found["receipt"]]})
    assert samples(http)["penstock_group_oldest_unacked_age_seconds", (("group", "g"), ("topic", "t"))] == 0


def test_labels_are_few_whatever_clients_ask_for(server: Running, http: httpx.Client) -> None:
    for number in range(50):
        http.get(f"/nowhere/{number}")
        http.get(f"/v1/topics/name-{number}")
        http.request(f"METHOD{number}", "/healthz")
    series = [key for key in samples(http) if key[0] == "penstock_http_requests_total"]
    assert len(series) <= 4


def test_only_so_many_topics_are_listed() -> None:
    with running(metrics_topics_max=2) as server:
        for name in ("c", "a", "b"):
            server.store.sync.create_topic(name)
        values = samples(server.client())
        assert ("penstock_topic_messages", (("topic", "b"),)) in values
        assert ("penstock_topic_messages", (("topic", "c"),)) not in values
        assert values["penstock_topics_left_out", ()] == 1


def test_every_metric_has_help_a_type_and_a_name_by_the_rules(client: httpx.Client) -> None:
    for family in text_string_to_metric_families(client.get("/metrics").text):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        assert re.fullmatch(r"penstock_[a-z_]+", family.name)
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        for sample in family.samples:
            assert set(sample.labels) <= {"topic", "group", "method", "path", "status", "le"}


def test_the_server_is_alive_and_ready(server: Running, http: httpx.Client) -> None:
    assert http.get("/healthz").json() == {"status": "ok"}
    assert http.get("/readyz").json() == {"status": "ready"}


def test_a_store_that_failed_is_not_ready(server: Running, http: httpx.Client) -> None:
    committer: Any = server.store.sync._volume._committer
    committer.failure = "/data/x is gone"
    answer = http.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "UNAVAILABLE")
    assert "/data/x" not in answer.text, "anybody may ask"
    assert samples(http)["penstock_store_failed", ()] == 1
    committer.failure = None


def test_stats_tell_of_all_topics(server: Running, http: httpx.Client) -> None:
    server.store.sync.publish("t", b"1")
    found = http.get("/v1/stats").json()
    assert found["topics"]["t"]["messages"] == 1
    assert found["failed"] is False


METRICS = (ROOT / "docs" / "reference" / "metrics.md").read_text()


def test_every_metric_is_on_the_page_with_its_type_labels_and_meaning() -> None:
    with running() as server:
        store, http = server.store.sync, server.client()
        store.measure()
        store.publish_many("t", [b"0", b"1"])
        store.create_topic("weak", sync="os")
        store.publish("weak", b"0")
        found = http.post("/v1/topics/t/groups/g/receive", json={"max": 2}).json()["messages"]
        http.post("/v1/topics/t/groups/g/ack", json={"receipts": [found[0]["receipt"]]})
        http.post("/v1/topics/t/groups/g/reject", json={"receipts": [found[1]["receipt"]]})
        until(lambda: len(store.dead_letters("t")))
        served = http.get("/metrics").text
    families = {family.name: family for family in text_string_to_metric_families(served)}
    expected = []
    for name, meaning in re.findall(r"^# HELP (\S+) (.*)$", served, re.MULTILINE):
        family = families[name.removesuffix("_total")]
        assert family.samples, f"{name} has no sample, so its labels are not seen"
        labels = dict.fromkeys(label for sample in family.samples for label in sample.labels if label != "le")
        expected.append([f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), meaning])
    assert rows(METRICS, "metric") == expected


def test_latencies_are_histograms_that_count_batches_and_calls(server: Running, http: httpx.Client) -> None:
    store = server.store.sync
    store.publish("t", b"before")
    assert not [name for name, _ in samples(http) if "duration" in name and "http" not in name], "nobody measures"
    store.measure()
    store.publish("t", b"1")
    store.publish_many("t", [b"2"] * 100)
    http.post("/v1/topics/t/messages", json={"value": "3"})
    found = http.post("/v1/topics/t/groups/g/receive", json={"max": 50}).json()["messages"]
    http.post("/v1/topics/t/groups/g/ack", json={"receipts": [one["receipt"] for one in found]})
    values = samples(http)
    topic, group = (("topic", "t"),), (("group", "g"), ("topic", "t"))
    assert values["penstock_publish_duration_seconds_count", topic] == 3
    assert values["penstock_publish_duration_seconds_bucket", (("le", "+Inf"), *topic)] == 3
    assert 0 < values["penstock_publish_duration_seconds_sum", topic] < 60
    assert values["penstock_deliver_to_ack_duration_seconds_count", group] == 1
    buckets = [value for (name, _), value in values.items() if name == "penstock_publish_duration_seconds_bucket"]
    assert buckets == sorted(buckets), "buckets are cumulative"
    assert values["penstock_topic_bytes", topic] == store.stats().topics["t"].bytes > 100


def test_the_lag_in_seconds_is_looked_up_once_however_often_it_is_asked(server: Running, http: httpx.Client) -> None:
    store: Any = server.store.sync
    store.publish_many("t", [b"0"] * 1_000)
    with store.subscribe("t", "g") as consumer:
        reads = []
        plain = store.read

        def read(*arguments: Any, **options: Any) -> Any:
            reads.append(arguments)
            return plain(*arguments, **options)

        store.read = read
        for _ in range(3):
            assert samples(http)["penstock_group_oldest_unacked_age_seconds", (("group", "g"), ("topic", "t"))] > 0
        assert len(reads) == 1
        consumer.get(30).ack()
        store.flush()
        samples(http)
        assert len(reads) == 2
        del store.read


# -- the description ------------------------------------------------------------------------------------------------


def test_the_document_has_the_paths_and_methods_of_the_router_and_no_others(shared: Running) -> None:
    edge: Any = make_app(shared.listener.context, HostGuard((), any_name=True))
    routes = {
        (method, route.path)
        for route in edge._app.routes
        if isinstance(route, Route) and isinstance(route.app, Endpoint)
        for method in route.app._by_method
        if method != "HEAD"
    }
    described = document(OPERATIONS, HttpSettings(), tokens=False)
    listed = {
        (method.upper(), path) for path, entry in described["paths"].items() for method in entry if method != "parameters"
    }
    assert listed == routes == {(operation.method, operation.path) for operation in OPERATIONS}


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key == "$ref":
                yield item
            else:
                yield from refs(item)
    elif isinstance(value, list):
        for item in value:
            yield from refs(item)


def test_the_document_is_complete(client: httpx.Client) -> None:
    assert client.get("/openapi.json").json() == json.loads(json.dumps(document(OPERATIONS, HttpSettings(), tokens=False)))
    described = document(OPERATIONS, HttpSettings(), tokens=True)
    assert described["openapi"] == "3.1.0"
    assert {found.rpartition("/")[2] for found in refs(described)} <= set(COMPONENTS) == set(described["components"]["schemas"])
    names = [
        entry[method]["operationId"] for entry in described["paths"].values() for method in entry if method != "parameters"
    ]
    assert len(set(names)) == len(names)
    for path, entry in described["paths"].items():
        for method, operation in entry.items():
            if method == "parameters":
                assert re.findall(r"{(\w+)}", path) == [parameter["name"] for parameter in operation]
                continue
            assert operation["summary"]
            assert any(status.startswith("2") for status in operation["responses"])
            for status, answer in operation["responses"].items():
                assert status == "204" or answer["content"]
            if "requestBody" in operation:
                assert re.search(r"At most [0-9,]+ bytes", operation["requestBody"]["description"])
                assert {"413", "415", "408"} <= set(operation["responses"])
            assert operation["security"] or path in ("/healthz", "/readyz", "/openapi.json")


# -- errors ---------------------------------------------------------------------------------------------------------


def all_errors(error: type[PenstockError] = PenstockError) -> Iterator[type[PenstockError]]:
    yield error
    for child in error.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from all_errors(child)


def test_every_error_has_a_status() -> None:
    assert set(STATUS_OF) == set(all_errors())
    for error, status in STATUS_OF.items():
        assert 400 <= status < 600, error


def test_no_code_of_http_is_a_code_of_an_error() -> None:
    assert not set(HTTP_CODES) & {error.code for error in all_errors()}


@pytest.mark.parametrize(
    "error", [StorageFailed("/data/x", "EIO"), DamagedFile("/data/x", 7, None, "bad"), ValueError("/data/x")]
)
def test_what_a_client_cannot_mend_names_no_files(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    answer = problem(error)
    assert b"/data/x" not in bytes(answer.body)
    assert "/data/x" in caplog.text
    assert json.loads(bytes(answer.body))["status"] == answer.status_code == 500


def test_what_a_client_can_mend_says_how() -> None:
    found = json.loads(bytes(problem(BadArgument("limit", "0", "must be from 1 to 1,000")).body))
    assert found == {
        "type": "urn:penstock:error:BAD_ARGUMENT", "title": "An argument has a wrong type or value.", "status": 400,
        "detail": "argument limit=0: must be from 1 to 1,000; nothing was changed", "code": "BAD_ARGUMENT",
    }  # fmt: skip


# -- the page -------------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "reference" / "http.md").read_text()


def test_every_path_is_on_the_page() -> None:
    listed = [(row[0].strip("`"), row[1].strip("`"), row[2].strip("`")) for row in rows(PAGE, "method")]
    assert listed == [
        (operation.method, operation.path, (operation.right or "") + (" (dead letters)" if operation.dead_letters else ""))
        for operation in sorted(OPERATIONS, key=lambda one: (one.tag, one.path, one.method))
    ]


def test_every_setting_is_on_the_page() -> None:
    from tests.docs.test_reference import row_of

    assert rows(PAGE, "setting") == [row_of(setting) for setting in HTTP_SETTINGS]
    fields = {name: parameter.default for name, parameter in inspect.signature(HttpSettings).parameters.items()}
    assert fields == {setting.name: setting.default for setting in HTTP_SETTINGS}


def test_every_code_of_http_is_on_the_page() -> None:
    expected = [[f"`{code}`", str(status), title] for code, (status, title) in HTTP_CODES.items()]
    assert rows(PAGE, "code") == expected
    assert HttpProblem("BAD_JSON", "x").status == 400
