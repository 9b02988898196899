"""Every setting of the gRPC listener in one table: name, default, unit, smallest and largest value, help."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.arguments import shown
from penstock.errors import BadSetting
from penstock.server.descriptors import connections_max
from penstock.settings import Setting
from penstock.values import KIB, MESSAGE_BYTES_MAX, MIB

WAITING_SHARE = 10
"""So many times the calls that run on a connection may wait there."""

GRPC_SETTINGS = (
    Setting(
        "request_bytes_max", 4 * MIB, "bytes", 1 * KIB, 2 * MESSAGE_BYTES_MAX, "the largest request; that of a stream, each of them"
    ),
    Setting("metadata_bytes_max", 8 * KIB, "bytes", 1 * KIB, 1 * MIB, "the metadata of a call"),
    Setting("connection_calls_max", 100, "calls", 1, 100_000, "calls of one connection that run at a time; more wait, unread"),
    Setting("connection_streams_max", 1_000, "streams", 1, 100_000, "streams of one connection at a time; more are refused"),
    Setting("calls_max", 10_000, "calls", 1, 1_000_000, "calls and streams at a time; more are refused"),
    Setting("public_calls_max", 200, "calls", 1, 100_000, "of health and reflection, which need no token"),
    Setting("connections_max", 0, "connections", 0, 1_000_000, "connections at a time; 0 = as many as there are descriptors for"),
    Setting("prefetch_max", 100_000, "messages", 1, 1_000_000, "the most unfinished messages that a consumer may ask for"),
    Setting("prefetch_bytes_max", 64 * MIB, "bytes", 1 * KIB, 4096 * MIB, "and about how many bytes they may have"),
    Setting("push_bytes_max", 256 * KIB, "bytes", 1 * KIB, 64 * MIB, "one response with messages; one message always fits"),
    Setting("publishing_bytes_max", 16 * MIB, "bytes", 1 * KIB, 1024 * MIB, "requests of one PublishStream that are not answered yet"),
    Setting("publishing_max", 1_000, "requests", 1, 1_000_000, "and how many they may be"),
    Setting("handshake_ms", 10_000, "ms", 50, 600_000, "time for the handshakes of TLS and HTTP/2"),
    Setting("keep_alive_ms", 30_000, "ms", 1_000, 3_600_000, "a silent connection is asked after this whether it lives"),
    Setting("keep_alive_answer_ms", 10_000, "ms", 100, 3_600_000, "and cut if it does not answer within this"),
    Setting("idle_ms", 300_000, "ms", 1_000, 86_400_000, "a connection without a call is closed after this; clients open a new one"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class GrpcSettings:
    """How the gRPC listener works. Raises `BadSetting`."""

    request_bytes_max: int = 4 * MIB
    metadata_bytes_max: int = 8 * KIB
    connection_calls_max: int = 100
    connection_streams_max: int = 1_000
    calls_max: int = 10_000
    public_calls_max: int = 200
    connections_max: int = 0
    prefetch_max: int = 100_000
    prefetch_bytes_max: int = 64 * MIB
    push_bytes_max: int = 256 * KIB
    publishing_bytes_max: int = 16 * MIB
    publishing_max: int = 1_000
    handshake_ms: int = 10_000
    keep_alive_ms: int = 30_000
    keep_alive_answer_ms: int = 10_000
    idle_ms: int = 300_000

    def __post_init__(self) -> None:
        table = {setting.name: setting for setting in GRPC_SETTINGS}
        for field in fields(self):
            value, setting = getattr(self, field.name), table[field.name]
            assert setting.least is not None
            assert setting.most is not None
            if type(value) is not int or not setting.least <= value <= setting.most:
                raise BadSetting(field.name, shown(value), f"must be a whole number from {setting.least:,} to {setting.most:,}")

    def options(self) -> list[tuple[str, int]]:
        """The same in the words of gRPC."""
        return [
            # A port that somebody else listens on is taken, not shared.
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self.request_bytes_max),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", self.metadata_bytes_max),
            ("grpc.absolute_max_metadata_size", self.metadata_bytes_max),
            # Ours count, and say so. One of HTTP/2 would be found out by streams that are refused without a word, and by calls that
            # wait in the client behind streams that never end.
            ("grpc.max_concurrent_streams", self.connection_streams_max + WAITING_SHARE * self.connection_calls_max),
            ("grpc.max_allowed_incoming_connections", self.connections_max or connections_max()),
            ("grpc.server_handshake_timeout_ms", self.handshake_ms),
            ("grpc.keepalive_time_ms", self.keep_alive_ms),
            ("grpc.keepalive_timeout_ms", self.keep_alive_answer_ms),
            # gRPC waits for the answer to a ping as long as this says, 60 s if nothing does, whatever the time above.
            ("grpc.http2.ping_timeout_ms", self.keep_alive_answer_ms),
            # Else it asks no more after two pings that no data came between.
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            ("grpc.http2.max_ping_strikes", 2),
            ("grpc.max_connection_idle_ms", self.idle_ms),
            # Windows that grow with the speed of a connection are memory that its other side decides about.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", 256 * KIB),
            # Identity only: the limit of a request would hold for its compressed bytes.
            ("grpc.compression_enabled_algorithms_bitset", 1),
        ]
