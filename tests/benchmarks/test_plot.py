"""The plots of the docs are those of the results that are stored, and the one command runs what it says."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest

from benchmarks import peers, plot, run, server_peers
from benchmarks.measure import at_least
from benchmarks.queue_peers import PEERS
from benchmarks.server_report import BEGIN, END, ServerRow

SPACE = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("one", plot.ALL, ids=lambda one: one.name)
def test_a_plot_is_that_of_the_results_that_are_stored(one):
    """If this fails: `make plot`."""
    assert one.is_current


@pytest.mark.parametrize("one", plot.ALL, ids=lambda one: one.name)
def test_a_plot_is_well_formed_and_shown_on_the_page(one):
    texts = [element.text for element in ET.fromstring(one.drawn()).iter(f"{SPACE}text")]
    assert "Penstock" in texts
    assert len(texts) > 20
    with open(os.path.join(plot.ROOT, "docs", "benchmarks.md"), encoding="utf-8") as page:
        assert f"](benchmarks/{one.name}.svg)" in page.read()


def test_results_that_change_make_a_plot_stale(tmp_path, monkeypatch):
    monkeypatch.setattr(plot, "RESULTS", str(tmp_path))
    monkeypatch.setattr(plot, "PLOTS", str(tmp_path))
    stored = {"rows": [ServerRow("publish-1", "a row", pairs={"redis": [(2.0, 1.0)]}).to_json()]}
    (tmp_path / "server.json").write_text(json.dumps(stored))
    monkeypatch.setattr(plot, "ALL", (plot.ALL[0],))
    assert plot.main(["--check"]) == 1
    assert plot.main([]) == 0
    assert plot.main(["--check"]) == 0
    stored["rows"][0]["pairs"]["redis"] = [[3.0, 1.0]]
    (tmp_path / "server.json").write_text(json.dumps(stored))
    assert plot.main(["--check"]) == 1


def test_measuring_for_the_docs_stores_the_results_and_makes_their_plot(tmp_path, monkeypatch):
    for folder in ("docs/benchmarks", "benchmarks/results"):
        (tmp_path / folder).mkdir(parents=True)
    page = tmp_path / "docs" / "benchmarks.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    monkeypatch.setattr(server_peers, "ROOT", str(tmp_path))
    row = ServerRow("publish-1", "a row", at_least(2), pairs={"redis": [(2.0, 1.0), (1 / 3, 0.1)]})
    server_peers.write_docs("new", {"facts": {}, "missing": {}, "rows": [row.to_json()], "profiles": {}})
    assert "new" in page.read_text()
    monkeypatch.setattr(plot, "RESULTS", str(tmp_path / "benchmarks" / "results"))
    monkeypatch.setattr(plot, "PLOTS", str(tmp_path / "docs" / "benchmarks"))
    assert plot.ALL[0].is_current


def test_a_row_comes_back_from_its_json_but_for_its_target():
    row = ServerRow("row", "a row", at_least(2), True, {"left": [(3.0, 1.0), (4.0, 2.0)]}, {"right": "gone"}, "", [100.0], 0.2)
    again = ServerRow.from_json(json.loads(json.dumps(row.to_json())))
    row.target = None
    assert again == row


def test_the_queue_is_shown_with_each_peer_that_was_measured():
    rows = [
        {"name": "os-sqlite3", "value": 2.5, "values": [2.0, 2.5, 3.0], "peer_per_second": 100.0},
        {"name": "os-huey", "value": None, "values": []},
        {"name": "publish-os", "value": 7.7, "values": [7.7]},
    ]
    drawn = ET.fromstring(plot.queue_plot({"rows": rows}))
    texts = [element.text for element in drawn.iter(f"{SPACE}text")]
    assert texts.count("250 /s") == texts.count("100 /s") == 1
    assert "2.50x the best peer; more is better" in texts
    assert plot.QUEUE_ROWS["os"] in texts
    assert plot.QUEUE_ROWS["many"] not in texts


# -- the one command ------------------------------------------------------------------------------------------------


def test_the_command_measures_the_queue_and_the_server():
    found = peers.commands(peers.parse(["--quick", "--docs", "--profile", "--directory", "/disk"]), "/results")
    assert list(found) == ["queue", "server"]
    module, *words = found["queue"]
    assert module == "benchmarks.run"
    queue = run._parse(words)
    assert (queue.quick, queue.directory, queue.json) == (True, "/disk", "/results/queue.json")
    module, *words = found["server"]
    assert module == "benchmarks.server_peers"
    server = server_peers._parse(words)
    assert (server.quick, server.directory, server.docs, server.profile) == (True, "/disk", True, True)


def test_one_of_them_can_be_chosen_and_nothing_is_stored_unless_asked():
    found = peers.commands(peers.parse(["--only", "queue", "--tiny"]), "/results")
    assert list(found) == ["queue"]
    assert "--json" not in found["queue"]
    assert "--tiny" in found["queue"]


def test_the_rows_of_the_queue_are_all_that_have_a_figure_for_each_peer():
    groups = {group.name: group.rows for group in run.GROUPS}
    measured = {row for name in peers.QUEUE_GROUPS for row in groups[name]}
    wanted = {f"{prefix}-{peer.name}" for prefix in plot.QUEUE_ROWS for peer in PEERS}
    assert {row for rows in groups.values() for row in rows} & wanted <= measured


def test_any_python_can_start_it(tmp_path):
    """Without our packages: it makes its environment first."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", os.path.join(peers.ROOT, "benchmarks", "peers.py"), "--help"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "--docs" in done.stdout
