"""SIGHUP: certificate, key, whom to accept and tokens are read again, on every interface."""

from __future__ import annotations

import signal
import ssl
from typing import TYPE_CHECKING

import grpc
import httpx
import pytest

import penstock
from penstock.errors import PenstockError
from penstock.wire import penstock_pb2 as pb
from penstock.wire.penstock_pb2_grpc import AdminStub
from tests.cli.serving import PATIENCE_S, Serving, serving
from tests.client.served import eventually
from tests.server.test_listening import Authority, trusting

if TYPE_CHECKING:
    from pathlib import Path


class Client:
    """One with a certificate of an authority, on every interface."""

    def __init__(self, server: Serving, trusted: Authority, files: tuple[str, str]) -> None:
        self._server = server
        self._trusted = trusted
        self._files = files

    def native(self) -> bool:
        certificate, key = self._files
        url = f"{self._server.address('native')}?ca={self._trusted.certificate}&cert={certificate}&key={key}"
        try:
            with penstock.open(url, give_up=0.1) as store:
                return store.topics() == []
        except PenstockError:
            return False

    def http(self) -> bool:
        try:
            with httpx.Client(verify=trusting(self._trusted, self._files), timeout=PATIENCE_S) as client:
                return client.get(f"{self._server.address('http')}/v1/topics").status_code == 200
        except (httpx.HTTPError, ssl.SSLError):
            return False

    def grpc(self) -> bool:
        parts = []
        for path in (self._trusted.certificate, self._files[1], self._files[0]):
            with open(path, "rb") as file:
                parts.append(file.read())
        credentials = grpc.ssl_channel_credentials(*parts)
        with grpc.secure_channel(self._server.address("grpc"), credentials) as channel:
            try:
                return list(AdminStub(channel).ListTopics(pb.ListTopicsRequest(), timeout=5).topics) == []
            except grpc.RpcError:
                return False

    def all(self) -> tuple[bool, bool, bool]:
        return self.native(), self.http(), self.grpc()


@pytest.mark.long
def test_an_authority_that_was_replaced_lets_nobody_in_any_more(tmp_path: Path) -> None:
    ours, old, new = (Authority(tmp_path / name, name) for name in ("ours", "old", "new"))
    certificate, key = ours.sign("server")
    accepted = tmp_path / "clients.pem"

    def accept(authority: Authority) -> None:
        with open(authority.certificate) as file:
            accepted.write_text(file.read())

    accept(old)
    with serving(
        "--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
        "--tls-certificate", certificate, "--tls-key", key, "--tls-client-ca", str(accepted), environment={"PENSTOCK_SERVE_NO_GRPC": "0"},
    ) as server:  # fmt: skip
        before, after = Client(server, ours, old.sign("client")), Client(server, ours, new.sign("client"))
        assert before.all() == (True, True, True)
        assert after.all() == (False, False, False)
        certificate_before, key_before = before._files
        url = f"{server.address('native')}?ca={ours.certificate}&cert={certificate_before}&key={key_before}"
        with penstock.open(url, give_up=0.1) as connected:
            accept(new)
            server.signal(signal.SIGHUP)
            eventually(after.native)
            assert before.all() == (False, False, False)
            assert after.all() == (True, True, True)
            assert connected.topics() == [], "who is connected stays, until it connects again"
            # What cannot be used changes nothing.
            accepted.write_text("no certificate")
            server.signal(signal.SIGHUP)
            assert server.process.stderr is not None
            assert any("those of before still hold" in line for line in server.process.stderr)
            assert after.all() == (True, True, True)
            assert before.all() == (False, False, False)
