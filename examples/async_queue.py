"""The same store for asyncio: the same names, awaitable."""

import asyncio

from penstock import aio

JOBS = 101


async def produce(store):
    async with store.producer("jobs") as producer:
        for number in range(1, JOBS):
            await producer.send(b"job %d" % number)


async def consume(consumer, done, all_done):
    async for message in consumer:  # waits for messages, ends when the consumer is closed
        async with message:  # acks at the end; a cancelled task gives the message back, uncounted
            await asyncio.sleep(0)
            done.append(message.value)
        if len(done) == JOBS:
            all_done.set()


async def main():
    async with aio.open("memory:") as store:
        await store.create_topic("jobs")
        receipt = await store.publish("jobs", b"the first")
        assert receipt.offset == 0

        done, all_done = [], asyncio.Event()
        async with store.subscribe("jobs", group="pool") as consumer:
            tasks = [asyncio.create_task(consume(consumer, done, all_done)) for _ in range(5)]
            await produce(store)
            await all_done.wait()
        await asyncio.gather(*tasks)
        assert len(done) == JOBS

        async with store.transaction() as transaction:
            transaction.publish("reports", b"%d jobs" % len(done))
        assert [message.value async for message in store.read("reports")] == [b"101 jobs"]
        print(f"{len(done)} jobs by 5 tasks")


asyncio.run(main())
