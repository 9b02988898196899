"""
Servers to measure: ours, and the peers that are installed and started here, each brought to the same durability.

What a publish that was acknowledged survives is the same for all: the loss of power, since it was synced before.

| server | how it is started | why that syncs |
| --- | --- | --- |
| Penstock | `penstock serve`, topics with `sync=always` | a commit cycle ends with fdatasync, answers go out after it |
| Redis Streams | `appendonly yes`, `appendfsync always`, no snapshots | the loop writes and syncs the file before it answers |
| NATS JetStream | file storage, `sync_interval: always` | each stored message is synced before its PubAck |
| RabbitMQ | quorum queues, publisher confirms | the log of Ra is synced before the confirm |

All listen on 127.0.0.1, have a folder of their own on the disk that is measured, and end with the benchmark.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

START_SECONDS = 60.0
STOP_SECONDS = 20.0
_INSTALL_SECONDS = 300.0
_RABBIT_BIN = "/usr/lib/rabbitmq/bin"


class CannotStart(Exception):
    """A server did not come up; the message says why."""


class Running:
    """A server that was started: one process and those that it needs beside it."""

    def __init__(self, name: str, port: int, processes: list[subprocess.Popen[bytes]]) -> None:
        self.name = name
        self.port = port
        self.processes = processes

    def send_signal(self, number: int) -> None:
        """Tell the server something."""
        self.processes[-1].send_signal(number)

    def stop(self) -> None:
        """End it in order, and by force what does not end; the one that was started last ends first."""
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class System(NamedTuple):
    """A server to measure."""

    name: str
    title: str
    modules: tuple[str, ...]
    """What its Python client is imported as; the packages are named in the `bench` extra."""
    package: str
    """The Debian package of the server; empty if Python's registry has it."""
    program: Callable[[], str | None]
    """Where the server's program lies; None if it is not there."""
    launch: Callable[[str, int, str], list[subprocess.Popen[bytes]]]
    """Start it with its program, on a port, in a folder."""
    how: str
    """How its client makes the concurrent clients."""

    @property
    def missing(self) -> str:
        """Why it cannot be used here; empty if it can. Installs the server if it is a Debian package."""
        for module in self.modules:
            if importlib.util.find_spec(module) is None:
                return f"{module} cannot be imported; `make bench-server` installs it"
        if self.program() is None and self.package:
            reason = _install(self.package)
            if reason:
                return reason
        return "" if self.program() else "its server is not there"

    def start(self, folder: str) -> Running:
        """Start it in *folder* and wait until it listens. Raises `CannotStart`."""
        program = self.program()
        assert program is not None
        os.makedirs(folder)
        port = free_port()
        processes = self.launch(program, port, folder)
        running = Running(self.name, port, processes)
        try:
            _wait_until_it_listens(running, processes[-1], folder)
        except BaseException:
            running.stop()
            raise
        return running


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _install(package: str) -> str:
    """Install a Debian package; returns why that failed, or nothing."""
    if shutil.which("apt-get") is None:
        return f"needs the Debian package {package}, and there is no apt-get"
    if os.geteuid() != 0:
        return f"needs the Debian package {package}, and only root may install it"
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    print(f"installing {package} ...", file=sys.stderr, flush=True)
    found = ""
    # The lists may be old, or not there at all.
    for before in ([], ["apt-get", "update", "-qq"]):
        try:
            if before:
                subprocess.run(before, env=environment, capture_output=True, timeout=_INSTALL_SECONDS, check=False)
            done = subprocess.run(command, env=environment, capture_output=True, timeout=_INSTALL_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return f"apt-get could not install {package} within {_INSTALL_SECONDS:g} s"
        if done.returncode == 0:
            return ""
        found = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"apt-get could not install {package}: {found}"


def _wait_until_it_listens(running: Running, process: subprocess.Popen[bytes], folder: str) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise CannotStart(f"it ended with {process.returncode}: {_last_line(folder)}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", running.port), 1):
            return
        time.sleep(0.05)
    raise CannotStart(f"it did not listen within {START_SECONDS:g} s: {_last_line(folder)}")


def _last_line(folder: str) -> str:
    with open(os.path.join(folder, "output"), encoding="utf-8", errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1] if lines else "it said nothing"


def _spawn(command: list[str], folder: str, **environment: str) -> subprocess.Popen[bytes]:
    """Start a server whose output goes to a file in its folder."""
    with open(os.path.join(folder, "output"), "ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder, env={**os.environ, **environment}
        )


def _serve(port: int, folder: str) -> list[str]:
    return ["serve", "--data", os.path.join(folder, "data"), "--native", f"127.0.0.1:{port}", "--no-grpc", "--no-http"]


def _launch_penstock(program: str, port: int, folder: str) -> list[subprocess.Popen[bytes]]:
    return [_spawn([program, "-m", "penstock.cli", *_serve(port, folder)], folder)]


def launch_penstock_profiled(program: str, port: int, folder: str) -> list[subprocess.Popen[bytes]]:
    """The same under a profiler, see benchmarks/server_profiled.py; it stores `profile` in the folder."""
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "server_profiled.py")
    return [_spawn([program, "-P", script, os.path.join(folder, "profile"), *_serve(port, folder)], folder)]


def _launch_redis(program: str, port: int, folder: str) -> list[subprocess.Popen[bytes]]:
    settings = {
        "port": str(port), "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "appendfsync": "always", "save": "",
        "auto-aof-rewrite-percentage": "0", "daemonize": "no",
    }  # fmt: skip
    return [_spawn([program, *[part for name, value in settings.items() for part in (f"--{name}", value)]], folder)]


def _launch_nats(program: str, port: int, folder: str) -> list[subprocess.Popen[bytes]]:
    path = os.path.join(folder, "nats.conf")
    with open(path, "w", encoding="utf-8") as file:
        file.write(
            f'listen: "127.0.0.1:{port}"\nping_interval: "1h"\nwrite_deadline: "60s"\n'
            f'jetstream {{ store_dir: "{folder}/data", sync_interval: always, max_file: 20GB }}\n'
        )
    return [_spawn([program, "-c", path], folder)]


def _launch_rabbit(program: str, port: int, folder: str) -> list[subprocess.Popen[bytes]]:
    # Its daemon for names would outlive it; one of our own, on its own port, does not.
    names, between = str(free_port()), str(free_port())
    config = os.path.join(folder, "rabbitmq.conf")
    with open(config, "w", encoding="utf-8") as file:
        file.write(f"listeners.tcp.1 = 127.0.0.1:{port}\nconsumer_timeout = 3600000\nvm_memory_high_watermark.relative = 0.6\n")
    environment = {
        "HOME": folder, "ERL_EPMD_PORT": names, "ERL_EPMD_ADDRESS": "127.0.0.1", "RABBITMQ_DIST_PORT": between,
        "RABBITMQ_NODENAME": f"penstock-bench-{port}@localhost", "RABBITMQ_NODE_PORT": str(port), "RABBITMQ_CONFIG_FILE": config,
        "RABBITMQ_MNESIA_BASE": os.path.join(folder, "data"), "RABBITMQ_LOG_BASE": os.path.join(folder, "log"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": os.path.join(folder, "plugins"),
        "RABBITMQ_PID_FILE": os.path.join(folder, "pid"),
    }  # fmt: skip
    daemon = _spawn([shutil.which("epmd") or "epmd", "-port", names], folder, ERL_EPMD_ADDRESS="127.0.0.1")
    return [daemon, _spawn([program], folder, **environment)]


def _nats_program() -> str | None:
    beside = os.path.join(os.path.dirname(sys.executable), "nats-server")
    return beside if os.access(beside, os.X_OK) else shutil.which("nats-server")


def _rabbit_program() -> str | None:
    path = os.path.join(_RABBIT_BIN, "rabbitmq-server")
    return path if os.access(path, os.X_OK) else None


OURS = System(
    "penstock", "Penstock", ("penstock",), "", lambda: sys.executable, _launch_penstock,
    "threads with a connection each, penstock.open",
)  # fmt: skip
PEERS = (
    System(
        "redis", "Redis Streams", ("redis", "hiredis"), "redis-server", lambda: shutil.which("redis-server"), _launch_redis,
        "threads with a connection each, redis-py with hiredis",
    ),
    System(
        "nats", "NATS JetStream", ("nats",), "", _nats_program, _launch_nats,
        "asyncio tasks with a connection each, nats-py",
    ),
    System(
        "rabbitmq", "RabbitMQ", ("pika",), "rabbitmq-server", _rabbit_program, _launch_rabbit,
        "threads with a connection each, pika",
    ),
)  # fmt: skip
SYSTEMS = (OURS, *PEERS)
