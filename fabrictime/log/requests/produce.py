"""Answers the Kafka requests Produce and InitProducerId. Produce writes the payload without decoding it."""

from __future__ import annotations

import logging
import struct
from typing import Final, NamedTuple

from fabrictime.log.errors import Code, LogError, MalformedRequest
from fabrictime.log.requests.base import Response
from fabrictime.log.store import Store
from fabrictime.log.wire import INT16, INT32, Fields, Reader

log = logging.getLogger(__name__)

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_PRODUCED: Final = struct.Struct(">ihqqq")
_PRODUCED_OLD: Final = struct.Struct(">ihqq")
_ZERO: Final = INT32.pack(0)
_NO_MESSAGE: Final = b"\xff\xff"
_MAX_MESSAGE_BYTES: Final = 1000


class _Produced(NamedTuple):
    """The result of a produce request for one partition; the offsets are -1 after an error."""

    code: Code
    message: str
    offset: int = -1
    append_ms: int = -1
    start_offset: int = -1

    def encode(self, version: int, number: int) -> bytes:
        """Return the bytes of the response for this partition. `number` is the partition's number."""
        if version < 5:
            return _PRODUCED_OLD.pack(number, self.code, self.offset, self.append_ms)
        head = _PRODUCED.pack(number, self.code, self.offset, self.append_ms, self.start_offset)
        if version < 8:
            return head
        text = self.message.encode()[:_MAX_MESSAGE_BYTES]
        return head + _ZERO + (INT16.pack(len(text)) + text if self.code else _NO_MESSAGE)


class ProduceRequests:
    """Handles the requests of producers for appending batches and for producer ids."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def produce(self, version: int, reader: Reader) -> Response:
        """Append the batches of one request. Each partition succeeds or fails independently of the others."""
        reader.string()
        acks, _ = reader.take(_ACKS_TIMEOUT)
        topics = reader.int32()
        answer = [INT32.pack(max(topics, 0))]
        failed = ""
        for _ in range(topics):
            topic = reader.string() or ""
            name = topic.encode()
            partitions = reader.int32()
            answer.append(INT16.pack(len(name)) + name + INT32.pack(max(partitions, 0)))
            for _ in range(partitions):
                number = reader.int32()
                data = reader.raw(max(reader.int32(), 0))
                produced = self._append(acks, topic, number, data)
                if produced.code and not failed:
                    failed = f"{topic}-{number}: {produced.message}"
                answer.append(produced.encode(version, number))
        reader.done()
        if acks == 0:
            if failed:
                raise MalformedRequest(f"unacknowledged message refused: {failed}")
            return None
        answer.append(_ZERO)
        return [b"".join(answer)]

    def _append(self, acks: int, topic: str, number: int, data: memoryview) -> _Produced:
        try:
            if acks not in (-1, 0, 1):
                raise LogError(Code.INVALID_REQUIRED_ACKS, f"acks {acks}: expected -1, 0 or 1")
            partition = self._store.partition(topic, number)
            self._store.require_space(len(data))
            offset, append_ms, _ = partition.append(data)
        except LogError as error:
            self._note_refusal(error)
            return _Produced(error.code, str(error))
        return _Produced(Code.NONE, "", offset, append_ms, partition.start_offset)

    def _note_refusal(self, error: LogError) -> None:
        if error.code is Code.KAFKA_STORAGE_ERROR:
            if isinstance(error.__cause__, OSError):
                self._store.out_of_space(str(error))
        else:
            log.debug("refused: %s", error)

    def init_producer_id(self, _: int, fields: Fields) -> Fields:
        """Return a new id for an idempotent producer. Transactions are not supported."""
        answer = {"error_code": Code.NONE, "producer_id": -1, "producer_epoch": -1}
        if fields["transactional_id"] is not None:
            answer["error_code"] = Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            log.warning("a client asked for transactions, which this log does not have")
            return answer
        try:
            answer["producer_id"], answer["producer_epoch"] = self._store.producer_id(), 0
        except OSError as error:
            log.error("no producer id: %s", error)
            answer["error_code"] = Code.COORDINATOR_NOT_AVAILABLE
        return answer
