"""Finds topics that were deleted, or deleted and recreated, without the worker's consumer noticing it.

A consumer group assigns a recreated topic's partitions when the members' metadata shows the topic again. An
owner without partitions is never behind. A new topic that ends below an old position delivers nothing. In
both cases the worker would wait for ever.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Final

from faust.types import TP

ADOPT_S: Final = 10.0
"""Time after the return of a topic within which a rebalance must have given its partitions to somebody."""
BELOW_S: Final = 3.0
"""Time for which a partition may end below its position: a leader may lag behind for a moment."""


@dataclass(slots=True)
class _Topic:
    """A topic that did not exist at an earlier check."""

    generation: Hashable
    """The assignment when the topic was last found missing."""
    back_s: float | None = None
    """Time at which it was found again."""


class TopicWatch:
    """Decides whether a worker must restart because a topic was deleted or recreated."""

    def __init__(self) -> None:
        self._gone: dict[str, _Topic] = {}
        self._below_s: dict[TP, float] = {}

    @property
    def missing(self) -> list[str]:
        """Names of the topics that do not exist."""
        return sorted(name for name, topic in self._gone.items() if topic.back_s is None)

    def check_topics(
        self, now_s: float, counts: Mapping[str, int], generations: Mapping[str, Hashable]
    ) -> str | None:
        """Return why the worker must restart, or None.

        `counts`: number of partitions of each topic, 0 if it does not exist. `generations`: for each topic,
        an object that changes with every rebalance.
        """
        for name, count in counts.items():
            topic = self._gone.get(name)
            if not count:
                self._gone[name] = _Topic(generations.get(name))
            elif topic is not None:
                if topic.back_s is None:
                    topic.back_s = now_s
                if topic.generation != generations.get(name):
                    del self._gone[name]
                elif now_s - topic.back_s > ADOPT_S:
                    return f"{name} was made again {now_s - topic.back_s:.0f} s ago and has no reader"
        return None

    def check_ends(self, now_s: float, ends: Mapping[TP, int], reached: Mapping[TP, int]) -> str | None:
        """Return why the worker must restart, or None. `reached`: one past the last message taken."""
        below = {tp for tp, offset in reached.items() if tp in ends and ends[tp] < offset}
        self._below_s = {tp: self._below_s.get(tp, now_s) for tp in below}
        for tp, since_s in self._below_s.items():
            if now_s - since_s >= BELOW_S:
                return (
                    f"{tp.topic}/{tp.partition}: ends at {ends[tp]}, below the position {reached[tp]}: "
                    "the topic was made again"
                )
        return None
