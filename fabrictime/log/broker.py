"""Answers each Kafka request: takes the bytes of one request and returns the bytes of the response.

The broker decodes Produce and Fetch without the general codec because they carry the payload. It writes the
payload from the receive buffer, and sends it straight from the segment's file.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Coroutine, Sequence
from typing import Any, Final, NamedTuple

from fabrictime.log import wire
from fabrictime.log.errors import Code, LogError, MalformedRequest
from fabrictime.log.groups import Coordinator, Join, MemberIdRequired, State
from fabrictime.log.offsets import Committed, OffsetStore
from fabrictime.log.partition import Partition, Range
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from fabrictime.log.wire import Api, Fields, Reader, RequestHead

log = logging.getLogger(__name__)

NODE_ID: Final = 1
EARLIEST: Final = -2
LATEST: Final = -1
MAX_WAIT_MS: Final = 300_000
MAX_METADATA_BYTES: Final = 32 * 1024
"""Longest note that a commit may carry; Kafka's own limit is 4 KiB."""
_TOPIC_RESOURCE: Final = 2
_BROKER_RESOURCE: Final = 4

Chunk = bytes | Range
Response = Sequence[Chunk] | None
"""Response bytes after the correlation id; None if the client wants no answer."""


class Peer(NamedTuple):
    """The client that sent a request."""

    host: str
    port: int


_I16_I32: Final = struct.Struct(">hi")
_PRODUCED: Final = struct.Struct(">ihqqq")
_PRODUCED_OLD: Final = struct.Struct(">ihqq")
_FETCH_HEAD: Final = struct.Struct(">iiiib")
_FETCH_SESSION: Final = struct.Struct(">ii")
_FETCH_PARTITION: Final = {
    4: struct.Struct(">iqi"),
    5: struct.Struct(">iqqi"),
    9: struct.Struct(">iiqqi"),
}
_FETCHED_OLD: Final = struct.Struct(">ihqqii")
_FETCHED: Final = struct.Struct(">ihqqqii")
_FETCHED_RACK: Final = struct.Struct(">ihqqqiii")
_INT32: Final = wire.INT32
_ZERO: Final = _INT32.pack(0)


class Wanted(NamedTuple):
    """One partition of a fetch."""

    topic: str
    number: int
    offset: int
    max_bytes: int


class _FetchWait:
    """A fetch that waits until its partitions have enough, or its time is over."""

    def __init__(self, broker: Broker, fetch: _Fetch, found: int, partitions: list[Partition]) -> None:
        loop = asyncio.get_running_loop()
        self._broker, self._fetch, self._found, self._partitions = broker, fetch, found, partitions
        self._loop = loop
        self._scheduled = False
        self.future: asyncio.Future[Response] = loop.create_future()
        self._timer = loop.call_later(min(fetch.max_wait_ms, MAX_WAIT_MS) / 1000, self._answer)
        self.future.add_done_callback(self._stop)
        for partition in partitions:
            partition.waiters[self] = None

    def more(self, size: int) -> None:
        """Count the appended messages; the response leaves after the current round of requests."""
        self._found += size
        if self._found >= self._fetch.min_bytes:
            self.gone()

    def gone(self) -> None:
        """Answer soon, whatever there is."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        if not self.future.done():
            self.future.set_result(self._broker.fetched(self._fetch))

    def _stop(self, _: asyncio.Future[Response]) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.pop(self, None)


class _Fetch(NamedTuple):
    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    wanted: list[Wanted]


class Broker:
    """The requests of all connections, on one event loop."""

    def __init__(
        self, settings: LogSettings, store: Store, offsets: OffsetStore, groups: Coordinator
    ) -> None:
        self.settings = settings
        self.store = store
        self.offsets = offsets
        self.groups = groups
        self.address = Peer(settings.host, settings.port)

    def handle(
        self, head: RequestHead, frame: memoryview, peer: Peer
    ) -> Response | asyncio.Future[Response] | Coroutine[Any, Any, Response]:
        """Answer one request. `frame` may be reused as soon as this returns.

        Raises MalformedRequest, which is meant to end the connection.
        """
        if head.api_key == Api.PRODUCE and head.version in wire.PRODUCE_VERSIONS:
            return self._produce(head.version, Reader(frame, head.body))
        if head.api_key == Api.FETCH and head.version in wire.FETCH_VERSIONS:
            return self._fetch(head.version, Reader(frame, head.body))
        try:
            api = Api(head.api_key)
        except ValueError:
            raise MalformedRequest(f"request {head.api_key} is not one of this broker's") from None
        if api is Api.API_VERSIONS:
            return self._api_versions(head.version)
        if head.version not in wire.LAYOUTS.get(api, {}):
            raise MalformedRequest(f"{api.name} version {head.version} is not one of this broker's")
        fields = wire.decode(api, head.version, bytes(frame[head.body :]))
        if api is Api.JOIN_GROUP:
            return self._join(head, fields, peer)
        if api is Api.SYNC_GROUP:
            return self._sync(head, fields)
        answer = _HANDLERS[api](self, head, fields)
        return [wire.encode(api, head.version, answer)]

    def _api_versions(self, version: int) -> Response:
        known = version in wire.LAYOUTS[Api.API_VERSIONS]
        answer = {
            "error_code": Code.NONE if known else Code.UNSUPPORTED_VERSION,
            "api_versions": [
                {"api_key": key, "min_version": low, "max_version": high}
                for key, (low, high) in wire.SUPPORTED.items()
            ],
        }
        return [wire.encode(Api.API_VERSIONS, version if known else 0, answer)]

    # -- produce

    def _produce(self, version: int, reader: Reader) -> Response:
        reader.string()
        acks, _ = reader.take(_I16_I32)
        answer = [_ZERO]
        topics = reader.int32()
        answer[0] = _INT32.pack(max(topics, 0))
        failed = ""
        for _ in range(topics):
            topic = reader.string() or ""
            name = topic.encode()
            partitions = reader.int32()
            answer.append(wire.INT16.pack(len(name)) + name + _INT32.pack(max(partitions, 0)))
            for _ in range(partitions):
                number = reader.int32()
                size = reader.int32()
                data = reader.raw(max(size, 0))
                start = offset = append_ms = -1
                code, message = Code.NONE, ""
                try:
                    if acks not in (-1, 0, 1):
                        raise LogError(Code.INVALID_REQUIRED_ACKS, f"acks {acks}: expected -1, 0 or 1")
                    partition = self.store.partition(topic, number)
                    self.store.require_space(size)
                    offset, append_ms, _ = partition.append(data)
                    start = partition.start_offset
                except LogError as error:
                    code, message = error.code, str(error)
                    self._note_refusal(error)
                    failed = failed or f"{topic}-{number}: {message}"
                if version >= 5:
                    answer.append(_PRODUCED.pack(number, code, offset, append_ms, start))
                else:
                    answer.append(_PRODUCED_OLD.pack(number, code, offset, append_ms))
                if version >= 8:
                    text = message.encode()[:1000]
                    answer.append(_ZERO + (wire.INT16.pack(len(text)) + text if code else b"\xff\xff"))
        reader.done()
        if acks == 0:
            if failed:
                raise MalformedRequest(f"unacknowledged message refused: {failed}")
            return None
        answer.append(_ZERO)
        return [b"".join(answer)]

    def _note_refusal(self, error: LogError) -> None:
        if error.code is Code.KAFKA_STORAGE_ERROR:
            if isinstance(error.__cause__, OSError):
                self.store.out_of_space(str(error))
        else:
            log.debug("refused: %s", error)

    # -- fetch

    def _fetch(self, version: int, reader: Reader) -> Response | asyncio.Future[Response]:
        _, max_wait_ms, min_bytes, max_bytes, _ = reader.take(_FETCH_HEAD)
        if version >= 7:
            session_id, session_epoch = reader.take(_FETCH_SESSION)
            if session_id != 0 or session_epoch > 0:
                return [_ZERO + wire.INT16.pack(Code.FETCH_SESSION_ID_NOT_FOUND) + _ZERO + _ZERO]
        layout = _FETCH_PARTITION[9 if version >= 9 else 5 if version >= 5 else 4]
        offset_at = 2 if version >= 9 else 1
        wanted = []
        for _ in range(reader.int32()):
            topic = reader.string() or ""
            for _ in range(reader.int32()):
                fields = reader.take(layout)
                wanted.append(Wanted(topic, fields[0], fields[offset_at], max(fields[-1], 0)))
        fetch = _Fetch(version, max(max_wait_ms, 0), min_bytes, max(max_bytes, 0), wanted)
        found = 0
        partitions = []
        for want in wanted:
            try:
                partition = self.store.partition(want.topic, want.number)
                if not partition.start_offset <= want.offset <= partition.end_offset:
                    return self.fetched(fetch)
                found += partition.available(want.offset, min_bytes)
            except LogError:
                return self.fetched(fetch)
            if found >= min_bytes:
                return self.fetched(fetch)
            partitions.append(partition)
        if not fetch.max_wait_ms:
            return self.fetched(fetch)
        return _FetchWait(self, fetch, found, partitions).future

    def fetched(self, fetch: _Fetch) -> Response:
        """Return the data that a fetch can get now."""
        version, left = fetch.version, fetch.max_bytes
        chunks: list[Chunk] = []
        head = bytearray(_ZERO)
        if version >= 7:
            head += wire.INT16.pack(0) + _ZERO
        topics: dict[str, list[Wanted]] = {}
        for want in fetch.wanted:
            topics.setdefault(want.topic, []).append(want)
        head += _INT32.pack(len(topics))
        for topic, wanted in topics.items():
            name = topic.encode()
            head += wire.INT16.pack(len(name)) + name + _INT32.pack(len(wanted))
            for want in wanted:
                code, found = Code.NONE, None
                start = end = -1
                try:
                    partition = self.store.partition(topic, want.number)
                    start, end = partition.start_offset, partition.end_offset
                    if want.offset != end and (left > 0 or not start <= want.offset < end):
                        found = partition.read(want.offset, min(want.max_bytes, left))
                except LogError as error:
                    code = error.code
                size = found.size if found else 0
                if version >= 11:
                    head += _FETCHED_RACK.pack(want.number, code, end, end, start, 0, -1, size)
                elif version >= 5:
                    head += _FETCHED.pack(want.number, code, end, end, start, 0, size)
                else:
                    head += _FETCHED_OLD.pack(want.number, code, end, end, 0, size)
                if found:
                    left -= size
                    chunks.append(bytes(head))
                    chunks.append(found)
                    head = bytearray()
        if head:
            chunks.append(bytes(head))
        return chunks

    def _list_offsets(self, head: RequestHead, fields: Fields) -> Fields:
        topics = []
        for topic in fields["topics"] or ():
            found = []
            for want in topic["partitions"] or ():
                answer = {
                    "partition": want["partition"],
                    "error_code": Code.NONE,
                    "timestamp": -1,
                    "offset": -1,
                }
                try:
                    partition = self.store.partition(topic["topic"] or "", want["partition"])
                    if want["timestamp"] == LATEST:
                        answer["offset"] = partition.end_offset
                    elif want["timestamp"] == EARLIEST:
                        answer["offset"] = partition.start_offset
                    else:
                        at = partition.find_time(want["timestamp"])
                        if at is not None:
                            answer["offset"], answer["timestamp"] = at
                except LogError as error:
                    answer["error_code"] = error.code
                found.append(answer)
            topics.append({"topic": topic["topic"], "partitions": found})
        return {"topics": topics}

    # -- topics

    def _metadata(self, head: RequestHead, fields: Fields) -> Fields:
        names = fields["topics"]
        if names is None or (head.version == 0 and not names):
            names = list(self.store.topics)
        may_create = self.settings.auto_create_topics and fields.get("allow_auto_topic_creation", True)
        topics = []
        for name in dict.fromkeys(name or "" for name in names):
            code, count = Code.NONE, 0
            if name not in self.store.topics:
                try:
                    self.store.check_new(name, self.settings.partitions, {})
                    code = Code.UNKNOWN_TOPIC_OR_PARTITION
                    if may_create:
                        self.store.create_topic(name, self.settings.partitions, {})
                        code = Code.NONE
                except LogError as error:
                    code = error.code
            if code is Code.NONE:
                count = len(self.store.topics[name].partitions)
            topics.append(
                {
                    "error_code": code,
                    "topic": name,
                    "is_internal": False,
                    "partitions": [
                        {
                            "error_code": Code.NONE,
                            "partition": number,
                            "leader": NODE_ID,
                            "replicas": [NODE_ID],
                            "isr": [NODE_ID],
                            "offline_replicas": [],
                        }
                        for number in range(count)
                    ],
                }
            )
        return {
            "brokers": [
                {"node_id": NODE_ID, "host": self.address.host, "port": self.address.port, "rack": None}
            ],
            "cluster_id": self.store.cluster_id,
            "controller_id": NODE_ID,
            "topics": topics,
        }

    def _create_topics(self, head: RequestHead, fields: Fields) -> Fields:
        answers = []
        for want in fields["create_topic_requests"] or ():
            name, code, message = want["topic"] or "", Code.NONE, None
            try:
                partitions = self._new_partitions(want)
                config = {entry["config_key"]: entry["config_value"] or "" for entry in want["configs"] or ()}
                if fields.get("validate_only"):
                    self.store.check_new(name, partitions, config)
                else:
                    self.store.create_topic(name, partitions, config)
            except LogError as error:
                code, message = error.code, str(error)
            answers.append({"topic": name, "error_code": code, "error_message": message})
        return {"topic_errors": answers}

    def _new_partitions(self, want: Fields) -> int:
        assigned = want["replica_assignment"] or ()
        if assigned:
            if sorted(entry["partition_id"] for entry in assigned) != list(range(len(assigned))):
                raise LogError(Code.INVALID_PARTITIONS, "partitions of an assignment count from 0")
            if any(list(entry["replicas"] or ()) != [NODE_ID] for entry in assigned):
                raise LogError(Code.INVALID_REPLICATION_FACTOR, f"node {NODE_ID} is the only one")
            return len(assigned)
        if want["replication_factor"] not in (1, -1):
            raise LogError(
                Code.INVALID_REPLICATION_FACTOR,
                f"replication factor {want['replication_factor']}: expected 1",
            )
        count: int = want["num_partitions"]
        return self.settings.partitions if count == -1 else count

    def _delete_topics(self, head: RequestHead, fields: Fields) -> Fields:
        answers = []
        for name in fields["topics"] or ():
            code = Code.NONE
            try:
                self.store.delete_topic(name or "")
                self.offsets.forget(topic=name)
            except LogError as error:
                code = error.code
            except OSError as error:
                log.warning("offsets of deleted topic %s stay: %s", name, error)
            answers.append({"topic": name, "error_code": code})
        return {"topic_error_codes": answers}

    def _describe_configs(self, head: RequestHead, fields: Fields) -> Fields:
        answers = []
        for resource in fields["resources"] or ():
            code, message, entries = Code.NONE, None, []
            kind, name = resource["resource_type"], resource["resource_name"] or ""
            wanted = resource["config_names"]
            topic = self.store.topics.get(name)
            if kind == _TOPIC_RESOURCE and topic is None:
                code, message = Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name[:260]!r}: no such topic"
            elif kind not in (_TOPIC_RESOURCE, _BROKER_RESOURCE):
                code, message = Code.INVALID_REQUEST, f"resource type {kind}: expected a topic or a broker"
            else:
                overrides = topic.overrides if topic is not None and kind == _TOPIC_RESOURCE else {}
                entries = [
                    {
                        "config_names": key,
                        "config_value": value,
                        "read_only": kind == _BROKER_RESOURCE,
                        "is_default": key not in overrides,
                        "config_source": 1 if key in overrides else 5,
                        "is_sensitive": False,
                        "config_synonyms": [],
                    }
                    for key, value in self.store.full_config(overrides).items()
                    if wanted is None or key in wanted
                ]
            answers.append(
                {
                    "error_code": code,
                    "error_message": message,
                    "resource_type": kind,
                    "resource_name": name,
                    "config_entries": entries,
                }
            )
        return {"resources": answers}

    def _alter_configs(self, head: RequestHead, fields: Fields) -> Fields:
        answers = []
        for resource in fields["resources"] or ():
            code, message = Code.NONE, None
            kind, name = resource["resource_type"], resource["resource_name"] or ""
            try:
                if kind != _TOPIC_RESOURCE:
                    raise LogError(Code.INVALID_REQUEST, f"resource type {kind}: expected a topic")
                if name not in self.store.topics:
                    raise LogError(Code.UNKNOWN_TOPIC_OR_PARTITION, f"topic {name[:260]!r}: no such topic")
                entries = resource["config_entries"] or ()
                config = {entry["config_name"]: entry["config_value"] or "" for entry in entries}
                if fields["validate_only"]:
                    self.store.check_config(config)
                else:
                    self.store.configure(name, config)
            except LogError as error:
                code, message = error.code, str(error)
            answers.append(
                {"error_code": code, "error_message": message, "resource_type": kind, "resource_name": name}
            )
        return {"resources": answers}

    def _init_producer_id(self, head: RequestHead, fields: Fields) -> Fields:
        answer = {"error_code": Code.NONE, "producer_id": -1, "producer_epoch": -1}
        if fields["transactional_id"] is not None:
            answer["error_code"] = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            log.warning("a client asked for transactions, which this log does not have")
            return answer
        try:
            answer["producer_id"], answer["producer_epoch"] = self.store.producer_id(), 0
        except OSError as error:
            log.error("no producer id: %s", error)
            answer["error_code"] = Code.COORDINATOR_NOT_AVAILABLE
        return answer

    # -- groups

    def _find_coordinator(self, head: RequestHead, fields: Fields) -> Fields:
        found = fields.get("coordinator_type", 0) == 0
        return {
            "error_code": Code.NONE if found else Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "error_message": None if found else "transactions are not supported",
            "coordinator_id": NODE_ID if found else -1,
            "host": self.address.host if found else "",
            "port": self.address.port if found else -1,
        }

    async def _join(self, head: RequestHead, fields: Fields, peer: Peer) -> Response:
        request = Join(
            group=fields["group"] or "",
            member_id=fields["member_id"] or "",
            instance_id=fields.get("group_instance_id"),
            client_id=head.client_id,
            client_host=peer.host,
            session_ms=fields["session_timeout"],
            rebalance_ms=max(fields["rebalance_timeout"] if head.version else fields["session_timeout"], 0),
            protocol_type=fields["protocol_type"] or "",
            protocols=tuple(
                (offer["protocol_name"] or "", offer["protocol_metadata"] or b"")
                for offer in fields["group_protocols"] or ()
            ),
            needs_known_id=head.version >= 4,
        )
        answer: Fields = {
            "error_code": Code.NONE,
            "generation_id": -1,
            "group_protocol": "",
            "leader_id": "",
            "member_id": request.member_id,
            "members": [],
        }
        try:
            joined = await self.groups.join(request)
        except MemberIdRequired as error:
            answer |= {"error_code": error.code, "member_id": error.member_id}
        except LogError as error:
            answer["error_code"] = error.code
        else:
            answer |= {
                "generation_id": joined.generation,
                "group_protocol": joined.protocol,
                "leader_id": joined.leader_id,
                "member_id": joined.member_id,
                "members": [
                    {"member_id": member, "group_instance_id": instance, "member_metadata": data}
                    for member, instance, data in joined.members
                ],
            }
        return [wire.encode(Api.JOIN_GROUP, head.version, answer)]

    async def _sync(self, head: RequestHead, fields: Fields) -> Response:
        code, assignment = Code.NONE, b""
        given = {
            entry["member_id"] or "": entry["member_metadata"] or b""
            for entry in fields["group_assignment"] or ()
        }
        try:
            assignment = await self.groups.sync(
                fields["group"] or "",
                fields["generation_id"],
                fields["member_id"] or "",
                fields.get("group_instance_id"),
                given,
            )
        except LogError as error:
            code = error.code
        return [
            wire.encode(Api.SYNC_GROUP, head.version, {"error_code": code, "member_assignment": assignment})
        ]

    def _heartbeat(self, head: RequestHead, fields: Fields) -> Fields:
        try:
            self.groups.heartbeat(
                fields["group"] or "",
                fields["generation_id"],
                fields["member_id"] or "",
                fields.get("group_instance_id"),
            )
        except LogError as error:
            return {"error_code": error.code}
        return {"error_code": Code.NONE}

    def _leave(self, head: RequestHead, fields: Fields) -> Fields:
        try:
            self.groups.leave(fields["group"] or "", fields["member_id"] or "")
        except LogError as error:
            return {"error_code": error.code}
        return {"error_code": Code.NONE}

    def _offset_commit(self, head: RequestHead, fields: Fields) -> Fields:
        group, refused = fields["consumer_group"] or "", Code.NONE
        try:
            self.groups.check_commit(
                group, fields["consumer_group_generation_id"], fields["consumer_id"] or ""
            )
        except LogError as error:
            refused = error.code
        taken: dict[tuple[str, int], Committed] = {}
        topics: list[Fields] = []
        for topic in fields["topics"] or ():
            name, found = topic["topic"] or "", []
            for entry in topic["partitions"] or ():
                code = refused
                if code is Code.NONE:
                    metadata = entry["metadata"] or ""
                    try:
                        self.store.partition(name, entry["partition"])
                        if len(metadata) > MAX_METADATA_BYTES:
                            code = Code.OFFSET_METADATA_TOO_LARGE
                        else:
                            taken[name, entry["partition"]] = Committed(max(entry["offset"], 0), metadata)
                    except LogError as error:
                        code = error.code
                found.append({"partition": entry["partition"], "error_code": code})
            topics.append({"topic": name, "partitions": found})
        if taken:
            try:
                self.offsets.commit(group, taken)
            except OSError as error:
                self.store.out_of_space(f"offsets of group {group}: {error.strerror}")
                for topic in topics:
                    for answer in topic["partitions"]:
                        answer["error_code"] = answer["error_code"] or Code.COORDINATOR_NOT_AVAILABLE
        return {"topics": topics}

    def _offset_fetch(self, head: RequestHead, fields: Fields) -> Fields:
        kept = self.offsets.fetch(fields["consumer_group"] or "")
        wanted = fields["topics"]
        if wanted is None:
            names: dict[str, list[int]] = {}
            for topic, number in kept:
                names.setdefault(topic, []).append(number)
            wanted = [{"topic": topic, "partitions": numbers} for topic, numbers in names.items()]
        missing = Committed(-1, "")
        topics = []
        for topic in wanted:
            found = []
            for number in topic["partitions"] or ():
                committed = kept.get((topic["topic"] or "", number), missing)
                found.append(
                    {
                        "partition": number,
                        "offset": committed.offset,
                        "metadata": committed.metadata,
                        "error_code": Code.NONE,
                    }
                )
            topics.append({"topic": topic["topic"], "partitions": found})
        return {"topics": topics, "error_code": Code.NONE}

    def _describe_groups(self, head: RequestHead, fields: Fields) -> Fields:
        return {"groups": [self._describe_group(name or "") for name in fields["groups"] or ()]}

    def _describe_group(self, name: str) -> Fields:
        answer: Fields = {
            "error_code": Code.NONE,
            "group": name,
            "state": State.DEAD,
            "protocol_type": "",
            "protocol": "",
            "members": [],
        }
        group = self.groups.groups.get(name)
        if group is None:
            if self.offsets.fetch(name):
                answer["state"] = State.EMPTY
            return answer
        settled = group.state is State.STABLE
        answer |= {
            "state": group.state,
            "protocol_type": group.protocol_type,
            "protocol": group.protocol if settled else "",
            "members": [
                {
                    "member_id": member.member_id,
                    "client_id": member.request.client_id,
                    "client_host": f"/{member.request.client_host}",
                    "member_metadata": member.metadata(group.protocol) if settled else b"",
                    "member_assignment": member.assignment if settled else b"",
                }
                for member in group.members.values()
            ],
        }
        return answer

    def _list_groups(self, head: RequestHead, fields: Fields) -> Fields:
        live = {name: group.protocol_type for name, group in self.groups.groups.items()}
        names = live | {name: "consumer" for name in self.offsets.groups() if name not in live}
        return {
            "error_code": Code.NONE,
            "groups": [{"group": name, "protocol_type": kind} for name, kind in names.items()],
        }


_HANDLERS: Final = {
    Api.LIST_OFFSETS: Broker._list_offsets,
    Api.METADATA: Broker._metadata,
    Api.CREATE_TOPICS: Broker._create_topics,
    Api.DELETE_TOPICS: Broker._delete_topics,
    Api.DESCRIBE_CONFIGS: Broker._describe_configs,
    Api.ALTER_CONFIGS: Broker._alter_configs,
    Api.INIT_PRODUCER_ID: Broker._init_producer_id,
    Api.FIND_COORDINATOR: Broker._find_coordinator,
    Api.HEARTBEAT: Broker._heartbeat,
    Api.LEAVE_GROUP: Broker._leave,
    Api.OFFSET_COMMIT: Broker._offset_commit,
    Api.OFFSET_FETCH: Broker._offset_fetch,
    Api.DESCRIBE_GROUPS: Broker._describe_groups,
    Api.LIST_GROUPS: Broker._list_groups,
}
