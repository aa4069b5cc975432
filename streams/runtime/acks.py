"""Acknowledges the messages of a partition in offset order, in whatever order their work ends.

Faust 0.15.3 commits past one missing offset (faust-streaming/faust#606), so no message may be acknowledged
before its predecessors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

__all__ = ["OrderedAcks"]


class OrderedAcks:
    """The messages of one partition that were read and not yet acknowledged."""

    def __init__(self) -> None:
        self._pending: OrderedDict[int, tuple[Any, bool]] = OrderedDict()

    def read(self, message: Any) -> None:
        """Add a message that was read; offsets ascend."""
        self._pending[message.offset] = (message, False)

    def done(self, offsets: Iterable[int]) -> list[Any]:
        """Mark messages as done; return those that may be acknowledged now, in order."""
        for offset in offsets:
            if offset in self._pending:
                self._pending[offset] = (self._pending[offset][0], True)
        ready = []
        while self._pending:
            offset, (message, finished) = next(iter(self._pending.items()))
            if not finished:
                break
            del self._pending[offset]
            ready.append(message)
        return ready
