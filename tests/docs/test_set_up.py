"""The steps of docs/operations.md, as they are printed: but for names of machines and files, they are carried out."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from penstock.server.auth import new_token
from tests.cli.conftest import SCRIPT
from tests.cli.serving import PATIENCE_S, serving
from tests.docs.pages import ROOT
from tests.server.test_listening import Authority


def blocks(kind: str) -> list[str]:
    text = (ROOT / "docs" / "operations.md").read_text().split("## Set it up")[1].split("## Copies")[0]
    return [
        re.sub(r"^   ", "", found, flags=re.MULTILINE) for found in re.findall(rf"   ```{kind}\n(.*?)   ```", text, re.DOTALL)
    ]


@pytest.mark.long
def test_the_steps_lead_to_a_server_that_takes_the_message(tmp_path: Path) -> None:
    tokens, config = blocks("toml")
    _, commands = blocks("sh")
    secrets: list[str] = []

    def replace(_: re.Match[str]) -> str:
        secret, digest = new_token()
        secrets.append(secret)
        return f'sha256 = "{digest}"'

    (tmp_path / "tokens.toml").write_text(re.sub(r'sha256 = "[0-9a-f]{64}"', replace, tokens))
    assert [token["name"] for token in tomllib.loads(tokens)["token"]] == ["shop", "operator"]
    ours = Authority(tmp_path, "ca")
    certificate, key = ours.sign("server")
    for name, path in {
        "/var/lib/penstock": tmp_path / "data", "0.0.0.0:7420": "127.0.0.1:0", "0.0.0.0:7422": "127.0.0.1:0",
        "/etc/penstock/tokens.toml": tmp_path / "tokens.toml", "/etc/penstock/server.pem": certificate, "/etc/penstock/server.key": key,
    }.items():  # fmt: skip
        assert name in config
        config = config.replace(name, str(path))
    (tmp_path / "penstock.toml").write_text(config)
    with serving("--config", str(tmp_path / "penstock.toml"), environment={"PENSTOCK_SERVE_NO_GRPC": "1"}) as server:
        ports = [server.address(name).rpartition(":")[2] for name in ("native", "http")]
        commands = commands.replace("queue.example:7420", f"localhost:{ports[0]}").replace(
            "queue.example:7422", f"localhost:{ports[1]}"
        )
        done = subprocess.run(
            ["bash", "-ec", commands],
            cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
            env={
                **os.environ, "PATH": f"{Path(SCRIPT).parent}:{os.environ['PATH']}", "PENSTOCK_TOKEN": secrets[0],
                "OPERATOR_TOKEN": secrets[1],
            },
        )  # fmt: skip
        assert done.returncode == 0, done.stderr + done.stdout
        assert '"orders"' in done.stdout, "curl lists it"
