"""Compression for a whole topic or for one publish: only what gets smaller is compressed, and readers do not notice."""

import json
import os
import tempfile

import penstock


def stored_bytes(path, topic):
    return sum(
        entry.stat().st_size for entry in os.scandir(os.path.join(path, "topics", topic, "0")) if entry.name.endswith(".log")
    )


events = [json.dumps({"user": number % 100, "action": "click", "page": "/orders"}).encode() for number in range(10_000)]
sizes = {}
for compression in ("none", "gzip", "gzip:9", "zstd", "lz4"):  # zstd and lz4: pip install 'penstock[compression]'
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data")
        with penstock.open(path) as store:
            store.create_topic("events", compression=compression, sync="os")
            for at in range(0, len(events), 1_000):
                store.publish_many("events", events[at : at + 1_000])
            assert [message.value for message in store.read("events")] == events
        sizes[compression] = stored_bytes(path, "events")
        print(f"{compression:7} {sizes[compression]:9,} bytes")
assert max(sizes["gzip"], sizes["zstd"], sizes["lz4"]) * 2 < sizes["none"]

with penstock.open("memory:") as store:
    store.publish("events", b"a page of text " * 1_000, compression="gzip")  # this one only
    store.publish("events", os.urandom(10_000), compression="gzip")  # noise gets no smaller, so it stays as it is
