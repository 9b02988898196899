"""`penstock topics`: which topics there are, what they are, and new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from penstock.cli import output, parameters
from penstock.cli.target import open_target
from penstock.errors import PermissionDenied, UsageError
from penstock.settings import TOPIC_SETTINGS

if TYPE_CHECKING:
    from penstock.store.stats import TopicStats
    from penstock.store.store import TopicInfo


@click.group()
def topics() -> None:
    """List, create, describe and shorten topics."""


@topics.command("list", epilog=parameters.examples("penstock topics list data", "penstock topics list data --json | jq .name"))
@parameters.target
@parameters.json_output
def list_topics(*, target: str, as_json: bool) -> None:
    """List the topics. Works beside the owner of the store."""
    with open_target(target, read_only=True) as store:
        stats = _stats(store)
        found = [(topic, stats.get(topic.name)) for topic in store.topics() if not stats or topic.name in stats]
    if as_json:
        for topic, numbers in found:
            output.write_json(_fields(topic, numbers))
        return
    rows = [
        (topic.name, topic.partitions, "-" if numbers is None else numbers.messages, topic.settings.sync.value)
        for topic, numbers in found
    ]
    output.write_table(["topic", "partitions>", "messages>", "sync"], rows)


@topics.command(epilog=parameters.examples("penstock topics describe data orders"))
@parameters.target
@parameters.topic
@parameters.json_output
def describe(*, target: str, topic: str, as_json: bool) -> None:
    """Show the settings of a topic and the offsets of its partitions. Works beside the owner of the store."""
    with open_target(target, read_only=True) as store:
        found, numbers = store.topic(topic), _stats(store).get(topic)
    _show(found, numbers, as_json=as_json)


@topics.command(
    epilog=parameters.examples(
        "penstock topics create data orders --partitions 4",
        "penstock topics create data metrics --sync interval --retention-age 1d --segment-bytes 16MiB",
        "penstock topics create data jobs --priorities --ttl 1h --expired dead_letter --compression zstd",
        "penstock topics create data raw --set coalesce_below_bytes=0",
    )
)
@parameters.target
@click.argument("name")
@click.option("--partitions", type=int, default=1, show_default=True, help="How many; fixed for ever.")
@click.option("--sync", type=click.Choice(["always", "interval", "os"]), help="When a publish counts as committed.")
@click.option("--segment-bytes", type=parameters.size, help="The size of a segment.")
@click.option("--segment-messages", type=int, help="The most messages in a segment.")
@click.option("--segment-age", type=parameters.duration, help="The age at which a segment is sealed.")
@click.option("--max-message-bytes", type=parameters.size, help="The largest message, with key and headers.")
@click.option("--dedup-window", type=parameters.duration, help="How long a dedup key is remembered.")
@click.option("--retain", type=click.Choice(["until_acked", "always"]), help="Whether retention waits for groups.")
@click.option("--retention-age", type=parameters.duration, help="Older segments are removed; 0 = no limit.")
@click.option("--retention-bytes", type=parameters.size, help="The oldest segments above this size are removed; 0 = no limit.")
@click.option("--priorities", is_flag=True, help="Messages may have a priority: low, medium or high.")
@click.option("--ttl", type=parameters.duration, help="How long messages live that do not say it themselves.")
@click.option(
    "--expired", type=click.Choice(["drop", "dead_letter"]), help="What becomes of messages that expired undelivered."
)
@click.option("--compression", metavar="NAME", help="Of what is stored: none, gzip, zstd, lz4, or with a level gzip:9.")
@click.option("--compaction", is_flag=True, default=None, help="Keep only the latest message of each key.")
@click.option("--tombstone-grace", type=parameters.duration, help="How long a tombstone stays after compaction.")
@click.option("--record-deliveries", is_flag=True, default=None, help="Write how long messages waited to NAME.deliveries.")
@click.option("--set", "others", metavar="NAME=NUMBER", multiple=True, shell_complete=parameters.complete_setting,
              help="Any other setting of a topic, by its name.")  # fmt: skip
@parameters.json_output
def create(*, target: str, name: str, others: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """
    Create a topic, and the store if there is none. Creating it again with the same settings does nothing.

    What is not given has its default; docs/reference/settings.md lists the settings.
    """
    settings = given | dict(_setting(one) for one in others)
    with open_target(target, create=True) as store:
        found = store.create_topic(name, **settings)
        numbers = store.stats().topics[name]
    _show(found, numbers, as_json=as_json)


@topics.command(epilog=parameters.examples("penstock topics retain data", "penstock topics retain data orders --json"))
@parameters.target
@parameters.optional_topic
@parameters.json_output
def retain(*, target: str, topic: str | None, as_json: bool) -> None:
    """Remove now what the retention settings of TOPIC, or of all topics, say; it is done in the background too."""
    with open_target(target) as store:
        removed = store.retain(topic)
    if as_json:
        output.write_json({"segments": removed.segments, "bytes": removed.bytes})
    else:
        output.write_line(f"removed {removed.segments:,} segments, {removed.bytes:,} bytes")


@topics.command(epilog=parameters.examples("penstock topics vacuum data", "penstock topics vacuum data orders --json"))
@parameters.target
@parameters.optional_topic
@parameters.json_output
def vacuum(*, target: str, topic: str | None, as_json: bool) -> None:
    """
    Remove expired messages, and finished ones past their retention whose segment an unfinished message keeps.

    It is done in the background too.
    """
    with open_target(target) as store:
        removed = store.vacuum(topic)
    if as_json:
        output.write_json({"segments": removed.segments, "messages": removed.messages, "bytes": removed.bytes})
    else:
        output.write_line(
            f"removed {removed.messages:,} messages, {removed.bytes:,} bytes; {removed.segments:,} segments rewritten"
        )


@topics.command(epilog=parameters.examples("penstock topics delete data orders --yes"))
@parameters.target
@parameters.topic
@parameters.yes
@parameters.json_output
def delete(*, target: str, topic: str, yes: bool, as_json: bool) -> None:
    """Delete a topic with its messages, groups and dead letters. A new one of the same name has nothing of it."""
    with open_target(target) as store:
        store.topic(topic)
        messages = store.stats().topics[topic].messages
        output.confirm(f"The topic {topic}, with {messages:,} messages, would be deleted for ever.", yes=yes)
        store.delete_topic(topic)
    if as_json:
        output.write_json({"topic": topic, "deleted": True})


def _setting(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    known = {setting.name: setting for setting in TOPIC_SETTINGS}
    if name not in known or known[name].least is None:
        raise UsageError(f"--set {text!r}: there is no such setting; see docs/reference/settings.md")
    if not value.isdecimal():
        raise UsageError(f"--set {text!r}: the value must be a whole number")
    return name, int(value)


def _stats(store: Any) -> dict[str, TopicStats]:
    """The numbers of all topics; none for a token that may not read the whole store, which sees its topics all the same."""
    try:
        found: dict[str, TopicStats] = store.stats().topics
    except PermissionDenied:
        return {}
    return found


def _fields(topic: TopicInfo, numbers: TopicStats | None) -> dict[str, Any]:
    return {
        "name": topic.name,
        "id": topic.topic_id.hex(),
        "messages": None if numbers is None else numbers.messages,
        "partitions": [
            {"partition": number}
            if numbers is None
            else {"partition": number, "start": numbers.starts[number], "end": numbers.ends[number]}
            for number in range(topic.partitions)
        ],
        "settings": topic.settings.to_json(),
    }


def _show(topic: TopicInfo, numbers: TopicStats | None, *, as_json: bool) -> None:
    if as_json:
        output.write_json(_fields(topic, numbers))
        return
    messages = "-" if numbers is None else numbers.messages
    output.write_details(
        [("topic", topic.name), ("id", topic.topic_id.hex()), ("messages", messages), *topic.settings.to_json().items()]
    )
    if numbers is None:
        return
    rows = [(number, start, numbers.ends[number]) for number, start in numbers.starts.items()]
    output.write_line("")
    output.write_table(["partition>", "start>", "end>"], rows)
