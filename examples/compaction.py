"""A topic that keeps the latest message of each key: a table of the present state that is also a log. A tombstone deletes a key."""

import penstock

with penstock.open("memory:") as store:
    store.create_topic("prices", compaction=True, segment_messages=100)  # the segment that is being written is never compacted
    for number in range(1_000):
        store.publish("prices", b"%d" % number, key=f"item-{number % 10}")
    store.publish("prices", None, key="item-3")  # gone; the tombstone itself goes `tombstone_grace` later (a day)
    store.publish_many("prices", [b"without a key: never compacted away"] * 100)

    removed = store.compact("prices")  # in the background too, when enough has come
    print(f"{removed.messages} old messages removed from {removed.segments} segments")

    table, left = {}, 0
    for message in store.read("prices"):  # what is left, at the offsets that it always had
        if message.key is not None:
            left += 1
            if message.value is None:
                table.pop(message.key, None)
            else:
                table[message.key] = message.value
    for key, value in sorted(table.items()):
        print(key.decode(), value.decode())
    assert len(table) == 9
    assert table[b"item-9"] == b"999"
    assert left < 100  # of a thousand; by this call, or by the background before it
