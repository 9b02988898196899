"""
Workers: functions that handle messages, and the loop that runs them.

Each worker has one consumer, and as many threads (or, for async functions, tasks) as its concurrency. A handler that returns acks, one
that raises nacks, whatever it raises. A thread ends when its consumer is closed, and for nothing else: a server that is away, an exit in
a handler or an exception that cannot be printed are logged, and the next message is taken. Stopping lets running handlers end, gives
back what was not begun, and makes everything durable.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime as dt
import inspect
import logging
import queue
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

from penstock import threads as threading
from penstock.arguments import check_seconds, check_whole_number, shown
from penstock.errors import BadArgument, Closed, ConsumerEvicted, LeaseExpired, PenstockError, TopicNotFound, UsageError
from penstock.groups.dead_letters import is_dead_letter_topic, reason_text
from penstock.log_events import event, get_logger
from penstock.store.declaring import check_subscription_options
from penstock.values import check_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.settings import GroupSettings


_log = get_logger("penstock")
CONCURRENCY_MAX = 10_000
STOP_SECONDS = 15.0
LOOK_SECONDS = 0.25
RETRY_SECONDS = 0.2
TOPIC_SECONDS = 0.5
"""How often a worker looks whether a topic is there that it may not make."""
KEY_BYTES_SHOWN = 100
"""How much of a key stands in the log."""
ASIDE_MAX = 8
"""Threads in which async functions' messages are begun and ended where that means to wait for a server."""


class TakesMessages(Protocol):
    """What a worker needs of a consumer: an embedded one, or one of a server."""

    asks_a_server: bool
    """Whether to begin and to end a message is a call over the network, which an event loop must not wait for."""

    @property
    def topic(self) -> str:
        """The topic that it reads."""
        ...

    @property
    def ordered(self) -> bool:
        """Whether its group gives each partition to one consumer at a time."""
        ...

    def get(self, timeout: object = None) -> Any:
        """The next message."""

    def get_many(self, count: int, timeout: object = None) -> list[Any]:
        """Some messages."""

    async def take_in_loop(self, count: int) -> list[Any]:
        """Some messages; the event loop goes on meanwhile. May be empty."""

    def pause(self) -> None:
        """Hand out no more."""

    @property
    def in_flight(self) -> int:
        """Messages that are being handled."""

    def close(self) -> None:
        """Give back what is not finished."""


def check_worker(topic: object, group: object, options: dict[str, Any]) -> None:
    """Raise `BadName` or `BadSetting` where a worker is made, and not first where it runs."""
    check_name("topic", topic)  # type: ignore[arg-type]
    check_name("group", group)  # type: ignore[arg-type]
    check_subscription_options(options, ("group", "concurrency", "batch"))


class Worker:
    """One function and the messages it handles. Made by `Store.worker`."""

    def __init__(
        self,
        function: Callable[[Any], Any],
        subscribe: Callable[..., TakesMessages],
        *,
        topic: str,
        concurrency: object,
        batch: object,
        linger: object,
    ) -> None:
        """*subscribe* makes a consumer, and takes options of `Store.subscribe` that go before its own."""
        if not callable(function):
            raise BadArgument("function", shown(function), "must be a function that takes a message, or a list of them")
        self.function = function
        self._subscribe = subscribe
        self._topic = topic
        self._stopping = threading.Event()
        self._replacing = threading.Lock()
        self.concurrency = check_whole_number("concurrency", concurrency, 1, CONCURRENCY_MAX)
        self.batch = None if batch is None else check_whole_number("batch", batch, 1, 100_000)
        self._linger = check_seconds("linger", linger, 0, 60)
        self._is_async = inspect.iscoroutinefunction(function)
        self._consumers: list[TakesMessages] = []
        self._threads: list[threading.Thread] = []
        self._aside: ThreadPoolExecutor | None = None
        self.handled = 0
        self.failed = 0

    def start(self) -> None:
        """
        Begin to handle messages, in threads of its own; without a topic, when there is one.

        Raises what subscribing raises, but for that the topic is not there.
        """
        self._stopping.clear()
        try:
            self._begin_with(self._subscribe())
        except TopicNotFound as error:
            _log.warning(
                "a worker waits for the topic %s: %s", self._topic, error, extra=event("worker_waits", topic=self._topic)
            )
            waiting = threading.Thread(target=self._wait_for_topic, name=f"penstock-worker {self._topic}", daemon=True)
            self._threads = [waiting]
            waiting.start()

    def _wait_for_topic(self) -> None:
        while not self._stopping.wait(TOPIC_SECONDS):
            try:
                # From its beginning, whatever `start` says: it was not there when this was asked for.
                consumer = self._subscribe(start="earliest")
            except TopicNotFound:
                continue
            except Closed:
                return
            except PenstockError as error:
                _log_trouble(self._topic, error)
                continue
            self._begin_with(consumer)
            if self._stopping.is_set():
                self.stop()
            return

    def _begin_with(self, consumer: TakesMessages) -> None:
        self._consumers = [consumer]
        topic = consumer.topic
        if self._consumers[0].ordered:
            # What one consumer gets must be handled in order, so each handler has its own, and partitions of its own.
            self._consumers += [self._subscribe() for _ in range(self.concurrency - 1)]
        handlers: list[Callable[[], None]]
        if self._is_async:
            handlers = [lambda: asyncio.run(self._serve_all())]
        else:
            handlers = [self._runner(at % len(self._consumers)) for at in range(self.concurrency)]
        threads = [threading.Thread(target=run, name=f"penstock-worker {topic}", daemon=True) for run in handlers]
        self._threads = [*(thread for thread in self._threads if thread.is_alive()), *threads]
        for thread in threads:
            thread.start()

    def _take(self, consumer: TakesMessages) -> list[Any]:
        if self.batch is None:
            message = consumer.get()
            return [] if message is None else [message]
        return consumer.get_many(self.batch)

    def _runner(self, number: int) -> Callable[[], None]:
        def run() -> None:
            pause = threading.Event()
            messages: list[Any] = []
            while True:
                consumer = self._consumers[number]
                try:
                    messages = self._take(consumer)
                    if messages:
                        self._handle(messages)
                    messages = []
                except Closed:
                    return
                except ConsumerEvicted as error:
                    if not self._replace(number, consumer, error):
                        return
                    pause.wait(RETRY_SECONDS)
                except BaseException as error:  # noqa: BLE001 - without this thread nobody handles any more
                    # Also what another thread raises in this one, at any moment: between two handlers nobody else knows of these.
                    _give_back(messages)
                    messages = []
                    _log_trouble(consumer.topic, error)
                    pause.wait(RETRY_SECONDS)

        return run

    def _replace(self, number: int, evicted: TakesMessages, error: ConsumerEvicted) -> bool:
        """Subscribe anew in place of a consumer that was evicted, once for all threads that used it; False: the worker ends."""
        with self._replacing:
            if self._stopping.is_set():
                return False
            if self._consumers[number] is evicted:
                _log.warning(
                    "a worker subscribes again: %s", error, extra=event("worker_evicted", topic=error.topic, group=error.group)
                )
                try:
                    self._consumers[number] = self._subscribe(create=False)
                except Closed:
                    return False
                except PenstockError as trouble:
                    _log_trouble(self._topic, trouble)  # the next call is told the same again
        return True

    def _begin(self, messages: list[Any]) -> list[Any]:
        begun = []
        for message in messages:
            try:
                message.__enter__()
            except LeaseExpired:
                continue
            except PenstockError as error:
                # It is delivered again when its lease or its connection ends.
                _log.warning("a message of %s cannot be begun: %s", message.topic, error)
                continue
            begun.append(message)
        return begun

    def _handle(self, messages: list[Any]) -> None:
        messages = self._begin(messages)
        if not messages:
            return
        try:
            self.function(messages[0] if self.batch is None else messages)
        except BaseException as error:  # noqa: BLE001 - a handler's failure is a nack, also if it wants to end its thread
            self._end(messages, _failure(error))
        else:
            self._end(messages, None)

    def _end(self, messages: list[Any], error: BaseException | None) -> None:
        if error is None:
            self.handled += len(messages)
        elif isinstance(error, Exception):
            self.failed += len(messages)
            _log_failure(messages, error)
        for message in messages:
            try:
                message.__exit__(None if error is None else type(error), error, None)
            except PenstockError as late:
                _log.warning("%s", late)

    # -- async functions --------------------------------------------------------------------------------------------

    async def _serve_all(self) -> None:
        at_once = 1 if len(self._consumers) > 1 else self.concurrency
        if self._consumers[0].asks_a_server:
            self._aside = ThreadPoolExecutor(min(ASIDE_MAX, self.concurrency), "penstock-worker-calls")
        try:
            await asyncio.gather(*[self._serve(number, at_once) for number in range(len(self._consumers))])
        finally:
            if self._aside is not None:
                self._aside.shutdown(wait=False)

    async def _serve(self, number: int, at_once: int) -> None:
        loop = asyncio.get_running_loop()
        free = asyncio.Semaphore(at_once)
        tasks: set[asyncio.Task[None]] = set()
        while True:
            await free.acquire()
            messages: list[Any] = []
            while not messages:
                consumer = self._consumers[number]
                try:
                    messages = await consumer.take_in_loop(self.batch or 1)
                except Closed:
                    if tasks:
                        await asyncio.wait(tasks)
                    return
                except ConsumerEvicted as error:
                    if not await asyncio.to_thread(self._replace, number, consumer, error):
                        return
                    await asyncio.sleep(RETRY_SECONDS)
                except Exception as error:  # noqa: BLE001 - without this task nobody handles any more
                    _log_trouble(consumer.topic, error)
                    await asyncio.sleep(RETRY_SECONDS)
            task = loop.create_task(self._handle_async(messages))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            task.add_done_callback(lambda _: free.release())

    async def _handle_async(self, messages: list[Any]) -> None:
        messages = await self._call(self._begin, messages)
        if not messages:
            return
        try:
            await self.function(messages[0] if self.batch is None else messages)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                self._end(messages, error)
                raise
            await self._call(self._end, messages, _failure(error))
        except BaseException as error:  # noqa: BLE001 - as in a thread
            await self._call(self._end, messages, _failure(error))
        else:
            await self._call(self._end, messages, None)

    async def _call(self, function: Callable[..., Any], *arguments: object) -> Any:
        """
        Call *function*: here if it does not wait, else in a thread, so that the other handlers of the loop go on.

        What it sets in its context, as tracing does with the current span, is set for the handler too.
        """
        if self._aside is None:
            return function(*arguments)
        context = contextvars.copy_context()
        answer = await asyncio.get_running_loop().run_in_executor(self._aside, context.run, function, *arguments)
        for variable, value in context.items():
            if variable.get(None) is not value:
                variable.set(value)
        return answer

    # -- stopping ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Hand out nothing more."""
        for consumer in self._consumers:
            consumer.pause()

    @property
    def busy(self) -> int:
        """Messages that are being handled."""
        return sum(consumer.in_flight for consumer in self._consumers)

    def stop(self) -> None:
        """Close the consumer: waiting threads end now, busy ones when their handler ends."""
        self._stopping.set()
        for consumer in self._consumers:
            consumer.close()

    def join(self, timeout: float) -> bool:
        """Wait for the threads; False if a handler still runs."""
        for thread in self._threads:
            thread.join(timeout)
        return not any(thread.is_alive() for thread in self._threads)


def _give_back(messages: list[Any]) -> None:
    """Let what was not handled come again at once, uncounted. Those that are finished change nothing."""
    for message in messages:
        try:
            message.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        except PenstockError as late:
            _log.warning("%s", late)


def _log_failure(messages: list[Any], error: Exception) -> None:
    """Tell that a handler failed, with what, and what becomes of its messages; of several it is the first that is told of."""
    first = messages[0]
    settings: GroupSettings | None = getattr(first, "group_settings", None)
    most = None if settings is None else 0 if is_dead_letter_topic(first.topic) else settings.max_deliveries
    retry_s: float | None = None
    if settings is None or most is None:
        outcome, outlook = "retry", "it comes again, or becomes a dead letter"
    elif 0 < most <= first.attempt:
        outcome, outlook = "dead_letter", "it becomes a dead letter"
    else:
        retry_s = min(settings.backoff_ms / 1000 * 2.0 ** min(first.attempt - 1, 60), settings.backoff_max_ms / 1000)
        when = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=retry_s)
        outcome, outlook = "retry", f"it comes again in {retry_s:g} s, about {when:%H:%M:%S} UTC"
    key = first.key
    _log.log(
        logging.ERROR if outcome == "dead_letter" else logging.WARNING,
        "a handler of group %s failed at %s/%d offset %d%s%s, delivery %d of %s: %s; %s",
        first.group, first.topic, first.partition, first.offset, "" if key is None else f" key {_key_text(key)}",
        "" if len(messages) == 1 else f" and {len(messages) - 1} more", first.attempt, most or "any number", reason_text(error), outlook,
        exc_info=error,
        extra=event(
            "handler_failed", topic=first.topic, group=first.group, partition=first.partition, offset=first.offset,
            key=None if key is None else _key_text(key), messages=len(messages), attempt=first.attempt, max_deliveries=most,
            error=type(error).__name__, outcome=outcome, retry_s=retry_s,
        ),
    )  # fmt: skip


def _key_text(key: bytes) -> str:
    return key[:KEY_BYTES_SHOWN].decode(errors="backslashreplace")


def _log_trouble(topic: str, error: BaseException) -> None:
    known = isinstance(error, PenstockError)
    _log.warning(
        "a worker of %s cannot take messages, trying again: %s", topic, reason_text(error), exc_info=None if known else error
    )


def _failure(error: BaseException) -> Exception:
    """What a handler raised, as a failure: also an exit or a cancellation of its own making counts, or it would come again at once."""
    return error if isinstance(error, Exception) else RuntimeError(f"the handler raised {reason_text(error)}")


def _is_cancelled() -> bool:
    """Whether somebody cancelled the running task, so that what it raises is no failure of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Workers:
    """All workers of a store, and the loop that runs them."""

    def __init__(self) -> None:
        self._workers: list[Worker] = []
        # Not an event: a signal may come while the thread that waits for one holds the event's own lock.
        self._stops: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._running = False

    def add(self, worker: Worker) -> None:
        """Run *worker* with the others; at once if they run already."""
        self._workers.append(worker)
        if self._running:
            worker.start()

    def run(self, *, stop_timeout: object = STOP_SECONDS, signals: bool = True) -> None:
        """
        Handle messages until `stop` is called or, in the main thread, SIGTERM or SIGINT comes; then stop in order.

        Handlers that run have *stop_timeout* seconds to end; what they do not finish is delivered again.
        """
        timeout = check_seconds("stop_timeout", stop_timeout, 0, 86_400)
        if not self._workers:
            raise UsageError("there is nothing to run: decorate a function with store.worker(topic, group=...)")
        if self._running:
            raise UsageError("the workers run already")
        self._running = True
        restore: dict[int, Any] = {}
        if signals and threading.current_thread() is threading.main_thread():
            for one in (signal.SIGTERM, signal.SIGINT):
                restore[one] = signal.signal(one, lambda *_: self._stops.put(None))
        try:
            for worker in self._workers:
                worker.start()
            self._wait_for_stop()
        finally:
            self._stop_all(timeout)
            for number, handler in restore.items():
                signal.signal(number, handler)
            self._running = False
            while not self._stops.empty():
                self._stops.get()

    def _wait_for_stop(self) -> None:
        while True:
            # A signal that comes just before the thread sleeps does not wake it; Python looks for it when the thread is awake again.
            try:
                self._stops.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                continue
            return

    def _stop_all(self, timeout: float) -> None:
        for worker in self._workers:
            worker.pause()
        idle = threading.Event()
        waited = 0.0
        while any(worker.busy for worker in self._workers) and waited < timeout:
            idle.wait(0.02)
            waited += 0.02
        for worker in self._workers:
            worker.stop()
        for worker in self._workers:
            if not worker.join(0.5):
                _log.warning("a handler of %s still runs; its messages are delivered again", worker.function)

    def stop(self) -> None:
        """Let `run` end; no handler is begun any more when this returns. Not for signal handlers: `run` has its own."""
        if self._running:
            for worker in self._workers:
                worker.pause()
        self._stops.put(None)
