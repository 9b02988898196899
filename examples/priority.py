"""In a topic with priorities the urgent messages come first; those of one priority keep their order."""

import penstock

with penstock.open("memory:") as store:
    store.create_topic("tickets", priorities=True)
    store.publish("tickets", b"typo on page 3")  # low, unless it says more
    store.publish("tickets", b"login is slow", priority="medium")
    store.publish_many("tickets", [b"the site is down", b"payments fail"], priorities="high")
    store.publish("tickets", b"typo on page 4")

    with store.subscribe("tickets", group="support") as consumer:
        handled = []
        while (message := consumer.get(timeout=0)) is not None:
            with message:
                print(f"{message.priority:6} {message.value.decode()}")
                handled.append(message.value)

    assert handled == [b"the site is down", b"payments fail", b"login is slow", b"typo on page 3", b"typo on page 4"]
    # A message that waits long is served as if it were more urgent, so nothing starves.

    try:
        store.publish("plain", b"x", priority="high")
    except penstock.errors.BadArgument as error:
        print(error)  # topics are made with priorities, or have none
