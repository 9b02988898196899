"""A delayed message is stored at once and delivered when it is due; others overtake it meanwhile."""

import datetime as dt

from penstock import Store
from penstock.testing import FakeClock

clock = FakeClock()  # moved by hand, so that nobody waits here; else `get` sleeps until a message is due
with Store.open("memory:", clock=clock) as store:
    in_ten_minutes = dt.datetime.fromtimestamp(clock.now_us() / 1e6, dt.UTC) + dt.timedelta(minutes=10)
    store.publish("reminders", b"in an hour", delay=3600)  # seconds or a timedelta
    store.publish("reminders", b"in ten minutes", delay=in_ten_minutes)  # or a time
    store.publish("reminders", b"now")

    with store.subscribe("reminders", group="phone") as consumer:
        for minutes, expected in ((0, b"now"), (10, b"in ten minutes"), (50, b"in an hour")):
            clock.advance(60 * minutes)
            message = consumer.get(timeout=0)
            assert message.value == expected
            message.ack()
            assert consumer.get(timeout=0) is None  # the others are not due
            print(f"{minutes} minutes later: {message.value.decode()}")
