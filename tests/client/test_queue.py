"""`penstock.Queue` on a server: which queue a URL names, and what a lost connection does to what was got."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock import Store
from penstock.errors import BadArgument, LeaseExpired, UsageError
from penstock.server.auth import TokenAuth, hash_token
from penstock.server.running import RunningServer
from tests.client.served import PATIENCE_S, eventually
from tests.conformance.backends import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.client.served import Served


@pytest.mark.parametrize(
    ("behind", "options", "topic"),
    [("", {}, "queue"), ("/", {}, "queue"), ("/jobs", {}, "jobs"), ("", {"name": "jobs"}, "jobs"), ("/jobs/", {"name": "jobs"}, "jobs"),
     ("/a%2Db?token=x", {}, "a-b")],
    ids=ascii,
)  # fmt: skip
def test_a_url_or_a_name_says_which_queue(served: Served, behind: str, options: dict[str, Any], topic: str) -> None:
    """Each is a topic of that name."""
    with penstock.Queue(served.server.address + behind, **options) as jobs:
        jobs.put(b"x")
    assert served.values(topic) == [b"x"]


def test_queues_of_different_names_share_nothing(served: Served) -> None:
    with penstock.Queue(f"{served.server.address}/one") as one, penstock.Queue(f"{served.server.address}/two") as two:
        one.put(b"x")
        assert (len(one), len(two)) == (1, 0)


def test_a_name_beside_another_one_in_the_url_is_refused(served: Served) -> None:
    with pytest.raises(BadArgument, match="the URL names the queue 'jobs'"):
        penstock.Queue(f"{served.server.address}/jobs", name="mails")


@pytest.mark.parametrize("name", ["a/b", "..", "x.dlq", "%00"], ids=ascii)
def test_a_name_that_is_none_is_refused(served: Served, name: str) -> None:
    with pytest.raises(UsageError):
        penstock.Queue(f"{served.server.address}/{name}")
    assert served.store.topics() == []


def test_a_queue_in_a_folder_may_have_a_name(tmp_path) -> None:
    with penstock.Queue(tmp_path / "store", name="jobs") as jobs:
        jobs.put(b"x")
        assert [topic.name for topic in jobs.store.topics()] == ["jobs"]


def test_what_was_got_before_the_connection_was_lost_comes_again(served: Served) -> None:
    """To be done with it is refused, and the queue goes on by itself."""
    proxy = served.proxy()
    with penstock.Queue(proxy.address) as jobs:
        jobs.put_many([b"0", b"1"])
        assert jobs.get() == b"0"
        jobs.task_done()
        jobs.flush()
        assert jobs.get() == b"1"
        proxy.cut()
        eventually(lambda: served.store.stats().topics["queue"].groups["queue"].in_flight == 0)
        with pytest.raises(LeaseExpired):
            jobs.task_done()
        assert jobs.get(timeout=PATIENCE_S) == b"1"
        jobs.task_done()
        assert jobs.join(PATIENCE_S)


def test_an_item_that_takes_long_stays_with_its_getter(served: Served) -> None:
    """Its lease is a day: no other process gets it while the connection lives."""
    with penstock.Queue(served.server.address):
        assert served.store.groups("queue")[0].settings.lease_ms == 86_400_000


def test_rights_on_its_topic_are_enough(tmp_path: Path) -> None:
    """To put, get, look and join: nothing asks about the rest of the store."""
    tokens = tmp_path / "tokens.toml"
    digest = hash_token("secret").hex()
    rights = 'publish = ["jobs"]\nconsume = ["jobs"]'
    tokens.write_text(f'[[token]]\nname = "worker"\nsha256 = "{digest}"\n[token.rights]\n{rights}\n')
    with Store.open(str(tmp_path / "store"), settings=SETTINGS) as store:
        store.create_topic("jobs")
        server = RunningServer(store, auth=TokenAuth(str(tokens)))
        try:
            with penstock.Queue(f"{server.address}/jobs?token=secret", maxsize=2) as jobs:
                jobs.put(b"x")
                assert (jobs.qsize(), jobs.full(), jobs.get()) == (1, False, b"x")
                jobs.task_done()
                assert jobs.join(PATIENCE_S)
        finally:
            server.close()
