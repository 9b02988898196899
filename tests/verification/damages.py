"""What may be done to the files of a store, drawn from a generator of random numbers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from penstock.testing import SimulatedFileSystem

STORE = "/store"


class Base(NamedTuple):
    """A store to be damaged: its files, and other states that they were in."""

    files: SimulatedFileSystem
    older: dict[str, list[bytes]]
    foreign: dict[str, bytes]
    """The files of another store."""


def _paths(files: SimulatedFileSystem, rng: Random) -> str:
    """A file; of the kinds that hold the truth more often than as many as there are."""
    found = [path for path in files.files() if not path.endswith("/LOCK")]
    kinds = [
        [path for path in found if path.endswith(end)]
        for end in (".log", ".wal", "checkpoint-0", "checkpoint-1", ".json", ".idx", "positions")
    ]
    kinds = [kind for kind in kinds if kind]
    return rng.choice(rng.choice([kinds[0], kinds[min(1, len(kinds) - 1)], *kinds]))


def _place(content: bytes, rng: Random) -> int:
    """A byte; mostly one in use, not one of the zeros behind them."""
    used = len(content.rstrip(b"\0")) or 1
    return rng.randrange(min(used + 16, len(content)) if rng.random() < 0.9 else len(content))


def _edit(files: SimulatedFileSystem, rng: Random, edit: Callable[[bytearray, int], None]) -> str:
    path = _paths(files, rng)
    content = bytearray(files.files()[path])
    if not content:
        return f"{path} is empty"
    at = _place(bytes(content), rng)
    edit(content, at)
    files.replace(path, bytes(content))
    return f"{path} at {at}"


def flip(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    bit = rng.randrange(8)

    def edit(content: bytearray, at: int) -> None:
        content[at] ^= 1 << bit

    return f"flip bit {bit} of {_edit(files, rng, edit)}"


def cut(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    def edit(content: bytearray, at: int) -> None:
        del content[0 if rng.random() < 0.1 else at :]

    return f"cut {_edit(files, rng, edit)}"


def fill(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    length, byte = rng.choice([1, 8, 64, 512, 4096]), rng.choice([0, 0, 0xFF])

    def edit(content: bytearray, at: int) -> None:
        start = at // 512 * 512 if length >= 512 else at
        content[start : start + length] = bytes([byte]) * len(content[start : start + length])

    return f"fill {length} bytes with {byte:#x} in {_edit(files, rng, edit)}"


def zero_tail(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    def edit(content: bytearray, at: int) -> None:
        content[at:] = bytes(len(content) - at)

    return f"zero all from there on: {_edit(files, rng, edit)}"


def noise(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    length = rng.choice([4, 40, 400])

    def edit(content: bytearray, at: int) -> None:
        content[at : at + length] = rng.randbytes(len(content[at : at + length]))

    return f"{length} random bytes in {_edit(files, rng, edit)}"


def excise(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    length = rng.choice([1, 8, 100])

    def edit(content: bytearray, at: int) -> None:
        del content[at : at + length]

    return f"{length} bytes are taken out of {_edit(files, rng, edit)}"


def append(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    path = _paths(files, rng)
    content = files.files()[path]
    more = rng.choice([b"garbage", bytes(512), rng.randbytes(100), content[: len(content) // 2], content])
    files.replace(path, content + more)
    return f"{len(more)} bytes appended to {path}"


def delete(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    path = _paths(files, rng)
    files.unlink(path)
    return f"delete {path}"


def empty(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    path = _paths(files, rng)
    files.replace(path, b"")
    return f"empty {path}"


def _two(files: SimulatedFileSystem, rng: Random) -> tuple[str, str]:
    one = _paths(files, rng)
    alike = [
        path for path in files.files() if os.path.splitext(path)[1] == os.path.splitext(one)[1] and not path.endswith("/LOCK")
    ]
    return one, rng.choice(alike)


def swap(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    one, other = _two(files, rng)
    content = files.files()
    files.replace(one, content[other])
    files.replace(other, content[one])
    return f"swap {one} and {other}"


def copy_over(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    one, other = _two(files, rng)
    files.replace(other, files.files()[one])
    return f"copy {one} over {other}"


def duplicate(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    path = _paths(files, rng)
    folder, name = os.path.split(path)
    stem, end = os.path.splitext(name)
    other = f"{int(stem) + rng.choice([1, 2, 7, 100]):0{len(stem)}d}{end}" if stem.isdecimal() else name + ".copy"
    files.replace(os.path.join(folder, other), files.files()[path])
    return f"copy {path} to {other}"


def set_back(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    changed = [path for path, copies in base.older.items() if copies and path in files.files() and not path.endswith("/LOCK")]
    if not changed:
        return delete(base, files, rng)
    path = rng.choice(changed)
    files.replace(path, rng.choice(base.older[path]))
    return f"set back {path}"


def remove_folder(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    folders = sorted({os.path.dirname(path) for path in files.files()} - {STORE})
    folders += sorted({os.path.dirname(folder) for folder in folders} - {STORE, "/"})
    if not folders:
        return extra(base, files, rng)
    folder = rng.choice(folders)
    remove_tree(files, folder)
    return f"remove {folder}"


def remove_tree(files: SimulatedFileSystem, folder: str) -> None:
    for path in files.files():
        if path.startswith(folder + "/"):
            files.unlink(path)
    for path in sorted([path for path in files.tree() if path.endswith("/") and path.startswith(folder + "/")], reverse=True):
        files.remove_directory(path.rstrip("/"))


def foreign(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    path = _paths(files, rng)
    end = os.path.splitext(path)[1] or os.path.basename(path)
    alike = [name for name in base.foreign if name.endswith(end)]
    if not alike:
        return delete(base, files, rng)
    other = rng.choice(alike)
    files.replace(path, base.foreign[other])
    return f"put {other} of another store over {path}"


def _folders(files: SimulatedFileSystem) -> list[str]:
    return [path.rstrip("/") for path in files.tree() if path.endswith("/") and path.startswith(STORE + "/")]


def extra(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    folder = rng.choice([STORE, *_folders(files)])
    name = rng.choice(
        ["README", "notes.txt", ".hidden", "a.log", "7", "000009", "lost+found", "x.idx", "y.tmp", f"{50:020d}.log.tmp"]
    )
    path = f"{folder}/{name}"
    if files.exists(path):
        return append(base, files, rng)
    if rng.random() < 0.3:
        files.make_directory(path)
        return f"an extra folder {path}"
    files.replace(path, rng.choice([b"", b"not ours", bytes(512)]))
    return f"an extra file {path}"


def folder_for_file(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    path = _paths(files, rng)
    files.unlink(path)
    files.make_directory(path)
    if rng.random() < 0.5:
        files.replace(f"{path}/inside", b"something")
    return f"a folder in the place of {path}"


def file_for_folder(base: Base, files: SimulatedFileSystem, rng: Random) -> str:
    folder = rng.choice(_folders(files) or [STORE])
    if folder == STORE:
        return extra(base, files, rng)
    remove_tree(files, folder)
    files.replace(folder, rng.choice([b"", b"not a folder"]))
    return f"a file in the place of {folder}"


DAMAGES = (
    flip, flip, flip, cut, cut, fill, fill, zero_tail, noise, excise, append, delete, empty, swap, copy_over, duplicate, set_back,
    remove_folder, foreign, extra, folder_for_file, file_for_folder,
)  # fmt: skip
ONE = (1,)
SEVERAL = (2, 3, 4)
ANY = (*ONE, *SEVERAL)


def damage(base: Base, rng: Random, together: Sequence[int] = ANY) -> tuple[str, SimulatedFileSystem]:
    """A store with as many of these as one of *together* says, and their names."""
    files = base.files.kill()
    names = []
    for _ in range(rng.choice(together)):
        if not any(not path.endswith("/LOCK") for path in files.files()):
            break
        names.append(rng.choice(DAMAGES)(base, files, rng))
    if rng.random() < 0.3:
        files = files.crash(rng, keep="everything")
        names.append("another boot")
    return ", ".join(names), files
