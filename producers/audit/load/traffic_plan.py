"""Plans a host's flows in a round of traffic from the order of the hosts. Pure functions.

In a round of pairs, host 2k is the client of host 2k + 1. In a fan the first host is the client of all the
others. In a ring each host is the client of the next. Two hosts' NICs, by rail and name, form pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from producers.audit.host.base import Missing
from producers.audit.load.traffic import RING, Flow, Plan
from producers.audit.settings import TrafficSettings

PAIR_CHECK: Final = "backend.pair-traffic"
FAN_CHECK: Final = "backend.fan-traffic"
RING_CHECK: Final = "collectives.ring"
MAX_FLOWS: Final = 64
"""Largest number of flows of one host in a round."""


class RoundNic(NamedTuple):
    """A NIC in a round. NICs sort by rail, then by device."""

    rail: int
    device: str
    address: str


@dataclass(frozen=True)
class TrafficRound:
    """A traffic round from one host's view: the order of the hosts, and the NICs of every host."""

    run: str
    host: str
    hosts: tuple[str, ...]
    nics: Mapping[str, tuple[RoundNic, ...]]
    settings: TrafficSettings = field(default_factory=TrafficSettings)

    @property
    def place(self) -> int:
        """Position of this host in the order. Raises Missing if it has none, ValueError for repeated ones."""
        if self.host not in self.hosts:
            raise Missing("the run names no partner: `fabrictime audit traffic` does")
        if len(set(self.hosts)) < len(self.hosts):
            raise ValueError(f"hosts {', '.join(self.hosts)}: expected each of them once")
        return self.hosts.index(self.host)

    def flows(self, partner: str, *, is_client: bool) -> list[Flow]:
        """Return the flows with a partner, one for each pair of NICs. Raises Missing if a host has no NIC."""
        partner_flows = []
        for host in (self.host, partner):
            if not self.nics.get(host):
                raise Missing(f"{host} has no NIC in the inventory")
        for own, other in zip(sorted(self.nics[self.host]), sorted(self.nics[partner]), strict=False):
            near, far = f"{self.host}/{own.device}", f"{partner}/{other.device}"
            name = f"{near}>{far}" if is_client else f"{far}>{near}"
            partner_flows.append(Flow(name, partner, own.address, other.address, is_client))
        return partner_flows

    def plan(self, kind: str, flows: list[Flow], share: float = 1.0) -> Plan:
        """Return the plan of `flows`, at `share` of the settings' rate. Raises ValueError for too many."""
        if len(flows) > MAX_FLOWS:
            raise ValueError(f"{len(flows)} flows, expected at most {MAX_FLOWS}")
        settings = self.settings
        return Plan(
            run=self.run,
            host=self.host,
            kind=kind,
            port=settings.port,
            seconds=settings.seconds,
            rate_bps=settings.rate_mbps * 1e6 * share,
            meet_s=settings.meet_s,
            key_file=str(settings.key_file or ""),
            flows=tuple(flows),
        )


def pair_plan(order: TrafficRound) -> Plan:
    """Return the plan of a pair. Raises Missing for the last of an odd number of hosts: it has no partner."""
    place = order.place
    other = place ^ 1
    if other >= len(order.hosts):
        raise Missing("the host pauses in this round")
    return order.plan("load", order.flows(order.hosts[other], is_client=place % 2 == 0))


def fan_plan(order: TrafficRound) -> Plan:
    """Return a fan's plan: for the first host with all others, for any other host with the first."""
    place, count = order.place, len(order.hosts) - 1
    if not count:
        raise Missing("one host alone has no receiver")
    if place:  # its own load shares the first host's NIC with that of the other receivers
        return order.plan("load", order.flows(order.hosts[0], is_client=False), 1 / count)
    flows = [flow for host in order.hosts[1:] for flow in order.flows(host, is_client=True)]
    return order.plan("load", flows)


def ring_plan(order: TrafficRound) -> Plan:
    """Return a ring's plan, with the next and the previous host, over the first NIC of each."""
    place, count = order.place, len(order.hosts)
    if count < 3:
        raise Missing(f"{count} hosts, a ring expects at least 3")
    ahead = order.flows(order.hosts[(place + 1) % count], is_client=True)
    behind = order.flows(order.hosts[place - 1], is_client=False)
    return order.plan(RING, [ahead[0], behind[0]])


PLANS: Final[Mapping[str, Callable[[TrafficRound], Plan]]] = {
    PAIR_CHECK: pair_plan,
    FAN_CHECK: fan_plan,
    RING_CHECK: ring_plan,
}
"""The function that plans a round, by the id of its check."""
