from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SyncMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYNC_MODE_UNSPECIFIED: _ClassVar[SyncMode]
    SYNC_MODE_ALWAYS: _ClassVar[SyncMode]
    SYNC_MODE_INTERVAL: _ClassVar[SyncMode]
    SYNC_MODE_OS: _ClassVar[SyncMode]

class Retain(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RETAIN_UNSPECIFIED: _ClassVar[Retain]
    RETAIN_UNTIL_ACKED: _ClassVar[Retain]
    RETAIN_ALWAYS: _ClassVar[Retain]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_MEDIUM: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]

class Expired(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPIRED_UNSPECIFIED: _ClassVar[Expired]
    EXPIRED_DROP: _ClassVar[Expired]
    EXPIRED_DEAD_LETTER: _ClassVar[Expired]

class Reset(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESET_UNSPECIFIED: _ClassVar[Reset]
    RESET_EARLIEST: _ClassVar[Reset]
    RESET_LATEST: _ClassVar[Reset]
    RESET_FAIL: _ClassVar[Reset]

class Edge(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EDGE_UNSPECIFIED: _ClassVar[Edge]
    EDGE_EARLIEST: _ClassVar[Edge]
    EDGE_LATEST: _ClassVar[Edge]
SYNC_MODE_UNSPECIFIED: SyncMode
SYNC_MODE_ALWAYS: SyncMode
SYNC_MODE_INTERVAL: SyncMode
SYNC_MODE_OS: SyncMode
RETAIN_UNSPECIFIED: Retain
RETAIN_UNTIL_ACKED: Retain
RETAIN_ALWAYS: Retain
PRIORITY_UNSPECIFIED: Priority
PRIORITY_LOW: Priority
PRIORITY_MEDIUM: Priority
PRIORITY_HIGH: Priority
EXPIRED_UNSPECIFIED: Expired
EXPIRED_DROP: Expired
EXPIRED_DEAD_LETTER: Expired
RESET_UNSPECIFIED: Reset
RESET_EARLIEST: Reset
RESET_LATEST: Reset
RESET_FAIL: Reset
EDGE_UNSPECIFIED: Edge
EDGE_EARLIEST: Edge
EDGE_LATEST: Edge

class Place(_message.Message):
    __slots__ = ("edge", "offset", "time_us")
    EDGE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    edge: Edge
    offset: int
    time_us: int
    def __init__(self, edge: _Optional[_Union[Edge, str]] = ..., offset: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class NewMessage(_message.Message):
    __slots__ = ("value", "key", "headers", "timestamp_us", "dedup_key", "ttl_ms", "delay_ms", "deliver_at_us", "priority")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    DEDUP_KEY_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_us: int
    dedup_key: bytes
    ttl_ms: int
    delay_ms: int
    deliver_at_us: int
    priority: Priority
    def __init__(self, value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_us: _Optional[int] = ..., dedup_key: _Optional[bytes] = ..., ttl_ms: _Optional[int] = ..., delay_ms: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("partition", "offset", "value", "key", "headers", "timestamp_us", "append_time_us", "dedup_key", "expires_at_us", "deliver_at_us", "priority")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_US_FIELD_NUMBER: _ClassVar[int]
    APPEND_TIME_US_FIELD_NUMBER: _ClassVar[int]
    DEDUP_KEY_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_US_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_US_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    value: bytes
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    timestamp_us: int
    append_time_us: int
    dedup_key: bytes
    expires_at_us: int
    deliver_at_us: int
    priority: Priority
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., value: _Optional[bytes] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ..., timestamp_us: _Optional[int] = ..., append_time_us: _Optional[int] = ..., dedup_key: _Optional[bytes] = ..., expires_at_us: _Optional[int] = ..., deliver_at_us: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "text", "status", "fields")
    class FieldsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    code: str
    text: str
    status: int
    fields: _containers.ScalarMap[str, str]
    def __init__(self, code: _Optional[str] = ..., text: _Optional[str] = ..., status: _Optional[int] = ..., fields: _Optional[_Mapping[str, str]] = ...) -> None: ...

class PublishRequest(_message.Message):
    __slots__ = ("topic", "messages", "partition", "sync", "compression")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    SYNC_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    messages: _containers.RepeatedCompositeFieldContainer[NewMessage]
    partition: int
    sync: SyncMode
    compression: str
    def __init__(self, topic: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[NewMessage, _Mapping]]] = ..., partition: _Optional[int] = ..., sync: _Optional[_Union[SyncMode, str]] = ..., compression: _Optional[str] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("partition", "offset", "duplicate")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    partition: int
    offset: int
    duplicate: bool
    def __init__(self, partition: _Optional[int] = ..., offset: _Optional[int] = ..., duplicate: bool = ...) -> None: ...

class PublishResponse(_message.Message):
    __slots__ = ("receipts",)
    RECEIPTS_FIELD_NUMBER: _ClassVar[int]
    receipts: _containers.RepeatedCompositeFieldContainer[Receipt]
    def __init__(self, receipts: _Optional[_Iterable[_Union[Receipt, _Mapping]]] = ...) -> None: ...

class PublishStreamResponse(_message.Message):
    __slots__ = ("published", "error")
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    published: PublishResponse
    error: Error
    def __init__(self, published: _Optional[_Union[PublishResponse, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ...) -> None: ...

class SubscribeRequest(_message.Message):
    __slots__ = ("start", "ack", "nack", "extend", "give_back", "credit", "drop_credit", "id", "durable", "fetch", "recalled")
    START_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    EXTEND_FIELD_NUMBER: _ClassVar[int]
    GIVE_BACK_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    DROP_CREDIT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    FETCH_FIELD_NUMBER: _ClassVar[int]
    RECALLED_FIELD_NUMBER: _ClassVar[int]
    start: Subscription
    ack: _containers.RepeatedCompositeFieldContainer[Tags]
    nack: _containers.RepeatedCompositeFieldContainer[Nack]
    extend: _containers.RepeatedCompositeFieldContainer[Extend]
    give_back: _containers.RepeatedCompositeFieldContainer[Tags]
    credit: int
    drop_credit: bool
    id: int
    durable: bool
    fetch: Fetch
    recalled: bool
    def __init__(self, start: _Optional[_Union[Subscription, _Mapping]] = ..., ack: _Optional[_Iterable[_Union[Tags, _Mapping]]] = ..., nack: _Optional[_Iterable[_Union[Nack, _Mapping]]] = ..., extend: _Optional[_Iterable[_Union[Extend, _Mapping]]] = ..., give_back: _Optional[_Iterable[_Union[Tags, _Mapping]]] = ..., credit: _Optional[int] = ..., drop_credit: bool = ..., id: _Optional[int] = ..., durable: bool = ..., fetch: _Optional[_Union[Fetch, _Mapping]] = ..., recalled: bool = ...) -> None: ...

class Fetch(_message.Message):
    __slots__ = ("max_messages", "wait_ms")
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    max_messages: int
    wait_ms: int
    def __init__(self, max_messages: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class Tags(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("tags", "delay_ms", "reason", "reject")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedCompositeFieldContainer[Tags]
    delay_ms: int
    reason: str
    reject: bool
    def __init__(self, tags: _Optional[_Iterable[_Union[Tags, _Mapping]]] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., reject: bool = ...) -> None: ...

class Extend(_message.Message):
    __slots__ = ("tags", "lease_ms")
    TAGS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedCompositeFieldContainer[Tags]
    lease_ms: int
    def __init__(self, tags: _Optional[_Iterable[_Union[Tags, _Mapping]]] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("topic", "group", "prefetch", "prefetch_bytes", "concurrency", "start", "lease_ms", "max_deliveries", "ordered", "reset", "backoff_ms", "backoff_max_ms", "create", "topic_settings", "partitions", "name", "recallable")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    TOPIC_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECALLABLE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    prefetch: int
    prefetch_bytes: int
    concurrency: int
    start: Place
    lease_ms: int
    max_deliveries: int
    ordered: bool
    reset: Reset
    backoff_ms: int
    backoff_max_ms: int
    create: bool
    topic_settings: TopicSettings
    partitions: int
    name: str
    recallable: bool
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., prefetch: _Optional[int] = ..., prefetch_bytes: _Optional[int] = ..., concurrency: _Optional[int] = ..., start: _Optional[_Union[Place, _Mapping]] = ..., lease_ms: _Optional[int] = ..., max_deliveries: _Optional[int] = ..., ordered: bool = ..., reset: _Optional[_Union[Reset, str]] = ..., backoff_ms: _Optional[int] = ..., backoff_max_ms: _Optional[int] = ..., create: bool = ..., topic_settings: _Optional[_Union[TopicSettings, _Mapping]] = ..., partitions: _Optional[int] = ..., name: _Optional[str] = ..., recallable: bool = ...) -> None: ...

class SubscribeResponse(_message.Message):
    __slots__ = ("started", "deliveries", "settled", "closing", "recall", "revoked")
    STARTED_FIELD_NUMBER: _ClassVar[int]
    DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    started: Started
    deliveries: Deliveries
    settled: Settled
    closing: Closing
    recall: Recall
    revoked: Revoked
    def __init__(self, started: _Optional[_Union[Started, _Mapping]] = ..., deliveries: _Optional[_Union[Deliveries, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., closing: _Optional[_Union[Closing, _Mapping]] = ..., recall: _Optional[_Union[Recall, _Mapping]] = ..., revoked: _Optional[_Union[Revoked, _Mapping]] = ...) -> None: ...

class Recall(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class Revoked(_message.Message):
    __slots__ = ("tags",)
    TAGS_FIELD_NUMBER: _ClassVar[int]
    tags: _containers.RepeatedCompositeFieldContainer[Tags]
    def __init__(self, tags: _Optional[_Iterable[_Union[Tags, _Mapping]]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("partitions", "settings", "credit", "hint")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    partitions: int
    settings: GroupSettings
    credit: int
    hint: str
    def __init__(self, partitions: _Optional[int] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ..., credit: _Optional[int] = ..., hint: _Optional[str] = ...) -> None: ...

class Deliveries(_message.Message):
    __slots__ = ("messages", "id")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Delivery]
    id: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Delivery, _Mapping]]] = ..., id: _Optional[int] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("tag", "attempt", "message")
    TAG_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    tag: int
    attempt: int
    message: Message
    def __init__(self, tag: _Optional[int] = ..., attempt: _Optional[int] = ..., message: _Optional[_Union[Message, _Mapping]] = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("id", "late")
    ID_FIELD_NUMBER: _ClassVar[int]
    LATE_FIELD_NUMBER: _ClassVar[int]
    id: int
    late: int
    def __init__(self, id: _Optional[int] = ..., late: _Optional[int] = ...) -> None: ...

class Closing(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("topic", "group", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReadRequest(_message.Message):
    __slots__ = ("topic", "partition", "start", "end", "max_messages")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    start: Place
    end: Place
    max_messages: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[_Union[Place, _Mapping]] = ..., end: _Optional[_Union[Place, _Mapping]] = ..., max_messages: _Optional[int] = ...) -> None: ...

class ReadResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class TopicSettings(_message.Message):
    __slots__ = ("sync", "segment_bytes", "segment_messages", "segment_age_ms", "max_message_bytes", "dedup_window_ms", "retain", "retention_age_ms", "retention_bytes", "priorities", "ttl_ms", "expired", "compression", "compaction", "tombstone_grace_ms", "retention_messages", "retention_bytes_hard", "group_expiry_ms", "dead_letter_retention_ms", "aging_ms", "index_interval_bytes", "coalesce_below_bytes", "coalesce_to_bytes", "record_deliveries")
    SYNC_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DEDUP_WINDOW_MS_FIELD_NUMBER: _ClassVar[int]
    RETAIN_FIELD_NUMBER: _ClassVar[int]
    RETENTION_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRIORITIES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONE_GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    RETENTION_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_HARD_FIELD_NUMBER: _ClassVar[int]
    GROUP_EXPIRY_MS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_RETENTION_MS_FIELD_NUMBER: _ClassVar[int]
    AGING_MS_FIELD_NUMBER: _ClassVar[int]
    INDEX_INTERVAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    COALESCE_BELOW_BYTES_FIELD_NUMBER: _ClassVar[int]
    COALESCE_TO_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    sync: SyncMode
    segment_bytes: int
    segment_messages: int
    segment_age_ms: int
    max_message_bytes: int
    dedup_window_ms: int
    retain: Retain
    retention_age_ms: int
    retention_bytes: int
    priorities: bool
    ttl_ms: int
    expired: Expired
    compression: str
    compaction: bool
    tombstone_grace_ms: int
    retention_messages: int
    retention_bytes_hard: int
    group_expiry_ms: int
    dead_letter_retention_ms: int
    aging_ms: int
    index_interval_bytes: int
    coalesce_below_bytes: int
    coalesce_to_bytes: int
    record_deliveries: bool
    def __init__(self, sync: _Optional[_Union[SyncMode, str]] = ..., segment_bytes: _Optional[int] = ..., segment_messages: _Optional[int] = ..., segment_age_ms: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., dedup_window_ms: _Optional[int] = ..., retain: _Optional[_Union[Retain, str]] = ..., retention_age_ms: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., priorities: bool = ..., ttl_ms: _Optional[int] = ..., expired: _Optional[_Union[Expired, str]] = ..., compression: _Optional[str] = ..., compaction: bool = ..., tombstone_grace_ms: _Optional[int] = ..., retention_messages: _Optional[int] = ..., retention_bytes_hard: _Optional[int] = ..., group_expiry_ms: _Optional[int] = ..., dead_letter_retention_ms: _Optional[int] = ..., aging_ms: _Optional[int] = ..., index_interval_bytes: _Optional[int] = ..., coalesce_below_bytes: _Optional[int] = ..., coalesce_to_bytes: _Optional[int] = ..., record_deliveries: bool = ...) -> None: ...

class GroupSettings(_message.Message):
    __slots__ = ("ordered", "lease_ms", "max_deliveries", "backoff_ms", "backoff_max_ms", "reset")
    ORDERED_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_DELIVERIES_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MAX_MS_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    ordered: bool
    lease_ms: int
    max_deliveries: int
    backoff_ms: int
    backoff_max_ms: int
    reset: Reset
    def __init__(self, ordered: bool = ..., lease_ms: _Optional[int] = ..., max_deliveries: _Optional[int] = ..., backoff_ms: _Optional[int] = ..., backoff_max_ms: _Optional[int] = ..., reset: _Optional[_Union[Reset, str]] = ...) -> None: ...

class Topic(_message.Message):
    __slots__ = ("name", "id", "partitions", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    id: str
    partitions: int
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., id: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class CreateTopicRequest(_message.Message):
    __slots__ = ("name", "partitions", "settings")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    name: str
    partitions: int
    settings: TopicSettings
    def __init__(self, name: _Optional[str] = ..., partitions: _Optional[int] = ..., settings: _Optional[_Union[TopicSettings, _Mapping]] = ...) -> None: ...

class ListTopicsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListTopicsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[Topic]
    def __init__(self, topics: _Optional[_Iterable[_Union[Topic, _Mapping]]] = ...) -> None: ...

class GetTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetTopicResponse(_message.Message):
    __slots__ = ("topic", "starts", "ends")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    topic: Topic
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[_Union[Topic, _Mapping]] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ...) -> None: ...

class RetainRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class RetainResponse(_message.Message):
    __slots__ = ("segments", "bytes")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    segments: int
    bytes: int
    def __init__(self, segments: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class DeleteTopicRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class DeleteTopicResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RewriteRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class RewriteResponse(_message.Message):
    __slots__ = ("segments", "messages", "tombstones", "bytes")
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    segments: int
    messages: int
    tombstones: int
    bytes: int
    def __init__(self, segments: _Optional[int] = ..., messages: _Optional[int] = ..., tombstones: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class Group(_message.Message):
    __slots__ = ("topic", "name", "settings")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    name: str
    settings: GroupSettings
    def __init__(self, topic: _Optional[str] = ..., name: _Optional[str] = ..., settings: _Optional[_Union[GroupSettings, _Mapping]] = ...) -> None: ...

class ListGroupsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[Group]
    def __init__(self, groups: _Optional[_Iterable[_Union[Group, _Mapping]]] = ...) -> None: ...

class DeleteGroupRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class DeleteGroupResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SeekRequest(_message.Message):
    __slots__ = ("topic", "group", "to", "partition")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    to: Place
    partition: int
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., to: _Optional[_Union[Place, _Mapping]] = ..., partition: _Optional[int] = ...) -> None: ...

class SeekResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersRequest(_message.Message):
    __slots__ = ("topic", "group")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ...) -> None: ...

class ListMembersResponse(_message.Message):
    __slots__ = ("members",)
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("id", "name", "interface", "peer", "principal", "since_us", "heard_us", "in_flight", "buffered", "bytes", "prefetch", "paused", "partitions")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    INTERFACE_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    HEARD_US_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BUFFERED_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    interface: str
    peer: str
    principal: str
    since_us: int
    heard_us: int
    in_flight: int
    buffered: int
    bytes: int
    prefetch: int
    paused: bool
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., interface: _Optional[str] = ..., peer: _Optional[str] = ..., principal: _Optional[str] = ..., since_us: _Optional[int] = ..., heard_us: _Optional[int] = ..., in_flight: _Optional[int] = ..., buffered: _Optional[int] = ..., bytes: _Optional[int] = ..., prefetch: _Optional[int] = ..., paused: bool = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class EvictMemberRequest(_message.Message):
    __slots__ = ("topic", "group", "member")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    group: str
    member: str
    def __init__(self, topic: _Optional[str] = ..., group: _Optional[str] = ..., member: _Optional[str] = ...) -> None: ...

class EvictMemberResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: int
    def __init__(self, messages: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("topics", "commits", "failure", "is_full", "free_bytes", "free_bytes_floor", "refused")
    class TopicsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TopicStats
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TopicStats, _Mapping]] = ...) -> None: ...
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    IS_FULL_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FLOOR_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.MessageMap[str, TopicStats]
    commits: int
    failure: str
    is_full: bool
    free_bytes: int
    free_bytes_floor: int
    refused: int
    def __init__(self, topics: _Optional[_Mapping[str, TopicStats]] = ..., commits: _Optional[int] = ..., failure: _Optional[str] = ..., is_full: bool = ..., free_bytes: _Optional[int] = ..., free_bytes_floor: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class TopicStats(_message.Message):
    __slots__ = ("messages", "published", "starts", "ends", "dedup_evicted", "groups", "partitions", "bytes", "removed_segments", "removed_messages", "removed_unfinished", "expired_groups")
    class GroupsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GroupStats
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GroupStats, _Mapping]] = ...) -> None: ...
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    DEDUP_EVICTED_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    REMOVED_UNFINISHED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_GROUPS_FIELD_NUMBER: _ClassVar[int]
    messages: int
    published: int
    starts: _containers.RepeatedScalarFieldContainer[int]
    ends: _containers.RepeatedScalarFieldContainer[int]
    dedup_evicted: int
    groups: _containers.MessageMap[str, GroupStats]
    partitions: int
    bytes: int
    removed_segments: int
    removed_messages: int
    removed_unfinished: int
    expired_groups: int
    def __init__(self, messages: _Optional[int] = ..., published: _Optional[int] = ..., starts: _Optional[_Iterable[int]] = ..., ends: _Optional[_Iterable[int]] = ..., dedup_evicted: _Optional[int] = ..., groups: _Optional[_Mapping[str, GroupStats]] = ..., partitions: _Optional[int] = ..., bytes: _Optional[int] = ..., removed_segments: _Optional[int] = ..., removed_messages: _Optional[int] = ..., removed_unfinished: _Optional[int] = ..., expired_groups: _Optional[int] = ...) -> None: ...

class GroupStats(_message.Message):
    __slots__ = ("lag", "in_flight", "retrying", "members", "positions", "delivered", "redelivered", "acked", "nacked", "expired_leases", "dead_lettered", "skipped", "lost", "expired")
    LAG_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    REDELIVERED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    NACKED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_LEASES_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    lag: int
    in_flight: int
    retrying: int
    members: int
    positions: _containers.RepeatedScalarFieldContainer[int]
    delivered: int
    redelivered: int
    acked: int
    nacked: int
    expired_leases: int
    dead_lettered: int
    skipped: int
    lost: int
    expired: int
    def __init__(self, lag: _Optional[int] = ..., in_flight: _Optional[int] = ..., retrying: _Optional[int] = ..., members: _Optional[int] = ..., positions: _Optional[_Iterable[int]] = ..., delivered: _Optional[int] = ..., redelivered: _Optional[int] = ..., acked: _Optional[int] = ..., nacked: _Optional[int] = ..., expired_leases: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., skipped: _Optional[int] = ..., lost: _Optional[int] = ..., expired: _Optional[int] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ("topic",)
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    topic: str
    def __init__(self, topic: _Optional[str] = ...) -> None: ...

class GetMetricsResponse(_message.Message):
    __slots__ = ("topics", "fsync", "bounds_s")
    class TopicsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: TopicMetrics
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[TopicMetrics, _Mapping]] = ...) -> None: ...
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FSYNC_FIELD_NUMBER: _ClassVar[int]
    BOUNDS_S_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.MessageMap[str, TopicMetrics]
    fsync: Latency
    bounds_s: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, topics: _Optional[_Mapping[str, TopicMetrics]] = ..., fsync: _Optional[_Union[Latency, _Mapping]] = ..., bounds_s: _Optional[_Iterable[float]] = ...) -> None: ...

class TopicMetrics(_message.Message):
    __slots__ = ("groups", "dead_letters", "dead_letter_age_s", "publish")
    class GroupsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GroupMetrics
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GroupMetrics, _Mapping]] = ...) -> None: ...
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_AGE_S_FIELD_NUMBER: _ClassVar[int]
    PUBLISH_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.MessageMap[str, GroupMetrics]
    dead_letters: int
    dead_letter_age_s: float
    publish: Latency
    def __init__(self, groups: _Optional[_Mapping[str, GroupMetrics]] = ..., dead_letters: _Optional[int] = ..., dead_letter_age_s: _Optional[float] = ..., publish: _Optional[_Union[Latency, _Mapping]] = ...) -> None: ...

class GroupMetrics(_message.Message):
    __slots__ = ("lag_s", "deliver_to_ack")
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    DELIVER_TO_ACK_FIELD_NUMBER: _ClassVar[int]
    lag_s: float
    deliver_to_ack: Latency
    def __init__(self, lag_s: _Optional[float] = ..., deliver_to_ack: _Optional[_Union[Latency, _Mapping]] = ...) -> None: ...

class Latency(_message.Message):
    __slots__ = ("counts", "sum_s")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SUM_S_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    sum_s: float
    def __init__(self, counts: _Optional[_Iterable[int]] = ..., sum_s: _Optional[float] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "max_messages", "start", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    max_messages: int
    start: int
    filter: DeadLetterFilter
    def __init__(self, topic: _Optional[str] = ..., max_messages: _Optional[int] = ..., start: _Optional[int] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("messages", "count")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    count: int
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ..., count: _Optional[int] = ...) -> None: ...

class ChooseDeadLettersRequest(_message.Message):
    __slots__ = ("topic", "offsets", "all", "filter")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    topic: str
    offsets: Offsets
    all: bool
    filter: DeadLetterFilter
    def __init__(self, topic: _Optional[str] = ..., offsets: _Optional[_Union[Offsets, _Mapping]] = ..., all: bool = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ...) -> None: ...

class DeadLetterFilter(_message.Message):
    __slots__ = ("reason", "group", "partition", "start", "end", "since_us", "until_us", "key", "headers")
    REASON_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SINCE_US_FIELD_NUMBER: _ClassVar[int]
    UNTIL_US_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    reason: str
    group: str
    partition: int
    start: int
    end: int
    since_us: int
    until_us: int
    key: bytes
    headers: _containers.RepeatedCompositeFieldContainer[HeaderFilter]
    def __init__(self, reason: _Optional[str] = ..., group: _Optional[str] = ..., partition: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., since_us: _Optional[int] = ..., until_us: _Optional[int] = ..., key: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[HeaderFilter, _Mapping]]] = ...) -> None: ...

class HeaderFilter(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: bytes
    def __init__(self, name: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class Offsets(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offsets: _Optional[_Iterable[int]] = ...) -> None: ...

class DeadLettersResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...
