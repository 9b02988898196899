"""`penstock serve`: a server on a store."""

from __future__ import annotations

import asyncio
import logging
import sys
import tomllib
from typing import Any

import click
from click.core import ParameterSource

from penstock.cli import output, parameters
from penstock.errors import BadSetting
from penstock.server.serving import GRPC_DEFAULT, HTTP_DEFAULT, NATIVE_DEFAULT, Server, ServerSettings

CONFIG_DEFAULT = "penstock.toml"
SWITCH_SECONDS = 0.0005


def _load(ctx: click.Context, _parameter: click.Parameter, path: str | None) -> str | None:
    """Let the file give the values that neither flag nor variable does."""
    chosen = path or CONFIG_DEFAULT
    try:
        with open(chosen, "rb") as file:
            table = tomllib.load(file).get("serve", {})
    except FileNotFoundError:
        if path is None:
            return None
        raise BadSetting("config", path, "there is no such file") from None
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting("config", chosen, f"cannot be read: {error}") from None
    known = {parameter.name for parameter in ctx.command.params} - {"config"}
    if not isinstance(table, dict) or set(table) - known:
        wrong = sorted(set(table) - known) if isinstance(table, dict) else ["serve"]
        raise BadSetting("config", chosen, f"[serve] has no setting {', '.join(wrong)}; there are {', '.join(sorted(known))}")
    ctx.default_map = {**(ctx.default_map or {}), **table}
    return chosen


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
    "--stop-timeout", type=parameters.duration, default="10s", show_default=True, help="How long running calls may take when it stops."
)  # fmt: skip
def serve(
    *, config: str | None, data: str, native: str, no_native: bool, grpc: str, no_grpc: bool, http: str, no_http: bool, no_console: bool,
    tokens: str | None, tls_certificate: str | None, tls_key: str | None, tls_client_ca: str | None, allow_insecure: bool,
    no_create_topics: bool, no_measure: bool, stop_timeout: float,
) -> None:  # fmt: skip
    """
    Serve a store over the network until SIGTERM or Ctrl-C.

    Each option may also be given as a variable, PENSTOCK_SERVE_DATA for --data, or in the file: flag, then variable, then file.
    """
    del config
    for handler in list(logging.getLogger("penstock").handlers):
        logging.getLogger("penstock").removeHandler(handler)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # By itself it goes without gRPC where that is not installed; who asks for it is told.
    asked = click.get_current_context().get_parameter_source("grpc") is not ParameterSource.DEFAULT
    settings = ServerSettings(
        data=data, native=None if no_native else native, grpc=None if no_grpc else grpc, needs_grpc=asked,
        http=None if no_http else http, tls_certificate=tls_certificate, tls_key=tls_key, tls_client_ca=tls_client_ca, tokens=tokens,
        allow_insecure=allow_insecure, auto_create=not no_create_topics, stop_s=stop_timeout, measure=not no_measure,
        console=not no_console,
    )  # fmt: skip
    _run(settings)


def _run(settings: ServerSettings) -> None:
    async def main() -> None:
        await Server(settings).run(lambda server: _say(server, settings))

    # Two threads take turns for each publish, the loop and the one that commits; Python's 5 ms are as long as many syncs.
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _loop_factory() -> Any:
    """The quicker event loop, where it is installed."""
    try:
        import uvloop  # type: ignore[import-not-found]
    except ImportError:
        return None
    return uvloop.new_event_loop
