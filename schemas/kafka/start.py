"""Positions in a partition at which a reader starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Start:
    """A position in every partition of a topic: a time in the log, or a number of messages before the end.

    With neither, the position is the beginning.
    """

    since_ns: int | None = None
    """Start with the first message from this log append time on, ns since the Unix epoch."""
    tail_messages: int | None = None
    """Start this many messages before each partition's end; 0 reads only messages that arrive later."""
    committed: bool = False
    """Start at the group's committed offset if it has one; only `TopicReader` supports it."""


BEGINNING: Final = Start()
END: Final = Start(tail_messages=0)


def since(append_ns: int) -> Start:
    """Return the start at the first message that was appended at `append_ns` or later."""
    return Start(since_ns=append_ns)


def back(seconds: float) -> Start:
    """Return the start at the first message that was appended within the last `seconds`."""
    return Start(since_ns=time.time_ns() - round(seconds * 1e9))


def tail(messages: int) -> Start:
    """Return the start at `messages` messages before the end of each partition."""
    return Start(tail_messages=messages)


def committed(otherwise: Start) -> Start:
    """Return the start at the group's committed offset, or at `otherwise` in partitions without one."""
    return replace(otherwise, committed=True)
