"""What a volume knows of the layers above it: they put entries into frames, and their whole state into checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from penstock.files import FileSystem


class Ended(NamedTuple):
    """How the last owner of a store ended, and where a layer finds what it left of its own."""

    files: FileSystem
    path: str
    store_id: bytes
    owner_generation: int
    """Of that owner; the next one has another from its first checkpoint on."""
    in_order: bool


class Layer(Protocol):
    """
    A layer above that keeps its state in the journal and in checkpoints: groups, producers.

    `restore`, `replay` and `recovered` are called once while the store opens. Later changes come either as `Other` entries of a
    ticket, which `apply` carries out once they are committed, or as pending ones: changes that the layer has made already, that ride
    along with the next frame, and whose replay does no harm where the state has them.
    """

    @property
    def owner(self) -> int:
        """Under which number its entries go."""
        ...

    @property
    def pending(self) -> bool:
        """Whether `take_pending` has anything to give."""
        ...

    def restore(self, snapshot: bytes) -> None:
        """Take over the state that a checkpoint holds; empty for a new store. Raises `Corrupt`."""
        ...

    def replay(self, body: bytes) -> None:
        """Carry out an entry that was committed after that checkpoint. Raises `Corrupt`."""
        ...

    def recovered(self, ends: dict[bytes, list[int]], ended: Ended) -> None:
        """
        All is replayed; whoever held anything before is gone. *ends* has the committed end of each partition, by topic id.

        What it makes of how the last owner *ended* is durable before anything else is done with the store.
        """
        ...

    def apply(self, body: bytes) -> None:
        """Carry out an entry that was just committed. Called by the cycle's leader: must be quick and must not wait for a commit."""
        ...

    def take_pending(self, bytes_max: int) -> bytes:
        """Give up to *bytes_max* bytes of buffered changes to the frame that is being built; a failed frame is the end of the store."""
        ...

    def committed(self) -> None:
        """All that `take_pending` has given so far is durable. Called by the cycle's leader."""
        ...

    def snapshot(self) -> bytes:
        """
        The state now, with all that was applied and taken; it may hold pending changes too.

        A snapshot is made of entries: a snapshot and entries that came after it, joined, are a snapshot too.
        """
        ...
