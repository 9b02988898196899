"""An ordered group: messages of one key are handled one after the other, also when one of them fails."""

import contextlib
import threading
import time
from collections import defaultdict

import penstock

USERS, STEPS = 8, 25


def handle(message, seen, failed):
    if message.value == b"10" and message.attempt == 1:
        failed.append(message.key)
        raise RuntimeError("not now")  # the partition waits for it; other partitions go on
    seen[message.key].append(int(message.value))


def consume(consumer, seen, failed):
    # One thread for each consumer: two threads that share one would handle two messages of a partition at once.
    for message in consumer:
        with contextlib.suppress(RuntimeError), message:
            handle(message, seen, failed)


def main():
    seen, failed = defaultdict(list), []
    with penstock.open("memory:") as store:
        store.create_topic("steps", partitions=4)
        for step in range(STEPS):
            keys = [f"user-{user}" for user in range(USERS)]
            store.publish_many("steps", [b"%d" % step] * USERS, keys=keys)  # a key decides the partition

        consumers = [store.subscribe("steps", group="replayer", ordered=True, backoff=0.01) for _ in range(2)]
        threads = [threading.Thread(target=consume, args=(consumer, seen, failed)) for consumer in consumers]
        for thread in threads:
            thread.start()
        while store.stats().topics["steps"].groups["replayer"].lag:
            time.sleep(0.01)
        for consumer in consumers:
            consumer.close()
        for thread in threads:
            thread.join()

    assert len(seen) == len(failed) == USERS
    assert all(steps == list(range(STEPS)) for steps in seen.values())
    print(f"{USERS} keys, {STEPS} messages each, every key in order; {len(failed)} messages failed once and were tried again")


main()
