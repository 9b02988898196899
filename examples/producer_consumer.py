"""Three producers and three consumers at once: every message is handled, by one consumer of the group."""

import threading
import time
from collections import Counter

import penstock

PRODUCERS, CONSUMERS, MESSAGES = 3, 3, 2_000


def produce(store, number):
    with store.producer("events") as producer:  # gathers messages into batches; the end of the block commits the rest
        for one in range(MESSAGES):
            producer.send(f"{number}/{one}".encode())


def consume(consumer, handled):
    for message in consumer:  # waits for messages, ends when the consumer is closed
        with message:
            handled.append(message.value)


def main():
    with penstock.open("memory:") as store:
        store.create_topic("events", partitions=4)
        consumers = [store.subscribe("events", group="workers") for _ in range(CONSUMERS)]
        handled = [[] for _ in consumers]
        threads = [
            *[threading.Thread(target=consume, args=pair) for pair in zip(consumers, handled, strict=True)],
            *[threading.Thread(target=produce, args=(store, number)) for number in range(PRODUCERS)],
        ]
        for thread in threads:
            thread.start()
        for thread in threads[CONSUMERS:]:
            thread.join()
        while store.stats().topics["events"].groups["workers"].lag:
            time.sleep(0.01)
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()

    counts = Counter(value for values in handled for value in values)
    assert len(counts) == PRODUCERS * MESSAGES
    assert set(counts.values()) == {1}
    print(f"{len(counts):,} messages, each handled once; by consumer: {[len(values) for values in handled]}")


main()
