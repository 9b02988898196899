"""The byte layouts in the documents are those above the codecs."""

from __future__ import annotations

import re

import pytest

from penstock.format import batch_header, checkpoint, frame, index, segment, stage
from penstock.groups import hands
from penstock.groups.registry import GROUPS_OWNER
from penstock.log import positions
from penstock.topics.producers import PRODUCERS_OWNER
from penstock.wire.calls import Call
from tests.docs.pages import ROOT, blocks, drawings

PAGE = (ROOT / "docs" / "file-format.md").read_text()
PROTOCOL = (ROOT / "docs" / "protocol.md").read_text()


def _page_of(place: str) -> str:
    return PROTOCOL if place.startswith("wire/") else PAGE


@pytest.mark.parametrize("place", drawings())
def test_each_layout_above_a_codec_is_drawn_in_the_documents(place: str) -> None:
    """Who changes the drawing above a codec changes docs/file-format.md or docs/protocol.md too: the lines are the same."""
    assert drawings()[place] in blocks(_page_of(place), "layout"), f"{place} is drawn differently in the documents"


@pytest.mark.parametrize("page", [PAGE, PROTOCOL], ids=["file format", "protocol"])
def test_no_layout_is_drawn_that_no_codec_has(page: str) -> None:
    """A drawing that the code has left behind is taken out of the page."""
    drawn = [drawing for place, drawing in drawings().items() if _page_of(place) is page]
    assert sorted(blocks(page, "layout")) == sorted(drawn)


def test_every_call_of_the_protocol_is_on_its_page() -> None:
    """By number and name; and none that the code does not have."""
    listed = {(int(number), name) for number, name in re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", PROTOCOL, re.MULTILINE)}
    assert listed == {(call.value, call.name) for call in Call}


def test_every_codec_has_a_drawing() -> None:
    """Each kind of file and each unit inside one is drawn above its codec."""
    drawn = {place.partition(":")[0] for place in drawings()}
    names = {"batch_header", "columns", "state", "segment", "index", "frame", "checkpoint", "stage"}
    others = {"log/positions.py", "groups/hands.py", "groups/operations.py", "topics/producers.py"}
    assert drawn >= {*[f"format/{name}.py" for name in names], *others}


def test_every_magic_is_in_the_drawings() -> None:
    """The first bytes of each kind of file stand on the page as they are in the code."""
    magics = {
        batch_header.MAGIC, checkpoint.CHECKPOINT_MAGIC, frame.JOURNAL_MAGIC, frame.FRAME_MAGIC, index.INDEX_MAGIC,
        segment.SEGMENT_MAGIC, segment.FOOTER_MAGIC, positions.MAGIC.to_bytes(8, "little"), hands.MAGIC.to_bytes(8, "little"),
        stage.STAGE_MAGIC, stage._FOOTER_MAGIC,
    }  # fmt: skip
    assert {magic.decode() for magic in magics} == set(re.findall(r'"([A-Z0-9]{4,8})"', "".join(blocks(PAGE, "layout"))))


def test_the_owners_of_entries_and_sections_are_on_the_page() -> None:
    """Each layer above has a number, which is never used for another one."""
    assert f"{GROUPS_OWNER} is the [groups](#groups), {PRODUCERS_OWNER} the [producers](#producers)" in PAGE
