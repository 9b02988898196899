"""Small words that the tests of the suite share."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from penstock.wire import penstock_pb2 as pb
from tests.grpc.running import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def request_of(topic: str, *values: bytes, **options: Any) -> pb.PublishRequest:
    return pb.PublishRequest(topic=topic, messages=[pb.NewMessage(value=value) for value in values], **options)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def code_of(error: grpc.RpcError) -> str:
    """The stable code, which stands in the metadata and in the details, and is the same in both."""
    metadata = dict(error.trailing_metadata())
    found = Status.FromString(metadata["grpc-status-details-bin"])
    info = ErrorInfo()
    assert found.details[0].Unpack(info)
    assert found.code == error.code().value[0]
    assert found.message == error.details()
    assert info.domain == "penstock"
    assert info.reason == metadata["penstock-code"]
    return str(info.reason)


@contextmanager
def refused(status: grpc.StatusCode, code: str) -> Iterator[None]:
    """The block fails by a call that ends with *status* and *code*."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert (caught.value.code(), code_of(caught.value)) == (status, code), caught.value.details()


def until(holds: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Return when it holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it never came to hold"
        time.sleep(0.005)
