"""Where a listener listens, TLS, and what it refuses to start with."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import subprocess
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from penstock import aio
from penstock.errors import BadSetting
from penstock.server.address import Address
from penstock.server.auth import TokenAuth
from penstock.server.http import HttpListener, HttpSettings
from tests.server.running import PATIENCE, Running, running, until, write_tokens
from tests.server.test_hostile import answers

if TYPE_CHECKING:
    from pathlib import Path


# -- certificates ---------------------------------------------------------------------------------------------------


class Authority:
    """Signs certificates in a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name = folder, name
        folder.mkdir(exist_ok=True)
        self.certificate = str(folder / f"{name}.pem")
        self._key = str(folder / f"{name}.key")
        _openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
                 "-subj", f"/CN={name}", "-keyout", self._key, "-out", self.certificate)  # fmt: skip

    def sign(self, name: str) -> tuple[str, str]:
        """A certificate for localhost, and its key."""
        certificate, key, request = (str(self.folder / f"{name}.{ending}") for ending in ("pem", "key", "csr"))
        names = self.folder / f"{name}.ext"
        names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        _openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj", f"/CN={name}",
                 "-keyout", key, "-out", request)  # fmt: skip
        _openssl("x509", "-req", "-in", request, "-CA", self.certificate, "-CAkey", self._key, "-CAcreateserial", "-days", "2",
                 "-extfile", str(names), "-out", certificate)  # fmt: skip
        return certificate, key


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


def trusting(authority: Authority, certificate: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.certificate)
    if certificate is not None:
        context.load_cert_chain(*certificate)
    return context


def test_over_tls_with_a_certificate_that_the_client_trusts(ours: Authority, theirs: Authority) -> None:
    certificate, key = ours.sign("server")
    with running(tls_certificate=certificate, tls_key=key) as server:
        assert server.url.startswith("https://")
        assert server.client(verify=trusting(ours)).get("/readyz").status_code == 200
        with pytest.raises(httpx.ConnectError):
            server.client(verify=trusting(theirs)).get("/readyz")
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://127.0.0.1:{server.port}/readyz")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(ours.certificate)
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(httpx.ConnectError):
            server.client(verify=old).get("/readyz")


def test_clients_must_show_a_certificate_of_the_right_authority(ours: Authority, theirs: Authority) -> None:
    certificate, key = ours.sign("server")
    with running(tls_certificate=certificate, tls_key=key, tls_client_ca=ours.certificate) as server:
        assert server.client(verify=trusting(ours, ours.sign("client"))).get("/readyz").status_code == 200
        for wrong in (None, theirs.sign("client")):
            with pytest.raises(httpx.HTTPError):
                server.client(verify=trusting(ours, wrong)).get("/readyz")


def test_a_new_certificate_is_used_after_a_reload(ours: Authority, theirs: Authority, tmp_path: Path) -> None:
    certificate, key = tmp_path / "server.pem", tmp_path / "server.key"

    def install(authority: Authority) -> None:
        for place, source in zip((certificate, key), authority.sign("server"), strict=True):
            with open(source) as file:
                place.write_text(file.read())

    install(ours)
    with running(tls_certificate=str(certificate), tls_key=str(key)) as server:
        assert server.client(verify=trusting(ours)).get("/healthz").status_code == 200
        install(theirs)
        server.listener.reload_tls()
        assert server.client(verify=trusting(theirs)).get("/healthz").status_code == 200
        key.write_text("no key")
        with pytest.raises(BadSetting):
            server.listener.reload_tls()
        assert server.client(verify=trusting(theirs)).get("/healthz").status_code == 200


def test_a_tls_handshake_that_does_not_end_is_cut_off(ours: Authority) -> None:
    certificate, key = ours.sign("server")
    with running(tls_certificate=certificate, tls_key=key, header_timeout_s=0.3) as server:
        with (
            socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as silent,
            contextlib.suppress(ConnectionResetError),
        ):
            assert silent.recv(1) == b""
        until(lambda: answers(server, verify=trusting(ours)))


# -- Unix sockets ---------------------------------------------------------------------------------------------------


def test_over_a_unix_socket_that_only_its_owner_may_use(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with running(listen=f"unix:{path}") as server:
        assert stat.S_IMODE(os.lstat(path).st_mode) == 0o600
        with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://any", timeout=PATIENCE) as client:
            assert client.get("/readyz").status_code == 200
        assert server.url == "http://localhost"
    assert not path.exists()


def test_a_unix_socket_left_of_a_dead_process_is_replaced_and_nothing_else_is(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with running(listen=f"unix:{path}"):
        with pytest.raises(BadSetting, match="in use"), running(listen=f"unix:{path}"):
            pass
        assert path.exists()
    path.write_text("data")
    with pytest.raises(BadSetting, match="in use"), running(listen=f"unix:{path}"):
        pass
    assert path.read_text() == "data"


def test_a_port_that_is_taken_is_told(shared: Running) -> None:
    with pytest.raises(BadSetting, match="cannot listen there"), running(listen=f"127.0.0.1:{shared.port}"):
        pass


# -- what is refused ------------------------------------------------------------------------------------------------


def made(auth: TokenAuth | None = None, **settings: Any) -> HttpListener:
    async def make() -> HttpListener:
        async with aio.open("memory:") as store:
            return HttpListener(store, HttpSettings(**settings), auth)

    return asyncio.run(make())


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:80", "8.8.8.8:1"])
def test_a_public_address_needs_tokens_and_tls(listen: str, tmp_path: Path, ours: Authority) -> None:
    auth = TokenAuth(write_tokens(tmp_path / "tokens", {"a": {"admin": ["*"]}}))
    certificate, key = ours.sign("server")
    tls: dict[str, Any] = {"tls_certificate": certificate, "tls_key": key}
    with pytest.raises(BadSetting, match=r"a file of tokens and a TLS certificate is not set"):
        made(listen=listen)
    with pytest.raises(BadSetting, match=r"and a TLS certificate is not set"):
        made(auth, listen=listen)
    with pytest.raises(BadSetting, match=r"and a file of tokens is not set"):
        made(listen=listen, **tls)
    made(auth, listen=listen, **tls)
    made(listen=listen, allow_insecure=True)


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0", "unix:/tmp/x"])
def test_the_loopback_and_unix_sockets_need_neither(listen: str) -> None:
    made(listen=listen)


@pytest.mark.parametrize(
    "listen",
    [
        "",
        "x",
        "127.0.0.1",
        ":80",
        "127.0.0.1:x",
        "127.0.0.1:65536",
        "127.0.0.1:-1",
        "::1:80",
        "unix:",
        "unix:" + "x" * 108,
        "a:٣",
        7,
    ],
)
def test_what_is_no_address_is_refused(listen: Any) -> None:
    with pytest.raises(BadSetting):
        HttpSettings(listen=listen)


@pytest.mark.parametrize("text", ["127.0.0.1:80", "[::1]:0", "unix:/a/b", "example.org:443"])
def test_an_address_is_written_as_it_was_read(text: str) -> None:
    assert str(Address.parse("listen", text)) == text


@pytest.mark.parametrize(
    "settings",
    [
        {"tls_certificate": "x"}, {"tls_key": "x"}, {"tls_client_ca": "x"}, {"tls_certificate": "", "tls_key": ""}, {"tls_certificate": 1},
        {"allow_insecure": "no"}, {"allow_insecure": None},
        {"hosts": "name"}, {"hosts": ("",)}, {"body_bytes_max": 0}, {"body_bytes_max": -1},
        {"body_bytes_max": 1.5}, {"body_bytes_max": "1"}, {"body_bytes_max": True}, {"wait_max_s": float("nan")},
        {"wait_max_s": float("inf")},
        {"wait_max_s": -1}, {"waiting_max": None}, {"publish_bytes_max": 1 << 40},
    ],
)  # fmt: skip
def test_a_bad_setting_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(BadSetting):
        HttpSettings(**settings)


def test_files_that_are_no_certificates_are_refused(tmp_path: Path, ours: Authority) -> None:
    certificate, key = ours.sign("server")
    other = ours.sign("other")[1]
    bad = tmp_path / "bad"
    bad.write_text("nothing")
    cases: tuple[dict[str, Any], ...] = (
        {"tls_certificate": str(tmp_path / "none"), "tls_key": key},
        {"tls_certificate": str(bad), "tls_key": key},
        {"tls_certificate": certificate, "tls_key": other},
        {"tls_certificate": certificate, "tls_key": key, "tls_client_ca": str(bad)},
    )
    for settings in cases:
        with pytest.raises(BadSetting):
            made(**settings)


def test_many_idle_connections_are_held_and_cost_no_threads(server: Running) -> None:
    import threading

    before = threading.active_count()
    held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    until(lambda: server.listener.context.connections() == 300)
    assert threading.active_count() <= before + 2
    assert server.client().get("/healthz").status_code == 200
    for one in held:
        one.close()


def test_what_a_listener_accepts_is_asked_whether_it_lives() -> None:
    with Address("127.0.0.1", 0).open("native") as listening, socket.create_connection(listening.getsockname()[:2]):
        accepted, _ = listening.accept()
        with accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, every, count = (
                accepted.getsockopt(socket.IPPROTO_TCP, option)
                for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            )
            assert idle + every * count <= 30
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
