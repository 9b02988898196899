"""
The `hands` file: which messages the consumers of this process have in their hands, in memory that outlives it.

```
header, 16 words of 8 bytes                      record, 8 words
 word  field                                      word  field
    0  magic "PNSTKHND"                              0  group; 0 while the record is free
    1  version 1                                     1  member
 2, 3  store id                                      2  1 while the member holds messages that no word names
 4, 5  boot id                                     3-7  a message in hand: 1 + offset * 16384 + partition; 0: none
    6  owner generation
    7  records
    8  1 once a member came for whom there was no record
 9-15  0
```

Theory of operation
-------------------
The death of a process does not lose what it stored into a mapped file; only the death of the machine does. So a store of one aligned
word, when a message is handed out and when it is put down, tells the next owner what was being handled, and costs no system call.
It is a hint of which message to blame, and never the truth about leases and acks, which is in the journal.

- It counts only within one boot, and only for the owner whose generation the last checkpoint has: the next owner stores a
  checkpoint with what it counted, under its own generation, before it clears the file. So a death is counted once, wherever the next
  process dies while it opens the store.
- A message is one word, so it is there or not. A record is taken by storing its group last, and given back by clearing that first.
- A member has as many words as it says that it handles messages at once (`concurrency`), at most 65. If it holds more than that, the
  file only says so (word 2), and the journal must tell what was leased (`replay.py`).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from penstock import threads as threading
from penstock.groups.delivery import PARTITION_BITS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.files import FileSystem, SharedMap

HANDS_NAME = "hands"
MAGIC = int.from_bytes(b"PNSTKHND", "little")
VERSION = 1
HEADER_WORDS = 16
RECORD_WORDS = 8
GROW_RECORDS = 64
WORDS_MAX = 65
"""How many messages of one member have a word: of more than that in hand hardly one can be blamed."""
_STORE, _BOOT, _OWNER, _RECORDS, _UNLISTED = 2, 4, 6, 7, 8
_GROUP, _MEMBER, _MANY, _FIRST = 0, 1, 2, 3
_PER_RECORD = RECORD_WORDS - _FIRST
_OFFSETS = 1 << PARTITION_BITS


def _words(data: bytes) -> tuple[int, int]:
    return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:], "little")


def _length(records: int) -> int:
    return (HEADER_WORDS + records * RECORD_WORDS) * 8


EMPTY = -1
_NO_WORD = -2


class Hand:
    """
    What one member has in its hands. Guarded by its group's lock.

    A message is known by its key in the member's table. Without words, because there is no file, nothing is kept. The first word is apart
    from the others, in `first` and `first_at`: most members have no other, and theirs is set and cleared for each message.
    """

    __slots__ = ("_count", "_free", "_many_at", "first", "first_at", "many", "others", "records", "words")

    def __init__(self, words: memoryview | None = None, records: tuple[int, ...] = (), count: int = 0) -> None:
        self.words = words
        """Stored into here, and where a single message is handed out and settled: a call would cost too much there."""
        self.records = records
        self._count = count
        places = self._places()
        self.first = EMPTY if places else _NO_WORD
        """What the first word names, or `EMPTY`."""
        self.first_at = places[0] if places else 0
        self._free = places[1:]
        self.others: dict[int, int] = {}
        """By key, the words that name others."""
        self._many_at = records[0] + _MANY if records else 0
        self.many = 0
        """How many there are that no word names."""

    def _places(self) -> list[int]:
        """Its words."""
        return [at + _FIRST + number for at in self.records for number in range(_PER_RECORD)][: self._count]

    @property
    def named(self) -> set[int]:
        """Those that a word names."""
        return {*self.others, self.first} - {EMPTY, _NO_WORD}

    def pick_up(self, key: int, count: int = 1) -> None:
        """It was handed the message *key*, or *count* messages of one partition that follow each other."""
        words, free = self.words, self._free
        if words is None:
            return
        if count > len(free) + (self.first == EMPTY):
            if not self.many:
                words[self._many_at] = 1
            self.many += count
            return
        for one in range(key, key + count * _OFFSETS, _OFFSETS):
            if self.first == EMPTY:
                self.first = one
                words[self.first_at] = one + 1
            else:
                at = self.others[one] = free.pop()
                words[at] = one + 1

    def put_down(self, key: int) -> None:
        """The message *key* is not in its hands any more."""
        words = self.words
        if words is None:
            return
        if self.first == key:
            self.first = EMPTY
            words[self.first_at] = 0
        elif key in self.others:
            at = self.others.pop(key)
            words[at] = 0
            self._free.append(at)
        elif self.many:
            self.recount(self.many - 1 + len(self.named))

    def recount(self, in_flight: int) -> None:
        """It holds *in_flight* messages now, named or not."""
        self.many = in_flight - len(self.named)
        if not self.many and self.words is not None:
            self.words[self._many_at] = 0

    def hold(self, keys: Sequence[int]) -> None:
        """It holds these and nothing else, whatever it was in the middle of."""
        if self.words is None:
            return
        places = self._places()
        for at in (*places, self._many_at):
            self.words[at] = 0
        self.first = EMPTY if places else _NO_WORD
        self._free, self.others, self.many = places[1:], {}, 0
        for key in keys:
            self.pick_up(key)

    def forget(self) -> None:
        """The record is another's from now on, or, in a forked child, always was."""
        self.words = None
        self.first = _NO_WORD
        self._free = []
        self.others = {}
        self.many = 0


class Hands:
    """The owner's side. Opened when the checkpoint with what was counted is durable. Safe to call from any thread."""

    def __init__(self, files: FileSystem, store_path: str, store_id: bytes, owner_generation: int) -> None:
        """Raises `OSError`: there can be no such file here."""
        self._files = files
        self._path = os.path.join(store_path, HANDS_NAME)
        self._lock = threading.Lock()
        self._closed = False
        self._map: SharedMap = files.map_shared(self._path, _length(GROW_RECORDS), write=True)
        self._view = words = self._map.view.cast("Q")
        self._capacity = GROW_RECORDS
        self._records = 0
        self._free: list[int] = []
        # First, so that nothing that is changed from here on can be taken for what the owner before left.
        words[0] = 0
        for at in range(1, len(words)):
            words[at] = 0
        words[1] = VERSION
        words[_STORE], words[_STORE + 1] = _words(store_id)
        words[_BOOT], words[_BOOT + 1] = _words(files.boot_id())
        words[_OWNER] = owner_generation
        words[0] = MAGIC

    def claim(self, group_id: int, member: int, concurrency: int) -> Hand:
        """A hand for a new member, empty."""
        count = min(concurrency, WORDS_MAX)
        with self._lock:
            if self._closed:
                return Hand()
            records: list[int] = []
            try:
                while len(records) * _PER_RECORD < count:
                    records.append(self._take())
            except OSError:
                # No room for the file to grow: what this one holds is told by the journal alone.
                self._free += records
                self._view[_UNLISTED] = 1
                return Hand()
            words = self._view
            for at in records:
                words[at + _MANY] = 0
                for number in range(_FIRST, RECORD_WORDS):
                    words[at + number] = 0
                words[at + _MEMBER] = member
                words[at + _GROUP] = group_id
            return Hand(words, tuple(records), count)

    def _take(self) -> int:
        """A free record, by the number of its first word. Raises `OSError`."""
        if self._free:
            return self._free.pop()
        if self._records == self._capacity:
            grown = self._files.map_shared(self._path, _length(self._capacity + GROW_RECORDS), write=True)
            words = grown.view.cast("Q")
            for at in range(len(self._view), len(words)):
                words[at] = 0
            self._capacity += GROW_RECORDS
            # Both maps show the same memory; the old one goes when its last user lets go.
            self._map, self._view = grown, words
        at = HEADER_WORDS + self._records * RECORD_WORDS
        self._records += 1
        self._view[_RECORDS] = self._records
        return at

    def release(self, hand: Hand) -> None:
        """The member has left, and holds nothing."""
        with self._lock:
            records, hand.records = hand.records, ()
            if not self._closed:
                for at in records:
                    self._view[at + _GROUP] = 0
                self._free += records
            hand.forget()

    def close(self) -> None:
        """Unmap the file."""
        with self._lock:
            if not self._closed:
                self._closed = True
                # Of a consumer that could not be closed in order.
                with contextlib.suppress(BufferError):
                    self._view.release()
                    self._map.close()


class HandBefore(NamedTuple):
    """What a member had in its hands when its process died."""

    places: list[tuple[int, int]]
    """(partition, offset)"""
    many: bool
    """Whether there were more, which are not named."""


class HandsBefore(NamedTuple):
    """What the members of the last owner had in their hands when it died."""

    members: dict[tuple[int, int], HandBefore]
    """By group and member."""
    complete: bool
    """Whether a member that is not there had nothing in its hands."""

    @classmethod
    def read(cls, files: FileSystem, store_path: str, store_id: bytes, owner_generation: int) -> HandsBefore | None:
        """What the owner of that generation left; None if the file does not tell: not there, of another boot, store or owner."""
        path = os.path.join(store_path, HANDS_NAME)
        capacity = GROW_RECORDS
        while True:
            try:
                shared = files.map_shared(path, _length(capacity), write=False)
            except OSError:
                return None
            content = bytes(shared.view)
            shared.close()
            words = memoryview(content).cast("Q")
            if words[0] != MAGIC or words[1] != VERSION or words[_OWNER] != owner_generation:
                return None
            if (words[_STORE], words[_STORE + 1]) != _words(store_id):
                return None
            if (words[_BOOT], words[_BOOT + 1]) != _words(files.boot_id()):
                return None
            if words[_RECORDS] <= capacity:
                return cls(_members(words), not words[_UNLISTED])
            capacity = -(-words[_RECORDS] // GROW_RECORDS) * GROW_RECORDS


def _members(words: memoryview) -> dict[tuple[int, int], HandBefore]:
    found: dict[tuple[int, int], HandBefore] = {}
    for at in range(HEADER_WORDS, HEADER_WORDS + words[_RECORDS] * RECORD_WORDS, RECORD_WORDS):
        if words[at + _GROUP]:
            keys = [words[at + number] - 1 for number in range(_FIRST, RECORD_WORDS) if words[at + number]]
            places = [(key & (_OFFSETS - 1), key >> PARTITION_BITS) for key in keys]
            known = found.get((words[at + _GROUP], words[at + _MEMBER]), HandBefore([], many=False))
            found[words[at + _GROUP], words[at + _MEMBER]] = HandBefore(
                known.places + places, known.many or bool(words[at + _MANY])
            )
    return found
