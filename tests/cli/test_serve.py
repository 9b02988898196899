"""`penstock serve`: a process that serves a store, and the commands that reach it."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.errors import BadSetting, PermissionDenied, Unauthenticated
from penstock.server.auth import hash_token
from penstock.server.serving import Server, ServerSettings
from tests.cli.conftest import SCRIPT
from tests.cli.serving import PATIENCE_S, Serving, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)
ANY = ("--native", "127.0.0.1:0", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0")


def penstock_cli(*arguments: str, code: int = 0, **environment: str) -> str:
    """Run a command; what it printed."""
    done = subprocess.run(
        [SCRIPT, *arguments], capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


def test_every_command_works_on_a_server(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data"), *ANY) as server:
        url = server.address("native")
        assert (
            json.loads(penstock_cli("publish", url, "orders", "two apples", "one pear", "--json").splitlines()[1])["offset"]
            == 1
        )
        assert penstock_cli("read", url, "orders", "--format", "value").splitlines() == ["two apples", "one pear"]
        assert penstock_cli("consume", url, "orders", "--group", "g", "--count", "1", "--format", "value") == "two apples\n"
        assert (
            penstock_cli("consume", url, "orders", "--group", "g", "--count", "1", "--reject", "--format", "value")
            == "one pear\n"
        )
        assert "orders" in penstock_cli("topics", "list", url)
        assert "g" in penstock_cli("groups", "list", url)
        assert penstock_cli("dlq", "replay", url, "orders", "--all") == "replayed 1\n"
        penstock_cli("groups", "seek", url, "orders", "g", "--to", "earliest")
        stats = json.loads(penstock_cli("stats", url, "--json"))
        assert stats["topics"]["orders"]["groups"]["g"]["lag"] == 3
        with urllib.request.urlopen(f"{server.address('http')}/healthz", timeout=PATIENCE_S) as answer:
            assert answer.status == 200
        assert server.stop()[0] == 0
    with penstock.open(tmp_path / "data") as store:
        assert len(list(store.read("orders"))) == 3


def test_both_protocols_see_the_same_store(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data"), *ANY) as server:
        request = urllib.request.Request(
            f"{server.address('http')}/v1/topics/t/messages",
            data=b'{"value": "by HTTP"}',
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            assert answer.status in (200, 201)
        with penstock.open(server.address("native")) as store, store.subscribe("t", "g") as consumer:
            message = consumer.get(PATIENCE_S)
            assert message is not None
            assert message.value == b"by HTTP"
            message.ack()


def test_a_unix_socket_and_settings_from_variable_and_file(tmp_path: Path) -> None:
    """Flag, then variable, then file."""
    config = tmp_path / "penstock.toml"
    socket = tmp_path / "socket"
    config.write_text(f'[serve]\ndata = "{tmp_path / "from-file"}"\nnative = "127.0.0.1:0"\nno_http = true\n')
    environment = {"PENSTOCK_SERVE_NATIVE": f"unix:{socket}"}
    with serving("--config", str(config), environment=environment) as server:
        assert server.address("native") == f"penstock+unix://{socket}"
        assert "http" not in server.said
        with penstock.open(server.address("native")) as store:
            store.publish("t", b"x")
        assert server.stop()[0] == 0
    assert (tmp_path / "from-file" / "store.json").exists()
    assert not socket.exists()


@pytest.mark.parametrize("off", [False, True])
def test_the_console_is_there_unless_it_is_told_otherwise(tmp_path: Path, *, off: bool) -> None:
    environment = {"PENSTOCK_SERVE_NO_CONSOLE": "1"} if off else {}
    arguments = ("--data", str(tmp_path / "data"), "--no-native", "--no-grpc", "--http", "127.0.0.1:0")
    with serving(*arguments, environment=environment) as server:
        assert ("/console" in server.said) is not off
        try:
            with urllib.request.urlopen(f"{server.address('http')}/console", timeout=PATIENCE_S) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            status = error.code
            error.close()
        assert status == (404 if off else 200)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--native", "0.0.0.0:0"), "other machines can reach this address"),
        (("--native", "nowhere"), "host:port"),
        (("--no-native", "--no-grpc", "--no-http"), "listens somewhere"),
        (("--grpc", "0.0.0.0:0"), "other machines can reach this address"),
        (("--grpc", "nowhere"), "host:port"),
        (("--tokens", "/nowhere/tokens.toml"), "cannot be read"),
        (("--tls-certificate", "a.pem"), "come together"),
        (("--config", "/nowhere/penstock.toml"), "no such file"),
    ],
)
def test_a_bad_setting_stops_it_with_the_reason(arguments: tuple[str, ...], told: str, tmp_path: Path) -> None:
    line = penstock_cli("serve", "--data", str(tmp_path / "data"), *arguments, code=2)
    assert told in line
    assert line.startswith("error: ")
    assert not (tmp_path / "data").exists()


WITH_GRPC = {"PENSTOCK_SERVE_NO_GRPC": "0"}


def test_grpc_is_served_beside_the_others_and_stops_in_order(tmp_path: Path) -> None:
    grpc = pytest.importorskip("grpc")
    from penstock.wire import penstock_pb2 as pb
    from penstock.wire.penstock_pb2_grpc import PenstockStub

    arguments = ("--data", str(tmp_path / "data"), *ANY, "--grpc", f"unix:{tmp_path / 'socket'}")
    with serving(*arguments, environment=WITH_GRPC) as server:
        assert server.address("grpc") == f"unix:{tmp_path / 'socket'}"
        with grpc.insecure_channel(server.address("grpc")) as channel:
            stub = PenstockStub(channel)
            stub.Publish(pb.PublishRequest(topic="t", messages=[pb.NewMessage(value=b"by gRPC")]), timeout=PATIENCE_S)
            with penstock.open(server.address("native")) as store:
                assert [message.value for message in store.read("t")] == [b"by gRPC"]
            started = threading.Event()

            def requests() -> Iterator[Any]:
                yield pb.SubscribeRequest(start=pb.Subscription(topic="t", group="g"))
                started.wait(PATIENCE_S)

            stream = stub.Subscribe(requests())
            assert next(stream).WhichOneof("event") == "started"
            code, logged = server.stop()
            assert code == 0, logged
            assert next(stream).WhichOneof("event") == "closing"
            started.set()
    assert not (tmp_path / "socket").exists()


def test_without_the_packages_of_grpc_it_says_what_to_install(tmp_path: Path) -> None:
    """Who asks for gRPC is told; who does not is served without it."""
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    # Python looks here first, and finds that there is no such package.
    (blocked / "sitecustomize.py").write_text(
        "import sys\nfor name in ('grpc', 'grpc_health', 'grpc_reflection'):\n    sys.modules[name] = None\n"
    )
    data = ("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--http", "127.0.0.1:0")
    told = penstock_cli("serve", *data, "--grpc", "127.0.0.1:0", code=2, PYTHONPATH=str(blocked))
    assert "penstock[grpc]" in told
    assert not (tmp_path / "data").exists()
    with serving(*data, environment={**WITH_GRPC, "PYTHONPATH": str(blocked)}) as server:
        assert "penstock[grpc]" in server.said
        assert "\n  grpc " not in server.said
        assert server.stop()[0] == 0


def test_an_unknown_setting_in_the_file_is_told(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('[serve]\ndata = "x"\nport = 7\n')
    assert "no setting port" in penstock_cli("serve", "--config", str(config), code=2)


def test_a_store_that_is_owned_already_is_told(tmp_path: Path) -> None:
    with penstock.open(tmp_path / "data"):
        line = penstock_cli("serve", "--data", str(tmp_path / "data"), *ANY, code=4)
    assert "owned by process" in line


def test_a_file_of_the_user_is_not_called_damaged(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    line = penstock_cli("serve", "--data", str(tmp_path / "file"), *ANY, code=2)
    assert "this is a file, or lies in one; a store is a folder; nothing was changed [BAD_ARGUMENT]" in line
    assert (tmp_path / "file").read_text() == "text"


def test_a_folder_that_a_server_owns_is_refused_with_its_url(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data"), "--native", "127.0.0.1:0", "--no-http", "--no-grpc") as server:
        url = server.address("native")
        line = penstock_cli("publish", str(tmp_path / "data"), "orders", "one", code=4)
        assert f"give its URL, {url}, as TARGET" in line
        penstock_cli("publish", url, "orders", "one")


def _tokens(path: Path, **rights: Any) -> None:
    rows = []
    for name, granted in rights.items():
        granting = "\n".join(f"{right} = {topics!r}" for right, topics in granted.items())
        digest = hash_token(f"token-of-{name}").hex()
        rows.append(f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\n[token.rights]\n{granting}')
    path.write_text("\n".join(rows))


def test_tokens_say_who_may_do_what_and_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = tmp_path / "tokens.toml"
    _tokens(tokens, writer={"publish": ["orders"]}, reader={"read": ["orders"], "consume": ["orders"]}, boss={"admin": ["*"]})
    with serving("--data", str(tmp_path / "data"), *ANY, "--tokens", str(tokens)) as server:
        url = server.address("native")
        monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
        with pytest.raises(Unauthenticated):
            penstock.open(url)
        with pytest.raises(Unauthenticated):
            penstock.open(f"{url}?token=wrong")
        with penstock.open(f"{url}?token=token-of-boss") as boss:
            boss.create_topic("orders")
            boss.create_topic("secrets")
            assert len(boss.topics()) == 2
        monkeypatch.setenv("PENSTOCK_TOKEN", "token-of-writer")
        with penstock.open(url) as writer:
            writer.publish("orders", b"x")
            assert [info.name for info in writer.topics()] == ["orders"]
            for refused in (
                lambda: writer.publish("secrets", b"x"),
                lambda: list(writer.read("orders")),
                lambda: writer.subscribe("orders", "g"),
                writer.stats,
                lambda: writer.commit("job", 1, []),
            ):
                with pytest.raises(PermissionDenied):
                    refused()
            _tokens(tokens, boss={"admin": ["*"]})
            server.signal(signal.SIGHUP)
            end = time.monotonic() + PATIENCE_S
            with pytest.raises(Unauthenticated):
                while time.monotonic() < end:
                    writer.publish("orders", b"again")
        assert "token-of" not in server.stop()[1]


def test_signals_while_it_stops(tmp_path: Path) -> None:
    """SIGHUP reads tokens again, as always, and changes nothing else; a second SIGTERM ends it at once."""
    with serving("--data", str(tmp_path / "data"), *ANY, "--stop-timeout", "60s") as server:
        host, _, port = server.address("http").removeprefix("http://").rpartition(":")
        with socket.create_connection((host, int(port)), PATIENCE_S) as slow:
            slow.sendall(
                b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n"
                b"Expect: 100-continue\r\n\r\n"
            )
            assert slow.recv(1000).startswith(b"HTTP/1.1 100 "), "it has begun, and waits for the body"
            server.signal(signal.SIGTERM)
            assert server.process.stderr is not None
            assert any("penstock.server: stopping" in line for line in server.process.stderr)
            server.signal(signal.SIGHUP)
            with pytest.raises(subprocess.TimeoutExpired):
                server.process.wait(0.3)
            code, logged = server.stop()
    assert code == -signal.SIGTERM
    assert "Traceback" not in logged


def test_a_server_that_cannot_listen_everywhere_leaves_nothing_behind(tmp_path: Path) -> None:
    """The name of a socket that it had made already, for one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        http = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = ServerSettings(str(tmp_path / "data"), f"unix:{tmp_path}/native", None, http)
        with pytest.raises(BadSetting, match="Address already in use"):
            asyncio.run(Server(settings).run())
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_stopping_under_load_loses_nothing_and_exits_with_0(tmp_path: Path) -> None:
    """Every publish that was answered is there once; the others raised."""
    acked: list[bytes] = []
    with serving("--data", str(tmp_path / "data"), *ANY) as server:
        url = server.address("native")

        def publish(number: int) -> None:
            with penstock.open(url, give_up=0.2) as store:
                for count in range(100_000):
                    value = b"%d-%d" % (number, count)
                    try:
                        store.publish("t", value)
                    except penstock.PenstockError:
                        return
                    acked.append(value)

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + PATIENCE_S
        while len(acked) < 200 and time.monotonic() < end:
            time.sleep(0.01)
        code, logged = server.stop()
        assert code == 0, logged
        for thread in threads:
            thread.join(PATIENCE_S)
    with penstock.open(tmp_path / "data") as store:
        values = [message.value for message in store.read("t")]
    assert len(set(values)) == len(values)
    assert set(acked) <= set(values)
    assert len(acked) >= 200


def test_the_address_that_is_printed_is_for_people(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data"), *ANY) as server:
        assert isinstance(server, Serving)
        assert f"penstock publish {server.address('native')} hello world" in server.said


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ('[tokens]\nfile = "x"', "the setting tokens belongs below [serve]"),
        ('tokens = "x"', "the setting tokens belongs below [serve]"),
        ('[server]\ndata = "x"', "the table of a server is [serve]"),
        ('serve = "x"', "serve is a table"),
        ('[serve]\ndata = "x"\n[[token]]\nname = "x"', "the setting tokens belongs below [serve]"),
        ('[serve]\ndata = "x"\n[limits]\nx = 1', "all settings of a server stand below [serve]"),
        ('[serve]\ntls-key = "x"', "did you mean tls_key?"),
        ('[serve]\ntls_certifcate = "x"', "did you mean tls_certificate?"),
        ("[serve]\nzzz = 1", "there are allow_insecure"),
    ],
)
def test_what_a_file_says_that_no_server_looks_at_is_refused(tmp_path: Path, text: str, hint: str) -> None:
    """Whoever wrote [tokens] believes that tokens are asked for."""
    config = tmp_path / "penstock.toml"
    config.write_text(text)
    line = penstock_cli("serve", "--config", str(config), "--data", str(tmp_path / "data"), code=2)
    assert hint in line
    assert not (tmp_path / "data").exists()


def test_the_log_is_json_where_that_is_asked_for(tmp_path: Path) -> None:
    """Each line an object, with the fields of its event; from the level on that was asked for."""
    with serving("--data", str(tmp_path / "data"), *ANY, "--log-format", "json", "--log-level", "debug") as server:
        penstock_cli("publish", server.address("native"), "orders", "x")
        code, logged = server.stop()
    assert code == 0
    lines = [json.loads(line) for line in logged.splitlines()]
    assert {"time", "level", "logger", "text"} <= set(lines[0])
    assert [line["interface"] for line in lines if line.get("event") == "connection_opened"] == ["native"]


def test_the_log_tells_no_less_than_asked_for(tmp_path: Path) -> None:
    environment = {"PENSTOCK_SERVE_LOG_LEVEL": "error"}
    with serving("--data", str(tmp_path / "data"), *ANY, environment=environment) as server:
        penstock_cli("publish", server.address("native"), "orders", "x")
        assert server.stop() == (0, "")
    assert "--log-level" in penstock_cli("serve", "--data", str(tmp_path / "data"), "--log-level", "loud", code=2)
