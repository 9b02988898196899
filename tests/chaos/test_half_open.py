"""A client whose machine is gone, without a word."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.chaos.lossy_network import CannotLose, LossyNetwork
from tests.cli.serving import serving
from tests.client.served import eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def established(network: LossyNetwork) -> int:
    """How many connections the server's side has."""
    done = subprocess.run(
        [*network.before, "ss", "-Htn", "state", "established"], capture_output=True, text=True, check=True, timeout=30
    )
    return len(done.stdout.splitlines())


def test_a_server_notices_within_half_a_minute_that_clients_are_gone(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The cable is pulled, and a consumer waits there for ever. Nothing but keepalive and its timeout tells the server."""
    with ExitStack() as stack:
        try:
            network = stack.enter_context(LossyNetwork())
        except CannotLose as error:
            pytest.skip(str(error))
        server = stack.enter_context(
            serving(
                "--data", str(tmp_path / "data"), "--native", f"{network.host}:0", "--no-http", "--no-grpc", "--allow-insecure",
                before=network.before,
            )
        )  # fmt: skip
        address = server.address("native")
        store = penstock.open(address, give_up=1)
        store.create_topic("t")
        idle = store.subscribe("t", "g")
        assert idle.get(timeout=0.1) is None
        assert established(network) == 1
        network.cut()
        began = time.monotonic()
        eventually(lambda: established(network) == 0, "the server never noticed", 120)
        seconds = time.monotonic() - began
        print(f"noticed after {seconds:.0f} s")
        record_property("half-open connections", seconds)
        with suppress(penstock.errors.PenstockError):
            store.close()
