"""Web servers fork: a child has nothing of its parent's store, and may open its own way to it."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

import penstock
from tests.client.test_closing import in_a_child
from tests.sharing.processes import PATIENCE_S, SETTINGS, owner_of, program

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def test_a_child_is_told_that_the_store_is_its_parents(path: Path) -> None:
    """Owner or sibling; and the parent's goes on."""
    with penstock.open(path, **SETTINGS) as owner, penstock.open(path) as sibling:
        owner.publish("t", b"0")
        sibling.publish("t", b"1")

        def child() -> int:
            for store in (owner, sibling):
                try:
                    store.publish("t", b"child")
                except penstock.errors.Closed as error:
                    if "parent" not in str(error):
                        return 2
                    continue
                return 1
            return 0

        assert in_a_child(child) == 0
        assert owner.publish("t", b"2").offset == 2
        assert sibling.publish("t", b"3").offset == 3


def test_workers_that_are_forked_open_what_their_parent_has_open(path: Path) -> None:
    """As those of a web server that loads its application before it forks."""
    with penstock.open(path, **SETTINGS) as store:
        store.create_topic("t")
        children = []
        for _ in range(4):
            child = os.fork()
            if child == 0:
                code = 99
                try:
                    signal.alarm(60)
                    with penstock.open(path) as own:
                        for _ in range(5):
                            own.publish("t", b"%d" % os.getpid())
                    code = 0
                finally:
                    os._exit(code)
            children.append(child)
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        found = [int(message.value or b"") for message in store.read("t")]
        assert sorted(found) == sorted(children * 5)


def test_children_that_live_on_keep_nothing_of_a_parent_that_dies(path: Path) -> None:
    """Neither its lock, nor its socket, nor its connections: those who share the store go on at once."""
    text = """
store = open()
say("open")
told()  # a sibling is connected
child = os.fork()
if child == 0:
    time.sleep(600)
say(child)
told()
"""
    with program(path, text) as parent:
        assert parent.hear() == "open"
        with penstock.open(path, give_up=2 * PATIENCE_S, **SETTINGS) as store:
            store.publish("t", b"x")
            parent.tell()
            child = int(parent.hear())
            try:
                parent.kill()
                begun = time.monotonic()
                assert store.publish("t", b"y").offset == 1
                # Else it would be noticed by silence only, as long as it does not give up.
                assert time.monotonic() - begun < PATIENCE_S
                assert owner_of(path) not in (None, parent.pid, child)
                os.kill(child, 0)
            finally:
                os.kill(child, signal.SIGKILL)


def test_a_child_of_a_sibling_does_not_keep_its_consumer_alive(path: Path) -> None:
    """What a sibling held goes back when it dies, though a child of it lives on."""
    text = """
store = open()
consumer = store.subscribe("t", "g", lease=600)
say(consumer.get(timeout=30).value.decode())
child = os.fork()
if child == 0:
    time.sleep(600)
say(child)
told()
"""
    with penstock.open(path, **SETTINGS) as store:
        store.publish("t", b"x")
        with program(path, text) as sibling:
            assert sibling.hear() == "x"
            child = int(sibling.hear())
            try:
                sibling.kill()
                with store.subscribe("t", "g") as consumer:
                    assert consumer.get(timeout=PATIENCE_S) is not None
            finally:
                os.kill(child, signal.SIGKILL)
