"""Merging a segment of one-message batches, and what reading gains by it."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from benchmarks.load import SINGLE_BYTES, VALUE
from benchmarks.measure import Group, Rates, Row, Work, bytes_per_second, per_second
from benchmarks.read import read_all
from penstock.format.batch import encode_single
from penstock.settings import TopicSettings
from penstock.values import SyncMode
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench
    from penstock.log.partition_log import PartitionLog


def _read(log: PartitionLog, messages: int) -> Work:
    read_all(log, 0, messages, verify=True)
    start = time.perf_counter()
    read_all(log, 0, messages, verify=True)
    return Work(messages, time.perf_counter() - start)


def _coalesce(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    messages = max(sizes.coalesce_bytes // SINGLE_BYTES, 10)
    settings = TopicSettings(sync=SyncMode.OS, segment_messages=messages)
    merging: list[Work] = []
    before: list[Work] = []
    after: list[Work] = []
    with bench.folder() as folder, Volume.open(os.path.join(folder, "store"), background=False) as volume:
        for repeat in range(sizes.repeats):
            volume.create_topic(f"log-{repeat}", 1, settings)
            log = volume.log(f"log-{repeat}")
            for _ in range(messages + 1):
                volume.append(log, encode_single(VALUE))
            # Only what both checkpoints have behind them is rewritten.
            volume.checkpoint()
            volume.checkpoint()

            before.append(_read(log, messages))
            start = time.perf_counter()
            count = volume.coalesce()
            merging.append(Work(messages, time.perf_counter() - start))
            assert count == 1
            after.append(_read(log, messages))
    merged, old, new = [Rates([work.amount / work.seconds for work in each]) for each in (merging, before, after)]
    values = [rate / 1000 for rate in merged.each]
    yield Row(
        "coalesce", values, per_second(merged.median), unit="k/s",
        note=f"messages, batches of one, {bytes_per_second(merged.median * SINGLE_BYTES)} of stored bytes",
        unsteadiness=merged.unsteadiness,
    )  # fmt: skip
    yield Row(
        "coalesce-read", new.over(old), per_second(new.median), per_second(old.median), unsteadiness=old.unsteadiness,
        note="messages read; raw: before merging",
    )  # fmt: skip


GROUPS = (Group("coalesce", ("coalesce", "coalesce-read"), _coalesce),)
