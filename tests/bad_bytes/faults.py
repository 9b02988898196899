"""Ways to damage a file, and which files of a store are of which kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import BadBytes
from penstock.format.frame import JOURNAL_HEADER_BYTES, parse_frame
from tests.bad_bytes.stores import Fault, Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KINDS: dict[str, Callable[[str], bool]] = {
    "store.json": lambda path: path.endswith("/store.json"),
    "topic.json": lambda path: path.endswith("/topic.json"),
    "checkpoints": lambda path: "/checkpoint-" in path,
    "journal": lambda path: path.endswith(".wal"),
    "segments of always": lambda path: "/always/" in path and path.endswith(".log"),
    "segments of os": lambda path: "/os/" in path and path.endswith(".log"),
    "index caches": lambda path: path.endswith(".idx"),
    "positions": lambda path: path.endswith("/positions"),
    "LOCK": lambda path: path.endswith("/LOCK"),
}
CACHES = ("index caches", "LOCK")
"""What a store can do without, whatever stands in it; `positions` has no checksum, so that a wrong number there is believed."""

MARGIN_BYTES = 64
SAMPLE_EVERY_BYTES = 97


def files_of(store: Store, kind: str) -> dict[str, bytes]:
    """The files of one kind that are not empty."""
    return {path: content for path, content in store.files.files().items() if KINDS[kind](path) and content}


def places(content: bytes, sample_every_bytes: int = SAMPLE_EVERY_BYTES) -> list[int]:
    """Every byte up to the last one that is not zero and some behind it, and a sample of the preallocated zeros that follow."""
    used = min(len(content.rstrip(b"\0")) + MARGIN_BYTES, len(content))
    return [*range(used), *range(used, len(content), sample_every_bytes)]


def flipped(content: bytes, at: int, bit: int) -> bytes:
    return b"%b%c%b" % (content[:at], content[at] ^ 1 << bit, content[at + 1 :])


def flips(store: Store, kind: str, *, every_bit: bool, half: int | None = None) -> Iterator[Fault]:
    """
    One flipped bit at a time: all eight bits of each byte, or one of them, which is another one from byte to byte.

    *half*: of all bits every second one, in turns from byte to byte; which, an even or odd number tells.
    """
    for path, content in files_of(store, kind).items():
        for at in places(content):
            bits = range(8) if half is None else range((at + half) % 2, 8, 2)
            for bit in bits if every_bit else (at * 5 % 8,):
                yield Fault(f"{path} byte {at} bit {bit}", path, store.with_file(path, flipped(content, at, bit)))


def truncations(store: Store, kind: str) -> Iterator[Fault]:
    """Each file cut to each shorter length."""
    for path, content in files_of(store, kind).items():
        for length in places(content):
            yield Fault(f"{path} cut to {length} of {len(content)}", path, store.with_file(path, content[:length]))


def fills(store: Store, kind: str, byte: int, length: int = 512) -> Iterator[Fault]:
    """Each range of a sector, and ranges that lie across two, filled with one byte."""
    for path, content in files_of(store, kind).items():
        for at in range(0, len(content), length // 2):
            part = bytes([byte]) * min(length, len(content) - at)
            damaged = content[:at] + part + content[at + length :]
            if damaged != content:
                yield Fault(f"{path} [{at}, {at + length}) filled with {byte:#x}", path, store.with_file(path, damaged))


def frames_of(journal: bytes) -> list[tuple[int, int]]:
    """The (start, end) of each frame in a journal file."""
    frames: list[tuple[int, int]] = []
    position = JOURNAL_HEADER_BYTES
    while True:
        try:
            length = parse_frame(journal, position).frame_bytes
        except BadBytes:
            return frames
        frames.append((position, position + length))
        position += length
