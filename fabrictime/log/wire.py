"""Requests and responses as bytes: the supported versions, and conversion to and from plain dictionaries.

The layouts are aiokafka's protocol structs (an internal module of a pinned version). The few versions that
aiokafka lacks or defines wrongly are built here from its types. `requests.produce` and `requests.fetch`
decode the bodies of Produce and Fetch, which carry the payload.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from enum import IntEnum
from io import BytesIO
from typing import Any, Final, NamedTuple

from aiokafka.protocol import admin, commit, coordination, group, metadata, offset, transaction
from aiokafka.protocol.types import (
    Array,
    CompactArray,
    Int8,
    Int16,
    Int32,
    Schema,
    String,
    TaggedFields,
)

from fabrictime.log.errors import MalformedRequest

Fields = dict[str, Any]


class Api(IntEnum):
    """The requests that this broker answers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DELETE_GROUPS = 42


class Layout(NamedTuple):
    """The layouts of the bodies of one version of a request and of its response."""

    request: Schema
    response: Schema


PRODUCE_VERSIONS: Final = range(3, 9)
FETCH_VERSIONS: Final = range(4, 12)


def _layouts(module: Any, name: str, versions: range) -> dict[int, Layout]:
    layouts = {}
    for version in versions:
        request = getattr(module, f"{name}Request_v{version}")
        response = getattr(module, f"{name}Response_v{version}")
        layouts[version] = Layout(request.SCHEMA, response.SCHEMA)
    return layouts


_api_versions = _layouts(admin, "ApiVersion", range(3))
_api_versions[3] = Layout(
    Schema(),  # read by the broker only as far as it needs: nothing
    Schema(
        ("error_code", Int16),
        (
            "api_versions",
            CompactArray(
                ("api_key", Int16), ("min_version", Int16), ("max_version", Int16), ("tags", TaggedFields)
            ),
        ),
        ("throttle_time_ms", Int32),
        ("tags", TaggedFields),
    ),
)

_join = _layouts(group, "JoinGroup", range(3))
_join[3] = _join[4] = _join[2]
_join[5] = Layout(group.JoinGroupRequest_v5.SCHEMA, group.JoinGroupResponse_v5.SCHEMA)

_sync = _layouts(group, "SyncGroup", range(2))
_sync[2] = _sync[1]
_sync[3] = Layout(group.SyncGroupRequest_v3.SCHEMA, group.SyncGroupResponse_v3.SCHEMA)

_heartbeat = _layouts(group, "Heartbeat", range(2))
_heartbeat[2] = _heartbeat[1]
_heartbeat[3] = Layout(
    Schema(
        ("group", String("utf-8")),
        ("generation_id", Int32),
        ("member_id", String("utf-8")),
        ("group_instance_id", String("utf-8")),
    ),
    _heartbeat[1].response,
)

_coordinator = _layouts(coordination, "FindCoordinator", range(2))
_coordinator[2] = _coordinator[1]

_create = _layouts(admin, "CreateTopics", range(4))
_create[4] = _create[3]

_leave = _layouts(group, "LeaveGroup", range(2))
_leave[2] = _leave[1]

_init = _layouts(transaction, "InitProducerId", range(1))
_init[1] = _init[0]

_describe = _layouts(admin, "DescribeGroups", range(3))
_list_groups = _layouts(admin, "ListGroups", range(3))

LAYOUTS: Final[dict[Api, dict[int, Layout]]] = {
    Api.LIST_OFFSETS: _layouts(offset, "Offset", range(1, 4)),
    Api.METADATA: _layouts(metadata, "Metadata", range(6)),
    Api.OFFSET_COMMIT: _layouts(commit, "OffsetCommit", range(2, 4)),
    Api.OFFSET_FETCH: _layouts(commit, "OffsetFetch", range(1, 4)),
    Api.FIND_COORDINATOR: _coordinator,
    Api.JOIN_GROUP: _join,
    Api.HEARTBEAT: _heartbeat,
    Api.LEAVE_GROUP: _leave,
    Api.SYNC_GROUP: _sync,
    Api.DESCRIBE_GROUPS: _describe,
    Api.LIST_GROUPS: _list_groups,
    Api.API_VERSIONS: _api_versions,
    Api.CREATE_TOPICS: _create,
    Api.DELETE_TOPICS: _layouts(admin, "DeleteTopics", range(4)),
    Api.INIT_PRODUCER_ID: _init,
    Api.DESCRIBE_CONFIGS: _layouts(admin, "DescribeConfigs", range(3)),
    Api.ALTER_CONFIGS: _layouts(admin, "AlterConfigs", range(2)),
    Api.DELETE_GROUPS: _layouts(admin, "DeleteGroups", range(2)),
}

SUPPORTED: Final[dict[int, tuple[int, int]]] = dict(
    sorted(
        {
            int(Api.PRODUCE): (PRODUCE_VERSIONS[0], PRODUCE_VERSIONS[-1]),
            int(Api.FETCH): (FETCH_VERSIONS[0], FETCH_VERSIONS[-1]),
            **{int(api): (min(versions), max(versions)) for api, versions in LAYOUTS.items()},
        }.items()
    )
)
"""Api key to the lowest and highest version of each request that is answered."""


class RequestHead(NamedTuple):
    """The header of a request. `body` is the byte position at which the request's body starts."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: int


class Reader:
    """Reads big-endian fields from a buffer. All methods raise MalformedRequest for too few bytes."""

    __slots__ = ("position", "view")

    def __init__(self, view: memoryview, position: int = 0) -> None:
        self.view = view
        self.position = position

    def take(self, layout: struct.Struct) -> tuple[Any, ...]:
        """Return the fields of `layout` at the current position."""
        try:
            fields = layout.unpack_from(self.view, self.position)
        except struct.error:
            raise MalformedRequest(f"{len(self.view)} B end within a field") from None
        self.position += layout.size
        return fields

    def int32(self) -> int:
        """Return the next int32."""
        value: int = self.take(INT32)[0]
        return value

    def string(self) -> str | None:
        """Return the next nullable string."""
        (length,) = self.take(INT16)
        if length < 0:
            return None
        try:
            return str(self.raw(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(f"string is not UTF-8: {error.reason}") from None

    def raw(self, length: int) -> memoryview:
        """Return the next `length` bytes without copying them."""
        end = self.position + length
        if length < 0 or end > len(self.view):
            raise MalformedRequest(f"{length} B announced, {len(self.view) - self.position} there")
        chunk = self.view[self.position : end]
        self.position = end
        return chunk

    def done(self) -> None:
        """Raise MalformedRequest if bytes are left."""
        if self.position != len(self.view):
            raise MalformedRequest(f"{len(self.view) - self.position} B too many")


INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
_HEAD: Final = struct.Struct(">hhi")


def read_head(view: memoryview) -> RequestHead:
    """Return the header of a request. Raises MalformedRequest."""
    reader = Reader(view)
    api_key, version, correlation_id = reader.take(_HEAD)
    client_id = reader.string() or ""
    return RequestHead(api_key, version, correlation_id, client_id, reader.position)


def decode(api: Api, version: int, body: bytes) -> Fields:
    """Return a request's body as a dictionary. Raises MalformedRequest."""
    schema = LAYOUTS[api][version].request
    data = BytesIO(body)
    try:
        values = schema.decode(data)
    except (ValueError, struct.error, MemoryError, OverflowError) as error:
        raise MalformedRequest(f"{api.name} version {version}: {str(error)[:120]}") from None
    if data.read(1) and schema.names:
        raise MalformedRequest(f"{api.name} version {version}: bytes too many")
    return _named(schema, values)


def encode(api: Api, version: int, fields: Mapping[str, Any]) -> bytes:
    """Return a response's body as bytes. Fields that the version lacks are left out; throttle time is 0."""
    schema = LAYOUTS[api][version].response
    return bytes(schema.encode(_ordered(schema, fields)))


def _named(schema: Schema, values: Any) -> Fields:
    return {
        name: _value(kind, value)
        for name, kind, value in zip(schema.names, schema.fields, values, strict=True)
    }


def _value(kind: Any, value: Any) -> Any:
    if isinstance(kind, Array) and value is not None:
        return [_value(kind.array_of, item) for item in value]
    if isinstance(kind, Schema):
        return _named(kind, value)
    return value


def _ordered(schema: Schema, fields: Mapping[str, Any]) -> list[Any]:
    return [
        _plain(kind, fields[name] if name in fields else _DEFAULTS[name])
        for name, kind in zip(schema.names, schema.fields, strict=True)
    ]


def _plain(kind: Any, value: Any) -> Any:
    if isinstance(kind, Array) and value is not None:
        return [_plain(kind.array_of, item) for item in value]
    if isinstance(kind, Schema):
        return _ordered(kind, value)
    return value


_DEFAULTS: Final[Fields] = {"throttle_time_ms": 0, "tags": {}, "error_message": None}

__all__ = [
    "FETCH_VERSIONS",
    "INT16",
    "INT32",
    "LAYOUTS",
    "PRODUCE_VERSIONS",
    "SUPPORTED",
    "Api",
    "Fields",
    "Int8",
    "Layout",
    "Reader",
    "RequestHead",
    "decode",
    "encode",
    "read_head",
]
