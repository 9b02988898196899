"""A delayed message is stored at once and delivered when it is due; others overtake it meanwhile."""

import datetime as dt
import time

import penstock

with penstock.open("memory:") as store:
    store.publish("reminders", b"in a moment", delay=0.2)  # seconds or a timedelta
    store.publish("reminders", b"at a time", delay=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.1))
    store.publish("reminders", b"now")
    begun = time.monotonic()

    with store.subscribe("reminders", group="phone") as consumer:
        for expected in (b"now", b"at a time", b"in a moment"):
            message = consumer.get(timeout=5)  # sleeps until one is due
            assert message.value == expected
            message.ack()
            print(f"{message.value.decode()} after {time.monotonic() - begun:.2f} s")
    assert time.monotonic() - begun > 0.15
