"""A server with tokens, and two kinds of clients: a Python program, and anything that speaks HTTP. Needs the extras cli and server."""

import json
import os
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

import penstock
from penstock.server.auth import new_token

TOKENS = """
[[token]]
name = "shop"
sha256 = "{sha256}"

[token.rights]
admin = ["orders"]
read = ["orders.dlq"]
"""


def post(url, token, body):
    """What `curl --json` does."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)


def use(native, http, token):
    """Two kinds of clients, one topic, one group."""
    with penstock.open(f"{native}?token={token}") as store:  # better: the variable PENSTOCK_TOKEN
        store.create_topic("orders", partitions=2)
        store.publish("orders", b"two books", key="ada")
        receipt = post(f"{http}/v1/topics/orders/messages", token, {"value": "a pen", "key": "ada"})
        print(f"published over HTTP: partition {receipt['partition']}, offset {receipt['offset']}")

        group = f"{http}/v1/topics/orders/groups/billing"
        (got,) = post(f"{group}/receive", token, {"max_messages": 1, "wait": 30})["messages"]
        assert got["value"] == "two books"
        post(f"{group}/ack", token, {"receipts": [got["receipt"]], "wait": True})

        with store.subscribe("orders", group="billing") as consumer, consumer.get(timeout=30) as message:
            assert message.value == b"a pen"
            print(f"one group, two kinds of consumers: {got['value']}, then {message.value.decode()}")

    try:
        post(f"{http}/v1/topics/secrets/messages", token, {"value": "x"})
    except urllib.error.HTTPError as error:
        print(f"another topic is refused, with {error.code}: {json.load(error)['detail']}")


with tempfile.TemporaryDirectory() as folder:
    made = new_token()  # the client gets the token, the server's file its hash
    tokens = os.path.join(folder, "tokens.toml")
    with open(tokens, "w") as file:
        file.write(TOKENS.format(sha256=made.sha256))

    options = ["--native", "127.0.0.1:0", "--http", "127.0.0.1:0", "--no-grpc", "--tokens", tokens]  # 0: any port that is free
    command = [sys.executable, "-m", "penstock.cli", "serve", "--data", os.path.join(folder, "data"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            places = {}
            for line in server.stdout:  # it says where it listens, and when it is ready
                word, _, rest = line.strip().partition(" ")
                places[word] = rest.strip()
                if word == "Ready;":
                    break
            print(f"the server listens on {places['native']} and {places['http']}")
            use(places["native"], places["http"], made.token)
        finally:
            server.terminate()  # SIGTERM: it answers what runs, and stops in order
        assert server.wait(timeout=30) == 0
        print("the server has stopped")
