"""Verify, opening and repair of folders on a real disk: copies of a store at work, killed owners, retention, what is no file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.errors import Corrupt, DamagedFile, NoAccess
from penstock.store import checking

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from random import Random

OWNER = """
import sys, time, penstock
store = penstock.open(sys.argv[1], share=False, journal_file_bytes=1 << 20, frame_bytes=1 << 18, reference_bytes=1 << 16,
                      checkpoint_bytes=1 << 17, reserve_bytes=0, free_bytes_floor=0)
store.create_topic("t", partitions=3, segment_bytes=20_000)
store.create_topic("weak", sync="os", segment_bytes=30_000)
print("ready", flush=True)
number = 0
while True:
    for _ in range(20):
        store.publish("t", b"%d." % number + b"v" * (number % 700), key=str(number % 7))
        store.publish("weak", b"%d" % number)
        number += 1
    if "retain" in sys.argv:
        for log in store._volume.logs:
            store._volume.retain(log, bytes_max=60_000)
"""


class Owner:
    """A process that owns a store and publishes without end."""

    def __init__(self, path: str, *options: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", OWNER, path, *options], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def _messages(path: str) -> dict[tuple[str, int, int], bytes]:
    with penstock.open(path, share=False) as store:
        return {
            (topic.name, message.partition, message.offset): bytes(message.value or b"")
            for topic in store.topics()
            for message in store.read(topic.name)
        }


def _cp(path: str, copy: str) -> None:
    """As `cp -r` of a folder at work: files that are gone meanwhile are passed over."""
    subprocess.run(["cp", "-r", path, copy], check=False, stderr=subprocess.DEVNULL)


def test_copies_of_a_store_at_work_are_told_in_the_words_of_opening_and_repaired(path: str, tmp_path: Path) -> None:
    """`cp -r` while the owner publishes: whole or not, verify and opening say the same, and repair makes it open with all it holds."""
    owner = Owner(path, "retain")
    copies = [str(tmp_path / f"copy-{number}") for number in range(8)]
    for copy in copies:
        _cp(path, copy)
        time.sleep(0.05)
    owner.kill()
    for copy in copies:
        found = checking.verify(copy)
        try:
            before, error = _messages_of_copy(copy), None
        except Corrupt as caught:
            before, error = {}, str(caught).replace(copy + "~", copy)
        assert found.is_sound is (error is None)
        if error is None:
            assert checking.repair(copy) == ([], None)
        else:
            assert error in [finding.reason for finding in found.findings]
            assert checking.plan(copy)
            assert checking.repair(copy).lost
        assert checking.verify(copy).is_sound
        after = _messages(copy)
        assert after.items() >= before.items()


def _messages_of_copy(copy: str) -> dict[tuple[str, int, int], bytes]:
    """What opening gives, of a copy of the copy: opening changes it."""
    shutil.copytree(copy, copy + "~")
    return _messages(copy + "~")


def test_a_killed_store_is_sound(path: str) -> None:
    """What opening recovers is no damage; not once in many kills."""
    for _ in range(5):
        owner = Owner(path, "retain")
        time.sleep(0.3)
        owner.kill()
        assert checking.verify(path).findings == []
        assert checking.repair(path) == ([], None)


def test_beside_an_owner_with_retention_nothing_is_called_damage(path: str) -> None:
    """Log starts move, segments go and come while verify reads."""
    owner = Owner(path, "retain")
    try:
        for _ in range(10):
            found = checking.verify(path)
            assert found.is_sound, found.findings
        assert found.messages
    finally:
        owner.kill()


def test_damage_beside_an_owner_is_found(path: str) -> None:
    """As it would be by a reader; the owner goes on."""
    with penstock.open(path) as store:
        store.create_topic("t", segment_bytes=2000)
        for number in range(60):
            store.publish("t", b"message %d" % number)
        first = f"{path}/topics/t/0/{0:020d}.log"
        with open(first, "r+b") as file:
            at = file.read().find(b"message 3")
            file.seek(at)
            file.write(b"M")
        [finding] = checking.verify(path).findings
        assert finding.path == first
        assert finding.is_damage
        store.publish("t", b"more")


KINDS = ("FIFO", "folder", "link", "device")
NAMES = ("positions", "LOCK", "store.json", "checkpoint-0", "topic.json", "segment", "journal file")


@pytest.fixture
def closed(path: str) -> str:
    """A closed store with a message."""
    with penstock.open(path) as store:
        store.publish("t", b"a message")
    return path


def _replace(path: str, name: str, kind: str) -> str:
    place = {
        "topic.json": f"{path}/topics/t/topic.json",
        "segment": f"{path}/topics/t/0/{0:020d}.log",
        "journal file": f"{path}/journal/000001.wal",
    }.get(name, f"{path}/{name}")
    os.unlink(place)
    _make(place, kind)
    return place


def _make(place: str, kind: str) -> None:
    if kind == "FIFO":
        os.mkfifo(place)
    elif kind == "folder":
        os.mkdir(place)
    elif kind == "link":
        os.symlink("/etc/passwd", place)
    elif kind == "link to nothing":
        os.symlink("/nothing", place)
    elif kind == "file":
        with open(place, "wb") as file:
            file.write(b"not a folder")
    else:
        if os.geteuid():
            pytest.skip("making a device needs root")
        os.mknod(place, 0o600 | 0o020000, os.makedev(1, 3))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_file_is_refused_and_never_waited_for(closed: str, name: str, kind: str) -> None:
    """In the place of each of a store's files; and repair moves it away."""
    place = _replace(closed, name, kind)
    with pytest.raises(DamagedFile, match="no regular file") as caught:
        _messages(closed)
    assert caught.value.path == place
    found = checking.verify(closed)
    assert [finding.reason for finding in found.findings if finding.is_damage] == [str(caught.value)]
    if name != "LOCK":  # what has its name decides who may look
        assert next(lost.path for lost in checking.plan(closed)) == place
    planned = checking.plan(closed)
    assert len(checking.repair(closed).lost) == len(planned)
    assert checking.verify(closed).is_sound
    kept = _messages(closed)
    assert kept == {("t", 0, 0): b"a message"}


@pytest.mark.parametrize("kind", ["file", "FIFO", "link", "link to nothing"])
@pytest.mark.parametrize("name", ["journal", "topics", "topics/t", "topics/t/0"])
def test_what_is_no_folder_is_refused_and_moved_away(closed: str, name: str, kind: str) -> None:
    """In the place of each of a store's folders; and what the others hold is kept."""
    with penstock.open(closed) as store:
        store.publish("other", b"another message")
    place = f"{closed}/{name}"
    shutil.rmtree(place)
    _make(place, kind)
    with pytest.raises(Corrupt) as caught:
        _messages(closed)
    assert next(finding.reason for finding in checking.verify(closed).findings if finding.is_damage) == str(caught.value)
    planned = checking.plan(closed)
    done = checking.repair(closed)
    assert len(done.lost) == len(planned)
    assert checking.verify(closed).is_sound
    messages = {("t", 0, 0): b"a message", ("other", 0, 0): b"another message"}
    lost = {"journal": (), "topics": ("t", "other"), "topics/t": ("t",), "topics/t/0": ("t",)}[name]
    assert _messages(closed) == {place: value for place, value in messages.items() if place[0] not in lost}


def test_files_that_are_not_the_stores_are_no_damage(closed: str) -> None:
    """Notes, hidden files, folders, files of backup programs: verify, opening and repair pass over them."""
    for folder in ("", "journal", "topics/t", "topics/t/0"):
        for name in ("README", ".hidden", "notes.txt", "1.bak"):
            with open(os.path.join(closed, folder, name), "wb") as file:
                file.write(b"not the store's")
        os.mkdir(os.path.join(closed, folder, "lost+found"))
    os.symlink("/nothing", f"{closed}/topics/t/0/link")
    with open(f"{closed}/topics/README", "wb"):
        pass
    assert checking.verify(closed).findings == []
    assert checking.repair(closed) == ([], None)
    assert _messages(closed) == {("t", 0, 0): b"a message"}
    assert checking.verify(closed).findings == []


def test_a_topic_that_is_a_link_to_a_folder_is_no_damage(closed: str, tmp_path: Path) -> None:
    """A topic may lie on another disk."""
    shutil.move(f"{closed}/topics/t", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", f"{closed}/topics/t")
    assert checking.verify(closed).findings == []
    assert _messages(closed) == {("t", 0, 0): b"a message"}


def test_the_identity_of_another_store_is_replaced(closed: str, tmp_path: Path) -> None:
    """`store.json` was copied from elsewhere: all other files say which store this is."""
    other = str(tmp_path / "other")
    with penstock.open(other) as store:
        store.publish("t", b"a message of the other")
    shutil.copy(f"{other}/store.json", f"{closed}/store.json")
    with pytest.raises(Corrupt) as caught:
        _messages(closed)
    assert checking.verify(closed).findings[0].reason == str(caught.value)
    [lost] = checking.repair(closed).lost
    assert lost.path == f"{closed}/store.json"
    assert _messages(closed) == {("t", 0, 0): b"a message"}


def test_the_topic_of_another_store_is_replaced(closed: str, tmp_path: Path) -> None:
    """`topic.json` was copied from elsewhere: the topic's segments say which topic this is."""
    other = str(tmp_path / "other")
    with penstock.open(other) as store:
        store.publish("t", b"a message of the other")
    shutil.copy(f"{other}/topics/t/topic.json", f"{closed}/topics/t/topic.json")
    with pytest.raises(Corrupt) as caught:
        _messages(closed)
    assert checking.verify(closed).findings[0].reason == str(caught.value)
    checking.repair(closed)
    assert checking.verify(closed).is_sound
    assert _messages(closed) == {("t", 0, 0): b"a message"}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_damaged_copies_of_a_store_at_work(path: str, tmp_path: Path, rng: Random) -> None:
    """Forty copies by `cp -r`, each damaged in up to three places: verify and opening agree, and repair leads to a store that opens."""
    owner = Owner(path, "retain")
    for number in range(40):
        copy = str(tmp_path / f"copy-{number}")
        _cp(path, copy)
        _damage(copy, rng)
        sound = checking.verify(copy).is_sound
        try:
            before = _messages_of_copy(copy)
        except Corrupt:
            assert not sound
        else:
            assert sound
            assert checking.repair(copy) == ([], None)
            assert _messages(copy) == before
        checking.repair(copy)
        assert checking.verify(copy).is_sound
        _messages(copy)
        for folder in (copy, copy + "~"):
            shutil.rmtree(folder)
    owner.kill()


def _damage(copy: str, rng: Random) -> None:
    """Flip a bit, cut a file, remove one, or swap two, up to three times."""
    for _ in range(rng.randrange(4)):
        files = sorted(os.path.join(folder, name) for folder, _, names in os.walk(copy) for name in names if name != "LOCK")
        one, other = rng.choice(files), rng.choice(files)
        with open(one, "rb") as file:
            content = bytearray(file.read())
        at = rng.randrange(len(content.rstrip(b"\0")) + 1)
        match rng.choice(["flip", "flip", "cut", "empty", "remove", "swap"]):
            case "flip" if at < len(content):
                content[at] ^= 1 << rng.randrange(8)
            case "cut":
                del content[at:]
            case "empty":
                content.clear()
            case "remove":
                os.unlink(one)
                continue
            case _:
                os.rename(one, one + "~~")
                if one != other:
                    os.rename(other, one)
                os.rename(one + "~~", other)
                continue
        with open(one, "wb") as file:
            file.write(content)


CALLS: dict[str, Callable[[str], object]] = {
    "open": lambda path: penstock.open(path, create=False, share=False),
    "shared": penstock.open,
    "reader": lambda path: penstock.open(path, read_only=True),
    "verify": checking.verify,
    "plan": checking.plan,
    "repair": checking.repair,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("what", ["", "store.json", "topics/t", "checkpoint-0"])
def test_no_permission_is_told_with_the_path(closed: str, what: str, call: str) -> None:
    """And never as a folder that holds no store."""
    place = os.path.join(closed, what).rstrip("/")
    if call == "reader" and what == "checkpoint-0":
        pytest.skip("a reader in the same boot needs no checkpoint")
    with _not_root(closed):
        os.chmod(place, 0)
        with pytest.raises(NoAccess, match=r"Permission denied.*right to read") as caught:
            CALLS[call](closed)
    assert caught.value.path.startswith(place)


@contextlib.contextmanager
def _not_root(path: str) -> Iterator[None]:
    """As a user that is not root, who may read everything."""
    if os.geteuid():
        yield
    else:
        for folder, _, names in os.walk(path):
            for name in ["", *names]:
                os.chown(os.path.join(folder, name), 65534, 65534)
        above = os.path.dirname(path)
        while above != "/":
            os.chmod(above, os.stat(above).st_mode | 0o055)
            above = os.path.dirname(above)
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    os.chmod(path, 0o700)
    os.chmod(f"{path}/topics/t", 0o700)
