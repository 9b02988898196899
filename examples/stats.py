"""Numbers of a store at one moment: what was published, how far each group is, what failed."""

import penstock

with penstock.open("memory:") as store:
    store.publish_many("jobs", [b"job %d" % number for number in range(10)])

    with store.subscribe("jobs", group="pool", max_deliveries=1) as consumer:
        messages = consumer.get_many(6, timeout=1)
        consumer.ack(messages[:4])
        messages[4].nack(reason="the disk is full")  # the only delivery that it had: a dead letter
        consumer.flush()

        topic = store.stats().topics["jobs"]
        group = topic.groups["pool"]
        print(f"jobs: {topic.messages} messages in {topic.partitions} partition, ends {topic.ends}")
        print(f"pool: lag {group.lag}, in flight {group.in_flight}, acked {group.acked}, dead letters {group.dead_lettered}")
        assert (topic.messages, topic.published) == (10, 10)
        assert (group.acked, group.dead_lettered, group.members) == (4, 1, 1)
        assert group.lag == 5  # one of them is in flight

    assert len(store.dead_letters("jobs")) == 1
    # A server tells the same numbers to Prometheus: GET /metrics on its HTTP port; on the command line: penstock stats.
