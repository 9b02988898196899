"""The asyncio client with the plain face: every call is awaited in an event loop of its own, so that the suite can be run over it."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Self

import pytest

from penstock.aio.consumer import AsyncConsumer, AsyncDelivery
from penstock.aio.producer import AsyncProducer
from penstock.aio.store import AsyncStore
from penstock.aio.transaction import AsyncTransaction
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

_ASYNC = (AsyncStore, AsyncConsumer, AsyncDelivery, AsyncProducer, AsyncTransaction, asyncio.Future)


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="awaited", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Await *work* there."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def close(self) -> None:
        """End the loop; what is still awaited is cancelled."""

        async def cancel() -> None:
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Awaited:
    """One object of `penstock.aio` as its plain twin. A name that it does not have skips the test."""

    def __init__(self, thread: LoopThread, inner: Any) -> None:
        self._thread = thread
        self._inner = inner

    def _wrap(self, found: Any) -> Any:
        if isinstance(found, _ASYNC):
            return Awaited(self._thread, found)
        if type(found) is list:
            return [self._wrap(one) for one in found]
        if isinstance(found, AsyncIterator):
            return self._iterate(found)
        return found

    def _iterate(self, messages: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._wrap(self._thread.run(_next(messages)))
                except StopAsyncIteration:
                    return
        finally:
            with contextlib.suppress(AttributeError):
                self._thread.run(messages.aclose())  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if name == "result":
            return self._result
        if name == "flush":
            return self._flush
        if name == "exception":
            return self._exception
        try:
            found = getattr(self._inner, name)
        except AttributeError:
            pytest.skip(f"asyncio has no {type(self._inner).__name__}.{name}")
        return self._awaiting(found) if callable(found) else self._wrap(found)

    def _result(self, timeout: float | None = None) -> Any:
        limit = _limit(timeout)

        async def answer() -> Any:
            return await self._inner  # which sends what lingers

        async def wait() -> Any:
            return await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(answer())), limit)

        return self._wrap(self._thread.run(wait()))

    def _flush(self, timeout: float | None = None) -> None:
        """Who uses asyncio limits its time with what asyncio has for that."""
        limit = _limit(timeout)
        self._thread.run(asyncio.wait_for(self._inner.flush(), limit))

    def _exception(self, timeout: float | None = None) -> BaseException | None:
        try:
            self._result(timeout)
        except PenstockError as error:
            return error
        return None

    def _awaiting(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def run(given: list[Any], named: dict[str, Any]) -> Any:
            found = call(*given, **named)
            return await found if inspect.isawaitable(found) and not isinstance(found, asyncio.Future) else found

        def plain(*given: Any, **named: Any) -> Any:
            if "on_done" in named:
                pytest.skip("asyncio's futures have add_done_callback")
            return self._wrap(self._thread.run(run([_unwrap(one) for one in given], {n: _unwrap(v) for n, v in named.items()})))

        return plain

    def dead_letters(self, topic: str) -> AwaitedDeadLetters:
        """Asyncio has its calls on the store, and they say when there is no such topic."""
        self.list_dead_letters(topic, 1)
        return AwaitedDeadLetters(self, topic)

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(aiter(self._inner))

    def __enter__(self) -> Self:
        self._thread.run(self._inner.__aenter__())
        return self

    def __exit__(self, *error: object) -> object:
        return self._thread.run(self._inner.__aexit__(*error))

    def __repr__(self) -> str:
        return repr(self._inner)


class AwaitedDeadLetters:
    """The dead letters of a topic."""

    def __init__(self, store: Awaited, topic: str) -> None:
        self._store = store
        self._topic = topic

    def list(self, max_messages: int | None = None, filter: Any = None) -> Any:  # noqa: A002
        """See `DeadLetters.list`."""
        return self._store.list_dead_letters(self._topic, max_messages, filter=filter)

    def replay(self, filter: Any = None, offsets: Any = None) -> Any:  # noqa: A002
        """See `DeadLetters.replay`."""
        return self._store.replay_dead_letters(self._topic, filter=filter, offsets=offsets)

    def discard(self, filter: Any = None, offsets: Any = None) -> Any:  # noqa: A002
        """See `DeadLetters.discard`."""
        return self._store.discard_dead_letters(self._topic, filter=filter, offsets=offsets)

    def __len__(self) -> int:
        return len(self.list())

    def __iter__(self) -> Iterator[Any]:
        return iter(self.list())

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"asyncio has no DeadLetters.{name}")


def _limit(timeout: Any) -> float | None:
    if timeout is None:
        return None
    if type(timeout) not in (int, float) or not 0 <= timeout <= 1e12:
        pytest.skip("asyncio itself limits the time")
    return max(float(timeout), 5.0)  # a task that has no time is cancelled before it begins


async def _next(messages: AsyncIterator[Any]) -> Any:
    return await anext(messages)


def _unwrap(given: Any) -> Any:
    if isinstance(given, Awaited):
        return given._inner
    if type(given) is list:
        return [_unwrap(one) for one in given]
    return given
