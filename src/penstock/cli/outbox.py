"""`penstock outbox`: takes messages from a database to a store."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import Any

import click

from penstock.cli import interrupts, output, parameters
from penstock.cli.target import open_target
from penstock.database.dialect import is_database_error
from penstock.database.outbox import TABLE
from penstock.database.relay import POLL_SECONDS
from penstock.database.relay import relay as make_relay
from penstock.errors import NotFound, Unavailable, UsageError


@click.group()
def outbox() -> None:
    """Publish what programs have put into the outbox of their database."""


@outbox.command(
    epilog=parameters.examples(
        "penstock outbox relay penstock://127.0.0.1:7420 postgresql://shop@db/shop",
        "penstock outbox relay data shop.sqlite --once",
    )
)
@parameters.target
@click.argument("database")
@click.option("--table", default=TABLE, show_default=True, metavar="NAME", help="The table of the outbox.")
@click.option(
    "--poll", default=f"{POLL_SECONDS:g}s", show_default=True, metavar="TIME", help="How often to look when there was nothing."
)
@click.option("--once", is_flag=True, help="Publish what is there, and end.")
@parameters.json_output
def relay(*, target: str, database: str, table: str, poll: str, once: bool, as_json: bool) -> None:
    """Publish the messages of an outbox, each exactly once, until a signal comes."""
    pause_s = parameters.duration(poll)
    try:
        with (
            open_target(target, create=True) as store,
            make_relay(store, connection=lambda: _connect(database), outbox=table) as running,
        ):
            while True:
                count = running.run_once()
                if count or once:
                    _tell(count, as_json=as_json)
                if once:
                    return
                with interrupts.allowed():
                    time.sleep(pause_s)
    except Exception as error:
        if is_database_error(error):
            raise Unavailable(f"the database: {str(error).strip() or type(error).__name__}") from error
        raise


def _connect(database: str) -> Any:
    if "://" in database or "=" in database:
        try:
            import psycopg
        except ImportError:
            raise UsageError("psycopg is not installed: pip install 'penstock[postgres]'") from None
        return psycopg.connect(database)
    if database != ":memory:" and not os.path.exists(database):
        raise NotFound(f"there is no database {database}")
    return sqlite3.connect(database)


def _tell(count: int, *, as_json: bool) -> None:
    if as_json:
        output.write_json({"published": count})
    else:
        output.write_line(f"published {count:,}")
    output.flush()
