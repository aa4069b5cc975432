"""Assigns one uplink of its leaf switch to every NIC whose flows alternate between peers.

An assignment is kept while possible, so that each flow moves only once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

CAPACITY_SHARE: Final = 1.02
"""Share of a link's rate up to which NICs are assigned to it; above 1 because rates are estimates."""
MIN_REACH_SHARE: Final = 0.75
"""A link qualifies for a NIC if it is reached by this share of the flows that reach the best link."""


@dataclass(slots=True)
class UplinkRequest:
    """The uplink that one NIC needs: its rate, and how many of its flows use or could use each uplink."""

    bps: float
    """Highest rate of the NIC, bit/s."""
    flows: Counter[str] = field(default_factory=Counter)
    """Number of the NIC's flows that use each uplink now."""
    reachable: Counter[str] = field(default_factory=Counter)
    """Number of the NIC's flows that could use each uplink."""

    def reaches(self, link: str, share: float) -> bool:
        """Return whether `link` can carry at least `share` of the most flows that any one link can carry."""
        return self.reachable[link] >= share * max(self.reachable.values())


# Why pin uplinks. Collectives send in steps, and jobs drift against each other. So the flows that overlap
# change from step to step, and no report shows it, because steps are far shorter than report intervals. But a
# NIC never sends more than its cable carries, whichever peer it sends to. If all flows of a NIC enter the
# fabric by an uplink of its own, no two NICs overlap there, in any step of any job. A leaf that is not
# oversubscribed has an uplink for each of its NICs. If traffic stays between two leaves, as in a rail of two
# racks, flows do not overlap on the downlinks either. With more leaves, flows of different leaves still may.
#
# The assignment chooses an uplink that all flows of the NIC reach from a traced port, preferably one that
# most of them use already. The largest claims come first, so that few flows move. A NIC that finds no free
# uplink displaces another one along an augmenting path (Kuhn 1955).
class UplinkAssignment:
    """The uplinks assigned to the NICs of one shard. `rate_of` returns a link's bit/s, 0 if unknown."""

    def __init__(self, rate_of: Callable[[str], int]) -> None:
        self._rate_of = rate_of
        self._uplinks: dict[str, str] = {}

    def of(self, nic: str) -> str | None:
        """Return the uplink assigned to a NIC, or None."""
        return self._uplinks.get(nic)

    def assign(self, requests: Mapping[str, UplinkRequest], draw: Callable[[str, str], int]) -> None:
        """Assign an uplink to each NIC; NICs share uplinks only if there are too few. `draw` breaks ties.

        A NIC keeps its uplink while nearly the most of its flows can use it, compared with all uplinks.
        """
        matching = _Matching(requests, self._rate_of, draw)
        for nic, request in sorted(requests.items()):
            current_uplink = self._uplinks.get(nic)
            if (
                current_uplink is not None
                and request.reachable[current_uplink]
                and request.reaches(current_uplink, MIN_REACH_SHARE)
            ):
                matching.put(nic, current_uplink)
        for share in (1.0, MIN_REACH_SHARE):
            matching.put_largest_claims(share)
            for nic in sorted(requests.keys() - matching.uplinks.keys()):
                matching.augment(nic, share, set())
        matching.put_rest()
        self._uplinks = matching.uplinks


class _Matching:
    """One run of the assignment of NICs to uplinks, within the capacity of each uplink."""

    def __init__(
        self,
        requests: Mapping[str, UplinkRequest],
        rate_of: Callable[[str], int],
        draw: Callable[[str, str], int],
    ) -> None:
        self._requests, self._draw = requests, draw
        self._free_bps: dict[str, float] = {}
        for request in requests.values():
            for link in request.reachable:
                self._free_bps.setdefault(link, CAPACITY_SHARE * rate_of(link))
        self._nics: dict[str, list[str]] = {link: [] for link in self._free_bps}
        self.uplinks: dict[str, str] = {}

    def put(self, nic: str, link: str) -> None:
        """Assign a link to a NIC."""
        self.uplinks[nic] = link
        self._nics[link].append(nic)
        self._free_bps[link] -= self._requests[nic].bps

    def put_largest_claims(self, share: float) -> None:
        """Assign links with enough capacity, first to the NICs with the most flows on them."""
        claims = sorted(
            (-request.flows[link], self._draw(nic, link), nic, link)
            for nic, request in self._requests.items()
            if nic not in self.uplinks
            for link in request.reachable
            if request.reaches(link, share)
        )
        for _, _, nic, link in claims:
            if nic not in self.uplinks and self._free_bps[link] >= self._requests[nic].bps:
                self.put(nic, link)

    def augment(self, nic: str, share: float, tried: set[str]) -> bool:
        """Assign a link with capacity, or one that another NIC can leave; return False if none exists."""
        request = self._requests[nic]
        links = sorted(
            (link for link in request.reachable if request.reaches(link, share) and link not in tried),
            key=lambda link: (-request.flows[link], self._draw(nic, link)),
        )
        for link in links:
            if self._free_bps[link] >= request.bps:
                self.put(nic, link)
                return True
        for link in links:
            tried.add(link)
            if self._displace(nic, link, share, tried):
                return True
        return False

    def _displace(self, nic: str, link: str, share: float, tried: set[str]) -> bool:
        """Try to move another NIC off `link` to make capacity; return True if that succeeded."""
        for other in self._nics[link]:
            if self._free_bps[link] + self._requests[other].bps < self._requests[nic].bps:
                continue
            self._nics[link].remove(other)
            self._free_bps[link] += self._requests[other].bps
            if self.augment(other, share, tried):
                self.put(nic, link)
                return True
            self.put(other, link)
            return False
        return False

    def put_rest(self) -> None:
        """Assign each NIC without a link the reachable link with the most free capacity."""
        for nic, request in sorted(self._requests.items()):
            if nic not in self.uplinks and request.reachable:
                emptiest = max(
                    (self._free_bps[name], self._draw(nic, name), name) for name in request.reachable
                )
                self.put(nic, emptiest[-1])
