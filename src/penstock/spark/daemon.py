"""
Spark's daemon of Python workers, without a traceback when Spark hangs up on one of them: `spark.python.daemon.module`.

A `limit` or a `show` that has enough rows closes the socket of a worker that is still writing. The worker's last flush then fails, and
Spark's own daemon prints a traceback of a `BrokenPipeError` unless Spark kills the worker first. It means nothing: there is no reader
left, and an error of the task itself travels over the same socket, before. So a worker whose peer has hung up ends in silence here, and
everything else is printed as before.

Spark runs this module before it forks workers. Importing it must start no thread: neither numpy nor pyarrow may be loaded.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

from pyspark import daemon

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

_HUNG_UP = select.POLLHUP | select.POLLERR | select.POLLRDHUP
_ENDED = 1
"""What a worker returns that is not to be used again."""


def quiet(worker: Callable[[socket.socket, bool], int]) -> Callable[[socket.socket, bool], int]:
    """*worker*, which serves one task over a socket, ending in silence where the other side has closed that."""

    def serve(sock: socket.socket, authenticated: bool) -> int:  # noqa: FBT001 - as Spark calls it
        try:
            return worker(sock, authenticated)
        except (BrokenPipeError, ConnectionResetError) as error:
            if not (_is_connection_alone(error) and _has_hung_up(sock)):
                raise
            return _ENDED

    return serve


def _is_connection_alone(error: BaseException) -> bool:
    """Whether nothing but broken connections led to *error*."""
    seen: BaseException | None = error
    while seen is not None:
        if not isinstance(seen, (BrokenPipeError, ConnectionResetError, SystemExit)):
            return False
        seen = seen.__cause__ or seen.__context__
    return True


def _has_hung_up(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock, _HUNG_UP)
    return any(event & _HUNG_UP for _, event in poll.poll(0))


def main() -> None:
    """Do what Spark's daemon does."""
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment]  # its manager calls it by that name
    daemon.manager()


if __name__ == "__main__":
    main()
