"""A message that nobody took in time expires: it is dropped, or becomes a dead letter. Its own ttl goes before its topic's."""

import time

import penstock

with penstock.open("memory:") as store:
    store.create_topic("codes", ttl=600, expired="dead_letter")  # seconds or a timedelta
    store.publish("codes", b"short-lived", ttl=0.05)
    store.publish("codes", b"as long as its topic says")
    for message in store.read("codes"):
        print(
            message.value.decode(), "expires", (message.expires_at - message.timestamp).total_seconds(), "s after it was stored"
        )

    time.sleep(0.1)
    with store.subscribe("codes", group="sender") as consumer:
        message = consumer.get(timeout=1)
        assert message.value == b"as long as its topic says"
        message.ack()
        assert consumer.get(timeout=0) is None
        consumer.flush()

    assert [letter.value for letter in store.dead_letters("codes").list()] == [b"short-lived"]
    assert store.stats().topics["codes"].groups["sender"].expired == 1
    print("one was delivered, one expired and is a dead letter")
