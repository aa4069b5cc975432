"""Collects the published records from which a new owner continues, according to the stage's `Restore`s."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from schemas.kafka.message import Message, Place
from schemas.kafka.start import Start
from streams.runtime.operator import Past, Restore


def start_of(restore: Restore, log_ns: int) -> Start:
    """Return the start from which an owner that begins at `log_ns` reads the records of `restore`."""
    return restore.start if isinstance(restore.start, Start) else restore.start(log_ns)


class PastMessages:
    """The messages of one `Restore`; each partition's messages are added in order."""

    def __init__(self, restore: Restore) -> None:
        self._restore = restore
        self._all: list[Message] = []
        self._newest: dict[object, Message] = {}

    def add(self, message: Message) -> None:
        """Keep a message; if only the last one of a key is restored, drop the previous message of the key."""
        if not self._restore.last_per_key:
            self._all.append(message)
        elif message.value is None:
            self._newest.pop(message.key, None)
        else:
            self._newest[message.key] = message

    def messages(self) -> Sequence[Message]:
        """Return the kept messages, sorted by partition and offset."""
        messages = [*self._all, *self._newest.values()]
        return sorted(messages, key=lambda message: (message.partition, message.offset))


def past_of(
    restores: Iterable[Restore],
    messages: Mapping[str, Sequence[Message]],
    log_ns: int,
    ends: Mapping[Place, int],
) -> Past:
    """Return the messages that an owner restores when it begins at `log_ns`. `messages`: by topic.

    `ends`: end offset of each partition whose end is not just after its last message.
    """
    past: dict[str, Sequence[Message]] = {}
    for restore in restores:
        start, past_messages = start_of(restore, log_ns), PastMessages(restore)
        of_topic = messages.get(restore.topic.name, ())
        tail_ends = {message.place: message.offset + 1 for message in of_topic} | dict(ends)
        for message in of_topic:
            first = 0 if start.tail_messages is None else tail_ends[message.place] - start.tail_messages
            if message.offset >= first and message.append_ns >= (start.since_ns or 0):
                past_messages.add(message)
        past[restore.topic.name] = past_messages.messages()
    return past
