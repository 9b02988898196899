"""
What an instrumented store does instead of the plain one.

Calls of the store itself are replaced on the one object. What it makes, consumers, producers, transactions, and the messages that are
handed out, becomes an object of a subclass that makes spans and has the plain class do the work: the same fields, so an object can
change its class. So nothing asks in a plain store whether somebody traces.

A message that is handed out alone makes a span ``process`` when it is handled in ``with message``, by workers too, with the publisher's as
its parent. Messages that are handed out together are linked to: a span ``receive`` for the call, and for a worker with `batch` one
``process`` around its function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from typing import TYPE_CHECKING, Any

from penstock.telemetry import spans

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence


class Tracing:
    """One tracer, and the classes of the objects that use it."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self._classes: dict[tuple[type, type], type] = {}

    def traced(self, thing: Any, calls: type[_Traced]) -> Any:
        """Let *thing* have the *calls* that make spans."""
        plain = type(thing)
        if not hasattr(plain, "_tracing"):
            made = self._classes.get((plain, calls))
            if made is None:
                # Not by inheriting from both: an object may change its class only to one whose one base is its own.
                fields: dict[str, Any] = {
                    name: call
                    for one in reversed(calls.__mro__)
                    for name, call in vars(one).items()
                    if inspect.isfunction(call)
                }
                fields |= {"__slots__": (), "_tracing": self, "_plain_class": plain, "__module__": plain.__module__}
                made = self._classes[plain, calls] = type(plain.__name__, (plain,), fields)
            thing.__class__ = made
        return thing

    def replacements(self, store: Any) -> dict[str, Any]:
        """The calls of *store* that are made with spans, by name."""
        is_async = inspect.iscoroutinefunction(store.publish)
        made = self._of_async_store(store) if is_async else self._of_store(store)
        return {name: functools.wraps(getattr(store, name))(call) for name, call in made.items()}

    def received(self, messages: Sequence[Any], began_ns: int, calls: type[_Traced], *, alone: bool) -> None:
        """They were handed out by one call."""
        if messages:
            spans.received(self.tracer, messages, began_ns)
            if alone:
                self.traced(messages[0], calls)

    # -- plain stores -----------------------------------------------------------------------------------------------

    def _of_store(self, store: Any) -> dict[str, Callable[..., Any]]:
        publish, publish_many, worker = store.publish, store.publish_many, store.worker
        producer, transaction, subscribe = store.producer, store.transaction, store.subscribe

        def publish_traced(topic: str, value: Any, *, headers: Any = None, **options: Any) -> Any:
            span = spans.begin_send(self.tracer, topic)
            with _ended(span) as outcome:
                outcome.receipt = publish(topic, value, headers=spans.carried(span, headers), **options)
                return outcome.receipt

        def publish_many_traced(topic: str, values: Any, *, headers: Any = None, **options: Any) -> Any:
            count = spans.count_of(values)
            span = spans.begin_send(self.tracer, topic, count) if count else None
            with _ended(span):
                return publish_many(topic, values, headers=spans.carried_each(span, headers, count), **options)

        def worker_traced(topic: str, *, batch: int | None = None, **options: Any) -> Any:
            add = worker(topic, batch=batch, **options)
            if batch is None:
                return add

            def add_traced(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
                add(self._handler_of_many(function))
                return function

            return add_traced

        return {
            "publish": publish_traced,
            "publish_many": publish_many_traced,
            "producer": lambda *given, **options: self.traced(producer(*given, **options), TracedProducer),
            "transaction": lambda: self.traced(transaction(), TracedTransaction),
            "subscribe": lambda *given, **options: self.traced(subscribe(*given, **options), TracedConsumer),
            "worker": worker_traced,
        }

    def _handler_of_many(self, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def handle_in_task(messages: Any) -> Any:
                with _current(spans.begin_process_many(self.tracer, messages)):
                    return await function(messages)

            return handle_in_task

        @functools.wraps(function)
        def handle(messages: Any) -> Any:
            with _current(spans.begin_process_many(self.tracer, messages)):
                return function(messages)

        return handle if callable(function) else function

    # -- stores of asyncio ------------------------------------------------------------------------------------------

    def _of_async_store(self, store: Any) -> dict[str, Callable[..., Any]]:
        publish, publish_many = store.publish, store.publish_many
        producer, transaction, subscribe = store.producer, store.transaction, store.subscribe

        async def publish_traced(topic: str, value: Any, *, headers: Any = None, **options: Any) -> Any:
            span = spans.begin_send(self.tracer, topic)
            found = spans.carried(span, headers)
            given = options if found is None else {**options, "headers": found}
            with _ended(span) as outcome:
                outcome.receipt = await publish(topic, value, **given)
                return outcome.receipt

        async def publish_many_traced(topic: str, values: Any, *, headers: Any = None, **options: Any) -> Any:
            count = spans.count_of(values)
            span = spans.begin_send(self.tracer, topic, count) if count else None
            with _ended(span):
                return await publish_many(topic, values, headers=spans.carried_each(span, headers, count), **options)

        def trace_producer(opened: Any) -> Any:
            self.traced(opened._producer, TracedProducer)  # noqa: SLF001 - the plain producer below makes the spans
            return opened

        return {
            "publish": publish_traced,
            "publish_many": publish_many_traced,
            "producer": lambda *given, **options: _when_open(producer(*given, **options), trace_producer),
            "transaction": lambda: self.traced(transaction(), TracedAsyncTransaction),
            "subscribe": lambda *given, **options: _when_open(
                subscribe(*given, **options), lambda opened: self.traced(opened, TracedAsyncConsumer)
            ),
        }


def _when_open(opening: Any, trace: Callable[[Any], Any]) -> Any:
    """The same promise, of something that is traced."""
    plain = opening._open  # noqa: SLF001

    async def open_traced() -> Any:
        return trace(await plain())

    opening._open = open_traced  # noqa: SLF001
    return opening


class _Outcome:
    __slots__ = ("receipt",)

    def __init__(self) -> None:
        self.receipt: Any = None


@contextlib.contextmanager
def _ended(span: Any) -> Iterator[_Outcome]:
    """A block at whose end *span* ends, with what it raised or the receipt that it got."""
    outcome = _Outcome()
    try:
        yield outcome
    except BaseException as error:
        spans.end(span, error)
        raise
    spans.end(span, None, outcome.receipt)


@contextlib.contextmanager
def _current(span: Any) -> Iterator[None]:
    """A block in which *span* is the current one, and which ends it."""
    block = spans.enter(span)
    try:
        yield
    except BaseException as error:
        spans.leave(block, error)
        raise
    spans.leave(block, None)


class _Traced:
    """Calls that make spans and have the plain class do the work; copied into a subclass of it."""

    _tracing: Tracing
    _plain_class: Any


_handled: dict[int, spans.Block] = {}
"""The blocks of messages that are being handled, by the message's `id`: messages have no room for more."""


class TracedDelivery(_Traced):
    """A message whose block is a span."""

    def __enter__(self) -> Any:
        entered = self._plain_class.__enter__(self)
        _handled[id(self)] = spans.enter(spans.begin_process(self._tracing.tracer, self))
        return entered

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self._plain_class.__exit__(self, kind, error, traceback)
        finally:
            _leave(self, error)


class TracedAsyncDelivery(_Traced):
    """The same for asyncio."""

    async def __aenter__(self) -> Any:
        entered = await self._plain_class.__aenter__(self)
        _handled[id(self)] = spans.enter(spans.begin_process(self._tracing.tracer, self))
        return entered

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            await self._plain_class.__aexit__(self, kind, error, traceback)
        finally:
            _leave(self, error)


def is_traced(thing: Any) -> bool:
    """Whether it makes spans by itself."""
    return hasattr(type(thing), "_tracing")


def _leave(message: Any, error: BaseException | None) -> None:
    block = _handled.pop(id(message), None)
    if block is not None:
        spans.leave(block, error)


class TracedConsumer(_Traced):
    """A consumer that tells what it hands out."""

    def get(self, timeout: object = None) -> Any:
        """See `Consumer.get`."""
        began_ns = spans.now_ns()
        message = self._plain_class.get(self, timeout)
        if message is not None:
            self._tracing.received([message], began_ns, TracedDelivery, alone=True)
        return message

    def get_many(self, count: int, timeout: object = None) -> Any:
        """See `Consumer.get_many`."""
        began_ns = spans.now_ns()
        found = self._plain_class.get_many(self, count, timeout)
        self._tracing.received(found, began_ns, TracedDelivery, alone=False)
        return found

    async def take_in_loop(self, count: int) -> Any:
        """See `Consumer.take_in_loop`: for workers."""
        began_ns = spans.now_ns()
        found = await self._plain_class.take_in_loop(self, count)
        self._tracing.received(found, began_ns, TracedDelivery, alone=count == 1)
        return found

    def __iter__(self) -> Iterator[Any]:
        for message in self._plain_class.__iter__(self):
            if not is_traced(message):  # it was pushed ahead, and not taken by `get`
                self._tracing.received([message], spans.now_ns(), TracedDelivery, alone=True)
            yield message


class TracedAsyncConsumer(_Traced):
    """The same for asyncio."""

    async def get(self, timeout: object = None) -> Any:  # noqa: ASYNC109 - the plain twin's name
        """See `AsyncConsumer.get`."""
        began_ns = spans.now_ns()
        message = await self._plain_class.get(self, timeout)
        if message is not None:
            self._tracing.received([message], began_ns, TracedAsyncDelivery, alone=True)
        return message

    async def get_many(self, count: int, timeout: object = None) -> Any:  # noqa: ASYNC109
        """See `AsyncConsumer.get_many`."""
        began_ns = spans.now_ns()
        found = await self._plain_class.get_many(self, count, timeout)
        self._tracing.received(found, began_ns, TracedAsyncDelivery, alone=False)
        return found

    async def __aiter__(self) -> AsyncIterator[Any]:
        async with contextlib.aclosing(self._plain_class.__aiter__(self)) as messages:
            async for message in messages:
                if not is_traced(message):
                    self._tracing.received([message], spans.now_ns(), TracedAsyncDelivery, alone=True)
                yield message


class TracedProducer(_Traced):
    """A producer whose messages are spans from `send` until they are stored."""

    def send(self, value: Any, *, headers: Any = None, **options: Any) -> Any:
        """See `Producer.send`."""
        span = spans.begin_send(self._tracing.tracer, self._topic.name)  # type: ignore[attr-defined]
        try:
            future = self._plain_class.send(self, value, headers=spans.carried(span, headers), **options)
        except BaseException as error:
            spans.end(span, error)
            raise
        if span is not None:
            future.add_done_callback(lambda done: _end_sent(span, done))
        return future


def _end_sent(span: Any, future: Any) -> None:
    error = future.exception()
    spans.end(span, error, None if error is not None else future.result())


class TracedTransaction(_Traced):
    """A transaction whose messages are spans when they are gathered, and whose commit is one that is linked to them."""

    def publish(self, topic: str, value: Any, *, headers: Any = None, **options: Any) -> None:
        """See `Transaction.publish`."""
        span = spans.begin_create(self._tracing.tracer, topic)
        with _ended(span):
            self._plain_class.publish(self, topic, value, headers=spans.carried(span, headers), **options)
        _note_created(self, span)

    def publish_many(self, topic: str, values: Any, *, headers: Any = None, **options: Any) -> None:
        """See `Transaction.publish_many`."""
        count = spans.count_of(values)
        span = spans.begin_create(self._tracing.tracer, topic, count) if count else None
        with _ended(span):
            self._plain_class.publish_many(self, topic, values, headers=spans.carried_each(span, headers, count), **options)
        _note_created(self, span)

    def commit(self) -> Any:
        """See `Transaction.commit`."""
        with _ended(_begin_commit(self)):
            return self._plain_class.commit(self)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        # The plain one may have a shorter way to commit.
        if error is None and not self.ended:  # type: ignore[attr-defined]
            self.commit()
        else:
            self._plain_class.__exit__(self, kind, error, traceback)


class TracedAsyncTransaction(TracedTransaction):
    """The same for asyncio."""

    async def commit(self) -> Any:
        """See `AsyncTransaction.commit`."""
        with _ended(_begin_commit(self)):
            return await self._plain_class.commit(self)


def _note_created(transaction: Any, span: Any) -> None:
    if span is not None:
        vars(transaction).setdefault("_created", []).append(span)


def _begin_commit(transaction: Any) -> Any:
    created = vars(transaction).pop("_created", [])
    return spans.begin_commit(transaction._tracing.tracer, created) if created else None  # noqa: SLF001
