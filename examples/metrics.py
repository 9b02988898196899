"""What a store tells about itself: lag, dead letters and latencies, in one snapshot."""

import penstock

with penstock.open("memory:") as store:
    store.measure()  # off, which it is at first, nothing is timed and nothing is paid
    for number in range(100):
        store.publish("orders", str(number).encode())

    with store.subscribe("orders", group="billing") as consumer:
        for _ in range(60):
            with consumer.get(timeout=1):
                pass
        consumer.get(timeout=1).reject("an example needs a dead letter")
        consumer.flush()

        orders = store.metrics().topics["orders"]
        billing = orders.groups["billing"]
        assert billing.stats.lag == 39
        assert billing.lag_s > 0
        assert orders.dead_letters == 1
        assert orders.publish.count == 100
        assert billing.deliver_to_ack.count == 60

    print(f"published {orders.stats.published}, lag {billing.stats.lag} messages or {billing.lag_s:.3f} s")
    print(f"publish p50 {orders.publish.p50 * 1e6:.0f} us, p99 {orders.publish.p99 * 1e6:.0f} us")
