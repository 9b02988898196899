"""Every setting of the HTTP listener in one table: name, default, unit, smallest and largest value, help."""

from __future__ import annotations

import math
from dataclasses import dataclass

from penstock.errors import BadSetting
from penstock.server.address import Address
from penstock.server.tls import TlsFiles
from penstock.settings import Setting
from penstock.values import KIB, MESSAGE_BYTES_MAX, MIB

HTTP_SETTINGS = (
    Setting("listen", "127.0.0.1:7422", "", None, None, "host:port, [ipv6]:port or unix:/path; port 0 takes any free one"),
    Setting("tls_certificate", None, "path", None, None, "PEM file with the server's certificate and its chain"),
    Setting("tls_key", None, "path", None, None, "PEM file with its key"),
    Setting(
        "tls_client_ca", None, "path", None, None, "clients must show a certificate that was signed by one in this PEM file"
    ),
    Setting("allow_insecure", False, "", None, None, "listen on a public address without tokens or TLS"),
    Setting("hosts", (), "", None, None, "names under which clients reach the server, checked against their Host header"),
    Setting("console", True, "", None, None, "serve the console, a page for people, at /console"),
    Setting("publish_bytes_max", 12 * MIB, "bytes", 1 * KIB, 2 * MESSAGE_BYTES_MAX, "the largest body of a publish"),
    Setting("body_bytes_max", 1 * MIB, "bytes", 1 * KIB, 64 * MIB, "the largest body of any other request"),
    Setting("header_bytes_max", 32 * KIB, "bytes", 1 * KIB, 1 * MIB, "the request line and all headers of a request"),
    Setting("json_depth_max", 8, "levels", 4, 100, "how deep JSON may be nested"),
    Setting("json_items_max", 1_000_000, "items", 1_000, 10_000_000, "how many values one JSON body may hold"),
    Setting(
        "response_bytes_max", 8 * MIB, "bytes", 1 * KIB, 256 * MIB, "messages of one answer, together; one message always fits"
    ),
    Setting("send_timeout_s", 30.0, "s", 0.05, 3_600, "a client that takes nothing of its answer for so long is cut"),
    Setting("connections_max", 10_000, "connections", 1, 1_000_000, "connections at a time; more are closed at once"),
    Setting("waiting_max", 2_000, "requests", 0, 1_000_000, "long polls and streams that wait at a time"),
    Setting("wait_max_s", 60.0, "s", 0, 3_600, "the longest long poll"),
    Setting("stream_max_s", 3_600.0, "s", 1, 86_400, "the longest stream; the client opens the next one"),
    Setting("consumers_max", 10_000, "consumers", 1, 1_000_000, "consumers, over all groups, at a time"),
    Setting("consumer_idle_s", 30.0, "s", 0.1, 3_600, "a consumer that holds nothing and does not ask is forgotten after this"),
    Setting("in_flight_max", 10_000, "messages", 1, 1_000_000, "messages that one consumer may hold"),
    Setting("in_flight_bytes_max", 64 * MIB, "bytes", 1 * KIB, None, "about how much they may be together"),
    Setting("topics_max", 10_000, "topics", 1, 1_000_000, "no more topics are made over HTTP than this"),
    Setting("groups_max", 1_000, "groups", 1, 1_000_000, "no more groups of one topic are made over HTTP than this"),
    Setting("header_timeout_s", 10.0, "s", 0.05, 600, "time for the TLS handshake, and for the headers of a request"),
    Setting("body_timeout_s", 30.0, "s", 0.05, 3_600, "time for the body of a request"),
    Setting("keep_alive_s", 30.0, "s", 0.05, 3_600, "a connection without a request is closed after this"),
    Setting("metrics_topics_max", 1_000, "topics", 1, 100_000, "topics that /metrics lists, by name"),
)


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """How the HTTP listener works. Raises `BadSetting`."""

    listen: str = "127.0.0.1:7422"
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    allow_insecure: bool = False
    hosts: tuple[str, ...] = ()
    console: bool = True
    publish_bytes_max: int = 12 * MIB
    body_bytes_max: int = 1 * MIB
    header_bytes_max: int = 32 * KIB
    json_depth_max: int = 8
    json_items_max: int = 1_000_000
    response_bytes_max: int = 8 * MIB
    send_timeout_s: float = 30.0
    connections_max: int = 10_000
    waiting_max: int = 2_000
    wait_max_s: float = 60.0
    stream_max_s: float = 3_600.0
    consumers_max: int = 10_000
    consumer_idle_s: float = 30.0
    in_flight_max: int = 10_000
    in_flight_bytes_max: int = 64 * MIB
    topics_max: int = 10_000
    groups_max: int = 1_000
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keep_alive_s: float = 30.0
    metrics_topics_max: int = 1_000

    def __post_init__(self) -> None:
        for setting in HTTP_SETTINGS:
            _check(setting, getattr(self, setting.name))
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise BadSetting("tls_key", self.tls_key, "tls_certificate and tls_key come together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise BadSetting("tls_client_ca", self.tls_client_ca, "needs tls_certificate and tls_key")
        _ = self.address

    @property
    def address(self) -> Address:
        """Where to listen."""
        return Address.parse("listen", self.listen)

    @property
    def tls(self) -> TlsFiles | None:
        """The files of TLS, None without it."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        return TlsFiles(self.tls_certificate, self.tls_key, self.tls_client_ca)


def _check(setting: Setting, value: object) -> None:
    default = setting.default
    if setting.name == "hosts":
        if not isinstance(value, tuple) or not all(isinstance(host, str) and host for host in value):
            raise BadSetting(setting.name, value, "must be a tuple of host names")
    elif setting.unit == "path":
        if value is not None and (not isinstance(value, str) or not value):
            raise BadSetting(setting.name, value, "must be the path of a file")
    elif isinstance(default, bool):
        if not isinstance(value, bool):
            raise BadSetting(setting.name, value, "must be true or false")
    elif isinstance(default, (int, float)):
        numeric = (int, float) if isinstance(default, float) else int
        if isinstance(value, bool) or not isinstance(value, numeric):
            raise BadSetting(
                setting.name, value, "must be a number" if isinstance(default, float) else "must be a whole number"
            )
        least, most = setting.least, setting.most
        if not math.isfinite(value) or (least is not None and value < least) or (most is not None and value > most):
            allowed = f"from {least:g} on" if most is None else f"from {least:g} to {most:g}"
            raise BadSetting(setting.name, value, f"must be {allowed}")
