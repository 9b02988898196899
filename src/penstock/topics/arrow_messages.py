"""
Messages that come as an Arrow RecordBatch: checked, given to partitions and encoded, without a loop over the messages.

Only the distinct keys of a batch are looked at one by one, where a topic has several partitions.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any

from penstock.errors import BadColumn
from penstock.format import from_arrow
from penstock.format.arrow import library
from penstock.topics.partitioner import partition_of_key
from penstock.values import BATCH_MESSAGES_MAX, MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.format.batch import EncodedBatch
    from penstock.topics.encoder import MessageEncoder

COLUMNS = (*from_arrow.COLUMNS, "partition")
BATCH_BYTES = 2 * MIB
"""About how long the batches become; a larger message is a batch of its own."""


def batches_of(topic: MessageEncoder, table: Any) -> Iterator[tuple[int, EncodedBatch]]:
    """
    (partition, batch) for the messages of *table*, which keep their order within a partition.

    It is a `pyarrow.RecordBatch` with the column `value` and any of key, headers, timestamp, expires_at, deliver_at, priority (0 is low)
    and partition.

    Raises:
        BadColumn, BadArgument, MessageTooLarge, TopicNotFound: before anything is given.
    """
    names = table.schema.names
    if "value" not in names:
        raise BadColumn("value", f"is missing; there are {', '.join(names)}")
    unknown = sorted(set(names) - set(COLUMNS))
    if unknown:
        raise BadColumn(unknown[0], f"unknown, use {', '.join(COLUMNS)}")
    columns = {
        name: ready for name in names if name != "partition" and (ready := from_arrow.prepare(name, table[name])) is not None
    }
    if not table.num_rows:
        return iter(())
    if "priority" in columns:
        topic.check_priorities(library().compute.max(columns["priority"]).as_py())
    size = from_arrow.sizes(columns)
    topic.check_size(library().compute.max(size).as_py())
    partitions = _partitions(topic, columns.get("key"), table["partition"] if "partition" in names else None, table.num_rows)
    return _batches(topic, columns, size, partitions)


def _partitions(topic: MessageEncoder, key: Any, given: Any, count: int) -> int | Any:
    """The partition of all messages, or an array with that of each."""
    pa = library()
    compute = pa.compute
    if given is not None and given.null_count < count:
        if not pa.types.is_integer(given.type):
            raise BadColumn("partition", f"must be a whole number, not {given.type}")
        bounds = compute.min_max(given).as_py()
        topic.check_partition(bounds["min"])
        topic.check_partition(bounds["max"])
        if not given.null_count and bounds["min"] == bounds["max"]:
            return bounds["min"]
        if not given.null_count:
            return given.cast(pa.int32())
    else:
        given = None
    if topic.partitions == 1:
        return 0
    turn = topic.next_partition()
    if key is None:
        chosen = pa.repeat(pa.scalar(turn, pa.int32()), count)
    else:
        distinct = key.dictionary_encode()
        of_keys = [partition_of_key(one, topic.partitions) for one in distinct.dictionary.to_pylist()]
        chosen = compute.fill_null(pa.array(of_keys, pa.int32()).take(distinct.indices), turn)
    if given is not None:
        return compute.coalesce(given.cast(pa.int32()), chosen)
    return turn if key is None else chosen


def _batches(
    topic: MessageEncoder, columns: dict[str, Any], size: Any, partitions: int | Any
) -> Iterator[tuple[int, EncodedBatch]]:
    if isinstance(partitions, int):
        for chosen in _cut(columns, size):
            yield partitions, from_arrow.encode(chosen, topic.codec, topic.level)
        return
    compute = library().compute
    for number in sorted(compute.unique(partitions).to_pylist()):
        mask = compute.equal(partitions, number)
        picked = {name: column.filter(mask) for name, column in columns.items()}
        for chosen in _cut(picked, size.filter(mask)):
            yield number, from_arrow.encode(chosen, topic.codec, topic.level)


def _cut(columns: dict[str, Any], size: Any) -> Iterator[dict[str, Any]]:
    """The same messages in pieces of about `BATCH_BYTES`."""
    pa = library()
    count = len(size)
    if count <= BATCH_MESSAGES_MAX and pa.compute.sum(size).as_py() <= BATCH_BYTES:
        yield _tidy(columns)
        return
    ends = pa.compute.cumulative_sum(size)
    view = memoryview(ends.buffers()[1]).cast("b").cast("q")[ends.offset : ends.offset + count]
    start = 0
    while start < count:
        before = view[start - 1] if start else 0
        stop = min(max(bisect_right(view, before + BATCH_BYTES, start), start + 1), start + BATCH_MESSAGES_MAX, count)
        yield _tidy({name: column.slice(start, stop - start) for name, column in columns.items()})
        start = stop


def _tidy(columns: dict[str, Any]) -> dict[str, Any]:
    """Without the columns in which none of these messages has a value."""
    return {name: column for name, column in columns.items() if name == "value" or column.null_count < len(column)}
