"""Health and reflection, asked by their standard clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from penstock.wire import penstock_pb2 as pb

if TYPE_CHECKING:
    from tests.grpc.running import Running


@pytest.mark.parametrize("service", ["", "penstock.v1.Penstock", "penstock.v1.Admin"])
def test_health_says_that_it_serves(shared: Running, service: str) -> None:
    stub = health_pb2_grpc.HealthStub(shared.channel())
    request = health_pb2.HealthCheckRequest(service=service)
    assert stub.Check(request).status == health_pb2.HealthCheckResponse.SERVING
    watching = stub.Watch(request)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVING
    watching.cancel()


def test_health_of_what_is_not_there(shared: Running) -> None:
    stub = health_pb2_grpc.HealthStub(shared.channel())
    request = health_pb2.HealthCheckRequest(service="other")
    with pytest.raises(grpc.RpcError) as caught:
        stub.Check(request)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    watching = stub.Watch(request)
    assert next(watching).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watching.cancel()


def test_reflection_is_enough_to_make_a_call(shared: Running, topic: str) -> None:
    """A client that knows nothing but the address finds the services, their methods and messages, and uses them."""
    database = ProtoReflectionDescriptorDatabase(shared.channel())
    assert {"penstock.v1.Penstock", "penstock.v1.Admin", "grpc.health.v1.Health"} <= set(database.get_services())
    pool = descriptor_pool.DescriptorPool(database)
    service = pool.FindServiceByName("penstock.v1.Penstock")
    assert {method.name for method in service.methods} == {"Publish", "PublishStream", "Subscribe", "Read", "Commit"}
    method = service.FindMethodByName("Publish")
    request = message_factory.GetMessageClass(method.input_type)(topic=topic)
    request.messages.add(value=b"by reflection")
    call = shared.channel().unary_unary(
        f"/{service.full_name}/Publish",
        request_serializer=lambda one: one.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(method.output_type).FromString,
    )
    assert call(request).receipts[0].offset == 0
    assert [one.value for one in shared.store.read(topic)] == [b"by reflection"]
    assert pb.DESCRIPTOR.services_by_name["Penstock"].full_name == service.full_name
