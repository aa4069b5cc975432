"""Holds the history sink: it converts topics to rows for ClickHouse, stored at least once, no row twice.

A deduplication token names each batch. If the answer to an insert is lost, the batch is sent again with the
same token, and the server drops the duplicate. A batch that is cut differently after a crash has another
token; then its rows replace the earlier ones, because the tables' keys are equal.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Final

from schemas.kafka.message import Message
from schemas.topics import Topic
from schemas.unexpected import DATA_ERRORS, refusal
from streams.history import rows
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.history_settings import HistorySinkSettings
from streams.runtime.operator import NEVER_NS, Input, Moment, Operator, Output, Owner, Stage, Store, Work
from streams.runtime.units import NS_PER_MS

TOKEN_BYTES: Final = 12


class HistoryOperator(Operator):
    """Collects messages of one topic in a batch; each advance converts the batch to rows."""

    def __init__(self, topic: Topic, owner: Owner) -> None:
        super().__init__()
        self._topic, self._registry = topic, owner.registry
        self._settings = owner.settings.history or HistorySinkSettings()
        self._messages: list[Message] = []
        self._size_bytes = self._since_ns = 0
        """Total size of the collected messages, and the time of the first one."""

    def take(self, messages: Sequence[Message], tables: FabricTables) -> None:
        """Add messages to the batch that the next `advance` converts."""
        if not self._messages:
            self._since_ns = self.moment.log_ns
        self._messages += messages
        self._size_bytes += sum(len(message.value or b"") for message in messages)

    def due_ns(self) -> int:
        """Return the log time, ns, at which the batch is old enough to be stored; 0 if it is full."""
        limits, count = self._settings, len(self._messages)
        if self._size_bytes >= limits.batch_bytes or count >= limits.batch_messages:
            return 0
        return self._since_ns + limits.batch_ms * NS_PER_MS if count else NEVER_NS

    def advance(self, moment: Moment, tables: FabricTables) -> Work:
        """Start a new batch; return the work that converts the previous batch to rows."""
        messages, self._messages, self._size_bytes = self._messages, [], 0
        return partial(self._rows_of, messages)

    def _rows_of(self, messages: Sequence[Message]) -> Sequence[Output]:
        """Convert decodable messages to rows. Raises BadRecord for values that no column can store."""
        readable: list[Message] = []
        for message in messages:
            try:
                if message.value is not None:
                    message.decoded(self._topic, self._registry)
                readable.append(message)
            except DATA_ERRORS as error:
                self.rejected.append((message, error))
        try:
            blocks = rows.rows_of(self._topic.name, readable)
        except DATA_ERRORS as error:
            raise refusal(error) from error
        return [Output(self._topic, token_of(self._topic.name, messages), rows=blocks)]


class HistoryStage(Stage):
    """Stores the records of one topic in ClickHouse."""

    outputs = ()
    per_partition = False
    reject_reader = "sink"

    def __init__(self, topic: Topic, store: Store) -> None:
        self.name, self.owner, self.inputs = f"sink of {topic.name}", topic, (Input(topic),)
        self.store = store

    def make(self, owner: Owner, partition: int, tables: FabricTables) -> HistoryOperator:
        """Return the operator that stores all partitions of one owner."""
        return HistoryOperator(self.owner, owner)


def token_of(topic: str, messages: Sequence[Message]) -> str:
    """Return the deduplication token of a batch: topic, partitions and offsets of its messages.

    It includes the first message's append time, so that a recreated log does not repeat old tokens.
    """
    digest = hashlib.sha256()
    for message in sorted(messages, key=lambda message: (message.partition, message.offset)):
        digest.update(f"{message.partition}:{message.offset}@{message.append_ns};".encode())
    partitions = ",".join(map(str, sorted({message.partition for message in messages})))
    return f"{topic}/{partitions}/{len(messages)}/{digest.hexdigest()[: 2 * TOKEN_BYTES]}"
