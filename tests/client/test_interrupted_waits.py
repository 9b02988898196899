"""A wait for a message that is interrupted or cancelled takes no message with it."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Any

import pytest

from penstock import Queue
from tests.client.served import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.client.served import Served


def interrupted(work: Callable[[], object]) -> None:
    """*work* in this thread, the main one, until Ctrl-C."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            work()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_consumer_interrupted_while_it_waits_takes_no_message_with_it(served: Served) -> None:
    """The next call gets the message at once, and nobody failed."""
    client = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")
    interrupted(consumer.get)
    served.store.publish("orders", b"x")
    message = consumer.get(PATIENCE_S)
    assert message is not None
    assert message.attempt == 1
    message.ack(wait=True)
    interrupted(lambda: consumer.get_many(5))
    assert consumer.in_flight == 0


def test_a_workers_task_that_was_cancelled_while_it_waited_takes_no_message_with_it(served: Served) -> None:
    """As when its loop ends."""
    client: Any = served.client()
    client.create_topic("orders")
    consumer = client.subscribe("orders", "workers")

    async def main() -> None:
        waiting = asyncio.create_task(consumer.take_in_loop(1))
        await asyncio.sleep(0.1)
        waiting.cancel()
        await asyncio.wait([waiting])

    asyncio.run(main())
    served.store.publish("orders", b"x")
    message = consumer.get(PATIENCE_S)
    assert message is not None
    assert message.attempt == 1


def test_a_queue_whose_get_was_interrupted_gives_the_next_item_to_the_next_get(served: Served) -> None:
    """Else it would be gone for a day."""
    with Queue(f"{served.server.address}/jobs") as jobs:
        interrupted(jobs.get)
        jobs.put(b"x")
        assert jobs.get(timeout=PATIENCE_S) == b"x"
