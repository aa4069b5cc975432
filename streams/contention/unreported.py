"""Classifies contention on links after the senders' own links, where no flows are reported.

The decision uses the link's position, its queueing delay, the queues on neighbouring links, and CE marks.

A link that sends at its full rate has a queue that its buffer or rate control limits to a fraction of a
millisecond. A much longer wait shows a port that may not send. So does a deep queue without marks in a class
that other links mark: marks depend on bytes, and a paused port delays packets without holding many bytes. A
switch that is held back as a whole has queues on most links that lead to it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schemas.ids import end_parts
from schemas.records import ContentionKind
from streams.contention.rules import (
    BUFFERS_BPS,
    CHANCE_LINKS,
    FULL_WAIT_NS,
    LINKS_MEMORY_NS,
    MARKS_MEMORY_NS,
    PAUSED_WAIT_NS,
    SWITCH_LINKS,
    UNMARKED_DEPTHS,
    UNMARKED_SHARE,
    UNMARKED_TRUST,
    UNREPORTED_TRUST,
)
from streams.contention.window import LinkWindow, Place, ramp

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(slots=True)
class FabricMemory:
    """The links of a shard that probes cross, and the queue depth at which each traffic class is marked."""

    _links: dict[str, str | None] = field(default_factory=dict)
    """Maps link to the switch to which it leads from another switch; None for links of NICs."""
    _into: dict[str, int] = field(default_factory=dict)
    _since_ns: int = 0
    _marked: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Maps class to the mean depth of marked queues, bytes, and the time of the last marked one."""

    def add_link(self, name: str, place: Place) -> None:
        """Store the position of the link `name`, which probes cross."""
        is_inside = place.sender is None and place.receiver is None
        switch = end_parts(name.partition(">")[2]).node if is_inside else None
        self._links[name] = switch
        if switch is not None:
            self._into[switch] = self._into.get(switch, 0) + 1

    def knows(self, name: str) -> bool:
        """Return whether `add_link` was called for the link `name`."""
        return name in self._links

    def links_into(self, switch: str) -> int:
        """Return the number of known links that lead from other switches to `switch`."""
        return self._into.get(switch, 0)

    def renew(self, now_ns: int) -> None:
        """Forget all links every `LINKS_MEMORY_NS`, because cabling and inventory change."""
        if not 0 <= now_ns - self._since_ns < LINKS_MEMORY_NS:
            self._since_ns = now_ns
            self._links.clear()
            self._into.clear()

    def add_marks(self, dscp: int, depth_bytes: float, now_ns: int) -> None:
        """Record that packets of class `dscp` were marked in a queue of `depth_bytes`."""
        before = self._marked.get(dscp, (depth_bytes, now_ns))[0]
        self._marked[dscp] = (0.9 * before + 0.1 * depth_bytes, now_ns)

    def marked_bytes(self, dscp: int, now_ns: int) -> float | None:
        """Return the usual depth, bytes, of a marked queue of the class; None if none was marked lately."""
        depth_bytes, at_ns = self._marked.get(dscp, (0.0, 0))
        return depth_bytes if depth_bytes > 0 and 0 <= now_ns - at_ns < MARKS_MEMORY_NS else None


@dataclass(frozen=True, slots=True)
class UnreportedCase:
    """Input of the scoring rules for a queue without reported flows. `links`: all links with a queue now."""

    link: LinkWindow
    links: tuple[LinkWindow, ...]
    memory: FabricMemory
    end_ns: int


def score_unreported(case: UnreportedCase) -> dict[ContentionKind, float]:
    """Return how well each kind explains a queue without reported flows, 0 to `UNREPORTED_TRUST`.

    Missing kinds have the score 0. The result is empty if links at other positions may have the queue.
    """
    link = case.link
    if not link.same_position or (link.place.sender is not None and link.place.receiver is None):
        return {}
    paused, spread = _paused(case, link), _spread(case)
    if link.place.receiver is not None:
        scores = {
            ContentionKind.INCAST: 1 - paused,
            ContentionKind.SLOW_RECEIVER: paused * (1 - spread),
            ContentionKind.PAUSE_STORM: paused * spread,
        }
    else:
        root = _last_behind(case)
        root_paused = 1.0 if root is None else _paused(case, root)
        scores = {
            ContentionKind.COLLISION: 1 - max(paused, spread),
            ContentionKind.PAUSE_STORM: max(paused, spread * root_paused),
            ContentionKind.INCAST: 0.8 * spread * (1 - root_paused),
        }
    return {kind: UNREPORTED_TRUST * score for kind, score in scores.items()}


def _paused(case: UnreportedCase, link: LinkWindow) -> float:
    """Return the confidence, 0 to 1, that a later link or the receiver stops `link` from sending."""
    wait_ns = link.depth_bytes * 8e9 / max(link.rate_bps, BUFFERS_BPS)
    by_wait = ramp(wait_ns, FULL_WAIT_NS, PAUSED_WAIT_NS)
    marked_bytes = case.memory.marked_bytes(link.dscp, case.end_ns)
    if marked_bytes is None or link.ce_share > UNMARKED_SHARE:
        return by_wait
    return max(by_wait, UNMARKED_TRUST * (link.depth_bytes > UNMARKED_DEPTHS * marked_bytes))


def _spread(case: UnreportedCase) -> float:
    """Return the confidence, 0 to 1, that most links into one of this link's two switches have a queue."""
    is_last = case.link.place.receiver is not None
    end = case.link.name.partition(">")[0 if is_last else 2]
    switch = end_parts(end).node
    queued = sum(link.queued > 0 and _leads_into(link, switch) for link in case.links)
    link_count = case.memory.links_into(switch)
    return ramp(queued / link_count, CHANCE_LINKS, SWITCH_LINKS) if queued > 1 and link_count else 0.0


def _leads_into(link: LinkWindow, switch: str) -> bool:
    is_inside = link.place.sender is None and link.place.receiver is None
    return is_inside and end_parts(link.name.partition(">")[2]).node == switch


def _last_behind(case: UnreportedCase) -> LinkWindow | None:
    """Return the link from this link's switch to a NIC with the deepest queue; None without a queue."""
    switch = end_parts(case.link.name.partition(">")[2]).node
    last_links: Iterable[LinkWindow] = (
        link
        for link in case.links
        if link.place.receiver is not None
        and link.queued > 0
        and end_parts(link.name.partition(">")[0]).node == switch
    )
    return max(last_links, key=lambda link: (link.depth_bytes, link.name), default=None)
