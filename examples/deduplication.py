"""A publisher that does not know whether it succeeded asks again: the same dedup_key is stored once, also after a restart."""

import os
import tempfile

import penstock

with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "data")

    with penstock.open(path) as store:
        store.create_topic("payments", dedup_window=600)  # seconds; two minutes unless told otherwise
        first = store.publish("payments", b"pay 5 to Ada", dedup_key="payment-17")
        again = store.publish("payments", b"pay 5 to Ada", dedup_key="payment-17")
        assert not first.duplicate
        assert again.duplicate
        assert again.offset == first.offset

    with penstock.open(path) as store:
        later = store.publish("payments", b"pay 5 to Ada", dedup_key="payment-17")
        assert later.duplicate
        receipts = store.publish_many("payments", [b"a", b"b", b"c"], dedup_keys=["payment-17", "payment-18", "payment-18"])
        assert [receipt.duplicate for receipt in receipts] == [True, False, True]
        assert [message.value for message in store.read("payments")] == [b"pay 5 to Ada", b"b"]

print("six publishes, two keys, two messages")
