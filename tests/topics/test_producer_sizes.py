"""What a producer makes of its messages: how it counts what goes into a batch, and what becomes of one that is interrupted."""

from __future__ import annotations

import errno
import threading
from typing import Any

import pytest

from penstock import Store
from penstock.errors import OutcomeUnknown


def test_batches_of_many_headers_are_split_before_they_are_too_large() -> None:
    """The tables of headers count, which take more than short headers themselves; every message is stored."""
    headers = [("h", b"")] * 1_000
    with Store.open("memory:") as store, store.producer("t", batch_bytes=64 << 20, linger=60) as producer:
        futures = [producer.send(b"x", headers=headers) for _ in range(1_000)]
        producer.flush()
        assert [future.result(0).offset for future in futures] == list(range(1_000))


def _interrupt(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


def test_what_was_sent_is_stored_though_ctrl_c_came_while_its_batch_was_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open("memory:") as store:
        store.create_topic("t")
        producer = store.producer("t", batch_messages=3, linger=60)
        futures = [producer.send(b"%d" % number) for number in range(2)]
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(producer, "_encode", _interrupt)
            producer.send(b"2")
        producer.close()
        assert [future.result(0).offset for future in futures] == [0, 1]
        assert [message.value for message in store.read("t")] == [b"0", b"1", b"2"]
        assert producer.pending == 0


def test_closing_a_producer_that_was_interrupted_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open("memory:") as store:
        producer = store.producer("t", linger=60)
        producer.send(b"0")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(producer, "_encode", _interrupt)
            producer.close()
        producer.close()
        assert [message.value for message in store.read("t")] == [b"0"]


@pytest.mark.parametrize("stored", [False, True])
def test_futures_are_told_where_ctrl_c_came_while_their_batch_was_handed_over(
    monkeypatch: pytest.MonkeyPatch, stored: bool
) -> None:
    """Nobody knows whether it was; of a named producer the next batch must not pass for it."""
    with Store.open("memory:") as store:
        store.create_topic("t")
        producer = store.producer("t", batch_messages=2, linger=60, name="p")
        gate = producer._outlet.topic.gate(0)  # type: ignore[attr-defined]
        submit = gate.submit

        def submit_and_interrupt(batch: Any) -> Any:
            if stored:
                submit(batch)
            raise KeyboardInterrupt

        future = producer.send(b"0")
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(gate, "submit", submit_and_interrupt)
            producer.send(b"1")
        with pytest.raises(OutcomeUnknown):
            future.result(0)
        following = producer.send(b"2")
        producer.flush()
        assert following.result(0).offset == (2 if stored else 0)
        producer.close()


@pytest.mark.parametrize("step", ["_encode", "_outlet.submit"])
def test_the_thread_of_a_producer_goes_on_after_what_nobody_expects(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """The futures are told; without the thread nothing that lingers would ever be sent."""
    with Store.open("memory:") as store, store.producer("t", linger=0.001) as producer:
        with monkeypatch.context() as patched:

            def fail(*_: Any) -> Any:
                raise OSError(errno.EIO, "the disk is gone")

            owner = producer if step == "_encode" else producer._outlet
            patched.setattr(owner, step.rpartition(".")[2], fail)
            first = threading.Event()
            future = producer.send(b"0", on_done=lambda _: first.set())
            assert first.wait(30)
            assert "the disk is gone" in str(future.exception(0))
        second = threading.Event()
        producer.send(b"1", on_done=lambda _: second.set())
        assert second.wait(30)
        assert [message.value for message in store.read("t")] == [b"1"]
