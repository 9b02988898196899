"""
The `positions` file: how far each log is committed, shared in memory between the owner of a store and its readers.

```
header, 16 words of 8 bytes                      slot, 8 words
 word  field                                      word  field
    0  magic "PNSTKPOS"                              0, 1  topic id
    1  version 1                                     2     partition
 2, 3  store id                                      3     committed end
 4, 5  boot id                                       4     log epoch
    6  owner generation                              5     log start
    7  sequence: odd while several ends move         6     1 if the topic is deleted
    8  slots in use                                  7     another number whenever segments were rewritten
    9  failed: 1 after the disk reported an error
   10  topics that were deleted: another number whenever one is
11-15  0
```

It is a mapped file that is never replaced and never shrunk. Every change is the store of one aligned 8-byte word through a
`memoryview` cast (`struct.pack_into` writes byte by byte: a reader was seen to read half of the old number and half of the new).
It is never synced. It counts only within one boot: after a power loss its pages hold anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.files import FileSystem, SharedMap

    Key = tuple[bytes, int]
    """The id of a topic, and a partition."""

MAGIC = int.from_bytes(b"PNSTKPOS", "little")
VERSION = 1
HEADER_WORDS = 16
SLOT_WORDS = 8
GROW_SLOTS = 256
SNAPSHOT_ATTEMPTS = 10_000
_WORD = (1 << 64) - 1

_STORE, _BOOT, _OWNER, _SEQUENCE, _SLOTS, _FAILED, _DELETED = 2, 4, 6, 7, 8, 9, 10


def _words(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")


def _length(slots: int) -> int:
    return (HEADER_WORDS + slots * SLOT_WORDS) * 8


class Position(NamedTuple):
    """How far one log is committed."""

    end: int
    log_epoch: int
    log_start: int
    rewrites: int = 0
    """Another number whenever segments were rewritten."""


class PositionsWriter:
    """The owner's side. One thread at a time adds slots; an end is stored by whoever commits the log."""

    def __init__(self, files: FileSystem, path: str, store_id: bytes, owner_generation: int) -> None:
        self._files = files
        self._path = path
        self._capacity = GROW_SLOTS
        self._map: SharedMap = files.map_shared(path, _length(GROW_SLOTS), write=True)
        self.words = self._map.view.cast("Q")
        self._store_id = store_id
        self._owner_generation = owner_generation
        self._slots = 0
        # Readers look away while the sequence is odd; it stays odd until `publish`.
        self.words[_SEQUENCE] = self.words[_SEQUENCE] | 1
        self.words[_SLOTS] = 0

    def make_room(self, slots: int) -> None:
        """Make sure that so many slots can be added. Raises `OSError`: the disk has no room for them."""
        while self._slots + slots > self._capacity:
            self._grow()

    def add(self, topic_id: bytes, partition: int, position: Position) -> int:
        """Add a slot and return its number."""
        slot = self._slots
        self.make_room(1)
        words = self.words
        at = HEADER_WORDS + slot * SLOT_WORDS
        words[at], words[at + 1] = _words(topic_id)
        words[at + 2] = partition
        words[at + 3] = position.end
        words[at + 4] = position.log_epoch
        words[at + 5] = position.log_start
        words[at + 6] = 0
        words[at + 7] = position.rewrites
        self._slots = slot + 1
        words[_SLOTS] = self._slots
        return slot

    def _grow(self) -> None:
        grown = self._files.map_shared(self._path, _length(self._capacity + GROW_SLOTS), write=True)
        self._capacity += GROW_SLOTS
        # Both maps show the same memory; the old one goes when its last user lets go.
        self._map, self.words = grown, grown.view.cast("Q")

    def publish(self, boot_id: bytes) -> None:
        """All slots are in place: let readers see them."""
        words = self.words
        words[0], words[1] = MAGIC, VERSION
        words[_STORE], words[_STORE + 1] = _words(self._store_id)
        words[_OWNER] = self._owner_generation
        words[_FAILED] = 0
        words[_BOOT], words[_BOOT + 1] = _words(boot_id)
        words[_SEQUENCE] = (words[_SEQUENCE] + 1) & _WORD

    def end_word(self, slot: int) -> int:
        """The number of the word that holds the committed end of *slot*."""
        return HEADER_WORDS + slot * SLOT_WORDS + 3

    def set_ends(self, ends: list[tuple[int, int]]) -> None:
        """Store several committed ends that belong together, as pairs of `end_word` and end."""
        words = self.words
        if len(ends) == 1:
            word, end = ends[0]
            words[word] = end
            return
        words[_SEQUENCE] = (words[_SEQUENCE] + 1) & _WORD
        for word, end in ends:
            words[word] = end
        words[_SEQUENCE] = (words[_SEQUENCE] + 1) & _WORD

    def set_log_start(self, slot: int, log_start: int) -> None:
        """Store where a log begins now."""
        self.words[HEADER_WORDS + slot * SLOT_WORDS + 5] = log_start

    def set_rewrites(self, slot: int, rewrites: int) -> None:
        """A segment was rewritten: readers let go of those that they have open."""
        self.words[HEADER_WORDS + slot * SLOT_WORDS + 7] = rewrites

    def set_deleted(self, slot: int) -> None:
        """The topic of the log is deleted: readers pass the slot over."""
        self.words[HEADER_WORDS + slot * SLOT_WORDS + 6] = 1
        self.words[_DELETED] = (self.words[_DELETED] + 1) & _WORD

    def set_failed(self) -> None:
        """The disk failed: what these numbers say may not be on it."""
        self.words[_FAILED] = 1

    def close(self) -> None:
        """Unmap the file; the numbers stay for readers."""
        self.words.release()
        self._map.close()


class PositionsReader:
    """A reader's side: consistent snapshots of the owner's numbers."""

    def __init__(self, files: FileSystem, path: str, store_id: bytes) -> None:
        self._files = files
        self._path = path
        self._store_id = store_id
        self._boot_id = files.boot_id()
        self._capacity = 0
        self._map: SharedMap | None = None
        self._words: memoryview | None = None
        self._seen = (0, 0, 0)
        """The owner, the number of slots and that of deleted topics of the last snapshot."""
        self._places: dict[Key, int] = {}
        """The first word of each slot that was in it, once they were asked for."""

    @property
    def counts(self) -> bool:
        """Whether the file tells of this store in this boot."""
        return self._ready() is not None

    def snapshot(self) -> dict[Key, Position] | None:
        """
        The committed ends of all logs at one moment, or None if the file does not count (other boot, other store, no file).

        Raises:
            Unavailable: the owner died, or was stopped, in the middle of a change; its successor repairs that.
        """
        for _ in range(SNAPSHOT_ATTEMPTS):
            words = self._ready()
            if words is None:
                return None
            before = words[_SEQUENCE]
            if before & 1:
                continue
            slots = words[_SLOTS]
            if slots > self._capacity:
                self._remap(slots)
                continue
            seen = words[_OWNER], slots, words[_DELETED]
            content = bytes(words[: HEADER_WORDS + slots * SLOT_WORDS])
            if words[_SEQUENCE] == before:
                if self._seen != seen:
                    self._seen, self._places = seen, {}
                return self._decode(content)
        raise Unavailable(f"{self._path} is being changed; the owner may have died, open the store again later")

    def some(self, keys: Collection[Key]) -> dict[Key, Position] | None:
        """
        Like `snapshot`, of these logs alone: it costs the same however many others there are.

        None if that cannot be told without a new snapshot: the owner is another one, topics came, one of these went, or `snapshot` would
        raise.
        """
        for _ in range(SNAPSHOT_ATTEMPTS):
            words = self._ready()
            if words is None:
                return None
            before = words[_SEQUENCE]
            if before & 1:
                continue
            if (words[_OWNER], words[_SLOTS], words[_DELETED]) != self._seen:
                return None
            places = self._places or self._find_places(words)
            found = {}
            for key in keys:
                at = places.get(key)
                if at is None or words[at + 6]:
                    return None
                found[key] = Position(words[at + 3], words[at + 4], words[at + 5], words[at + 7])
            if words[_SEQUENCE] == before:
                return found
        return None

    def _find_places(self, words: memoryview) -> dict[Key, int]:
        """Once for each owner and number of slots: nobody moves a slot. Deleted ones are among them."""
        owner, slots, _ = self._seen
        view = memoryview(bytes(words[: HEADER_WORDS + slots * SLOT_WORDS]))
        numbers = view.cast("Q")
        places = {
            (bytes(view[at * 8 : at * 8 + 16]), numbers[at + 2]): at for at in range(HEADER_WORDS, len(numbers), SLOT_WORDS)
        }
        # The next owner may have begun to write its own.
        if (words[_OWNER], words[_SLOTS]) == (owner, slots) and not words[_SEQUENCE] & 1:
            self._places = places
        return places

    def log_starts(self) -> dict[Key, int]:
        """
        Where each log begins, as far as that can be told in the middle of a change: what `snapshot` cannot give after a crash.

        A start is one word that only grows, and stands here before the first file behind it goes; so it counts at any moment.
        """
        words = self._ready()
        if words is None:
            return {}
        slots = words[_SLOTS]
        if slots > self._capacity:
            self._remap(slots)
            assert self._words is not None
            words = self._words
        found = self._decode(bytes(words[: HEADER_WORDS + slots * SLOT_WORDS]))
        return {key: position.log_start for key, position in found.items()}

    @property
    def owner_generation(self) -> int:
        """The number of the opening that wrote the file last."""
        words = self._ready()
        return 0 if words is None else int(words[_OWNER])

    @property
    def failed(self) -> bool:
        """Whether the owner saw the disk fail."""
        words = self._ready()
        return words is not None and bool(words[_FAILED])

    def _ready(self) -> memoryview | None:
        if self._words is None and not self._remap(0):
            return None
        words = self._words
        assert words is not None
        if words[0] != MAGIC or words[1] != VERSION:
            return None
        if (words[_STORE], words[_STORE + 1]) != _words(self._store_id):
            return None
        if (words[_BOOT], words[_BOOT + 1]) != _words(self._boot_id):
            return None
        return words

    def _remap(self, slots: int) -> bool:
        capacity = max(GROW_SLOTS, (slots + GROW_SLOTS - 1) // GROW_SLOTS * GROW_SLOTS)
        try:
            grown = self._files.map_shared(self._path, _length(capacity), write=False)
        except OSError:
            return False
        self._map, self._words, self._capacity = grown, grown.view.cast("Q"), capacity
        return True

    def _decode(self, content: bytes) -> dict[Key, Position]:
        view = memoryview(content)
        numbers = view.cast("Q")
        found = {}
        for at in range(HEADER_WORDS, len(numbers), SLOT_WORDS):
            if numbers[at + 6]:
                continue  # deleted
            key = (bytes(view[at * 8 : at * 8 + 16]), numbers[at + 2])
            found[key] = Position(numbers[at + 3], numbers[at + 4], numbers[at + 5], numbers[at + 7])
        return found

    def close(self) -> None:
        """Unmap the file."""
        if self._words is not None and self._map is not None:
            self._words.release()
            self._map.close()
            self._words = self._map = None
