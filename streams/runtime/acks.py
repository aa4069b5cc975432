"""Acknowledging messages in offset order, whatever the order in which their windows are done.

In: Faust messages as they are read, and the news that one is done. Out: acknowledgements of a partition's
front. Faust (0.15.3) commits past one missing offset, so nothing may be acknowledged ahead of its
predecessors.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

__all__ = ["OrderedAcks", "pop_before"]


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


def pop_before(kept: deque[tuple[int, int]], before_ns: int) -> list[int]:
    """Take the (ns, offset)s of before a time off the front; return their offsets."""
    offsets = []
    while kept and kept[0][0] < before_ns:
        offsets.append(kept.popleft()[1])
    return offsets
