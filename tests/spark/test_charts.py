"""Charts and tables of text: well-formed, the same bytes each time, and what they show is what they were given."""

from __future__ import annotations

import datetime as dt
import xml.etree.ElementTree as ET

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.spark.pipelines.charts import SERIES_MAX, Panel, short_number, spark_line, svg_chart, text_bars
from penstock.spark.pipelines.tables import text_table

MOMENTS = [dt.datetime(2026, 11, 16, 23, 58, tzinfo=dt.UTC) + dt.timedelta(minutes=minute) for minute in range(4)]
SVG = "{http://www.w3.org/2000/svg}"


def drawn(*panels: Panel) -> ET.Element:
    return ET.fromstring(svg_chart("A <title> & more", MOMENTS, panels))


def rectangles(picture: ET.Element) -> list[tuple[str, float, float]]:
    """(colour, top, height) of the bars; they are wider than the marks of the legend."""
    found = [one.attrib for one in picture.iter(f"{SVG}rect")]
    return [
        (one["fill"], float(one["y"]), float(one["height"]))
        for one in found
        if float(one["width"]) > 20 and one["fill"] != "#ffffff"
    ]


def test_bars_stand_on_each_other_and_are_as_high_as_their_values() -> None:
    """The highest stack is 8 of an axis to 8, 150 pixels; a zero has no bar."""
    bars = rectangles(drawn(Panel("Messages", "each", {"a": [6, 0, None, 3], "b": [2, 4, 1, 3]}, "bar")))
    blue, orange = bars[0][0], bars[2][0]
    heights = [(colour, round(height / 150 * 8, 2)) for colour, _, height in bars]
    assert heights == [(blue, 6), (blue, 3), (orange, 2), (orange, 4), (orange, 1), (orange, 3)]
    first, on_top = bars[0], bars[2]
    assert abs(on_top[1] + on_top[2] - first[1]) < 0.2


def test_a_line_is_broken_where_there_is_no_value() -> None:
    """A single point is a dot."""
    picture = drawn(Panel("Latency", "ms", {"a": [1, 2, None, 4]}))
    assert [len(one.attrib["points"].split()) for one in picture.iter(f"{SVG}polyline")] == [2, 1]
    assert len(list(picture.iter(f"{SVG}circle"))) == 1


def test_names_and_times_are_written_and_too_many_series_become_one() -> None:
    """A date stands where a new one begins; markup in a name is text."""
    names = {f"<{number}>": [1, 1, 1, 1] for number in range(SERIES_MAX + 3)}
    picture = drawn(Panel("Messages", "each", names, "bar"))
    texts = [one.text for one in picture.iter(f"{SVG}text")]
    assert "A <title> & more" in texts
    assert "<0>" in texts
    assert "4 others" in texts
    assert f"<{SERIES_MAX}>" not in texts
    assert [text for text in texts if text and ":" in text] == ["2026-11-16 23:58", "23:59", "2026-11-17 00:00", "00:01"]


def test_a_chart_of_nothing_is_a_chart() -> None:
    """No rows, no series, only zeros."""
    ET.fromstring(svg_chart("x", [], [Panel("a", "b", {}), Panel("a", "b", {"c": []}, "bar")]))
    drawn(Panel("a", "b", {"c": [0, 0, None, 0]}, "bar"))


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 1e15)), min_size=4, max_size=4),
    st.sampled_from(["line", "bar"]),
    st.text(max_size=5),
)
@example([5e-324, None, 0.0, 5e-324], "bar", "")  # the smallest there is: a power of ten below it is zero
def test_any_numbers_stay_inside_the_picture(values: list[float | None], kind: str, name: str) -> None:
    """Of whatever size; and the same numbers make the same bytes."""
    panel = Panel("a", "b", {f"series {name.encode('ascii', 'ignore').decode().strip()!r}": values}, kind)
    text = svg_chart("x", MOMENTS, [panel])
    assert text == svg_chart("x", MOMENTS, [panel])
    for one in ET.fromstring(text).iter(f"{SVG}rect"):
        assert 0 <= float(one.attrib.get("y", 0)) <= 300


def test_bars_of_text_are_as_long_as_their_share() -> None:
    """To an eighth of a character."""
    assert text_bars([("a", 8), ("long", 4), ("z", 0)], width=4) == "a     ████ 8\nlong  ██   4\nz          0"
    assert text_bars([("a", 16), ("b", 1)], width=2).splitlines()[1] == "b  ▏  1"
    assert spark_line([0, 1, 4, 8]) == "▁▁▄█"
    assert [short_number(number) for number in (0, 0.25, 999, 1234, 5e6, 7e9)] == ["0", "0.25", "999", "1.234k", "5M", "7G"]


def test_a_table_of_text_shows_bytes_and_nothing_that_moves_a_cursor() -> None:
    """Numbers stand to the right."""
    table = text_table(["user", "n"], [(b"ada\xff", 5), (bytearray(b"b\x1b[2J"), None), ("x" * 300, 1.5)])
    lines = table.splitlines()
    assert [line.split("|")[1].strip() for line in lines[3:5]] == ["ada\\xff", "b\\x1b[2J"]
    assert lines[3].endswith("|   5 |")
    assert lines[4].endswith("|   - |")
    assert "x..." in lines[5]
    assert len({len(line) for line in lines}) == 1
