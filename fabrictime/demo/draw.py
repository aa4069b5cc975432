"""Draws the random parts of a tour: the place, size and time of each fault. Does no I/O.

A tour whose places never change shows only that these places work. The same seed draws the same faults on the
same testbed with the same flows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final, TypeVar

PAUSE_MAX_S: Final = 2.0
"""Longest pause before a fault: longer than the interval of any report, so that no moment is preferred."""
GREY_PERCENT: Final = (10, 35)
DROP_S: Final = (0.3, 0.6)
TRANSFER_SHARE: Final = (0.6, 0.9)
"""Range of the rate of each of two transfers, as a share of the link's rate: either fits the link, and both
together exceed it by at least a fifth."""
SENDERS: Final = (3, 4)
INCAST_BATCH_S: Final = (0.15, 0.3)
MAX_SEED: Final = 2**31

T = TypeVar("T")


def new_seed() -> int:
    """Return an unpredictable seed for a tour."""
    return random.SystemRandom().randrange(MAX_SEED)


class Draw:
    """Draws the random values of one tour; the order of the calls determines them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._random = random.Random(seed)  # noqa: S311  # a draw that can be drawn again, no secret

    def pause_s(self) -> float:
        """Draw the pause before a fault, s."""
        return self._random.uniform(0.0, PAUSE_MAX_S)

    def grey_percent(self) -> int:
        """Draw the share of packets that a grey link loses, percent."""
        return self._random.randint(*GREY_PERCENT)

    def drop_s(self) -> float:
        """Draw the time for which a flapping link is down, s."""
        return self._random.uniform(*DROP_S)

    def transfer_share(self) -> float:
        """Draw the rate of each of two transfers that share a link, as a share of the link's rate."""
        return self._random.uniform(*TRANSFER_SHARE)

    def senders(self) -> int:
        """Draw the number of senders of an incast."""
        return self._random.randint(*SENDERS)

    def incast_batch_s(self) -> float:
        """Draw the time that a batch of an incast takes at the link's rate, s."""
        return self._random.uniform(*INCAST_BATCH_S)

    def one(self, items: Sequence[T]) -> T:
        """Draw one of the items with equal probability."""
        return self._random.choice(items)

    def shuffled(self, items: Sequence[T]) -> list[T]:
        """Return the items in random order."""
        return self._random.sample(items, len(items))
