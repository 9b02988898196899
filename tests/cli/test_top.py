"""`penstock top`: the command, what it asks a store for, and a terminal that it draws on."""

from __future__ import annotations

import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock.cli import output
from penstock.cli.top.source import READS_MAX, Source
from penstock.cli.top.watch import SILENT_S, Watch
from penstock.errors import Corrupt, Unavailable
from penstock.server.running import RunningServer
from penstock.store.store import Store
from penstock.testing.fake_clock import FakeClock
from tests.cli.conftest import SCRIPT
from tests.cli.looks import Seen, look
from tests.cli.screen import ENTERED, LEFT, Screen
from tests.cli.serving import serving
from tests.cli.test_every_command import completed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penstock.cli.top.history import Snapshot
    from tests.cli.conftest import Commands


@pytest.fixture
def orders(path: str) -> str:
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        store.create_topic("mails")
        store.publish_many("orders", [b"x"] * 5)
    return path


# -- one frame, or some ---------------------------------------------------------------------------------------------


def test_a_pipe_gets_one_frame(run: Commands, orders: str) -> None:
    where, together, _, heading, *rows = run.text("top", orders, "--sort", "name").splitlines()
    assert where == f"penstock top  files only  {orders}  (groups, dead letters and times a server tells)"
    assert together.startswith("in -/s  messages 5  ")
    assert heading.split() == ["TOPIC", "MESSAGES", "BYTES", "IN/S", "OLDEST"]
    assert [row.split()[:2] for row in rows] == [["mails", "0"], ["orders", "5"]]
    assert rows[1].split()[-1].endswith("s")
    assert len(run.text("top", orders, "--once").splitlines()) == 6


def test_as_many_frames_as_are_asked_for(run: Commands, orders: str) -> None:
    """The second has rates; a blank line is between them."""
    first, second = run.text("top", orders, "--iterations", 2, "--interval", "100ms").split("\n\npenstock top")
    assert "in -/s" in first
    assert "in 0/s" in second


def test_frames_as_json(run: Commands, path: str) -> None:
    with Store.open(path) as owner, RunningServer(owner) as server:
        owner.measure()
        owner.publish_many("orders", [b"x", b"y"])
        owner.publish("mails", b"z")
        with owner.subscribe("orders", "billing") as consumer:
            consumer.get(30).reject("bad\nworse")  # type: ignore[union-attr]
        first, second = run.json("top", server.address, "--iterations", 2, "--interval", "0.1", "--topic", "o*")
        text = run.text("top", server.address, "--once")
    orders = second["topics"]["orders"]
    assert list(second["topics"]) == ["orders", "orders.dlq"]
    assert first["topics"]["orders"]["in_per_s"] is None
    assert (orders["in_per_s"], orders["out_per_s"], orders["newest_reason"], orders["dead_letters"]) == (0, 0, "bad", 1)
    assert 0 <= orders["oldest_s"] < 60
    assert orders["publish"]["count"] == 1
    lines = [line.split() for line in text.splitlines()]
    assert ["orders/billing", "1"] in [line[:2] for line in lines]
    assert any(line[:2] == ["orders", "1"] and line[-1] == "bad" for line in lines)
    assert any(line[:1] == ["fsync"] for line in lines)


@pytest.mark.parametrize("interval", ["0", "0.01", "-1", "nan", "inf", "2h", "soon", "", "9" * 400])
def test_an_interval_that_makes_no_sense_is_refused(run: Commands, path: str, interval: str) -> None:
    line = run.fails(2, "top", path, "--once", f"--interval={interval}")
    assert "--interval" in line
    assert "100ms to 1h" in line or "is no length of time" in line


@pytest.mark.parametrize(
    "options", [["--iterations", 0], ["--iterations", "x"], ["--sort", "age"], ["--once", "--iterations", 2], ["--every"]]
)
def test_other_options_that_make_no_sense_are_refused(run: Commands, path: str, options: list[object]) -> None:
    run.fails(2, "top", path, *options)


def test_what_is_not_there_has_its_exit_code(run: Commands, path: str) -> None:
    assert "STORE_NOT_FOUND" in run.fails(3, "top", path)
    assert "UNAVAILABLE" in run.fails(4, "top", "penstock://127.0.0.1:1")
    assert "no topics" in run.text("topics", "create", path, "orders") + run.text("top", path, "--topic", "x*")


def test_a_token_is_not_shown(run: Commands, path: str) -> None:
    with Store.open(path) as owner, RunningServer(owner) as server:
        assert "hidden" not in run.text("top", f"{server.address}?token=hidden")


def test_a_shell_completes_topics_and_orders(orders: str) -> None:
    assert completed("top", orders, "--topic", incomplete="o") == ["orders"]
    assert completed("top", "--sort", incomplete="") == ["lag", "rate", "bytes", "name"]


# -- what is asked --------------------------------------------------------------------------------------------------


class Counted:
    """A store, and how often single messages were read from it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.read_from: list[tuple[str, int]] = []

    def metrics(self) -> Any:
        return self._store.metrics()

    def read(self, topic: str, partition: int, **options: Any) -> Any:
        self.read_from.append((topic, partition))
        return self._store.read(topic, partition, **options)


def test_a_message_is_read_once_and_few_at_a_time(path: str) -> None:
    """What a look costs does not grow with what waits, nor with the number of topics."""
    clock = FakeClock()
    with Store.open(path, clock=clock) as store:
        names = [f"t{number:02}" for number in range(READS_MAX + 4)]
        for name in names:
            store.publish_many(name, [b"x"] * 100)
        clock.advance(10)
        counted = Counted(store)
        source = Source(counted, clock)  # type: ignore[arg-type]
        first = source.look()
        assert len(counted.read_from) == len(first.oldest_s) == READS_MAX
        assert first.oldest_s["t00"] == 10
        clock.advance(5)
        second = source.look()
        assert len(counted.read_from) == len(second.oldest_s) == len(names)
        assert (second.oldest_s["t00"], second.oldest_s[names[-1]]) == (15, 15)
        for name in names:
            store.publish_many(name, [b"x"] * 100)
        source.look()
        assert len(counted.read_from) == len(names), "nothing new is first"


def test_the_newest_reason_is_read_when_there_is_a_newer_one(path: str) -> None:
    with Store.open(path) as store:
        counted = Counted(store)
        source = Source(counted, FakeClock(), lambda topic: topic == "orders")  # type: ignore[arg-type]
        store.publish_many("orders", [b"x"] * 3)
        with store.subscribe("orders", "g") as consumer:
            for reason in ("first", "second"):
                consumer.get(30).reject(reason)  # type: ignore[union-attr]
                store.flush()
                assert source.look().reasons == source.look().reasons == {"orders": reason}
        assert counted.read_from.count(("orders.dlq", 0)) == 2
        store.dead_letters("orders").discard()
        assert source.look().reasons == {}


class Script:
    """A source whose looks end as the test says."""

    is_whole = True

    def __init__(self, *outcomes: Snapshot | Exception) -> None:
        self._outcomes = iter(outcomes)

    def look(self) -> Snapshot:
        outcome = next(self._outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def taken(watch: Watch) -> Snapshot | None:
    """What the next look has seen."""
    watch.ask()
    end = time.monotonic() + 60
    while watch._outcome is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    return watch.take()


@pytest.fixture
def closing() -> Iterator[list[Watch]]:
    watches: list[Watch] = []
    yield watches
    for watch in watches:
        watch.close(lambda: None)


def test_a_server_goes_away_and_comes_back(closing: list[Watch]) -> None:
    clock, seen = FakeClock(), look(0, {"orders": Seen(1)})
    watch = Watch(Script(seen, Unavailable("gone"), Unavailable("still gone"), seen, seen), clock)  # type: ignore[arg-type]
    closing.append(watch)
    assert taken(watch) is seen
    assert watch.link.state == "connected"
    assert taken(watch) is None
    clock.advance(3)
    assert taken(watch) is None
    assert (watch.link.state, watch.link.for_s, watch.link.reason) == ("away", 3, "still gone")
    assert taken(watch) is seen
    assert (watch.link.state, watch.link.lost) == ("connected", 1)
    assert taken(watch) is seen
    assert watch.link.lost == 1


def test_another_error_is_raised_where_it_can_be_told(closing: list[Watch]) -> None:
    watch = Watch(Script(Corrupt("damaged")), FakeClock())  # type: ignore[arg-type]
    closing.append(watch)
    with pytest.raises(Corrupt):
        taken(watch)


def test_who_leaves_does_not_wait_for_a_server() -> None:
    """Neither for a look that is under way, nor for a connection that cannot be closed just now."""
    answered = threading.Event()

    class Slow(Script):
        def look(self) -> Snapshot:
            answered.wait(120)
            return look(0, {})

    watch = Watch(Slow(), FakeClock())  # type: ignore[arg-type]
    watch.ask()
    began = time.monotonic()
    watch.close(lambda: answered.wait(120))
    assert time.monotonic() - began < 60
    answered.set()


def test_an_answer_that_does_not_come_is_told(closing: list[Watch]) -> None:
    clock = FakeClock()
    watch = Watch(Script(), clock)  # type: ignore[arg-type]
    closing.append(watch)
    watch._began_s = clock.monotonic()
    assert watch.link.state == "connected"
    clock.advance(SILENT_S + 2)
    assert (watch.link.state, watch.link.for_s) == ("silent", SILENT_S + 2)


# -- at a terminal --------------------------------------------------------------------------------------------------


def restored(screen: Screen) -> bool:
    """Whether the terminal is as it was: its settings, its screen, and the cursor, which comes before it."""
    return (
        screen.state == screen.before and screen.seen.count(ENTERED) == screen.seen.count(LEFT) and b"\x1b[?25h" in screen.seen
    )


def test_a_server_that_is_stopped_and_started_again(tmp_path: Path) -> None:
    """The view says that it is away, obeys keys meanwhile, goes on when it is back, and leaves the terminal as it was."""
    # No port, which somebody else may take while the server is away.
    arguments = ("--data", str(tmp_path / "data"), "--native", f"unix:{tmp_path}/socket", "--no-http", "--no-grpc")
    with serving(*arguments) as server:
        url = server.address("native")
        with penstock.open(url) as store:
            store.publish_many("orders", [b"x"] * 7)
            store.publish("mails", b"x")
        with Screen(SCRIPT, "top", url, "--interval", "100ms", width=200) as screen:
            frame = screen.wait_for(lambda frame: "connected" in frame[0] and any("IN/S" in line for line in frame))
            assert len(frame) == 24
            assert [line.split()[:2] for line in frame[4:6]] == [["mails", "1"], ["orders", "7"]]
            server.stop()
            screen.wait_for(lambda frame: frame[0].startswith("AWAY for ") and url in frame[0])
            screen.press("s")
            frame = screen.wait_for(lambda frame: "sort: rate" in frame[-1])
            assert frame[0].startswith("AWAY for ")
            assert ["orders", "7"] in [line.split()[:2] for line in frame], "what was known is still there"
            with serving(*arguments):
                screen.wait_for(lambda frame: "connected, was away once" in frame[0])
                with penstock.open(url) as store:
                    store.publish("orders", b"x")
                frame = screen.wait_for(lambda frame: ["orders", "8"] in [line.split()[:2] for line in frame])
                assert not any("-" in line.split()[3] for line in frame if line.startswith("orders ")), "no negative rate"
                screen.press("q")
                assert screen.wait() == 0
            assert restored(screen)
            assert b"Traceback" not in screen.seen


def test_keys_and_sizes_at_a_terminal(orders: str) -> None:
    with Screen(SCRIPT, "top", orders, "--interval", "1h", width=60, height=8) as screen:
        screen.wait_for(lambda frame: "files only" in frame[0])
        screen.press("?")
        screen.wait_for(lambda frame: frame[3].startswith("q  "))
        screen.press("\x1b[B")
        screen.wait_for(lambda frame: frame[3].startswith("s  "))
        screen.press("?p")
        screen.wait_for(lambda frame: frame[-1].startswith("PAUSED"))
        screen.resize(30, 5)
        frame = screen.wait_for(lambda frame: len(frame) == 5)
        assert max(map(len, frame)) <= 30
        screen.press("\x1a")
        # Without a shell to go on with, the kernel does not stop it; but it had left the screen for that, and comes back.
        screen.wait_for(lambda _: screen.seen.count(ENTERED) == 2)
        assert screen.seen.count(LEFT) == 1
        screen.press("\x03")
        assert screen.wait() == 130
        assert restored(screen)


@pytest.mark.parametrize(("ending", "code"), [("sigterm", 143), ("iterations", 0), ("error", 1)])
def test_the_terminal_is_restored_however_it_ends(orders: str, tmp_path: Path, ending: str, code: int) -> None:
    """After its last frame, by a signal, or by an error: that of a folder that is gone."""
    options = ["--iterations", "3"] if ending == "iterations" else []
    with Screen(SCRIPT, "top", orders, "--interval", "100ms", *options, settings={"NO_COLOR": "1"}) as screen:
        screen.wait_for(lambda frame: "files only" in frame[0])
        if ending == "sigterm":
            screen.process.send_signal(signal.SIGTERM)
        elif ending == "error":
            (tmp_path / "data").rename(tmp_path / "gone")
        assert screen.wait() == code
        assert restored(screen)
        assert not any(
            f"\x1b[{colour}m".encode() in screen.seen or f";{colour}m".encode() in screen.seen for colour in range(30, 38)
        )
        said = screen.seen.rpartition(LEFT)[2]
        assert said.startswith(b"error: ") if ending == "error" else not said.strip()


@pytest.mark.parametrize("kind", ["dumb", ""])
def test_a_terminal_that_cannot_be_drawn_on_gets_one_frame(
    run: Commands, orders: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", kind)
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    printed = run.text("top", orders)
    assert "orders" in printed
    assert "\x1b" not in printed
