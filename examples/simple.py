"""Publish some messages, handle each of them once, close, open again: what was acknowledged does not come back."""

import os
import tempfile

import penstock

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "data")

    with penstock.open(path) as store:  # makes the store
        for text in ("tea", "milk", "bread"):
            receipt = store.publish("shopping", text.encode())  # on disk when it returns
            print(f"published {text} at offset {receipt.offset}")

        with store.subscribe("shopping", group="shopper") as consumer:
            for _ in range(2):
                with consumer.get() as message:  # acks when the block ends, nacks when it raises
                    print(f"bought {message.value.decode()}")

    with penstock.open(path) as store, store.subscribe("shopping", group="shopper") as consumer:
        message = consumer.get(timeout=0)
        assert message.value == b"bread"
        message.ack()
        assert consumer.get(timeout=0) is None
        print("after reopening only bread was left")
