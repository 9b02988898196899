"""`penstock outbox relay`: a process of its own, that a signal ends."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import penstock
from penstock import database as databases
from tests.cli.conftest import Commands

if TYPE_CHECKING:
    from tests.database.databases import Database


def test_the_command_publishes_until_a_signal_comes(sqlite: Database, tmp_path: Path) -> None:
    connection = sqlite.connect()
    databases.outbox.publish(connection, "orders", b"17")
    connection.commit()
    command = [str(Path(sys.executable).with_name("penstock")), "outbox", "relay", str(tmp_path / "store"), sqlite.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "published 1\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    with penstock.open(tmp_path / "store", create=False) as store:
        assert [message.value for message in store.read("orders")] == [b"17"]


def test_a_database_that_is_not_there_or_not_one_is_told_in_a_line(tmp_path: Path) -> None:
    run = Commands()
    assert "there is no database" in run.fails(3, "outbox", "relay", tmp_path / "store", tmp_path / "missing", "--once")
    (tmp_path / "text").write_text("no database at all, and long enough to see that")
    assert "the database" in run.fails(4, "outbox", "relay", tmp_path / "store", tmp_path / "text", "--once")


def test_an_outbox_in_another_table(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop") as connection:
        databases.Outbox("mine").publish(connection, "orders", b"1")
    connection.close()
    assert Commands().json("outbox", "relay", tmp_path / "store", tmp_path / "shop", "--once", "--table", "mine") == [
        {"published": 1}
    ]
