"""Every group gets all messages of a topic; the consumers of one group share them."""

import penstock

with penstock.open("memory:") as store:
    store.publish_many("orders", [b"order %d" % number for number in range(6)])

    with (
        store.subscribe("orders", group="billing") as billing,
        store.subscribe("orders", group="packing", prefetch=2) as ada,
        store.subscribe("orders", group="packing", prefetch=2) as bob,
    ):
        billed = billing.get_many(10, timeout=1)
        assert len(billed) == 6
        billing.ack(billed)

        packed = {"ada": [], "bob": []}
        while sum(map(len, packed.values())) < 6:
            for name, consumer in (("ada", ada), ("bob", bob)):
                if (message := consumer.get(timeout=0.1)) is not None:
                    packed[name].append(message.offset)
                    message.ack()
        assert sorted(packed["ada"] + packed["bob"]) == [0, 1, 2, 3, 4, 5]
        print(f"billing got {len(billed)}, in packing ada got {packed['ada']} and bob got {packed['bob']}")

    # A group that comes later begins at the beginning, or where it likes.
    with store.subscribe("orders", group="audit", start=4) as audit:
        assert [message.offset for message in audit.get_many(10, timeout=1)] == [4, 5]

    for name, group in store.stats().topics["orders"].groups.items():
        print(f"{name}: {group.acked} acked, {group.lag} to come")
