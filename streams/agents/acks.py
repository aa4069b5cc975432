"""Acknowledging messages in offset order, whatever the order in which their windows are done.

In: Faust messages as they are read, and the news that one is done. Out: acknowledgements of a partition's
front. Faust (0.15.3) commits past one missing offset, so nothing may be acknowledged ahead of its
predecessors.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

__all__ = ["OrderedAcks"]


class OrderedAcks:
    """The messages of one partition that are read but not acknowledged."""

    def __init__(self) -> None:
        self._pending: OrderedDict[int, tuple[Any, bool]] = OrderedDict()

    def read(self, message: Any) -> None:
        """Note a message that was read; offsets ascend."""
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
