"""A lane for every NIC whose flows take turns: the way into the fabric that is its own while it sends.

In: which NICs send in turns, the links that each could enter the fabric by, and which of its flows do. Out:
`UplinkAssignment.of`: NIC to link. What is assigned stays while it can, so that flows move once. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

__all__ = ["UplinkAssignment", "UplinkRequest"]

FITS: Final = 1.02
"""Share of a link's rate up to which lanes are put on it."""
REACHED: Final = 0.75
"""Share of the most flows that reach any link, from which on a link can be a lane where none is reached
by all."""


@dataclass(slots=True)
class UplinkRequest:
    """What one NIC asks for."""

    bps: float
    """What it sends at most, bit/s."""
    flows: Counter[str] = field(default_factory=Counter)
    """Link to how many of its flows enter the fabric there now."""
    open: Counter[str] = field(default_factory=Counter)
    """Link to how many of its flows could."""


# Why a lane. Collectives send in steps, and which flows meet in a step changes with how jobs drift against
# each other: no report tells it, as steps are far shorter than what is reported of. But a NIC sends no more
# than its cable carries, whoever it sends to. So where the flows of each NIC enter the fabric by a link that
# is that NIC's own, no two of them ever meet there, in whatever step, of whatever job. A leaf that is not
# oversubscribed has a link for each of its NICs. In a fabric of which the traffic stays between two leaves,
# as in a rail of two racks, nothing meets on the way down either; with more leaves, flows of different leaves
# may still meet there.
#
# Which NIC gets which link: one that all of its flows reach from a port that was traced, where most of them
# are already, largest claims first, so that few have to move; who finds none free has another one moved on,
# along an augmenting path (Kuhn 1955).
class UplinkAssignment:
    """The lanes of one shard. `rate_of`: a directed link's bit/s, 0 where it is not known."""

    def __init__(self, rate_of: Callable[[str], int]) -> None:
        self._rate_of = rate_of
        self._lanes: dict[str, str] = {}

    def of(self, nic: str) -> str | None:
        """Return a NIC's lane, None where it has none."""
        return self._lanes.get(nic)

    def assign(self, wants: Mapping[str, UplinkRequest], draw: Callable[[str, str], int]) -> None:
        """Give each NIC a link of its own, as far as there are enough; those that have one keep it while
        nearly as many of their flows reach it as any other. `draw` breaks ties."""
        room: dict[str, float] = {}
        for want in wants.values():
            for link in want.open:
                room.setdefault(link, FITS * self._rate_of(link))
        held: dict[str, list[str]] = {link: [] for link in room}
        lanes: dict[str, str] = {}

        def put(nic: str, link: str) -> None:
            lanes[nic] = link
            held[link].append(nic)
            room[link] -= wants[nic].bps

        def find(nic: str, share: float, tried: set[str]) -> bool:
            """Give a NIC a link that is free, or that another can leave for one."""
            want = wants[nic]
            links = sorted(
                (link for link in want.open if _reached(want, link, share) and link not in tried),
                key=lambda link: (-want.flows[link], draw(nic, link)),
            )
            for link in links:
                if room[link] >= want.bps:
                    put(nic, link)
                    return True
            for link in links:
                tried.add(link)
                for other in held[link]:
                    if room[link] + wants[other].bps < want.bps:
                        continue
                    held[link].remove(other)
                    room[link] += wants[other].bps
                    if find(other, share, tried):
                        put(nic, link)
                        return True
                    put(other, link)
                    break
            return False

        for nic, want in sorted(wants.items()):
            kept = self._lanes.get(nic)
            if kept is not None and want.open[kept] and _reached(want, kept, REACHED):
                put(nic, kept)
        for share in (1.0, REACHED):
            claims = sorted(
                (-want.flows[link], draw(nic, link), nic, link)
                for nic, want in wants.items() if nic not in lanes
                for link in want.open if _reached(want, link, share)
            )  # fmt: skip
            for _, _, nic, link in claims:
                if nic not in lanes and room[link] >= wants[nic].bps:
                    put(nic, link)
            for nic in sorted(wants.keys() - lanes.keys()):
                find(nic, share, set())
        for nic, want in sorted(wants.items()):
            if nic not in lanes and want.open:
                put(nic, max((room[name], draw(nic, name), name) for name in want.open)[-1])
        self._lanes = lanes


def _reached(want: UplinkRequest, link: str, share: float) -> bool:
    """Whether a link is reached by so large a share of the flows that reach any."""
    return want.open[link] >= share * max(want.open.values())
