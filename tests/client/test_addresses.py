"""TLS, Unix sockets, tokens and URLs."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import stat
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Store
from penstock.client.address import parse_address
from penstock.errors import BadArgument, BadSetting, Unavailable
from penstock.server.address import Address
from penstock.server.running import RunningServer
from penstock.server.tls import TlsFiles
from tests.client.served import PATIENCE_S, eventually, later
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "store"), settings=SETTINGS) as store:
        yield store


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a certificate of it for the server and one for a client; and another authority."""
    folder = tmp_path_factory.mktemp("certificates")
    for name in ("ca", "other"):
        openssl(folder, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.pem", "-days", "2",
                "-subj", f"/CN={name}")  # fmt: skip
    (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
    for name in ("server", "client"):
        openssl(
            folder,
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-out", f"{name}.pem", "-extfile", "names")  # fmt: skip
    return folder


def work(address: str) -> None:
    """Do a little of everything."""
    with penstock.open(address) as client:
        client.create_topic("orders")
        consumer = client.subscribe("orders", "workers")
        with client.producer("orders") as producer:
            for number in range(2_000):
                producer.send(b"%d" % number)
        seen = []
        for message in consumer:
            seen.append(int(message.value))  # type: ignore[arg-type]
            message.ack()
            if len(seen) == 2_000:
                break
        assert seen == list(range(2_000))


@contextlib.contextmanager
def tls_server(store: Store, certificates: Path, **more: Any) -> Iterator[RunningServer]:
    files = TlsFiles(str(certificates / "server.pem"), str(certificates / "server.key"), **more)
    with RunningServer(store, tls=files.context()) as server:
        watched = _watched(server)
        yield server
        # A handshake that failed may not have ended here yet, and stopping does not wait for it.
        eventually(lambda: _watched(server) <= watched)


def _watched(server: RunningServer) -> int:
    """How many descriptors its event loop looks at: those of connections that are being made too."""
    return len(server._loop._selector.get_map())  # type: ignore[attr-defined]


def test_tls_works(store: Store, certificates: Path) -> None:
    """With a certificate that an authority signed which the client was told."""
    with tls_server(store, certificates) as server:
        assert server.address.startswith("penstocks://127.0.0.1:")
        work(f"{server.address}?ca={certificates / 'ca.pem'}")


def test_many_threads_share_a_tls_connection(store: Store, certificates: Path) -> None:
    """One reads while others send."""
    with tls_server(store, certificates) as server, penstock.open(f"{server.address}?ca={certificates / 'ca.pem'}") as client:
        store.create_topic("big")
        for _ in range(10):
            store.publish_many("big", [bytes(50_000)] * 20)
        client.create_topic("orders")
        consumer = client.subscribe("big", "workers")

        def publish(thread: int) -> int:
            for number in range(100):
                client.publish("orders", b"%d.%d" % (thread, number) + bytes(20_000))
            return 100

        def consume() -> int:
            seen = 0
            for message in consumer:
                message.ack()
                seen += 1
                if seen == 200:
                    return seen
            return seen

        running = [*[later(lambda thread=thread: publish(thread)) for thread in range(8)], later(consume)]  # type: ignore[misc]
        assert [one.result(PATIENCE_S) for one in running] == [100] * 8 + [200]
        assert len({bytes(message.value or b"") for message in store.read("orders")}) == 800


def test_a_server_that_nobody_vouches_for_is_refused(store: Store, certificates: Path) -> None:
    """By the client, before it says its token."""
    with tls_server(store, certificates) as server:
        for address in (server.address, f"{server.address}?ca={certificates / 'other.pem'}&token=secret"):
            with pytest.raises(Unavailable, match=r"\?ca=FILE") as caught:
                penstock.open(address)
            assert "secret" not in str(caught.value)
        wrong_name = server.address.replace("127.0.0.1", "127.0.0.2")
        with pytest.raises(Unavailable):
            penstock.open(f"{wrong_name}?ca={certificates / 'ca.pem'}")


def test_clients_must_show_a_certificate_where_the_server_asks(store: Store, certificates: Path) -> None:
    """One that its authority signed."""
    with tls_server(store, certificates, client_ca=str(certificates / "ca.pem")) as server:
        ca = f"?ca={certificates / 'ca.pem'}"
        with pytest.raises(Unavailable):
            penstock.open(server.address + ca)
        with pytest.raises(Unavailable):
            penstock.open(f"{server.address}{ca}&cert={certificates / 'other.pem'}&key={certificates / 'other.key'}")
        work(f"{server.address}{ca}&cert={certificates / 'client.pem'}&key={certificates / 'client.key'}")


def test_plain_and_tls_do_not_understand_each_other(store: Store, certificates: Path) -> None:
    """And say so soon; the server lives."""
    with tls_server(store, certificates) as server:
        with pytest.raises(Unavailable, match="does it want TLS"):
            penstock.open(server.address.replace("penstocks", "penstock"))
        work(f"{server.address}?ca={certificates / 'ca.pem'}")
    with RunningServer(store) as server, pytest.raises(Unavailable, match="without it is penstock://"):
        penstock.open(server.address.replace("penstock", "penstocks") + f"?ca={certificates / 'ca.pem'}")


def test_a_ca_that_is_none_is_told(store: Store, certificates: Path, tmp_path: Path) -> None:
    """Missing, or no certificate."""
    (tmp_path / "no.pem").write_text("nothing")
    with tls_server(store, certificates) as server:
        for path in (tmp_path / "missing.pem", tmp_path / "no.pem"):
            with pytest.raises(BadArgument, match=f"ca='{path}': cannot be used"):
                penstock.open(f"{server.address}?ca={path}")


def test_a_client_whose_ca_is_being_replaced_comes_back(store: Store, certificates: Path, tmp_path: Path) -> None:
    """It was good before: that it cannot be read now is an outage like others."""
    with tls_server(store, certificates) as server:
        ca = tmp_path / "ca.pem"
        ca.write_bytes((certificates / "ca.pem").read_bytes())
        with penstock.open(f"{server.address}?ca={ca}") as client:
            ca.rename(tmp_path / "new.pem")
            server.disconnect_all()
            listing = later(client.topics)
            eventually(lambda: client._connection._channel is None)  # type: ignore[attr-defined]
            (tmp_path / "new.pem").rename(ca)
            assert listing.result(PATIENCE_S) == []


# -- Unix sockets ---------------------------------------------------------------------------------------------------


def refused(store: Store, address: Address) -> None:
    """No server may begin there."""
    with pytest.raises(BadSetting):
        RunningServer(store, address)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # another test looks at what is left open
        gc.collect()


def test_a_unix_socket_works(store: Store, tmp_path: Path) -> None:
    """For its owner only, and it is gone with the server."""
    path = tmp_path / "socket"
    with RunningServer(store, Address(path=str(path))) as server:
        assert server.address == f"penstock+unix://{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        work(server.address)
    assert not path.exists()
    with pytest.raises(Unavailable):
        penstock.open(f"penstock+unix://{path}")


def test_a_socket_that_a_dead_server_left_is_replaced(store: Store, tmp_path: Path) -> None:
    """Nobody listens on it."""
    path = tmp_path / "socket"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()
    with RunningServer(store, Address(path=str(path))) as server:
        work(server.address)


def test_a_file_is_never_replaced_by_a_socket(store: Store, tmp_path: Path) -> None:
    """A path that was typed wrong must not cost a file."""
    path = tmp_path / "precious"
    path.write_text("data")
    refused(store, Address(path=str(path)))
    assert path.read_text() == "data"


def test_the_socket_of_a_server_that_runs_is_not_taken(store: Store, tmp_path: Path) -> None:
    """The second server is refused, and the first one goes on."""
    path = tmp_path / "socket"
    with RunningServer(store, Address(path=str(path))) as server:
        refused(store, Address(path=str(path)))
        work(server.address)


def test_a_port_that_is_taken_is_told(store: Store) -> None:
    """By name, at once."""
    with RunningServer(store) as server:
        port = int(server.address.rpartition(":")[2])
        refused(store, Address("127.0.0.1", port))


def test_a_server_that_cannot_start_leaves_nothing_open(store: Store, tmp_path: Path) -> None:
    """No descriptor of its event loop."""
    path = tmp_path / "precious"
    path.write_text("data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what other tests left
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        opened: list[object] = []
        monitor = sys.unraisablehook
        sys.unraisablehook = opened.append
        try:
            with contextlib.suppress(BadSetting):
                RunningServer(store, Address(path=str(path)))
            gc.collect()
        finally:
            sys.unraisablehook = monitor
    assert opened == []


# -- URLs -----------------------------------------------------------------------------------------------------------


def test_urls_are_read() -> None:
    """Every part of them."""
    assert parse_address("penstock://host").url == "penstock://host:7420"
    assert parse_address("penstock://[::1]:99").url == "penstock://[::1]:99"
    found = parse_address("penstocks://host:1?token=secret&ca=/a%20b")
    assert (found.token, found.options["ca"]) == ("secret", "/a b")
    assert "secret" not in repr(found) + found.url
    assert parse_address("penstock+unix:///a%20b/c").path == "/a b/c"


@pytest.mark.parametrize(
    "url",
    [
        "http://host", "penstock://", "penstock:///path", "penstock://host/path", "penstock://host:port", "penstock://host:99999999",
        "penstock://host:-1", "penstock://user@host", "penstock://user:secret@host", "penstock://host?secret=1", "penstock://host#secret",
        "penstock+unix://", "penstock+unix://host/path", "://host",
    ],
)  # fmt: skip
def test_urls_that_are_wrong_are_refused(url: str) -> None:
    """And secrets are not repeated."""
    with pytest.raises(BadArgument) as caught:
        penstock.open(url)
    assert "user:secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["penstock://[::1", "penstock://[bad]:1", "penstock://a..b:1", "penstock://" + "a" * 300])
def test_urls_that_no_host_can_have_are_refused(url: str) -> None:
    """With an error of ours."""
    with pytest.raises((BadArgument, Unavailable)):
        penstock.open(url)


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the URL has one."""
    monkeypatch.setenv("PENSTOCK_TOKEN", "of the environment")
    assert parse_address("penstock://host").token == "of the environment"
    assert parse_address("penstock://host?token=mine").token == "mine"


def test_a_token_as_an_argument_is_refused_with_the_place_for_it() -> None:
    with pytest.raises(BadSetting, match="PENSTOCK_TOKEN, or in the URL") as caught:
        penstock.open("penstock://localhost", token="secret")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("option", [{"read_only": True}, {"give_up": -1}, {"give_up": "soon"}, {"fsync": True}])
def test_options_that_a_server_does_not_have_are_refused(option: dict[str, Any]) -> None:
    """Before anything is tried."""
    with pytest.raises((BadArgument, BadSetting)):
        penstock.open("penstock://127.0.0.1:1", **option)


def test_a_server_that_is_not_there_is_told_at_once() -> None:
    """With what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(Unavailable, match="is the server running"):
        penstock.open(f"penstock://127.0.0.1:{port}")


def test_something_that_is_no_server_is_told() -> None:
    """It answers, and not as a Penstock server does."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            made, _ = other.accept()
            made.recv(1_000)
            made.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3)
            made.close()

        answering = later(answer)
        with pytest.raises(Unavailable, match="is it the native port"):
            penstock.open(f"penstock://127.0.0.1:{other.getsockname()[1]}")
        answering.result(PATIENCE_S)


def test_nothing_is_left_open_when_opening_fails(certificates: Path, store: Store) -> None:
    """No descriptor, however it fails."""
    with tls_server(store, certificates) as server:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with pytest.raises(Unavailable):
                penstock.open(server.address)
        # The server's side of the last one may not have ended yet.
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)
