"""Workers: functions that handle messages in threads or tasks, and stop in order on SIGTERM."""

import asyncio
import logging
import os
import signal
import sys
import threading
import time

import penstock

logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s")

with penstock.open("memory:") as store:
    store.publish_many("mails", [b"mail %d" % number for number in range(20)])
    store.publish_many("clicks", [b"click"] * 1_000)
    store.publish("pages", b"https://example.org")
    sent, clicks, pages = [], [], []

    @store.worker("mails", group="sender", concurrency=4, backoff=0.01)
    def send(message):
        if message.offset == 7 and message.attempt == 1:
            raise ConnectionError("the mail server is away")  # nacked: it comes again
        time.sleep(0.005)
        sent.append(message.offset)

    @store.worker("clicks", group="counter", batch=100)
    def count(messages):
        clicks.append(len(messages))  # all of them are acked together

    @store.worker("pages", group="crawler", concurrency=50)
    async def fetch(message):
        await asyncio.sleep(0.01)
        pages.append(message.value)

    def stop_when_done():
        while len(sent) < 20 or sum(clicks) < 1_000 or not pages:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)  # as a supervisor would; store.stop() does the same

    threading.Thread(target=stop_when_done).start()
    store.run()  # until SIGTERM, SIGINT or store.stop(); handlers that run may end first

    assert sorted(sent) == list(range(20))
    assert sum(clicks) == 1_000
    assert pages == [b"https://example.org"]
    print(f"{len(sent)} mails, {sum(clicks):,} clicks in {len(clicks)} calls, {len(pages)} page; stopped in order")
