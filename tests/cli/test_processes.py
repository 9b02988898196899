"""The installed script as its users start it: signals, pipes, bytes, and an owner beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from tests.cli.conftest import SCRIPT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMIT_SECONDS = 50
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""As most users have it, whatever this machine has."""


@pytest.fixture
def begin() -> Iterator[Any]:
    """Starts commands, and ends those that a failed test leaves behind."""
    running: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        given: dict[str, Any] = {
            "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": BUFFERED, **options
        }  # fmt: skip
        running.append(subprocess.Popen([SCRIPT, *arguments], **given))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.communicate()


def run(*arguments: str | bytes, **options: Any) -> subprocess.CompletedProcess[bytes]:
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if "input" not in options else {}
    return subprocess.run([SCRIPT, *arguments], capture_output=True, check=False, timeout=LIMIT_SECONDS, **given, **options)


def fill(path: str, values: Sequence[bytes | None]) -> str:
    with penstock.open(path) as store:
        store.publish_many("orders", values)
    return path


def deliveries(path: str) -> list[tuple[int, int]]:
    """Offset and number of delivery of what the group is given next."""
    with penstock.open(path) as store, store.subscribe("orders", "g", prefetch=10_000) as consumer:
        return [(message.offset, message.attempt) for message in consumer.get_many(10_000, timeout=0)]


# -- signals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_consumer_in_order(begin, path: str, number: signal.Signals, code: int) -> None:
    """Nothing is lost, nobody is blamed, and the user sees no traceback."""
    fill(path, [b"one", b"two"])
    process = begin("consume", path, "orders", "--group", "g", "--follow", "--format", "value")
    assert [process.stdout.readline(), process.stdout.readline()] == [b"one\n", b"two\n"]
    process.send_signal(number)
    assert process.communicate(timeout=LIMIT_SECONDS) == (b"", b"")
    assert process.returncode == code
    fill(path, [b"three"])
    # The signal may have come just before the ack of what was printed; then both come again.
    assert deliveries(path) in ([(2, 1)], [(0, 1), (1, 1), (2, 1)])


def test_a_signal_ends_a_consumer_that_nobody_reads_from(begin, path: str) -> None:
    """It hangs in a full pipe: what it could not write comes again, uncounted."""
    fill(path, [b"x" * 100_000] * 8)
    process = begin("consume", path, "orders", "--group", "g", "--follow", "--format", "value")
    assert process.stdout.read(1) == b"x"
    process.send_signal(signal.SIGINT)
    process.wait(timeout=LIMIT_SECONDS)
    assert process.returncode == 130
    assert process.stderr.read() == b""
    assert deliveries(path) == [(offset, 1) for offset in range(8)]


def test_a_signal_that_the_starter_ignores_stays_ignored(begin, path: str) -> None:
    """As for a job in the background of a script."""
    fill(path, [b"one"])
    process = begin(
        "consume", path, "orders", "--group", "g", "--follow", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)
    )
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=LIMIT_SECONDS) == 143


def test_a_signal_ends_a_publisher_that_waits_for_input(begin, path: str) -> None:
    """What it has printed a receipt for stays published."""
    process = begin("publish", path, "orders", stdin=subprocess.PIPE)
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"orders/0 offset 0\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LIMIT_SECONDS) == 130
    assert process.stderr.read() == b"note: 1 messages were published before this\n"
    with penstock.open(path, read_only=True) as store:
        assert [message.value for message in store.read("orders")] == [b"one"]


def test_a_signal_ends_watching(begin, path: str) -> None:
    fill(path, [b"one"])
    process = begin("stats", path, "--watch", "--json", "--interval", "10ms")
    for _ in range(3):
        assert json.loads(process.stdout.readline())["topics"]["orders"]["messages"] == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=LIMIT_SECONDS) == 130
    assert process.stderr.read() == b""


# -- pipes and files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["read"], ["read", "--follow"], ["consume", "--group", "g"], ["read", "--json"]])
def test_a_reader_that_goes_away_ends_a_command_quietly(begin, path: str, command: list[str]) -> None:
    """As in `penstock read data orders | head -1`."""
    fill(path, [b"x" * 1000] * 5000)
    name, *options = command
    process = begin(name, path, "orders", *options)
    head = subprocess.Popen(["head", "-1"], stdin=process.stdout, stdout=subprocess.PIPE)
    process.stdout.close()
    process.stdout = None
    first, _ = head.communicate(timeout=LIMIT_SECONDS)
    assert first.count(b"\n") == 1
    assert process.wait(timeout=LIMIT_SECONDS) == 141
    assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("command", "said"),
    [(["read", "PATH", "orders"], b""), (["consume", "PATH", "orders", "--group", "g"], b""), (["topics", "list", "PATH"], b""),
     (["publish", "PATH", "orders", "one", "two"], b"note: 1 messages were published before this\n")],
    ids=str,
)  # fmt: skip
def test_a_pipe_that_nobody_ever_read(begin, path: str, command: list[str], said: bytes) -> None:
    """What is still buffered when the program ends is dropped without a word."""
    fill(path, [b"one"])
    readable, writable = os.pipe()
    os.close(readable)
    process = begin(*[path if word == "PATH" else word for word in command], stdout=writable)
    os.close(writable)
    assert process.wait(timeout=LIMIT_SECONDS) == 141
    assert process.stderr.read() == said
    assert deliveries(path)[0] == (0, 1)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_what_a_closed_pipe_did_not_take_is_not_acked(begin, path: str, unbuffered: str) -> None:
    """The pipe holds 64 KiB, so the first hundred messages were never written: all of them come again, uncounted."""
    fill(path, [b"x" * 10_000] * 200)
    settings = BUFFERED | {"PYTHONUNBUFFERED": unbuffered}
    process = begin("consume", path, "orders", "--group", "g", "--format", "value", env=settings)
    assert process.stdout.read(1) == b"x"
    process.stdout.close()
    process.stdout = None
    assert process.wait(timeout=LIMIT_SECONDS) == 141
    assert deliveries(path) == [(offset, 1) for offset in range(200)]


@pytest.mark.parametrize("command", [["read"], ["consume", "--group", "g"]])
def test_a_full_disk_behind_stdout_is_an_error(path: str, command: list[str]) -> None:
    fill(path, [b"one"])
    name, *options = command
    with open("/dev/full", "wb") as full:
        done = subprocess.run([SCRIPT, name, path, "orders", *options], stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == 1
    assert done.stderr == b"error: No space left on device [OS_ERROR]\n"
    assert deliveries(path) == [(0, 1)]


def test_a_consumer_without_stdout_takes_nothing(path: str) -> None:
    fill(path, [b"one"])
    done = subprocess.run(
        ["sh", "-c", '"$0" consume "$1" orders --group g >&-', SCRIPT, path], stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 1
    assert done.stderr == b"error: stdout is closed [OS_ERROR]\n"
    assert deliveries(path) == [(0, 1)]


def test_a_pipeline_copies_a_topic(path: str, tmp_path) -> None:
    values = [bytes([byte]) * (byte % 7) for byte in range(256)]
    fill(path, values)
    line = '"$0" read "$1" orders --json | "$0" publish "$2" orders --format json --batch 100'
    copy = str(tmp_path / "copy")
    subprocess.run(["sh", "-c", line, SCRIPT, path, copy], capture_output=True, check=True)
    with penstock.open(copy, read_only=True) as store:
        assert [message.value for message in store.read("orders")] == values


# -- bytes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("language", ["C", "C.UTF-8", "POSIX"])
def test_bytes_that_are_no_text_pass_through(path: str, language: str) -> None:
    """In arguments, keys, headers and output, whatever the locale."""
    settings = {key: value for key, value in os.environ.items() if not key.startswith("LC_")} | {"LANG": language}
    done = run("publish", path, "orders", b"\xff\xfe", "--key", b"\xfd", "--header", b"h=\xfc", "Grüße".encode(), env=settings)
    assert (done.returncode, done.stderr) == (0, b"")
    assert run("read", path, "orders", "--format", "value", env=settings).stdout == b"\xff\xfe\nGr\xc3\xbc\xc3\x9fe\n"
    text = run("read", path, "orders", env=settings).stdout.splitlines()
    assert text[0].split(b"\t")[2:] == [rb"key=\xfd", rb"h=\xfc", rb"\xff\xfe"]
    assert text[1].endswith("\tGrüße".encode())


def test_a_path_that_is_no_text_can_be_used(tmp_path) -> None:
    path = os.fsencode(tmp_path) + b"/d\xff"
    assert run("publish", path, "orders", "one").returncode == 0
    assert run("topics", "list", path).stdout.startswith(b"TOPIC")
    assert json.loads(run("stats", path, "--json").stdout)["topics"]["orders"]["messages"] == 1
    missing = run("read", path + b"x", "orders")
    assert missing.returncode == 3
    assert rb"d\xffx holds no Penstock store" in missing.stderr


# -- beside an owner ------------------------------------------------------------------------------------------------


def test_commands_that_only_read_work_beside_the_owner(path: str) -> None:
    with penstock.open(path) as store:
        store.publish("orders", b"one")
        assert run("read", path, "orders", "--format", "value").stdout == b"one\n"
        for command in (["topics", "list", path], ["topics", "describe", path, "orders"], ["stats", path], ["verify", path]):
            done = run(*command)
            assert (done.returncode, done.stderr) == (0, b"")
        store.publish("orders", b"two")
        assert store.ends("orders") == {0: 2}


@pytest.mark.parametrize(
    "command",
    [["publish", "PATH", "orders", "x"], ["consume", "PATH", "orders", "--group", "g"], ["topics", "create", "PATH", "new"],
     ["groups", "list", "PATH"], ["dlq", "list", "PATH"], ["repair", "PATH", "--yes"]],
    ids=" ".join,
)  # fmt: skip
def test_commands_that_need_a_store_that_is_not_shared_name_its_owner(path: str, command: list[str]) -> None:
    with penstock.open(path, share=False) as store:
        store.publish("orders", b"one")
        done = run(*[path if word == "PATH" else word for word in command])
        assert done.returncode == 4
        assert f"is owned by process {os.getpid()} on ".encode() in done.stderr
        assert done.stderr.endswith(b" [STORE_LOCKED]\n")
        assert store.ends("orders") == {0: 1}


def test_following_sees_what_the_owner_publishes(begin, path: str) -> None:
    with penstock.open(path) as store:
        store.create_topic("orders", partitions=2)
        store.publish("orders", b"early", partition=1)
        process = begin("read", path, "orders", "--follow", "--format", "value")
        assert process.stdout.readline() == b"early\n"
        for number in range(3):
            store.publish("orders", b"later %d" % number, partition=number % 2)
            assert process.stdout.readline() == b"later %d\n" % number
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=LIMIT_SECONDS) == 130


# -- the program itself ---------------------------------------------------------------------------------------------


def test_the_engine_imports_none_of_the_libraries_of_the_command_line() -> None:
    program = "import sys, penstock, penstock.aio; assert not {'click', 'rich', 'penstock.cli'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.parametrize("missing", ["click", "rich"])
def test_without_its_extra_the_script_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; from penstock.cli.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert (
        done.stderr == f"error: the command line needs the package '{missing}'; install it with: pip install 'penstock[cli]'\n"
    )


def test_it_runs_as_a_module(path: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", "publish", path, "orders", "x"], capture_output=True, check=False
    )
    assert done.stdout == b"orders/0 offset 0\n"


def test_a_warning_of_the_engine_is_one_line(path: str) -> None:
    program = (
        "import logging; from penstock.cli import output; output.prepare_streams(); "
        "logging.getLogger('penstock').warning('retention stopped for %s', 'now')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == "warning: retention stopped for now\n"
