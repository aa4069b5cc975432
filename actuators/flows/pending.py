"""Messages that wait for the schema of a later version: decisions, fallbacks and config.

The schema is in the log before the first message that needs it, but a consumer may get it later. Until then
neither the message nor its expiry time can be read. It is processed as usual once the schema has arrived. The
applier then refuses a decision that has expired, or that a newer decision of its flow excludes. A message is
refused once all rows of the schema topic have arrived without its schema.

Only the newest fallbacks of a key wait. The newest `MAX_CONFIGS` config messages of a key wait beyond all
other limits, because config can stop all actions. Each config message is checked once it can be read. If it
counts, it ends the wait of the earlier ones: so a message without a signature replaces none.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from schemas import codec
from schemas.kafka.message import Message
from schemas.kafka.schema_log import SchemaUnread
from schemas.topics import SCHEMAS

MAX_WAIT_S: Final = 60.0
"""Longest wait for a schema while the log does not answer. Decisions of the policy expire after seconds."""
MAX_MESSAGES: Final = 1000
MAX_BYTES: Final = 32 << 20
"""Limits of the messages that wait: their number, and the sum of their values' sizes."""
MAX_CONFIGS: Final = 16
"""Largest number of config messages of one key that wait."""
_CONFIG: Final = "config"


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A message that waits for its schema, and the monotonic time at which the wait began."""

    kind: str
    message: Message
    since_s: float

    @property
    def size_bytes(self) -> int:
        """Size of the message's value, bytes."""
        return len(self.message.value or b"")


class Refusals(Protocol):
    """The methods of the command I/O that waiting messages need."""

    def check_schemas(self, at_s: float) -> None:
        """Cause a `retry` once all schemas in the log at the monotonic time `at_s` have arrived.

        Minus infinity means that no message waits.
        """

    def reject(self, message: Message, bad: codec.BadRecord) -> None:
        """Publish a `Reject` for a message that could not be used."""

    def done(self, message: Message) -> None:
        """Record that a message is fully processed."""


class PendingMessages:
    """Passes messages to handlers, and keeps messages whose schema has not arrived, in order."""

    def __init__(
        self,
        handlers: Mapping[str, Callable[[Message], None]],
        command_io: Refusals,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Set the handlers of messages, by the short name of their topic.

        A handler raises SchemaUnread, before any change, if the message must wait.
        """
        self._handlers, self._command_io, self._now_s = handlers, command_io, now_s
        self._waiting: dict[int, _Waiting] = {}
        """The messages in the order of their arrival, by a running number."""
        self._numbers = itertools.count()
        self._bytes = 0
        """Sum of the sizes of the messages."""

    def __len__(self) -> int:
        return len(self._waiting)

    def process(self, kind: str, message: Message) -> None:
        """Process a message, at once or after its schema has arrived. `kind`: short name of its topic."""
        try:
            self._handlers[kind](message)
        except SchemaUnread as unread:
            if kind == _CONFIG:
                self._limit_configs(message)
            elif kind != "decision":
                self.supersede(message)
            waiting = _Waiting(kind, message, self._now_s())
            is_full = len(self._waiting) >= MAX_MESSAGES or self._bytes + waiting.size_bytes > MAX_BYTES
            if is_full and kind != _CONFIG:
                self._refuse(message, f"{unread}, and too many messages wait already")
                return
            self._waiting[next(self._numbers)] = waiting
            self._bytes += waiting.size_bytes
            self._command_io.check_schemas(waiting.since_s)

    def supersede(self, message: Message) -> None:
        """Drop the older messages with the topic and key of `message`, because only the newest one counts.

        Config and fallbacks are always read from the start, so no offset has to be marked as done.
        """
        for number in self._older(message):
            self._end(number)

    def _limit_configs(self, message: Message) -> None:
        """Refuse the oldest messages with the topic and key of `message` if too many wait."""
        older = self._older(message)
        for number in older[: max(0, len(older) + 1 - MAX_CONFIGS)]:
            refused = self._waiting[number].message
            self._end(number)
            self._refuse(refused, f"{MAX_CONFIGS} later ones of its key wait for their schema, too")

    def _older(self, message: Message) -> list[int]:
        """Return the numbers of the waiting messages older than `message` with its topic and key."""
        return [
            number
            for number, waiting in self._waiting.items()
            if (waiting.message.place, waiting.message.key) == (message.place, message.key)
            and waiting.message.offset < message.offset
        ]

    def retry(self, whole_at_s: float) -> None:
        """Process the waiting messages again; refuse those without a schema in the log at `whole_at_s`."""
        for number, waiting in list(self._waiting.items()):
            if number not in self._waiting:  # superseded by one of them
                continue
            with contextlib.suppress(SchemaUnread):
                self._handlers[waiting.kind](waiting.message)
                self._end(number)
        self._refuse_until(whole_at_s, f"its schema is not on {SCHEMAS.name}")

    def refuse_late(self) -> None:
        """Refuse the messages, except config, that have waited too long."""
        text = f"its schema has not arrived within {MAX_WAIT_S:g} s"
        self._refuse_until(self._now_s() - MAX_WAIT_S, text, _CONFIG)

    def _refuse_until(self, at_s: float, text: str, except_kind: str = "") -> None:
        """Refuse the messages whose wait began at or before `at_s`, except messages of `except_kind`."""
        for number, waiting in list(self._waiting.items()):
            if waiting.since_s > at_s:
                return
            if waiting.kind != except_kind:
                self._end(number)
                self._refuse(waiting.message, text)

    def _end(self, number: int) -> None:
        """End the wait of a message, and forget it."""
        self._bytes -= self._waiting.pop(number).size_bytes
        if not self._waiting:
            self._command_io.check_schemas(-math.inf)

    def _refuse(self, message: Message, text: str) -> None:
        self._command_io.reject(message, codec.BadRecord("UNKNOWN_SCHEMA", text))
        self._command_io.done(message)
