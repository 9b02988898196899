"""Pipeline files: what is right becomes a plan, and what is wrong is told with its place, before a Java could start."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING

import pytest

from penstock.errors import BadPipeline
from penstock.spark.pipelines.declared import keys
from penstock.spark.pipelines.declared.lines import Lines
from penstock.spark.pipelines.declared.plan import FILE_BYTES_MAX, Watermark, read_plan
from tests.docs.pages import ROOT, blocks, rows

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.spark.pipelines.declared.plan import Plan

GOOD = """\
[pipeline]
name = "dear-orders"
store = "data"
checkpoint = "checkpoint"

[sources.orders]
kind = "topic"
topic = "orders"

[steps.dear]
from = "orders"
sql = '''
select key, value from orders
where cast(cast(value as string) as int) >= 50
'''

[sinks.out]
kind = "topic"
from = "dear"
topic = "dear-orders"
"""


def plan_of(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "pipeline.toml"
    file.write_text(text)
    return read_plan(str(file))


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(BadPipeline) as caught:
        plan_of(tmp_path, text)
    return caught.value.problems.splitlines()


def test_a_small_file_is_a_plan_with_its_defaults(tmp_path: Path) -> None:
    """Paths are seen from the file; a source begins at the earliest message, and the pipeline ends when it has read all."""
    plan = plan_of(tmp_path, GOOD)
    assert (plan.name, plan.trigger, plan.interval_ms, plan.master) == ("dear-orders", "available-now", None, None)
    [source] = plan.sources
    assert source.options == {"subscribe": "orders", "startingOffsets": "earliest", "store": str(tmp_path / "data")}
    [step] = plan.steps
    assert (step.inputs, step.line) == (("orders",), 12)
    [sink] = plan.sinks
    assert sink.options == {"topic": "dear-orders", "store": str(tmp_path / "data")}
    assert sink.checkpoint == str(tmp_path / "checkpoint" / "out")


def test_every_key_is_understood(tmp_path: Path) -> None:
    """A file with all keys of all tables; that it has all of them is checked too."""
    (tmp_path / "users").mkdir()
    (tmp_path / "arrivals").mkdir()
    (tmp_path / "every_key_steps.py").write_text("def join(dear, users):\n    return dear\n")
    text = """\
        [pipeline]
        name = "all"
        store = "penstock://host:7420"
        checkpoint = "/tmp/checkpoint"
        trigger = "90s"
        [spark]
        master = "local[2]"
        settings = { "spark.sql.shuffle.partitions" = "2" }
        [sources.orders]
        kind = "topic"
        topic = ["orders", "returns"]
        store = "data"
        start = 2026-01-31T08:00:00Z
        max_per_batch = 1000
        headers = true
        watermark = { column = "timestamp", delay = "10 minutes" }
        options = { failOnDataLoss = "false" }
        [sources.later]
        kind = "topic"
        pattern = "orders-.*"
        start = "latest"
        [sources.users]
        kind = "parquet"
        path = "users"
        [sources.arrivals]
        kind = "parquet"
        path = "arrivals"
        stream = true
        max_files_per_batch = 3
        watermark = { column = "at", delay = "1 hour" }
        [steps.dear]
        from = "orders"
        sql = "select * from orders"
        [steps.joined]
        from = ["dear", "users"]
        function = "every_key_steps:join"
        [sinks.out]
        kind = "topic"
        from = "joined"
        topic = "out"
        store = "other"
        options = { retryTimeoutMs = "1000" }
        [sinks.lake]
        kind = "parquet"
        from = "arrivals"
        path = "s3a://lake/arrivals"
        partition_by = ["date"]
        [sinks.screen]
        kind = "console"
        from = "later"
        mode = "update"
        rows = 5
    """
    plan = plan_of(tmp_path, textwrap.dedent(text))
    used = set(re.findall(r"^ *(\w+) =", text, re.MULTILINE))
    assert used == {key.name for table in keys.TABLES for key in table.keys}
    orders, later, users, arrivals = plan.sources
    assert orders.options == {
        "failOnDataLoss": "false", "subscribe": "orders,returns", "startingTimestamp": "1769846400000", "maxOffsetsPerTrigger": "1000",
        "startingOffsetsByTimestampStrategy": "latest", "includeHeaders": "true", "store": str(tmp_path / "data"),
    }  # fmt: skip
    assert orders.watermark == Watermark("timestamp", "10 minutes")
    assert later.options["subscribePattern"] == "orders-.*"
    assert (users.stream, arrivals.stream, arrivals.options) == (False, True, {"maxFilesPerTrigger": "3"})
    assert plan.steps[1].function is not None
    assert plan.steps[1].module is not None
    assert plan.steps[1].module.__file__ == str(tmp_path / "every_key_steps.py")
    out, lake, screen = plan.sinks
    assert out.options == {"retryTimeoutMs": "1000", "topic": "out", "store": str(tmp_path / "other")}
    assert (lake.path, lake.partition_by, lake.checkpoint) == ("s3a://lake/arrivals", ("date",), "/tmp/checkpoint/lake")
    assert (screen.mode, screen.options["rows"]) == ("update", "5")
    assert (plan.trigger, plan.interval_ms, plan.master) == ("interval", 90_000, "local[2]")


def replaced(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


BAD = {
    "no TOML": (replaced('store = "data"', "store = data"), r"is no TOML: .*line 3"),
    "an unknown table": (GOOD + "[source.x]\n", r"line 21: \[source\]: there is no such table; did you mean sources\?"),
    "no [pipeline]": (GOOD.partition("\n\n")[2], r"\[pipeline\]: is missing"),
    "no name": (replaced('name = "dear-orders"\n', ""), r"line 1: \[pipeline\] name: is missing"),
    "a bad name": (replaced('"dear-orders"', '"a b"'), r"line 2: \[pipeline\] name: use 1 to 196 of A-Z"),
    "no checkpoint": (
        replaced('checkpoint = "checkpoint"\n', ""),
        r"line 1: \[pipeline\] checkpoint: is missing: the folder where",
    ),
    "no store": (
        replaced('store = "data"\n', ""),
        r"line 5: \[sources\.orders\] store: is missing: give it here or in \[pipeline\]",
    ),
    "a store in memory": (replaced('"data"', '"memory:"'), r"\[sources\.orders\] store: 'memory:': a store in memory"),
    "a URL that is none": (replaced('"data"', '"http://host"'), r"\[sources\.orders\] store: .*penstock://"),
    "an unknown key": (
        replaced('topic = "orders"', 'topik = "orders"'),
        r"line 8: \[sources\.orders\] topik: there is no such key; did you mean topic\?",
    ),
    "a key of another kind": (
        replaced('topic = "orders"', 'topic = "orders"\nstream = true'),
        r"line 9: \[sources\.orders\] stream: there is no such key",
    ),
    "a wrong type": (
        replaced('topic = "orders"', "topic = 7"),
        r"line 8: \[sources\.orders\] topic: must be a text or list of texts, not 7",
    ),
    "a list of numbers": (
        replaced('topic = "orders"', "topic = [1]"),
        r"line 8: \[sources\.orders\] topic: must be a text or list",
    ),
    "an empty list": (replaced('topic = "orders"', "topic = []"), r"line 8: \[sources\.orders\] topic: give a name, or a list"),
    "a flag as a number": (
        replaced('topic = "orders"', 'topic = "orders"\nheaders = 1'),
        r"line 9: .* headers: must be true or false, not 1",
    ),
    "a number as a flag": (
        replaced('topic = "orders"', 'topic = "orders"\nmax_per_batch = true'),
        r"line 9: .* max_per_batch: must be a number, not True",
    ),
    "a number too low": (
        replaced('topic = "orders"', 'topic = "orders"\nmax_per_batch = 0'),
        r"line 9: .* max_per_batch: must be from 1 to",
    ),
    "a bad topic": (
        replaced('topic = "orders"', 'topic = "../etc"'),
        r"line 8: \[sources\.orders\] topic: '\.\./etc': .* is no name of a topic",
    ),
    "a topic and a pattern": (
        replaced('topic = "orders"', 'topic = "orders"\npattern = "o.*"'),
        r"line 6: \[sources\.orders\]: give exactly one of topic and pattern",
    ),
    "a bad pattern": (
        replaced('topic = "orders"', 'pattern = "("'),
        r"line 8: \[sources\.orders\] pattern: '\(': is no regular expression",
    ),
    "a bad start": (
        replaced('topic = "orders"', 'topic = "orders"\nstart = "soon"'),
        r'line 9: .* start: use "earliest", "latest", or a time',
    ),
    "a start without a zone": (
        replaced('topic = "orders"', 'topic = "orders"\nstart = 2026-01-31T08:00:00'),
        r"line 9: .* start: .*with its zone",
    ),
    "an unknown option": (
        replaced('topic = "orders"', 'topic = "orders"\noptions = { faleOnDataLoss = "true" }'),
        r"line 9: .* options\.faleondataloss: 'true': there is no such option; did you mean failOnDataLoss\?",
    ),
    "an option with a key": (
        replaced('topic = "orders"', 'topic = "orders"\noptions = { subscribe = "a" }'),
        r"line 9: .* options\.subscribe: has a key of its own: use topic",
    ),
    "an option that is no text": (
        replaced('topic = "orders"', 'topic = "orders"\noptions = { minPartitions = 3 }'),
        r"line 9: .* options\.minPartitions: must be a text, in quotes, not 3",
    ),
    "a bad watermark": (
        replaced('topic = "orders"', 'topic = "orders"\nwatermark = { column = "timestamp" }'),
        r"line 9: .* watermark: must be as \{ column",
    ),
    "a bad delay": (
        replaced('topic = "orders"', 'topic = "orders"\nwatermark = { column = "timestamp", delay = "soon" }'),
        r"line 9: .* watermark: 'soon' is no delay",
    ),
    "an unknown kind": (
        replaced('kind = "topic"', 'kind = "table"'),
        r'line 7: \[sources\.orders\] kind: use "topic" or "parquet"',
    ),
    "a kind that is no text": (
        replaced('kind = "topic"', 'kind = ["topic"]'),
        r'line 7: \[sources\.orders\] kind: use "topic" or "parquet"',
    ),
    "no kind": (replaced('kind = "topic"\n', ""), r'line 6: \[sources\.orders\] kind: is missing: use "topic" or "parquet"'),
    "a name that SQL has not": (
        GOOD.replace("[sources.orders]", "[sources.my-orders]"),
        r"line 6: \[sources\.my-orders\]: 'my-orders' is no name",
    ),
    "sources that are no tables": (GOOD + "[sources]\nx = 1\n", r"line 6: \[sources\]: must be tables with names"),
    "no sources": (re.sub(r"(?s)\[sources.*?\n\n", "", GOOD), r"\[sources\]: is missing: a pipeline needs at least one"),
    "no sinks": (GOOD.partition("[sinks")[0], r"\[sinks\]: is missing: a pipeline needs at least one"),
    "a folder that is not there": (
        replaced('kind = "topic"\ntopic = "orders"', 'kind = "parquet"\npath = "nowhere"'),
        r"line 8: \[sources\.orders\] path: there is no folder /.*nowhere",
    ),
    "files per batch of a table": (
        replaced('kind = "topic"\ntopic = "orders"', 'kind = "parquet"\npath = "."\nmax_files_per_batch = 1'),
        r"line 9: .* max_files_per_batch: is for streams",
    ),
    "a sink of no stream": (
        replaced('kind = "topic"\ntopic = "orders"', 'kind = "parquet"\npath = "."'),
        r"\[sinks\.out\] from: 'dear' is no stream",
    ),
    "a step of nothing": (replaced('from = "orders"', "from = []"), r"line 11: \[steps\.dear\] from: name at least one"),
    "a step of something unknown": (
        replaced('from = "orders"', 'from = "order"'),
        r"line 11: \[steps\.dear\] from: there is no source or step 'order' above; did you mean orders\?",
    ),
    "a step of a later step": (
        replaced('from = "orders"', 'from = "last"') + '[steps.last]\nfrom = "orders"\nsql = "x"\n',
        r"line 11: \[steps\.dear\] from: there is no source or step 'last' above: it stands below",
    ),
    "a step with a source's name": (
        GOOD.replace("[steps.dear]", "[steps.orders]").replace('"dear"', '"orders"'),
        r"line 10: \[steps\.orders\]: has the name of a source",
    ),
    "SQL and a function": (
        replaced('from = "orders"', 'from = "orders"\nfunction = "os:getcwd"'),
        r"line 10: \[steps\.dear\]: give exactly one of sql and function",
    ),
    "empty SQL": (re.sub(r"(?s)sql = '''.*'''", 'sql = " "', GOOD), r"line 12: \[steps\.dear\] sql: is empty"),
    "a function that is none": (
        re.sub(r"(?s)sql = '''.*'''", 'function = "os.getcwd"', GOOD),
        r'line 12: \[steps\.dear\] function: .* must be "module:function"',
    ),
    "a module that is none": (
        re.sub(r"(?s)sql = '''.*'''", 'function = "no_such_module:go"', GOOD),
        r"line 12: .* function: module 'no_such_module' cannot be imported: ModuleNotFoundError",
    ),
    "a function that is not there": (
        re.sub(r"(?s)sql = '''.*'''", 'function = "os:no_such"', GOOD),
        r"line 12: .* function: module 'os' has no function 'no_such'",
    ),
    "a sink of something unknown": (
        replaced('from = "dear"', 'from = "deer"'),
        r"line 19: \[sinks\.out\] from: there is no source or step 'deer' above; did you mean dear\?",
    ),
    "a sink of two": (replaced('from = "dear"', 'from = ["dear"]'), r"line 19: \[sinks\.out\] from: must be a text, not"),
    "a bad topic of a sink": (
        replaced('topic = "dear-orders"', 'topic = "a b"'),
        r"line 20: \[sinks\.out\] topic: 'a b': is no name of a topic",
    ),
    "a transaction of a stream": (
        GOOD + 'options = { txnAppId = "a", txnVersion = "1" }\n',
        r"line 21: \[sinks\.out\] options\.txnAppId: 'a': a stream numbers its batches itself",
    ),
    "a sink that is read": (
        replaced('topic = "dear-orders"', 'topic = "orders"'),
        r"line 20: \[sinks\.out\] topic: source 'orders' reads it",
    ),
    "a sink that is matched": (
        replaced('topic = "orders"', 'pattern = ".*orders"'),
        r"line 20: \[sinks\.out\] topic: source 'orders' reads it",
    ),
    "a bad mode": (
        replaced('kind = "topic"\nfrom = "dear"\ntopic = "dear-orders"', 'kind = "console"\nfrom = "dear"\nmode = "all"'),
        r'line 20: \[sinks\.out\] mode: use "append", "update" or "complete", not \'all\'',
    ),
    "a bad trigger": (
        replaced('store = "data"', 'store = "data"\ntrigger = "often"'),
        r'line 4: \[pipeline\] trigger: use "available-now", "once", or an interval',
    ),
    "a setting that is no text": (GOOD + "[spark]\nsettings = { a = 1 }\n", r"line 22: \[spark\] settings\.a: must be a text"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_told_with_its_line_and_what_is_allowed(case: str, tmp_path: Path) -> None:
    """One problem in a good file is told once, at its place."""
    text, expected = BAD[case]
    told = problems(tmp_path, text)
    assert any(re.search(expected, one) for one in told), told


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    """A person mends them in one go."""
    text = (
        GOOD.replace('store = "data"', 'trigger = "often"').replace('topic = "orders"', "topic = 7").replace('"dear"', '"deer"')
    )
    told = problems(tmp_path, text)
    places = [re.match(r"line \d+: \[[a-z.]+\] [a-z]+", one) for one in told]
    assert [place and place[0] for place in places] == [
        "line 3: [pipeline] trigger",
        "line 8: [sources.orders] topic",
        "line 6: [sources.orders] store",
        "line 19: [sinks.out] from",
        "line 17: [sinks.out] store",
    ]


def test_a_function_that_takes_too_few_is_refused(tmp_path: Path) -> None:
    """It would fail when Spark has long been started."""
    (tmp_path / "few_arguments.py").write_text("def one(frame):\n    return frame\n")
    step = re.sub(r"(?s)sql = '''.*'''", 'function = "few_arguments:one"', GOOD)
    assert plan_of(tmp_path, step).steps[0].function is not None
    two = step.replace('from = "orders"', 'from = ["orders", "orders"]')
    [told] = problems(tmp_path, two)
    assert "line 12: [steps.dear] function: few_arguments:one cannot be called with the 2 DataFrames" in told


def test_a_module_that_fails_is_told_and_not_raised(tmp_path: Path) -> None:
    """Whatever it raises."""
    (tmp_path / "failing_module.py").write_text("1 / 0\n")
    [told] = problems(tmp_path, re.sub(r"(?s)sql = '''.*'''", 'function = "failing_module:one"', GOOD))
    assert "cannot be imported: ZeroDivisionError: division by zero" in told


def test_what_is_no_text_and_what_is_too_long_is_refused(tmp_path: Path) -> None:
    """A file may be anything."""
    file = tmp_path / "pipeline.toml"
    for data, expected in (
        (b"\xff", "no UTF-8"),
        (b"#" * (FILE_BYTES_MAX + 1), "more than"),
        (b"a = " + b"[" * 5_000, "is no TOML"),
    ):
        file.write_bytes(data)
        with pytest.raises(BadPipeline, match=expected):
            read_plan(str(file))


def test_lines_are_those_of_keys_and_never_of_texts() -> None:
    """Strings and lists over several lines, comments and quotes do not lead astray."""
    text = """\
a = '''
[not.a.table]
b = 1
'''
c = [
  "d = 1", # ] a comment
  { e = 2 },
] # "
["quoted name".x]
'f' = \"\"\"
g = \\\"\"\" 1
\"\"\"
h.i = 1
[[many]]
j = "#"
[ spaced . out ] # comment
k = 2026-01-31 08:00:00Z"""
    lines = Lines(text)
    found = {
        path: lines.of(path)
        for path in [("a",), ("c",), ("quoted name", "x", "f"), ("quoted name", "x", "h", "i"), ("many", "j")]
    }
    assert list(found.values()) == [1, 5, 10, 13, 15]
    assert lines.of(("spaced", "out", "k")) == 17
    assert lines.of(("b",)) is None
    assert lines.of(("c", "e")) == 5
    assert lines.of(("quoted name", "x", "g")) == 9


def test_a_bad_file_is_refused_without_pyspark(tmp_path: Path) -> None:
    """Where PySpark is not even there, a file is checked; so no Java can have been started for it."""
    file = tmp_path / "pipeline.toml"
    file.write_text(GOOD.replace('kind = "topic"', 'kind = "table"'))
    program = """
import sys
sys.modules["pyspark"] = None
from penstock.errors import BadPipeline
from penstock.spark.pipelines.declared.plan import read_plan
try:
    read_plan(sys.argv[1])
except BadPipeline as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert f'{file}: line 7: [sources.orders] kind: use "topic" or "parquet"' in done.stdout


PAGE = (ROOT / "docs" / "reference" / "pipeline-file.md").read_text()


def test_every_key_is_documented_and_none_is_unknown() -> None:
    """The tables of the page are the tables of the code."""
    parts = re.split(r"^### (.*)$", PAGE, flags=re.MULTILINE)
    sections = {title.replace("`", ""): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}
    assert list(sections) == [table.title for table in keys.TABLES]
    for table in keys.TABLES:
        section = sections[table.title]
        assert table.help in section
        assert rows(section, "key") == [[f"`{key.name}`", key.takes, key.default, key.help] for key in table.keys]


def test_the_examples_of_the_page_are_good_files(tmp_path: Path) -> None:
    """As a reader would copy them."""
    examples = blocks(PAGE, "toml")
    assert examples
    (tmp_path / "users").mkdir()
    (tmp_path / "shop.py").write_text("def with_names(orders, users):\n    return orders\n")
    for example in examples:
        plan_of(tmp_path, example)
