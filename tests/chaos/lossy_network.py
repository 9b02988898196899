"""
A network of its own for a server, between which and this one packets get lost: the kernel drops them, and TCP sends them again.

netem (`tc qdisc ... netem loss 10% delay 10ms`) is used where the kernel has it. Where it has not, nftables drops packets by chance in both
directions, and nothing is delayed but by what was lost: TCP waits 200 ms and more before it sends such a packet again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
from typing import Self

LOSS_PERCENT = 10
DELAY_MS = 10
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))


class CannotLose(Exception):
    """This machine cannot make such a network."""


def _run(*command: str) -> None:
    program = shutil.which(command[0], path=_PATH)
    if program is None:
        raise CannotLose(f"{command[0]} is not installed; see scripts/install-crash-tools")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotLose(f"{' '.join(command)}: {done.stderr.strip()}")


class LossyNetwork:
    """A network namespace that a pair of virtual cables joins to this one. Raises `CannotLose`. Needs root."""

    def __init__(self) -> None:
        if os.geteuid() != 0:
            raise CannotLose("needs root, to make a network namespace")
        self.name = f"penstock-{secrets.token_hex(3)}"
        # Names of links have 15 characters at most.
        self._outside, self._inside = f"pk{self.name[-6:]}a", f"pk{self.name[-6:]}b"
        net = f"10.231.{secrets.randbelow(256)}"
        self._here, self.host = f"{net}.1", f"{net}.2"
        self.how = ""
        """By what means packets get lost."""
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._outside, "type", "veth", "peer", "name", self._inside, "netns", self.name)
        _run("ip", "addr", "add", f"{self._here}/30", "dev", self._outside)
        _run("ip", "link", "set", self._outside, "up")
        _run("ip", "-n", self.name, "addr", "add", f"{self.host}/30", "dev", self._inside)
        _run("ip", "-n", self.name, "link", "set", self._inside, "up")
        _run("ip", "-n", self.name, "link", "set", "lo", "up")

    @property
    def before(self) -> tuple[str, ...]:
        """A command that runs the one behind it in there, as the same process."""
        program = shutil.which("ip", path=_PATH)
        assert program is not None
        return (program, "netns", "exec", self.name)

    def cut(self) -> None:
        """Pull the cable: nothing gets through any more, and nobody is told."""
        _run("ip", "link", "set", self._outside, "down")

    def lose(self) -> None:
        """Lose packets from now on, of both directions."""
        try:
            loss = ("netem", "loss", f"{LOSS_PERCENT}%", "delay", f"{DELAY_MS}ms")
            _run("tc", "qdisc", "add", "dev", self._outside, "root", *loss)
            _run("ip", "netns", "exec", self.name, "tc", "qdisc", "add", "dev", self._inside, "root", *loss)
            self.how = "netem"
        except CannotLose:
            rules = [
                "add table inet loss",
                "add chain inet loss in { type filter hook input priority 0; }",
                "add chain inet loss out { type filter hook output priority 0; }",
                f"add rule inet loss in iifname {self._inside} numgen random mod 100 < {LOSS_PERCENT} counter drop",
                f"add rule inet loss out oifname {self._inside} numgen random mod 100 < {LOSS_PERCENT} counter drop",
            ]
            _run("ip", "netns", "exec", self.name, "nft", "\n".join(rules))
            self.how = "nftables"

    @property
    def lost(self) -> int:
        """How many packets were lost; 0 if only netem knows."""
        if self.how != "nftables":
            return 0
        command = [*self.before, "nft", "list", "table", "inet", "loss"]
        words = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        return sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")

    def heal(self) -> None:
        """Lose no more."""
        if self.how == "netem":
            _run("tc", "qdisc", "del", "dev", self._outside, "root")
            _run("ip", "netns", "exec", self.name, "tc", "qdisc", "del", "dev", self._inside, "root")
        elif self.how == "nftables":
            _run("ip", "netns", "exec", self.name, "nft", "delete table inet loss")

    def close(self) -> None:
        """Take it away; its cables go with it."""
        with contextlib.suppress(CannotLose):
            _run("ip", "netns", "del", self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
