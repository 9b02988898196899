"""`penstock version` and `penstock completion`."""

from __future__ import annotations

import importlib.metadata
import platform

import click
from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

from penstock.cli import output, parameters
from penstock.volume.identity import FORMAT_VERSION

_SHELLS: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command()
@parameters.json_output
def version(*, as_json: bool) -> None:
    """Print the version of Penstock, of its file format and of Python."""
    found = {
        "penstock": importlib.metadata.version("penstock"),
        "format": FORMAT_VERSION,
        "python": platform.python_version(),
    }
    if as_json:
        output.write_json(found)
    else:
        output.write_details(list(found.items()))


@click.command(
    epilog=parameters.examples(
        "penstock completion bash > ~/.local/share/bash-completion/completions/penstock",
        "penstock completion zsh > ~/.zfunc/_penstock        # with fpath+=~/.zfunc before compinit",
        "penstock completion fish > ~/.config/fish/completions/penstock.fish",
    )
)
@click.argument("shell", type=click.Choice(list(_SHELLS)))
@click.pass_context
def completion(ctx: click.Context, *, shell: str) -> None:
    """Print the script that lets a shell complete commands, options and topics."""
    kind = _SHELLS[shell]
    script = kind(ctx.find_root().command, {}, "penstock", "_PENSTOCK_COMPLETE")
    # Not `source()`: that of bash starts a bash to ask its version.
    output.write_line(kind.source_template % script.source_vars())
