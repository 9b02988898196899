"""A consumer whose process stands still: its lease ends, another consumer gets the message, and its late ack changes nothing."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.chaos.clients import TOPIC, Addresses
from tests.cli.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.serving import Serving

GROUP = "g"
LEASE_S = 1.0
ROOT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with one group."""
    folder = tmp_path_factory.mktemp("stopped")
    listen = [word for name in Addresses._fields for word in (f"--{name}", "127.0.0.1:0")]
    with serving("--data", str(folder / "data"), *listen, environment={"PENSTOCK_SERVE_NO_GRPC": "0"}) as found:
        with penstock.open(found.address("native")) as store:
            store.create_topic(TOPIC)
        yield found


@pytest.mark.parametrize("kind", ["native", "pushed", "aio", "http", "grpc"])
def test_a_stopped_consumer_loses_its_lease_and_its_late_ack_is_refused(server: Serving, kind: str) -> None:
    with penstock.open(server.address("native")) as store:
        store.subscribe(TOPIC, GROUP, lease=LEASE_S).close()
        store.publish(TOPIC, kind.encode())
        addresses = [server.address(name) for name in Addresses._fields]
        command = [sys.executable, "-m", "tests.chaos.stopped_consumer", kind, *addresses, GROUP]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stopped:
            assert stopped.stdin is not None
            assert stopped.stdout is not None
            try:
                said, _, asked_s = stopped.stdout.readline().rpartition(" ")
                assert said == f"got 1 {kind} 1"
                stopped.send_signal(signal.SIGSTOP)
                # What this one is handed it keeps, however slow the machine is.
                with store.subscribe(TOPIC, GROUP, lease=600) as other:
                    message = other.get(60)
                    assert message is not None
                    assert message.value == kind.encode()
                    # What was only sent to one that is pushed to, as far as the server knows, is not charged.
                    assert message.attempt >= (1 if kind == "pushed" else 2)
                    # Asked for before it was handed out; the clock is that of the machine.
                    assert time.monotonic() - float(asked_s) > LEASE_S
                    stopped.send_signal(signal.SIGCONT)
                    stopped.stdin.write("go on\n")
                    stopped.stdin.flush()
                    assert stopped.stdout.readline() == "refused\n"
                    message.ack(wait=True)
                    assert other.get(0) is None
                assert stopped.wait(60) == 0
            finally:
                stopped.kill()
