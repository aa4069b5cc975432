"""Positions in a partition at which a reader starts."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Start:
    """A position in every partition of a topic: a time in the log, or a number of messages before the end.

    Both None: the beginning.
    """

    since_ns: int | None = None
    """ns since the Unix epoch, log append time. The first message from then on is the first to be read."""
    tail_messages: int | None = None
    """Messages of each partition before its end; 0: only messages that come later."""
    committed: bool = False
    """True: the group's committed offset, where there is one. Only `TopicReader` with a group knows it."""


BEGINNING: Final = Start()
END: Final = Start(tail_messages=0)


def since(append_ns: int) -> Start:
    """Start with the first message that was appended at `append_ns` or later."""
    return Start(since_ns=append_ns)


def back(seconds: float) -> Start:
    """Start with the messages of the last `seconds`."""
    return Start(since_ns=time.time_ns() - round(seconds * 1e9))


def tail(messages: int) -> Start:
    """Start with the last `messages` of each partition."""
    return Start(tail_messages=messages)


def committed(otherwise: Start) -> Start:
    """Start at the group's committed offset; `otherwise` in partitions without one."""
    return replace(otherwise, committed=True)
