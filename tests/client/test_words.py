"""What users read when a connection or a right is missing: it names what they can do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Store, aio
from penstock.errors import BadArgument, BadSetting, PermissionDenied, StoreLocked, Unauthenticated, Unavailable
from penstock.server.auth import TokenAuth, new_token
from penstock.server.running import RunningServer
from penstock.server.tls import TlsFiles
from tests.cli.conftest import Commands
from tests.cli.serving import serving
from tests.client.test_bounds import write_tokens
from tests.conformance.backends import SETTINGS
from tests.server.test_listening import Authority

if TYPE_CHECKING:
    from pathlib import Path


def test_a_publish_without_the_right_is_told_that_right(tmp_path: Path) -> None:
    mine, readers = new_token(), new_token()
    write_tokens(
        tmp_path / "tokens", ("mine", mine.sha256, 'publish = ["mine"]'), ("reader", readers.sha256, 'read = ["orders"]')
    )
    with Store.open(str(tmp_path / "store"), settings=SETTINGS) as store:
        store.create_topic("orders")
        with RunningServer(store, auth=TokenAuth(str(tmp_path / "tokens"))) as server:
            for token in (mine, readers):
                address = f"{server.address}?token={token.token}"
                with (
                    penstock.open(address) as client,
                    pytest.raises(PermissionDenied, match="no publish right on topic 'orders'"),
                ):
                    client.publish("orders", b"x")

                async def publish(address: str = address) -> None:
                    async with aio.open(address) as client:
                        await client.publish_many("orders", [b"x"])

                with pytest.raises(PermissionDenied, match="no publish right on topic 'orders'"):
                    asyncio.run(publish())
            with (
                penstock.open(f"{server.address}?token={mine.token}") as client,
                pytest.raises(PermissionDenied, match="'mine' has no right on topic 'orders'"),
            ):
                client.topic("orders")


def test_a_missing_token_is_told_where_it_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)
    write_tokens(tmp_path / "tokens", ("mine", new_token().sha256, 'read = ["*"]'))
    auth = TokenAuth(str(tmp_path / "tokens"))
    with (
        Store.open("memory:") as store,
        RunningServer(store, auth=auth) as server,
        pytest.raises(Unauthenticated, match="set PENSTOCK_TOKEN"),
    ):
        penstock.open(server.address)


def test_the_topics_of_a_limited_token_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without numbers that only who may read the whole store gets."""
    token = new_token()
    write_tokens(tmp_path / "tokens", ("mine", token.sha256, 'publish = ["orders"]'))
    with Store.open(str(tmp_path / "store"), settings=SETTINGS) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("secret")
        with RunningServer(store, auth=TokenAuth(str(tmp_path / "tokens"))) as server:
            monkeypatch.setenv("PENSTOCK_TOKEN", token.token)
            run = Commands()
            listed = run("topics", "list", server.address)
            described = run("topics", "describe", server.address, "orders")
    assert (listed.exit_code, described.exit_code) == (0, 0)
    assert "orders" in listed.stdout
    assert "secret" not in listed.stdout
    assert "orders" in described.stdout


def test_a_folder_that_a_server_owns_is_told_with_the_servers_address(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    with serving("--data", data, "--native", "127.0.0.1:0", "--no-http", "--no-grpc") as server:
        with pytest.raises(StoreLocked) as locked:
            penstock.open(data)
        assert f"reach it at {server.address('native')}" in str(locked.value)
        with pytest.raises(StoreLocked, match=r"penstock://127\.0\.0\.1"):
            penstock.open(data, share=False)
        with penstock.open(data, read_only=True) as reader:
            assert reader.topics() == []


def test_a_client_without_the_certificate_that_a_server_wants_is_told_so(tmp_path: Path) -> None:
    """And not to use TLS, which it does."""
    authority = Authority(tmp_path / "authority", "ours")
    certificate, key = authority.sign("server")
    tls = TlsFiles(certificate, key, authority.certificate).context()
    with Store.open("memory:") as store, RunningServer(store, tls=tls) as server, pytest.raises(Unavailable) as refused:
        penstock.open(f"{server.address}?ca={authority.certificate}", give_up=1)
    assert "cert=FILE&key=FILE" in str(refused.value)
    assert "penstocks://)" not in str(refused.value)


@pytest.mark.parametrize("opened", ["folder", "penstock://127.0.0.1:1"])
def test_the_value_of_an_unknown_setting_is_not_shown(tmp_path: Path, opened: str) -> None:
    """It may be a key under a mistyped name."""
    path = str(tmp_path / opened) if opened == "folder" else opened
    opener: Any = penstock.open
    for options in ({}, {"share": False}):
        with pytest.raises(BadSetting) as refused:
            opener(path, encrypton_key="hunter2", **options)
        assert "encrypton_key" in str(refused.value)
        assert "hunter2" not in f"{refused.value} {refused.value.args} {refused.value!r}"


@pytest.mark.parametrize(
    ("url", "shown"),
    [("http://127.0.0.1:7422", "'http://127.0.0.1:7422'"), ("https://user:secret@host:1/x?token=secret", "'https://host:1'")],
)
def test_a_url_of_another_kind_is_shown_with_its_port_and_without_secrets(url: str, shown: str) -> None:
    with pytest.raises(BadArgument) as refused:
        penstock.open(url)
    assert shown in str(refused.value)
    assert "secret" not in str(refused.value)
