"""`penstock serve`: a server on a store."""

from __future__ import annotations

import asyncio
import sys
import tomllib
from difflib import get_close_matches
from typing import Any

import click
from click.core import ParameterSource

from penstock.cli import log_lines, output, parameters
from penstock.errors import BadSetting
from penstock.server.last_resort import LastResort
from penstock.server.serving import GRPC_DEFAULT, HTTP_DEFAULT, NATIVE_DEFAULT, Server, ServerSettings

CONFIG_DEFAULT = "penstock.toml"
SWITCH_SECONDS = 0.0005
END_SECONDS = 20.0
"""What the end of the event loop, and that of the process, never take."""


def _load(ctx: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Let the file give the values that neither flag nor variable does."""
    chosen = path or CONFIG_DEFAULT
    try:
        with open(chosen, "rb") as file:
            document = tomllib.load(file)
    except FileNotFoundError:
        if path is None:
            return None
        raise BadSetting("config", path, "there is no such file") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting("config", chosen, f"cannot be read: {error}") from None
    known = {parameter.name for parameter in ctx.command.params} - {"config"}
    _check_file(document, chosen, {name for name in known if name is not None})
    table = document.get("serve", {})
    ctx.default_map = {**(ctx.default_map or {}), **table}
    return chosen


def _check_file(document: dict[str, Any], path: str, known: set[str]) -> None:
    """Raise `BadSetting` for what a server would not look at, and whoever wrote it believes that it does."""
    for name, value in document.items():
        if name == "serve" and isinstance(value, dict):
            continue
        what = f"[{name}]" if isinstance(value, dict) else name
        if name == "serve":
            reason = "serve is a table: write [serve], and the settings below it"
        elif (alike := _alike(name, known)) is not None:
            reason = f"there is no {what}: the setting {alike} belongs below [serve]"
        elif get_close_matches(name, ["serve"]):
            reason = f"there is no {what}; the table of a server is [serve]"
        else:
            reason = f"there is no {what}; all settings of a server stand below [serve]"
        raise BadSetting("config", path, reason)
    for name in document.get("serve", {}):
        if name not in known:
            alike = _alike(name, known)
            hint = f"did you mean {alike}?" if alike is not None else f"there are {', '.join(sorted(known))}"
            raise BadSetting("config", path, f"[serve] has no setting {name}; {hint}")


def _alike(name: str, known: set[str]) -> str | None:
    """The setting that was meant, perhaps."""
    written = name.replace("-", "_").lower()
    if written in known:
        return written
    return next(iter(get_close_matches(written, sorted(known), n=1)), None)


def _say(server: Server, settings: ServerSettings) -> None:
    output.write_line(f"Penstock serves {settings.data}")
    for name, address in server.addresses.items():
        output.write_line(f"  {name:<7} {address}")
    http = server.addresses.get("http")
    if http is not None and settings.console and not http.startswith("unix:"):
        output.write_line(f"  console {http}/console")
    if server.missing is not None:
        output.write_line(f"  no gRPC: its packages are not installed; {server.missing} brings them")
    native = server.addresses.get("native")
    if native is not None:
        output.write_line("Try it:" if settings.tokens is None else "Try it, with your token in the variable PENSTOCK_TOKEN:")
        output.write_line(f"  penstock publish {native} hello world")
        output.write_line(f"  penstock consume {native} hello --group first --count 1")
    if http is not None:
        way = f"--unix-socket {http.removeprefix('unix:')} http://localhost" if http.startswith("unix:") else http
        token = "" if settings.tokens is None else '-H "Authorization: Bearer $PENSTOCK_TOKEN" '
        output.write_line(f"  curl {token}{way}/v1/topics")
    output.write_line("Ready; Ctrl-C stops it in order.")
    output.flush()


@click.command(
    context_settings={"auto_envvar_prefix": "PENSTOCK_SERVE"},
    epilog=parameters.examples(
        "penstock serve --data data",
        "penstock serve --data data --native 127.0.0.1:7420 --no-http",
        "penstock serve --data data --native 0.0.0.0:7420 --tokens tokens.toml --tls-certificate server.pem --tls-key server.key",
    ),
)
@click.option(
    "--config", is_eager=True, callback=_load, metavar="FILE", help=f"TOML file with a table [serve]; {CONFIG_DEFAULT} if it is there."
)  # fmt: skip
@click.option("--data", required=True, metavar="DIR", help="The folder of the store; made if there is none.")
@click.option(
    "--native", default=NATIVE_DEFAULT, show_default=True, metavar="ADDRESS", help="host:port or unix:/path for the native protocol."
)  # fmt: skip
@click.option("--no-native", is_flag=True, help="Do not listen for the native protocol.")
@click.option("--grpc", default=GRPC_DEFAULT, show_default=True, metavar="ADDRESS", help="host:port or unix:/path for gRPC.")
@click.option("--no-grpc", is_flag=True, help="Do not listen for gRPC.")
@click.option(
    "--http", default=HTTP_DEFAULT, show_default=True, metavar="ADDRESS", help="host:port or unix:/path for HTTP and metrics."
)  # fmt: skip
@click.option("--no-http", is_flag=True, help="Do not listen for HTTP.")
@click.option("--no-console", is_flag=True, help="No console for browsers at /console of the HTTP address.")
@click.option("--tokens", metavar="FILE", help="TOML file of tokens and rights; read again on SIGHUP.")
@click.option("--tls-certificate", metavar="FILE", help="PEM file with the certificate and its chain.")
@click.option("--tls-key", metavar="FILE", help="PEM file with its key.")
@click.option(
    "--tls-client-ca", metavar="FILE", help="Clients must show a certificate that was signed by one in this PEM file."
)
@click.option("--allow-insecure", is_flag=True, help="Listen on a public address without tokens or TLS.")
@click.option("--no-create-topics", is_flag=True, help="Publishing makes no topics.")
@click.option("--no-measure", is_flag=True, help="Take no times of publishing, syncs and acks for the metrics.")
@click.option(
    "--log-level", type=click.Choice(log_lines.LEVELS), default="info", show_default=True, help="The least that the log on stderr tells."
)  # fmt: skip
@click.option(
    "--log-format", type=click.Choice(log_lines.FORMATS), default="text", show_default=True,
    help="text: lines for people; json: one object a line, with the fields of events.",
)  # fmt: skip
@click.option(
    "--stop-timeout", type=parameters.duration, default="10s", show_default=True, help="How long running calls may take when it stops."
)  # fmt: skip
@click.option(
    "--client-memory", type=parameters.size, default="256MiB", show_default=True,
    help="What all clients together may make it hold: unfinished requests, answers that they do not read.",
)  # fmt: skip
@click.option(
    "--frame-timeout", type=parameters.duration, default="60s", show_default=True,
    help="How long a request of the native protocol that has begun may take to arrive.",
)  # fmt: skip
@click.option(
    "--drain-timeout", type=parameters.duration, default="15s", show_default=True,
    help="How long consumers may finish what they hold when it stops, before that.",
)  # fmt: skip
def serve(
    *, config: str | None, data: str, native: str, no_native: bool, grpc: str, no_grpc: bool, http: str, no_http: bool, no_console: bool,
    tokens: str | None, tls_certificate: str | None, tls_key: str | None, tls_client_ca: str | None, allow_insecure: bool,
    no_create_topics: bool, no_measure: bool, log_level: str, log_format: str,
    stop_timeout: float, drain_timeout: float, client_memory: int, frame_timeout: float,
) -> None:  # fmt: skip
    """
    Serve a store over the network until SIGTERM or Ctrl-C.

    Each option may also be given as a variable, PENSTOCK_SERVE_DATA for --data, or in the file: flag, then variable, then file.
    """
    del config
    log_lines.write(log_level, log_format)
    # By itself it goes without gRPC where that is not installed; who asks for it is told.
    asked = click.get_current_context().get_parameter_source("grpc") is not ParameterSource.DEFAULT
    settings = ServerSettings(
        data=data, native=None if no_native else native, grpc=None if no_grpc else grpc, needs_grpc=asked,
        http=None if no_http else http, tls_certificate=tls_certificate, tls_key=tls_key, tls_client_ca=tls_client_ca, tokens=tokens,
        allow_insecure=allow_insecure, auto_create=not no_create_topics, stop_s=stop_timeout, drain_s=drain_timeout, measure=not no_measure,
        console=not no_console, client_memory_bytes=client_memory, frame_s=frame_timeout,
    )  # fmt: skip
    _run(settings)


def _run(settings: ServerSettings) -> None:
    last_resort = LastResort()

    async def main() -> None:
        server = Server(settings)
        last_resort.watch_tasks_of(asyncio.get_running_loop())
        server.last_resort = last_resort
        await server.run(lambda server: _say(server, settings))
        last_resort.expect("ending the event loop", END_SECONDS)

    # Two threads take turns for each publish, the loop and the one that commits; Python's 5 ms are as long as many syncs.
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())
    # What is left is the end of the interpreter, which waits for threads that are not ours.
    last_resort.expect("ending the process", END_SECONDS)


def _loop_factory() -> Any:
    """The quicker event loop, where it is installed."""
    try:
        import uvloop  # type: ignore[import-not-found]
    except ImportError:
        return None
    return uvloop.new_event_loop
