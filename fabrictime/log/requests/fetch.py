"""Answers the Kafka requests Fetch and ListOffsets. Fetch sends the segment's file without decoding it."""

from __future__ import annotations

import asyncio
import struct
from typing import Final, NamedTuple

from fabrictime.log.errors import Code, LogError
from fabrictime.log.partition import Partition, Range
from fabrictime.log.requests.base import Chunk, Response
from fabrictime.log.store import Store
from fabrictime.log.wire import INT16, INT32, Fields, Reader

EARLIEST: Final = -2
LATEST: Final = -1
MAX_WAIT_MS: Final = 300_000

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
_ZERO: Final = INT32.pack(0)


class Wanted(NamedTuple):
    """One requested partition of a fetch: topic, number, offset and largest number of bytes."""

    topic: str
    number: int
    offset: int
    max_bytes: int


class _Fetch(NamedTuple):
    version: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    wants: list[Wanted]


class _Fetched(NamedTuple):
    """The result of a fetch for one partition. Its offsets are -1 if the partition does not exist."""

    number: int
    code: Code
    start: int
    end: int
    data: Range | None

    def encode_head(self, version: int) -> bytes:
        """Return the bytes of the response that precede the partition's data."""
        number, code, start, end, data = self
        size = data.size if data else 0
        if version >= 11:
            return _FETCHED_RACK.pack(number, code, end, end, start, 0, -1, size)
        if version >= 5:
            return _FETCHED.pack(number, code, end, end, start, 0, size)
        return _FETCHED_OLD.pack(number, code, end, end, 0, size)


class _FetchWait:
    """A fetch that waits until its partitions have enough bytes or its timeout ends."""

    def __init__(
        self, requests: FetchRequests, fetch: _Fetch, available_bytes: int, partitions: list[Partition]
    ) -> None:
        loop = asyncio.get_running_loop()
        self._requests, self._fetch, self._available_bytes, self._partitions = (
            requests,
            fetch,
            available_bytes,
            partitions,
        )
        self._loop = loop
        self._scheduled = False
        self.future: asyncio.Future[Response] = loop.create_future()
        self._timer = loop.call_later(min(fetch.max_wait_ms, MAX_WAIT_MS) / 1000, self._answer)
        self.future.add_done_callback(self._stop)
        for partition in partitions:
            partition.waiters[self] = None

    def more(self, size: int) -> None:
        """Count appended bytes. Once there are enough, schedule the response after the present requests."""
        self._available_bytes += size
        if self._available_bytes >= self._fetch.min_bytes:
            self.gone()

    def gone(self) -> None:
        """Schedule the response with the data that is available."""
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._answer)

    def _answer(self) -> None:
        if not self.future.done():
            self.future.set_result(self._requests.fetched(self._fetch))

    def _stop(self, _: asyncio.Future[Response]) -> None:
        self._timer.cancel()
        for partition in self._partitions:
            partition.waiters.pop(self, None)


class FetchRequests:
    """Handles requests of consumers for data and offsets of partitions."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def fetch(self, version: int, reader: Reader) -> Response | asyncio.Future[Response]:
        """Return the response with the available data. If there is too little data, return a future that
        waits as long as the client allows.
        """
        _, max_wait_ms, min_bytes, max_bytes, _ = reader.take(_FETCH_HEAD)
        if version >= 7:
            session_id, session_epoch = reader.take(_FETCH_SESSION)
            if session_id != 0 or session_epoch > 0:
                return [_ZERO + INT16.pack(Code.FETCH_SESSION_ID_NOT_FOUND) + _ZERO + _ZERO]
        wants = _read_wanted(version, reader)
        fetch = _Fetch(version, max(max_wait_ms, 0), min_bytes, max(max_bytes, 0), wants)
        return self._wait(fetch) or self.fetched(fetch)

    def _wait(self, fetch: _Fetch) -> asyncio.Future[Response] | None:
        """Return a future of the response if the fetch must wait; None if the response is due now."""
        available_bytes = 0
        partitions = []
        for want in fetch.wants:
            try:
                partition = self._store.partition(want.topic, want.number)
                if not partition.start_offset <= want.offset <= partition.end_offset:
                    return None
                available_bytes += partition.available(want.offset, fetch.min_bytes)
            except LogError:
                return None
            if available_bytes >= fetch.min_bytes:
                return None
            partitions.append(partition)
        return _FetchWait(self, fetch, available_bytes, partitions).future if fetch.max_wait_ms else None

    def fetched(self, fetch: _Fetch) -> Response:
        """Return the response with the data that is available now."""
        version, left = fetch.version, fetch.max_bytes
        chunks: list[Chunk] = []
        head = bytearray(_ZERO)
        if version >= 7:
            head += INT16.pack(0) + _ZERO
        topics: dict[str, list[Wanted]] = {}
        for want in fetch.wants:
            topics.setdefault(want.topic, []).append(want)
        head += INT32.pack(len(topics))
        for topic, topic_wants in topics.items():
            name = topic.encode()
            head += INT16.pack(len(name)) + name + INT32.pack(len(topic_wants))
            for want in topic_wants:
                fetched = self._read(want, left)
                head += fetched.encode_head(version)
                if fetched.data:
                    left -= fetched.data.size
                    chunks += (bytes(head), fetched.data)
                    head = bytearray()
        if head:
            chunks.append(bytes(head))
        return chunks

    def _read(self, want: Wanted, max_bytes: int) -> _Fetched:
        code, data = Code.NONE, None
        start = end = -1
        try:
            partition = self._store.partition(want.topic, want.number)
            start, end = partition.start_offset, partition.end_offset
            if want.offset != end and (max_bytes > 0 or not start <= want.offset < end):
                data = partition.read(want.offset, min(want.max_bytes, max_bytes))
        except LogError as error:
            code = error.code
        return _Fetched(want.number, code, start, end, data)

    def list_offsets(self, _: int, fields: Fields) -> Fields:
        """Return one offset of each requested partition: the first, the next, or the first from a time on."""
        return {
            "topics": [
                {
                    "topic": topic["topic"],
                    "partitions": [
                        self._list_offset(topic["topic"] or "", want["partition"], want["timestamp"])
                        for want in topic["partitions"] or ()
                    ],
                }
                for topic in fields["topics"] or ()
            ]
        }

    def _list_offset(self, topic: str, number: int, timestamp_ms: int) -> Fields:
        code, offset, found_ms = Code.NONE, -1, -1
        try:
            partition = self._store.partition(topic, number)
            if timestamp_ms == LATEST:
                offset = partition.end_offset
            elif timestamp_ms == EARLIEST:
                offset = partition.start_offset
            else:
                offset, found_ms = partition.find_time(timestamp_ms) or (-1, -1)
        except LogError as error:
            code = error.code
        return {"partition": number, "error_code": code, "timestamp": found_ms, "offset": offset}


def _read_wanted(version: int, reader: Reader) -> list[Wanted]:
    layout = _FETCH_PARTITION[9 if version >= 9 else 5 if version >= 5 else 4]
    offset_at = 2 if version >= 9 else 1
    wants = []
    for _ in range(reader.int32()):
        topic = reader.string() or ""
        for _ in range(reader.int32()):
            fields = reader.take(layout)
            wants.append(Wanted(topic, fields[0], fields[offset_at], max(fields[-1], 0)))
    return wants
