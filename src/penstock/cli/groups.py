"""`penstock groups`: who has finished what, and moving it. Groups are known to the owner, so these commands go through it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output, parameters
from penstock.cli.messages import moment
from penstock.cli.target import open_target
from penstock.errors import GroupNotFound, MemberNotFound

if TYPE_CHECKING:
    import datetime as dt

    from penstock.store.stats import GroupStats
    from penstock.store.store import GroupInfo, Store


@click.group()
def groups() -> None:
    """
    List, describe, move and delete groups; list and evict their members.

    A folder that a program has open is reached through that program, unless it does not share it (share=False). For a folder that
    `penstock serve` has open, give the server's URL as TARGET.
    """


@groups.command("list", epilog=parameters.examples("penstock groups list data", "penstock groups list data orders --json"))
@parameters.target
@parameters.optional_topic
@parameters.json_output
def list_groups(*, target: str, topic: str | None, as_json: bool) -> None:
    """List the groups, of TOPIC or of all topics, with what they have not finished."""
    with open_target(target) as store:
        stats = store.stats().topics
        found = [(group, stats[group.topic].groups[group.name]) for group in store.groups(topic)]
    if as_json:
        for group, numbers in found:
            output.write_json(_fields(group, numbers))
        return
    rows = [(group.topic, group.name, numbers.lag, numbers.retrying, group.ordered) for group, numbers in found]
    output.write_table(["topic", "group", "lag>", "retrying>", "ordered"], rows)


@groups.command(epilog=parameters.examples("penstock groups describe data orders billing"))
@parameters.target
@parameters.topic
@parameters.group
@parameters.json_output
def describe(*, target: str, topic: str, group: str, as_json: bool) -> None:
    """Show the settings and positions of a group."""
    with open_target(target) as store:
        _show(store, topic, group, as_json=as_json)


@groups.command(
    epilog=parameters.examples(
        "penstock groups seek data orders billing --to earliest",
        "penstock groups seek data orders billing --to 2026-01-31T08:00Z",
        "penstock groups seek data orders billing --partition 0 --to 17",
    )
)
@parameters.target
@parameters.topic
@parameters.group
@click.option(
    "--to", type=parameters.place, shell_complete=parameters.complete_place, required=True,
    help="earliest, latest, an offset, a time, or 5m for 5 minutes ago.",
)  # fmt: skip
@parameters.partition
@parameters.json_output
def seek(*, target: str, topic: str, group: str, to: int | str | dt.datetime, partition: int | None, as_json: bool) -> None:
    """Move a group: what lies before the new place counts as finished, what lies behind it comes (again)."""
    with open_target(target) as store:
        store.seek(topic, group, to, partition=partition)
        _show(store, topic, group, as_json=as_json)


@groups.command(
    epilog=parameters.examples(
        "penstock groups members data orders billing", "penstock groups members penstock://localhost:7420 orders billing --json"
    )
)
@parameters.target
@parameters.topic
@parameters.group
@parameters.json_output
def members(*, target: str, topic: str, group: str, as_json: bool) -> None:
    """List the members of a group that are there now, and what each holds."""
    with open_target(target) as store:
        found = store.members(topic, group)
    if as_json:
        for one in found:
            output.write_json({**asdict(one), "since": one.since.isoformat(), "last_heard": one.last_heard.isoformat()})
        return
    columns = [
        "id", "name", "interface", "peer", "token", "since", "last heard", "in flight>", "buffered>", "bytes>", "paused", "partitions",
    ]  # fmt: skip
    output.write_table(
        columns,
        [
            (
                one.id, one.name, one.interface, one.peer or None, one.principal or None, moment(one.since), moment(one.last_heard),
                one.in_flight, one.buffered, one.bytes, "yes" if one.paused else None, ",".join(map(str, one.partitions)) or None,
            )
            for one in found
        ],
    )  # fmt: skip


@groups.command(epilog=parameters.examples("penstock groups evict data orders billing 3f2a91c05d7e001 --yes"))
@parameters.target
@parameters.topic
@parameters.group
@click.argument("member")
@parameters.yes
@parameters.json_output
def evict(*, target: str, topic: str, group: str, member: str, yes: bool, as_json: bool) -> None:
    """
    Take a member out of its group: what it holds goes back to the group at once, and does not count as failed.

    MEMBER is the id that `groups members` shows. Its client gets the error CONSUMER_EVICTED, and may subscribe again; workers do.
    """
    with open_target(target) as store:
        found = next((one for one in store.members(topic, group) if one.id == member), None)
        if found is None:
            raise MemberNotFound(topic, group, member)
        held = found.in_flight + found.buffered
        output.confirm(f"The member {member} of {group}, which holds {held:,} messages, would be evicted.", yes=yes)
        count = store.evict_member(topic, group, member)
    if as_json:
        output.write_json({"topic": topic, "group": group, "member": member, "messages": count})
    else:
        output.write_line(f"evicted; {count:,} messages went back to the group")


@groups.command(epilog=parameters.examples("penstock groups delete data orders billing --yes"))
@parameters.target
@parameters.topic
@parameters.group
@parameters.yes
@parameters.json_output
def delete(*, target: str, topic: str, group: str, yes: bool, as_json: bool) -> None:
    """Forget a group and its position. A new one of the same name begins where it is told to."""
    with open_target(target) as store:
        lag = _find(store, topic, group)[1].lag
        output.confirm(f"The group {group} of {topic}, with {lag:,} unfinished messages, would be forgotten.", yes=yes)
        store.delete_group(topic, group)
    if as_json:
        output.write_json({"topic": topic, "group": group, "deleted": True})


def _find(store: Store, topic: str, group: str) -> tuple[GroupInfo, GroupStats]:
    found = next((one for one in store.groups(topic) if one.name == group), None)
    if found is None:
        raise GroupNotFound(topic, group)
    return found, store.stats().topics[topic].groups[group]


def _fields(group: GroupInfo, numbers: GroupStats) -> dict[str, Any]:
    return {"topic": group.topic, "name": group.name, **asdict(numbers), "settings": group.settings.to_json()}


def _show(store: Store, topic: str, group: str, *, as_json: bool) -> None:
    found, numbers = _find(store, topic, group)
    if as_json:
        output.write_json(_fields(found, numbers))
        return
    output.write_details(
        [
            ("topic", topic), ("group", group), ("lag", numbers.lag), ("retrying", numbers.retrying),
            *found.settings.to_json().items(),
        ]
    )  # fmt: skip
    ends = store.ends(topic)
    output.write_line("")
    output.write_table(
        ["partition>", "position>", "end>"],
        [(number, position, ends[number]) for number, position in numbers.positions.items()],
    )
