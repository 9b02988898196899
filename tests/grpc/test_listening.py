"""Where it listens, to whom, and that it refuses what would not be safe."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from penstock.errors import BadSetting
from penstock.server.address import Address
from penstock.server.auth import TokenAuth
from penstock.server.grpc.listener import GrpcListener
from penstock.server.tls import TlsFiles
from penstock.store.store import Store
from penstock.wire.penstock_pb2_grpc import PenstockStub
from tests.grpc.helpers import request_of
from tests.grpc.running import PATIENCE, Running, running
from tests.server.running import write_tokens
from tests.server.test_listening import Authority, ours, theirs

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ours", "theirs"]


def tls_stub(server: Running, authority: Authority, shown: tuple[str, str] | None = None) -> PenstockStub:
    def content(path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    key, chain = (None, None) if shown is None else (content(shown[1]), content(shown[0]))
    credentials = grpc.ssl_channel_credentials(content(authority.certificate), key, chain)
    channel = grpc.secure_channel(server.target, credentials, options=[("grpc.use_local_subchannel_pool", 1)])
    server._channels.append(channel)
    return PenstockStub(channel)


def is_served(stub: PenstockStub) -> bool:
    try:
        stub.Publish(request_of("t", b"x"), timeout=PATIENCE)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.UNAVAILABLE:
            raise
        return False
    return True


def test_over_tls_with_a_certificate_that_the_client_trusts(ours: Authority, theirs: Authority) -> None:
    with running(tls=TlsFiles(*ours.sign("server"))) as server:
        assert is_served(tls_stub(server, ours))
        assert not is_served(tls_stub(server, theirs))
        assert not is_served(server.stub())


def test_clients_must_show_a_certificate_of_the_right_authority(ours: Authority, theirs: Authority) -> None:
    with running(tls=TlsFiles(*ours.sign("server"), ours.certificate)) as server:
        assert is_served(tls_stub(server, ours, ours.sign("client")))
        assert not is_served(tls_stub(server, ours, theirs.sign("client")))
        assert not is_served(tls_stub(server, ours))


def test_a_new_certificate_is_used_after_a_reload(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    files = TlsFiles(str(tmp_path / "certificate"), str(tmp_path / "key"))

    def install(authority: Authority) -> None:
        for source, target in zip(authority.sign("server"), (files.certificate, files.key), strict=True):
            with open(source, "rb") as old, open(target, "wb") as new:
                new.write(old.read())

    install(ours)
    with running(tls=files) as server:
        assert is_served(tls_stub(server, ours))
        (tmp_path / "key").write_text("nonsense")
        with pytest.raises(BadSetting):
            server.listener.reload_tls()
        assert is_served(tls_stub(server, ours))
        install(theirs)
        server.listener.reload_tls()
        assert is_served(tls_stub(server, theirs))
        assert not is_served(tls_stub(server, ours))


def test_over_a_unix_socket_that_only_its_owner_may_use(tmp_path: Path) -> None:
    path = tmp_path / "a socket %41"
    with running(address=Address(path=str(path))) as server:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        channel = grpc.insecure_channel("unix:" + str(path).replace("%", "%25").replace(" ", "%20"))
        server._channels.append(channel)
        assert is_served(PenstockStub(channel))
        with Store.open("memory:") as store, pytest.raises(BadSetting, match="in use"):
            Running(store, address=Address(path=str(path)))
        assert is_served(PenstockStub(channel))
    assert not path.exists()


def test_a_unix_socket_left_of_a_dead_process_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    import socket

    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with running(address=Address(path=str(path))) as server:
        assert is_served(server.stub())
    path.write_text("a file of somebody")
    with Store.open("memory:") as store, pytest.raises(BadSetting, match="in use"):
        Running(store, address=Address(path=str(path)))
    assert path.read_text() == "a file of somebody"


def test_a_port_that_is_taken_is_told_and_not_shared() -> None:
    with running() as server, Store.open("memory:") as store:
        port = int(server.target.rpartition(":")[2])
        with pytest.raises(BadSetting, match="cannot listen"):
            Running(store, address=Address("127.0.0.1", port))


@pytest.mark.parametrize("missing", ["both", "tokens", "tls"])
def test_a_public_address_needs_tokens_and_tls(missing: str, tmp_path: Path, ours: Authority) -> None:
    options: dict[str, Any] = {}
    if missing == "tls":
        options["auth"] = TokenAuth(write_tokens(tmp_path / "tokens", {"a": {"admin": ["*"]}}))
    if missing == "tokens":
        options["tls"] = TlsFiles(*ours.sign("server"))
    with Store.open("memory:") as store:
        with pytest.raises(BadSetting, match="other machines can reach"):
            GrpcListener(store, Address("0.0.0.0", 0), **options)
        GrpcListener(store, Address("0.0.0.0", 0), allow_insecure=True, **options)


def test_files_that_are_no_certificates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nonsense")
    with Store.open("memory:") as store, pytest.raises(BadSetting):
        GrpcListener(store, Address("127.0.0.1", 0), tls=TlsFiles(str(tmp_path / "x"), str(tmp_path / "x")))
