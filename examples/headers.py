"""Headers: names and bytes beside the value, in their order; a name may come more than once."""

import penstock

with penstock.open("memory:") as store:
    store.publish("requests", b"GET /", headers={"source": b"web", "trace": b"00-4bf92f35"})
    store.publish("requests", b"GET /", headers=[("via", b"proxy"), ("via", b"cache")])

    with store.subscribe("requests", group="log") as consumer:
        first, second = consumer.get_many(2, timeout=1)
        assert first.headers["source"] == b"web"
        assert first.headers.get("missing") is None
        assert "trace" in first.headers
        assert second.headers["via"] == b"proxy"  # the first of that name
        assert second.headers.get_all("via") == [b"proxy", b"cache"]
        for message in (first, second):
            print(message.value.decode(), *[f"{name}={value.decode()}" for name, value in message.headers])

        # What is sent on may take them along.
        with store.transaction() as transaction:
            transaction.publish("answers", b"200", headers=[*first.headers, ("status", b"ok")])
            transaction.ack(first)
            transaction.ack(second)

    (answer,) = store.read("answers")
    assert list(answer.headers.names()) == ["source", "trace", "status"]
