"""Retries with a growing delay, dead letters with the reason, and sending them back once the fault is mended."""

import contextlib
import json

import penstock

with penstock.open("memory:") as store:
    for text in (b'{"amount": 5}', b"not json", b'{"amount": 7}'):
        store.publish("payments", text, headers={"source": b"web"})

    total = 0
    with store.subscribe("payments", group="ledger", max_deliveries=3, backoff=0.02) as consumer:
        while (message := consumer.get(timeout=0.5)) is not None:
            with contextlib.suppress(ValueError), message:  # an exception in the block nacks the message
                print(f"delivery {message.attempt} of {message.value}")
                total += json.loads(message.value)["amount"]
    assert total == 12

    dead = store.dead_letters("payments")
    (letter,) = dead.list()
    assert letter.value == b"not json"
    assert letter.headers["source"] == b"web"
    assert letter.headers["x-dlq-deliveries"] == b"3"
    print("dead letter:", letter.headers["x-dlq-reason"].decode())

    # Back to its topic, where every group counts its deliveries from 1 again.
    assert dead.replay(lambda letter: letter.headers["x-dlq-group"] == b"ledger") == 1
    assert len(dead) == 0
    with store.subscribe("payments", group="ledger") as consumer:
        message = consumer.get(timeout=1)
        assert (message.value, message.attempt) == (b"not json", 1)
        message.reject("still no JSON")  # what can never be handled need not be tried again
    # Closing the consumer has committed the dead letter; a consumer that stays open does it with `flush`.
    assert dead.discard() == 1
    print("sent back, rejected, thrown away")
