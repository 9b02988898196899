"""Who does not share, and who may not come in."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock import aio
from penstock.errors import BadArgument, BadSetting, StoreLocked, StoreNotFound
from penstock.sharing.names import SOCKET_NAME
from tests.sharing.processes import SETTINGS, owner_of, program

if TYPE_CHECKING:
    from pathlib import Path

OWNER = """
store = open(share=%s)
say("open")
told()
"""


def test_a_store_that_is_not_shared_lets_nobody_in(path: Path) -> None:
    """The error names who has it."""
    with program(path, OWNER % "False") as owner:
        assert owner.hear() == "open"
        for share in (True, False, "helper"):
            with pytest.raises(StoreLocked, match=str(owner.pid)) as caught:
                penstock.open(path, share=share)
            assert caught.value.owner_host == socket.gethostname()
        assert not (path / SOCKET_NAME).exists()
        with penstock.open(path, read_only=True) as reader:
            assert reader.topics() == []
        owner.kill()
    penstock.open(path, share=False).close()


def test_who_wants_it_alone_is_refused_where_others_are(path: Path) -> None:
    """Also for asyncio, and whoever the owner is."""
    with program(path, OWNER % "True") as owner:
        assert owner.hear() == "open"
        with pytest.raises(StoreLocked, match=str(owner.pid)):
            penstock.open(path, share=False)

        async def main() -> None:
            await aio.open(path, share=False)

        with pytest.raises(StoreLocked, match=str(owner.pid)):
            asyncio.run(main())


def test_a_helper_can_own_it_from_the_start(path: Path) -> None:
    """So that no user's process does, which somebody may stop or freeze."""
    with penstock.open(path, share="helper", **SETTINGS) as store:
        assert store.publish("t", b"x").offset == 0
        helper = owner_of(path)
        assert helper not in (None, os.getpid())
        with penstock.open(path) as second:
            assert second.publish("t", b"y").offset == 1
        with pytest.raises(StoreLocked, match=str(helper)):
            penstock.open(path, share=False)


def test_what_a_helper_cannot_open_is_told_to_who_started_it(path: Path, tmp_path: Path) -> None:
    """With the error that the store gave."""
    with pytest.raises(StoreNotFound):
        penstock.open(path, share="helper", create=False)
    path.mkdir()
    with pytest.raises(StoreNotFound):
        penstock.open(path, share="helper", create=False)
    penstock.open(path, share=False, **SETTINGS).close()
    (path / "store.json").write_text("{}")
    with pytest.raises(penstock.errors.DamagedFile):
        penstock.open(path, share="helper", **SETTINGS)


def test_bad_arguments_are_refused_before_anything_is_opened(path: Path) -> None:
    """As everywhere."""
    for share in (1, None, "yes"):
        with pytest.raises(BadArgument, match="share"):
            penstock.open(path, share=share)  # type: ignore[call-overload]
    with pytest.raises(BadSetting, match="no_such_setting"):
        penstock.open(path, share="helper", no_such_setting=1)
    with pytest.raises(BadSetting, match="journal_file_bytes"):
        penstock.open(path, share="helper", journal_file_bytes=1)
    assert not path.exists()


_AS_NOBODY = """
import os, socket, sys
socket_path = sys.argv[1]
os.setgid(65534)
os.setuid(65534)
made = socket.socket(socket.AF_UNIX)
made.connect(socket_path)
sys.path[:] = []
from_server = b""
made.settimeout(30)
while True:
    data = made.recv(65536)
    if not data:
        break
    from_server += data
sys.stdout.buffer.write(from_server)
"""


def _open_to_all(path: Path) -> None:
    """Rights that nobody should give, on the whole way."""
    for folder in (path, *path.parents):
        if str(folder) != "/":
            with contextlib.suppress(PermissionError):
                folder.chmod(folder.stat().st_mode | 0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_is_sent_away_though_the_files_would_let_him(path: Path) -> None:
    """What the kernel says about him counts, not what he says."""
    with penstock.open(path, **SETTINGS) as store:
        store.publish("t", b"x")
        assert (path / SOCKET_NAME).stat().st_mode & 0o777 == 0o600
        _open_to_all(path)
        (path / SOCKET_NAME).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-S", "-c", _AS_NOBODY, str(path / SOCKET_NAME)], capture_output=True, timeout=60, check=True
        )
        assert b"UNAUTHENTICATED" in done.stdout
        assert b"another user" in done.stdout
        with penstock.open(path) as sibling:
            assert sibling.publish("t", b"y").offset == 1


_IMPOSTOR = """
import os, socket, sys
path = sys.argv[1]
os.setgid(65534)
os.setuid(65534)
made = socket.socket(socket.AF_UNIX)
made.bind(path)
made.listen()
print("listening", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_a_socket_of_another_user_is_not_trusted(path: Path) -> None:
    """A message must not go to whoever could put a socket into the folder."""
    with penstock.open(path, **SETTINGS):
        _open_to_all(path)
        (path / SOCKET_NAME).unlink()
        path.chmod(0o777)
        impostor = subprocess.Popen(
            [sys.executable, "-S", "-c", _IMPOSTOR, str(path / SOCKET_NAME)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert impostor.stdout is not None
            assert impostor.stdout.readline() == b"listening\n"
            with pytest.raises(penstock.errors.Unavailable, match="another user"):
                penstock.open(path, give_up=0)
        finally:
            impostor.kill()
            impostor.communicate()


def test_the_lock_tells_whether_its_owner_shares(path: Path) -> None:
    """By which others know whether to wait for it."""
    with penstock.open(path, **SETTINGS):
        assert json.loads((path / "LOCK").read_text())["shares"] is True
    with penstock.open(path, share=False, **SETTINGS):
        assert "shares" not in json.loads((path / "LOCK").read_text())
