"""Answers each Kafka request: takes the bytes of one request and returns the bytes of the response.

The handlers of the requests are in the package `requests`, one file per subject.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fabrictime.log import wire
from fabrictime.log.errors import Code, MalformedRequest
from fabrictime.log.groups import Coordinator
from fabrictime.log.offsets import OffsetStore
from fabrictime.log.requests.base import Peer, Response
from fabrictime.log.requests.commits import CommitRequests
from fabrictime.log.requests.configs import ConfigRequests
from fabrictime.log.requests.fetch import FetchRequests
from fabrictime.log.requests.groups import GroupRequests
from fabrictime.log.requests.produce import ProduceRequests
from fabrictime.log.requests.topics import TopicRequests
from fabrictime.log.settings import LogSettings
from fabrictime.log.store import Store
from fabrictime.log.wire import Api, Fields, Reader, RequestHead


class Broker:
    """Handles requests of all connections, on one event loop. Clients reach the broker at `address`."""

    def __init__(
        self,
        settings: LogSettings,
        address: Peer,
        store: Store,
        offsets: OffsetStore,
        groups: Coordinator,
    ) -> None:
        self.address = address
        self._produce = ProduceRequests(store)
        self._fetch = FetchRequests(store)
        self._groups = GroupRequests(address, offsets, groups)
        topics = TopicRequests(settings, address, store, offsets)
        configs = ConfigRequests(store)
        commits = CommitRequests(store, offsets, groups)
        self._handlers: Mapping[Api, Callable[[int, Fields], Fields]] = {
            Api.LIST_OFFSETS: self._fetch.list_offsets,
            Api.METADATA: topics.metadata,
            Api.CREATE_TOPICS: topics.create_topics,
            Api.DELETE_TOPICS: topics.delete_topics,
            Api.DESCRIBE_CONFIGS: configs.describe_configs,
            Api.ALTER_CONFIGS: configs.alter_configs,
            Api.INIT_PRODUCER_ID: self._produce.init_producer_id,
            Api.FIND_COORDINATOR: self._groups.find_coordinator,
            Api.HEARTBEAT: self._groups.heartbeat,
            Api.LEAVE_GROUP: self._groups.leave,
            Api.OFFSET_COMMIT: commits.offset_commit,
            Api.OFFSET_FETCH: commits.offset_fetch,
            Api.DESCRIBE_GROUPS: self._groups.describe_groups,
            Api.LIST_GROUPS: self._groups.list_groups,
            Api.DELETE_GROUPS: self._groups.delete_groups,
        }

    def handle(
        self, head: RequestHead, frame: memoryview, peer: Peer
    ) -> Response | asyncio.Future[Response] | Coroutine[Any, Any, Response]:
        """Return the response to one request, or an awaitable of the response. Callers may reuse `frame`
        afterwards.

        Raises MalformedRequest, after which the connection must be closed.
        """
        if head.api_key == Api.PRODUCE and head.version in wire.PRODUCE_VERSIONS:
            return self._produce.produce(head.version, Reader(frame, head.body))
        if head.api_key == Api.FETCH and head.version in wire.FETCH_VERSIONS:
            return self._fetch.fetch(head.version, Reader(frame, head.body))
        try:
            api = Api(head.api_key)
        except ValueError:
            raise MalformedRequest(f"request {head.api_key} is not one of this broker's") from None
        if api is Api.API_VERSIONS:
            return _api_versions(head.version)
        if head.version not in wire.LAYOUTS.get(api, {}):
            raise MalformedRequest(f"{api.name} version {head.version} is not one of this broker's")
        fields = wire.decode(api, head.version, bytes(frame[head.body :]))
        if api is Api.JOIN_GROUP:
            return self._groups.join(head, fields, peer)
        if api is Api.SYNC_GROUP:
            return self._groups.sync(head.version, fields)
        answer = self._handlers[api](head.version, fields)
        return [wire.encode(api, head.version, answer)]


def _api_versions(version: int) -> Response:
    is_supported = version in wire.LAYOUTS[Api.API_VERSIONS]
    answer = {
        "error_code": Code.NONE if is_supported else Code.UNSUPPORTED_VERSION,
        "api_versions": [
            {"api_key": key, "min_version": low, "max_version": high}
            for key, (low, high) in wire.SUPPORTED.items()
        ],
    }
    return [wire.encode(Api.API_VERSIONS, version if is_supported else 0, answer)]
