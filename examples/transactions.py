"""Consume, transform, produce: the result and the acknowledgement are committed together, or not at all."""

import contextlib
import json

import penstock


class PowerCut(Exception):
    """What may happen at any time."""


with penstock.open("memory:") as store:
    for number in range(10):
        store.publish("orders", json.dumps({"number": number, "amount": number * 3}).encode())

    failures = [2, 5]
    with store.subscribe("orders", group="invoicing", backoff=0.01) as consumer:
        while (message := consumer.get(timeout=0.3)) is not None:
            order = json.loads(message.value)
            with contextlib.suppress(PowerCut), message, store.transaction() as transaction:
                transaction.publish("invoices", b"invoice %d" % order["number"])
                transaction.publish("totals", b"%d" % order["amount"], key="all")
                transaction.ack(message)
                if order["number"] in failures:
                    failures.remove(order["number"])
                    raise PowerCut  # nothing of the transaction is ever seen, and the message comes again

    invoices = [message.value for message in store.read("invoices")]
    total = sum(int(message.value) for message in store.read("totals"))
    assert sorted(invoices) == sorted(b"invoice %d" % number for number in range(10))
    assert total == sum(number * 3 for number in range(10))
    print(f"10 orders, 2 failures, {len(invoices)} invoices over {total}: exactly one for each order")

    # The same in two phases: parts are staged by themselves, and committed together under a number.
    parts = []
    for name in ("north", "south"):
        with store.stage("report") as stage:
            stage.publish("reports", f"sales {name}".encode())
        parts.append(stage.identity)
    assert not list(store.read("reports"))
    committed = store.commit("report", 1, parts)
    again = store.commit("report", 1, parts)  # whoever does not know whether it succeeded asks again
    assert (committed.messages, committed.duplicate) == (2, False)
    assert (again.messages, again.duplicate) == (2, True)
    assert [message.value for message in store.read("reports")] == [b"sales north", b"sales south"]
    print("two stages, committed twice, stored once")
