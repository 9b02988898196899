"""
What groups and producers find in the journal and in checkpoints, forged: a typed error, and no more memory or time than it is worth.

The checksum of a frame says that bytes are as written, not that their writer was honest. The decoders alone are in `test_decoders.py`; here
the layers carry out what was decoded, and are asked for their next snapshot.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadBytes, Corrupt
from penstock.groups import operations as ops
from penstock.groups.registry import Groups
from penstock.offset_set import OffsetSet
from penstock.settings import GroupSettings
from penstock.testing import FakeClock, SimulatedFileSystem
from penstock.topics.producers import Producers
from penstock.volume.layer import Ended
from tests.bad_bytes.test_decoders import NUMBERS, OTHERS, odd_values
from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

TOPIC_ID = bytes(range(16))
ENDS = {TOPIC_ID: [10, 10]}
ENDED = Ended(SimulatedFileSystem(), "/s", bytes(16), 1, in_order=False)
SETTINGS: dict[str, object] = GroupSettings().to_json()
MADE: dict[str, object] = {"topic_id": TOPIC_ID.hex(), "topic": "t", "name": "g", "settings": SETTINGS, "starts": [0, 7]}
GROUP = ops.encode_document(ops.MADE, 1, MADE)


def restore_groups(data: bytes) -> Groups:
    """What opening a store does with the section of the groups."""
    groups = Groups(FakeClock())
    groups.restore(data)
    groups.recovered(ENDS, ENDED)
    again = Groups(FakeClock())
    again.restore(groups.snapshot())
    again.recovered(ENDS, ENDED)
    return groups


def producer_entry(kind: int, values: object) -> bytes:
    text = json.dumps(values).encode()
    return struct.pack("<B3xI", kind, len(text)) + text


def is_typed(data: bytes) -> bool:
    """Whether restoring groups from *data* works or raises a typed error."""
    try:
        restore_groups(data)
    except Corrupt:
        return True
    except Exception as error:
        print(f"{data!r}\n{type(error).__name__}: {error}")
        return False
    return True


def test_a_group_is_restored() -> None:
    """Else the tests below would look at nothing."""
    (group,) = restore_groups(GROUP).all()
    assert [cursor.scan for cursor in group.cursors] == [0, 7]


def test_a_group_of_odd_values_is_refused_with_a_typed_error() -> None:
    """
    Every field of the document that makes a group, and every setting in it.

    Found by forging: a missing `settings` raised `KeyError`, an `Infinity` in `starts` `OverflowError`, a start of -1 `struct.error` in the
    next checkpoint.
    """
    starts = [{**MADE, "starts": [0, start]} for start in (*NUMBERS, *OTHERS, 1 << 63, 1 << 64)]
    settings = [{**MADE, "settings": values} for values in odd_values(SETTINGS)]
    forged = [ops.encode_document(ops.MADE, 1, values) for values in (*odd_values(MADE), *starts, *settings)]
    forged += [GROUP + ops.encode_document(ops.CONFIGURED, 1, values) for values in odd_values(SETTINGS)]
    assert not [data for data in forged if not is_typed(data)]


def test_producers_of_odd_values_are_refused_with_a_typed_error() -> None:
    """
    Every field of both kinds of entries.

    Found by fuzzing: a number like 1e999 raised `OverflowError`.
    """
    valid: list[tuple[int, dict[str, object]]] = [
        (1, {"id": 1, "incarnation": 2, "time_us": 3}),
        (2, {"producer": "p", "number": 4, "time_us": 5, "result": {"messages": 6}}),
    ]
    wrong = []
    for kind, values in valid:
        documents: list[object] = [*odd_values(values), *OTHERS, 7]
        for odd in documents:
            producers = Producers(FakeClock(now_us=0))
            try:
                producers.restore(producer_entry(kind, odd))
                producers.snapshot()
            except Corrupt:
                continue
            except Exception as error:
                wrong.append((odd, repr(error)))
    assert not wrong


@pytest.mark.parametrize("depth", [900, 1_000, 100_000])
def test_documents_nested_too_deep_are_refused(depth: int) -> None:
    """Found by forging: `RecursionError`."""
    text = b'{"topic_id":' + b"[" * depth + b"]" * depth + b"}"
    with pytest.raises(BadBytes):
        restore_groups(struct.pack("<BBHIII", ops.MADE, 0, 0, 1, 0, len(text)) + text)
    with pytest.raises(BadBytes):
        Producers(FakeClock()).restore(struct.pack("<B3xI", 1, len(text)) + text)


def far_offsets() -> Iterator[tuple[str, bytes]]:
    """Operations that name offsets which no log has."""
    for bits in (40, 50, 63):
        far = (1 << bits) + 5
        head = (0, 1, 0)
        leased = GROUP + ops.encode_ranges(ops.LEASED, *head, 9, 1, [(0, 3)])
        yield f"leased {bits}", GROUP + ops.encode_ranges(ops.LEASED, *head, 9, 1, [(0, far)])
        yield f"leased far {bits}", GROUP + ops.encode_ranges(ops.LEASED, *head, 9, 1, [(far, far + 1)])
        yield f"finished {bits}", GROUP + ops.encode_finished(*head, [far])[0]
        yield f"returned {bits}", leased + ops.encode_ranges(ops.RETURNED, *head, 9, 0, [(0, far)])
        yield f"failed {bits}", leased + ops.encode_failed(*head, ops.Failed(far, 0, 0, 0, 1, "x"))
        yield f"begun {bits}", leased + ops.encode_begun(*head, 9, far)
        yield f"committed {bits}", leased + ops.encode_offset(ops.COMMITTED, *head, far)
        yield f"sought {bits}", GROUP + ops.encode_offset(ops.SOUGHT, 0, 1, 1, far)
        yield f"position {bits}", GROUP + ops.encode_position(*head, far, OffsetSet([far - 1]))
        yield f"open behind the scan {bits}", GROUP + ops.encode_position(*head, 3, OffsetSet([far]))
        yield f"suspects {bits}", leased + ops.encode_bitmap(ops.SUSPECTS, *head, OffsetSet([far]))
    yield "finished to the last", GROUP + ops.encode_finished(0, 1, 0, [(1 << 64) - 1])[0]
    # pyroaring 1.0.0 and 1.0.1 end the process when they meet this one.
    bitmap = struct.pack("<QIII", 1, 0, 0x303A, 16) + bytes(160)
    yield "one key for 16 containers", GROUP + struct.pack("<BBHIII", ops.FINISHED, 0, 0, 1, 0, len(bitmap)) + bitmap
    yield "failed many", GROUP + ops.encode_failed_all(0, 1, 0, ops.Failed(0, 0, 0, 0, 1, "x"), range(1 << 28))


CHILD = """
import os, resource, sys, time
from penstock.errors import Corrupt
from tests.bad_bytes import test_layers

def carry_out(data):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (4, 4))
    began = time.process_time()
    try:
        for group in test_layers.restore_groups(data).all():
            for cursor in group.cursors:
                assert not cursor.open or cursor.open.max() < cursor.scan <= 10, "it goes on with offsets that no log has"
    except Corrupt:
        pass
    assert time.process_time() - began < 2, "it took too long"

for name, data in test_layers.far_offsets():
    if (child := os.fork()) == 0:
        try:
            carry_out(data)
        except BaseException as error:
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        print(f"{name}: killed by signal {-status}", file=sys.stderr, flush=True)
"""


def test_offsets_that_no_log_has_cost_neither_memory_nor_time() -> None:
    """
    In processes of their own with 1 GiB of memory: CRoaring does not survive it when there is no more.

    Found by forging: a lease of [0, 2^40) in 48 bytes took all the memory there was, and then the process with it.
    """
    done = subprocess.run([sys.executable, "-c", CHILD], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    wrong = [line for line in done.stderr.splitlines() if not line.startswith("group g of topic t had seen offsets")]
    assert (done.returncode, wrong) == (0, [])
