"""Messages that are handled in one database transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from penstock.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import TracebackType

    from penstock.groups.delivery import Delivery


class Handling(Protocol):
    """What a batch needs of its consumer."""

    def begin_block(self, batch: Batch) -> Any:
        """A cursor for the user, in the transaction that is open for *batch*. Raises `UsageError` if it is not any more."""
        ...

    def succeed(self) -> None:
        """Store the position and commit."""
        ...

    def fail(self, error: BaseException) -> None:
        """Roll back, and see to it that the messages come again."""
        ...


class Batch:
    """
    Messages of one partition, in their order, that come next in this database. Handle them inside ``with batch as cursor``.

    The block is one transaction: when it ends, its effects and the position are committed together; when it raises, all of it is rolled
    back, the messages come again, and the exception goes on. Use the cursor that the block gives, or others of the same connection, and
    leave commit and rollback to the block.
    """

    def __init__(self, handling: Handling, messages: Sequence[Delivery]) -> None:
        self._handling = handling
        self._messages = messages
        self._begun = False

    @property
    def partition(self) -> int:
        """The partition that they are from."""
        return self._messages[0].partition

    @property
    def messages(self) -> Sequence[Delivery]:
        """The messages. Do not ack them: the block does."""
        return self._messages

    def __iter__(self) -> Iterator[Delivery]:
        return iter(self._messages)

    def __len__(self) -> int:
        return len(self._messages)

    def __enter__(self) -> Any:
        if self._begun:
            raise UsageError("a batch is handled once; it comes again by itself if that failed")
        self._begun = True
        return self._handling.begin_block(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            self._handling.succeed()
        else:
            self._handling.fail(error)

    def __repr__(self) -> str:
        first, last = self._messages[0], self._messages[-1]
        return f"<Batch {first.topic}/{first.partition} offsets {first.offset} to {last.offset}>"
