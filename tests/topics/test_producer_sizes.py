"""How a producer counts what goes into a batch."""

from __future__ import annotations

from penstock import Store


def test_batches_of_many_headers_are_split_before_they_are_too_large() -> None:
    """The tables of headers count, which take more than short headers themselves; every message is stored."""
    headers = [("h", b"")] * 1_000
    with Store.open("memory:") as store, store.producer("t", batch_bytes=64 << 20, linger=60) as producer:
        futures = [producer.send(b"x", headers=headers) for _ in range(1_000)]
        producer.flush()
        assert [future.result(0).offset for future in futures] == list(range(1_000))
