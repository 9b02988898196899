"""What can be said about the comparison of servers without starting one."""

import json
import xml.etree.ElementTree as ET

import pytest

from benchmarks import server_clients, server_peers, server_systems
from benchmarks.measure import at_least, at_most
from benchmarks.server_peers import GROUPS, TINY, TITLES, ClientError, Group, Side, measure, report, whole_batches
from benchmarks.server_report import BEGIN, END, ServerRow, markdown_table, percentile, replace_block, svg_plot
from benchmarks.server_systems import OURS, PEERS

SERVERS = {"ours": "Ours", "left": "Left", "right": "Right"}


def a_row(**fields):
    pairs = {"left": [(30.0, 10.0), (40.0, 10.0), (20.0, 10.0)], "right": [(30.0, 20.0), (30.0, 15.0), (30.0, 20.0)]}
    return ServerRow("row", "a row", at_least(1.5), pairs=pairs, bare=[100.0, 120.0], **fields)


def test_a_row_is_compared_with_the_peer_that_did_best_turn_by_turn():
    row = a_row()
    assert (row.ours, row.theirs("left"), row.theirs("right")) == (30.0, 10.0, 20.0)
    assert row.best == "right"
    assert row.ratios == [1.5, 2.0, 1.5]
    assert (row.ratio, row.verdict) == (1.5, "pass")


def test_where_less_is_better_the_best_peer_is_the_one_with_the_least():
    row = a_row(is_time=True)
    row.target = at_most(1)
    assert (row.best, row.ratio, row.verdict) == ("left", 3.0, "miss")


def test_a_row_with_nothing_to_compare_with_has_no_verdict():
    row = ServerRow("row", "a row", at_least(2))
    assert (row.ours, row.best, row.ratio, row.verdict) == (None, None, None, "info")


@pytest.mark.parametrize(("bare", "others", "noisy"), [([100, 159], 0.0, False), ([100, 161], 0.0, True), ([100], 0.4, True)])
def test_a_row_is_noisy_when_the_disk_moved_or_others_worked(bare, others, noisy):
    assert ServerRow("row", "a row", bare=bare, others=others).is_noisy is noisy


def test_a_percentile_is_a_value_that_was_seen():
    values = [float(number) for number in range(100, 0, -1)]
    assert [percentile(values, percent) for percent in (0, 1, 50, 99, 100)] == [1.0, 1.0, 50.0, 99.0, 100.0]
    assert percentile([7.0], 99) == 7.0


def test_the_table_names_what_is_missing_and_why():
    row = a_row(failed={"left": "it broke"})
    del row.pairs["left"]
    text = markdown_table([row], {**SERVERS, "gone": "Gone"}, {"gone": "no such package"})
    cells = [cell.strip() for cell in text.splitlines()[2].strip("|").split("|")]
    assert cells[:5] == ["a row", "30 /s", "error", "20 /s", "missing"]
    assert cells[5:9] == ["1.50x Right", "1.50..2.00", ">= 1.5x", "pass"]
    assert "Gone is missing: no such package." in text
    assert "a row, Left: it broke" in text


def test_an_error_of_ours_is_told_and_is_no_figure():
    row = ServerRow("row", "a row", at_least(2), error="no answer")
    text = markdown_table([row], SERVERS, {})
    assert row.verdict == "error"
    assert "| a row | error |" in text
    assert "a row, Ours: no answer" in text


def test_the_plot_is_well_formed_and_has_a_bar_for_each_figure():
    row = a_row()
    row.title = "a <b> & c"
    plot = ET.fromstring(svg_plot([row, ServerRow("empty", "empty")], SERVERS))
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in plot.iter(f"{space}text")]
    assert "a <b> & c" in texts
    assert "empty" not in texts
    bars = [element for element in plot.iter(f"{space}rect") if element.get("height") == "12"]
    widths = [float(bar.get("width", "0")) for bar in bars]
    # 30, 10 and 20 of at most 30.
    assert [round(width / widths[0], 2) for width in widths] == [1.0, 0.33, 0.67]


def test_only_what_stands_between_the_marks_of_the_page_is_replaced():
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"
    assert replace_block(page, "new") == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replace_block(replace_block(page, "other"), "new") == replace_block(page, "new")
    with pytest.raises(ValueError, match="begin"):
        replace_block("no marks", "new")


def test_the_page_has_the_marks():
    with open(f"{server_peers.ROOT}/docs/benchmarks.md", encoding="utf-8") as file:
        assert "new" in replace_block(file.read(), "new")


def test_a_turn_takes_whole_batches():
    assert [whole_batches(count, 5_000) for count in (0, 999, 1_999, 2_000, 1e9)] == [1_000, 1_000, 1_000, 2_000, 5_000]


def sides_that_take_turns(turns):
    systems = [OURS, *PEERS[:2]]

    def turn(side, amount):
        turns.append(side.system.name)
        if side.system.name == "redis":
            raise ClientError("it hung up")
        return [2.0 if side.system is OURS else 1.0]

    group = Group("one", (("one", "one", at_least(2)),), turn)
    return group, [Side(system, None, []) for system in systems]  # type: ignore[arg-type]


def test_ours_takes_turns_with_each_peer_and_a_peer_that_fails_is_left_out():
    turns: list[str] = []
    group, (ours, *peers) = sides_that_take_turns(turns)
    (row,) = measure(group, ours, peers, TINY._replace(repeats=2), lambda: 100.0)
    # The repeat that does not count first; who begins changes.
    assert turns == ["penstock", "redis", "penstock", "nats", "nats", "penstock", "penstock", "nats"]
    assert row.pairs == {"nats": [(2.0, 1.0), (2.0, 1.0)]}
    assert row.failed == {"redis": "it hung up"}
    assert (row.bare, row.verdict) == ([100.0, 100.0], "pass")


def test_every_target_of_the_issue_has_a_row():
    targets = {name: str(target) for group in GROUPS for name, _, target in group.rows if target is not None}
    assert targets == {
        "publish-1": ">= 1.2x", "publish-16": ">= 1.5x", "publish-128": ">= 2x", "many": ">= 3x", "consume": ">= 2x",
        "latency-p99": "<= 1x",
    }  # fmt: skip


def test_every_server_has_a_client():
    assert set(server_clients.CLIENTS) == {system.name for system in server_systems.SYSTEMS} == set(TITLES)


def test_a_client_library_that_is_not_installed_makes_a_peer_missing():
    gone = PEERS[0]._replace(modules=("there_is_no_such_client",))
    assert "there_is_no_such_client cannot be imported" in gone.missing


def test_a_server_that_cannot_be_installed_is_missing_with_the_reason(monkeypatch):
    monkeypatch.setattr("benchmarks.server_systems.os.geteuid", lambda: 1000)
    monkeypatch.setattr(
        "benchmarks.server_systems.shutil.which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None
    )
    gone = PEERS[0]._replace(modules=(), program=lambda: None)
    assert gone.missing == "needs the Debian package redis-server, and only root may install it"


def test_the_report_says_what_share_of_the_disk_one_client_reached():
    row = a_row()
    row.name, row.pairs, row.bare = "publish-1", {"redis": [(30.0, 10.0)]}, [60.0]
    text = report([row], {"cores": "2"}, {"nats": "gone"}, {"publish-1": "a profile"}, 3.0)
    assert "ours reached 0.50 of it" in text
    assert "1 targets met, 0 missed; 0 of 1 rows are noisy" in text
    assert "a profile" in text
    assert json.loads(json.dumps(row.to_json()))["ratio"] == 3.0


def test_a_message_says_when_it_was_due(monkeypatch):
    monkeypatch.setattr("benchmarks.server_clients.time.monotonic_ns", lambda: 5_000_000)
    message = server_clients.stamped(3_000_000)
    assert (len(message), server_clients.age_us(message)) == (100, 2_000.0)
    first, second, third = server_clients.pace(500.0, 3)
    assert (second - first, third - second) == (2_000_000, 2_000_000)


def test_an_error_in_one_of_many_clients_is_not_taken_for_a_rate():
    def broken():
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        server_clients.run_threads([broken] * 4, 0.5)


@pytest.mark.parametrize(
    "answer",
    [[[b"s", [[b"1-0", [b"v", b"x"]]]]], [[b"s", [(b"1-0", {b"v": b"x"})]]], {b"s": [[(b"1-0", {b"v": b"x"})]]}],
)
def test_the_entries_of_a_stream_are_found_in_every_shape_that_redis_py_gives(answer):
    assert [entry[0] for entry in server_clients._entries(answer)] == [b"1-0"]
    assert server_clients._entries(None) == []
