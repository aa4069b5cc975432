"""Limits the encoded bytes of a process's records by a token bucket. Pure: the caller passes the time.

The bucket's capacity is a sixth of an hour's budget, and the rest flows in evenly. So no hour has more bytes
than the budget. While the bucket is more than half full, the excess is spent within half a minute. Otherwise
half of the inflow goes to single operations and the other half to the records, which hold all sums.
"""

from __future__ import annotations

import math
from typing import Final

_HOUR_S: Final = 3600.0
_CAPACITY_SHARE: Final = 1 / 6
_SPEND_S: Final = 30.0
_URGENT_SHARE: Final = 0.2
"""Share of the capacity that is reserved for slow and running operations."""
_OPERATIONS_SHARE: Final = 0.5
_MAX_SHIFT: Final = 40


class TraceBudget:
    """The bytes that may still be published. `begin_s` is the present time of a monotonic clock."""

    def __init__(self, bytes_per_hour: float, begin_s: float) -> None:
        self.capacity = bytes_per_hour * _CAPACITY_SHARE
        self.rate = (bytes_per_hour - self.capacity) / _HOUR_S
        """Inflow, bytes per second."""
        self.level = self.capacity
        self._at_s = begin_s

    def refill(self, now_s: float) -> None:
        """Add the bytes that have flowed in since the last call."""
        self.level = min(self.capacity, self.level + max(0.0, now_s - self._at_s) * self.rate)
        self._at_s = max(self._at_s, now_s)

    def spend(self, size: int) -> None:
        """Subtract a published record's size, bytes, from the bucket."""
        self.level -= size

    @property
    def _spare(self) -> float:
        return max(0.0, self.level - self.capacity / 2)

    def interval_s(self, min_s: float, base_bytes: float) -> float:
        """Return the interval between records, s, if each needs `base_bytes` for its sums."""
        inflow = self.rate * (1 - _OPERATIONS_SHARE) + self._spare / _SPEND_S
        return max(min_s, base_bytes / inflow)

    def is_enough(self, size: float, urgent: bool) -> bool:
        """Return whether a record of `size` bytes may be published now.

        A record above half the capacity may overdraw the bucket; otherwise it would wait for ever.
        """
        reserve = 0 if urgent else self.capacity * _URGENT_SHARE
        return self.level - min(size, self.capacity / 2) >= reserve

    def operation_bytes(self, interval_s: float, base_bytes: float, urgent: bool) -> float:
        """Return the bytes allowed for single operations in a record that needs `base_bytes` without them."""
        left = self.level - base_bytes - (0 if urgent else self.capacity * _URGENT_SHARE)
        share = interval_s * (self.rate * _OPERATIONS_SHARE + self._spare / _SPEND_S)
        return max(0.0, min(left, left if urgent else share))

    @staticmethod
    def shift(bytes_per_s: float, allowed_bytes_per_s: float) -> int:
        """Return n such that keeping one operation in 2^n stays within `allowed_bytes_per_s`."""
        if bytes_per_s <= allowed_bytes_per_s:
            return 0
        if allowed_bytes_per_s <= 0:
            return _MAX_SHIFT
        return min(_MAX_SHIFT, math.ceil(math.log2(bytes_per_s / allowed_bytes_per_s)))
