"""What one power cut keeps of what was not synced: sector by sector of each file, and change by change of the names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.testing.simulated_files.inode import Write, overlay, undo
from penstock.testing.simulated_files.names import Renaming, with_needs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from penstock.testing.simulated_files.inode import Inode
    from penstock.testing.simulated_files.names import Key

SECTOR = 512


def _put(buffer: bytearray, position: int, data: bytes) -> None:
    if position > len(buffer):
        buffer.extend(bytes(position - len(buffer)))
    buffer[position : position + len(data)] = data


def _moment(rng: Random, total: int) -> int:
    """How many of *total* operations something shows: often none or all, else anything between."""
    chance = rng.random()
    if chance < 0.35:
        return 0
    if chance < 0.7:
        return total
    return int((chance - 0.7) / 0.3 * (total + 1))


def _redo(
    buffer: bytearray,
    operations: Sequence[Write],
    moments: dict[int, int],
    default: int | None,
    size_moment: int,
    rng: Random,
) -> None:
    """
    Apply to durable content what survived of *operations*.

    *moments* says for a sector how many of the operations it shows; a sector that is not in it shows *default* of them, or
    is drawn. *size_moment* says the same for the size.
    """
    total = len(operations)
    # Sectors behind a lost truncation still hold old bytes, but the cache writes them back with zeros around new ones.
    freed: set[int] = set()
    for index, (_, position, data, _, _, new_size) in enumerate(operations):
        if data is None:
            if index < size_moment:
                del buffer[new_size:]
            elif new_size < len(buffer):
                # The truncation is lost, but the rest of its sector was filled with zeros in the cache.
                sector = new_size // SECTOR
                moment = moments.get(sector)
                if moment is None:
                    moment = moments[sector] = _moment(rng, total) if default is None else default
                end = min((sector + 1) * SECTOR, len(buffer))
                if index < moment:
                    buffer[new_size:end] = bytes(end - new_size)
                freed.update(range(sector + 1, (len(buffer) - 1) // SECTOR + 1))
            continue
        end = position + len(data)
        run = position
        for sector in range(position // SECTOR, (end - 1) // SECTOR + 1):
            moment = moments.get(sector)
            if moment is None:
                moment = moments[sector] = _moment(rng, total) if default is None else default
            if index >= moment:
                start = sector * SECTOR
                if start > run:
                    _put(buffer, run, data[run - position : start - position])
                run = start + SECTOR
            elif sector in freed:
                freed.remove(sector)
                start = sector * SECTOR
                length = min(SECTOR, len(buffer) - start)
                buffer[start : start + length] = bytes(length)
        if run < end:
            _put(buffer, run, data[run - position :])
    size = operations[size_moment - 1].new_size if size_moment else operations[0].old_size
    if size < len(buffer):
        del buffer[size:]
    else:
        buffer.extend(bytes(size - len(buffer)))


class PowerCut:
    """The choice of what one crash keeps, asked once for the names and once for each file with un-synced data."""

    __slots__ = ("chosen", "names", "names_kept", "point", "rng", "style")

    def __init__(self, style: str, rng: Random, names: Sequence[Renaming], dirty: Iterable[Inode]) -> None:
        self.style = style
        self.rng = rng
        self.names = names
        self.chosen: Write | Renaming | None = None
        self.point = 0
        self.names_kept = 0.5
        if style in ("prefix", "all but one", "nothing but one"):
            operations: list[Write | Renaming] = [operation for inode in dirty for operation in inode.pending]
            operations += names
            if operations:
                self.chosen = operations[int(rng.random() * len(operations))]
                self.point = self.chosen.sequence
        if style in ("independent", "nothing but one"):
            self.names_kept = (0.0, 0.5, 0.5, 1.0)[int(rng.random() * 4)]

    def lost_names(self) -> list[Renaming]:
        """The changes of names that are lost, with all that need them, in order."""
        style, rng, chosen = self.style, self.rng, self.chosen
        if style in ("everything", "only metadata"):
            return []
        if style in ("nothing", "only data"):
            return list(self.names)
        kept: set[int] | None = None
        if style == "nothing but one" and type(chosen) is Renaming:
            kept = with_needs(self.names, lambda operation: operation is chosen)
        lost: list[Renaming] = []
        broken: set[Key] = set()
        for operation in self.names:
            if not broken.isdisjoint(operation.needs):
                keeps = False
            elif kept is not None:
                keeps = operation.sequence in kept
            elif style == "prefix":
                keeps = operation.sequence < self.point or (operation is chosen and rng.random() < 0.5)
            elif style == "all but one":
                keeps = operation is not chosen
            else:
                keeps = rng.random() < self.names_kept
            if not keeps:
                lost.append(operation)
                broken |= operation.affects
        return lost

    def content(self, inode: Inode) -> bytes:
        """What of a file's content the disk shows."""
        operations = inode.unsynced()
        if not operations and not inode.stale:
            return inode.freeze()
        buffer = bytearray(inode.content)
        if operations:
            self._lose(buffer, operations, self.style if inode.buffer is None else self._style_of_mapped())
        overlay(buffer, inode.stale)
        return bytes(buffer)

    def _style_of_mapped(self) -> str:
        # Stores into mapped memory are no operations: they have no place in the order, and may be anywhere in it.
        return self.style if self.style in ("nothing", "everything", "only metadata") else "independent"

    def _lose(self, buffer: bytearray, operations: Sequence[Write], style: str) -> None:
        rng, total, chosen = self.rng, len(operations), self.chosen
        if style in ("everything", "only data"):
            return
        if style == "prefix":
            kept = 0
            while kept < total and operations[kept].sequence < self.point:
                kept += 1
            undo(buffer, operations[kept:])
            if kept < total and operations[kept] is chosen:
                _redo(buffer, operations[kept : kept + 1], {}, None, _moment(rng, 1), rng)
            return
        single = -1
        if style in ("all but one", "nothing but one") and type(chosen) is Write:
            single = next((index for index, operation in enumerate(operations) if operation is chosen), -1)
        if style == "all but one" and single < 0:
            return
        undo(buffer, operations)
        if style == "independent":
            _redo(buffer, operations, {}, None, _moment(rng, total), rng)
        elif style == "only metadata":
            _redo(buffer, operations, {}, 0, total, rng)
        elif style == "all but one":
            sectors = _sectors(operations[single])
            moments = {sector: single for sector in sectors if len(sectors) == 1 or rng.random() < 0.5}
            # If a change of size is what is missing, later ones are missing too: the disk holds one size.
            size_moment = total if operations[single].data is not None else single
            _redo(buffer, operations, moments, total, size_moment, rng)
        elif single >= 0:
            moments = dict.fromkeys(_sectors(operations[single]), single + 1)
            _redo(buffer, operations, moments, 0, single + 1, rng)


def _sectors(operation: Write) -> range:
    if operation.data is None:
        return range(0)
    return range(operation.position // SECTOR, (operation.position + len(operation.data) - 1) // SECTOR + 1)


# How often each style is drawn. Orderly losses find missing syncs, single ones find wrong assumptions on order.
STYLES = (
    ["prefix"] * 6
    + ["independent"] * 6
    + ["only metadata"] * 2
    + ["only data"] * 2
    + ["all but one"] * 2
    + ["nothing but one"] * 2
)
