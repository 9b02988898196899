"""Appending with ``sync=os`` against bare os.write of the same bytes."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from benchmarks.load import BATCH_BYTES, OS, SINGLE_BYTES, VALUE, VALUES, RawLog, batches, singles, touch_memory
from benchmarks.measure import Group, Row, Work, alternate, at_least, at_most, bytes_per_second, microseconds
from penstock.format.batch import encode_batch, encode_single
from penstock.volume.volume import Volume

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.measure import Bench

_POOL = 16


def _large(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    per_turn = max(1, sizes.append_bytes // BATCH_BYTES // sizes.turns)
    with bench.folder() as folder:
        touch_memory(folder, 4 * (sizes.repeats + 1) * sizes.append_bytes)
        pool = batches(_POOL)
        work = [pool[index % _POOL] for index in range(per_turn)]
        pieces = [batch.data for batch in work]
        raw = RawLog(os.path.join(folder, "raw"))
        with Volume.open(os.path.join(folder, "store"), background=False) as volume:
            volume.create_topic("encoded", 1, OS)
            volume.create_topic("values", 1, OS)
            encoded, values = volume.log("encoded"), volume.log("values")

            def ours() -> Work:
                start = time.perf_counter()
                for batch in work:
                    volume.append(encoded, batch)
                return Work(per_turn, time.perf_counter() - start)

            def ours_with_encoding() -> Work:
                start = time.perf_counter()
                for _ in range(per_turn):
                    volume.append(values, encode_batch(VALUES))
                return Work(per_turn, time.perf_counter() - start)

            bare, plain, whole = alternate(
                sizes.repeats, [lambda: raw.write(pieces), ours, ours_with_encoding], turns=sizes.turns
            )
        raw.close()
    limit = bytes_per_second(bare.median * BATCH_BYTES)
    yield Row(
        "os-batch", plain.over(bare), bytes_per_second(plain.median * BATCH_BYTES), limit, at_least(0.6),
        note="1000 x 100 B, encoded before; raw: os.write", unsteadiness=bare.unsteadiness,
    )  # fmt: skip
    yield Row(
        "os-batch-encode",
        whole.over(bare),
        bytes_per_second(whole.median * BATCH_BYTES),
        limit,
        note="the same with encode_batch",
        unsteadiness=bare.unsteadiness,
    )


def _small(bench: Bench) -> Iterator[Row]:
    sizes = bench.sizes
    with bench.folder() as folder:
        touch_memory(folder, 4 * (sizes.repeats + 1) * sizes.turns * sizes.singles * SINGLE_BYTES)
        pieces = [encode_single(VALUE).data] * sizes.singles
        raw = RawLog(os.path.join(folder, "raw"))
        with Volume.open(os.path.join(folder, "store"), background=False) as volume:
            volume.create_topic("singles", 1, OS)
            log = volume.log("singles")
            bare, ours = alternate(
                sizes.repeats, [lambda: raw.write(pieces), singles(volume, log, sizes.singles)], turns=sizes.turns
            )
        raw.close()
    yield Row(
        "os-single", bare.over(ours), microseconds(1e6 / ours.median), microseconds(1e6 / bare.median), at_most(6),
        note="100 B: encode_single, CRC, write; raw: os.write", unsteadiness=bare.unsteadiness,
    )  # fmt: skip


GROUPS = (Group("os-batch", ("os-batch", "os-batch-encode"), _large), Group("os-single", ("os-single",), _small))
