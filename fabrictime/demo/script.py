"""The script of the tour: its steps, and the choice of hosts, links and transfers for each. Does no I/O.

The inputs are the testbed's NICs and links, as its control socket lists them, and the flows that hosts
report.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from fabrictime.demo.draw import Draw
from schemas.ids import cable_id, end_parts, far_node, natural, near_node
from schemas.records import Flow, LinkState

PathOf = Callable[[str, str, int, int], list[str]]
"""A function of source host, destination host, source port and destination port to a TCP flow's links."""


class Fault(StrEnum):
    """The kinds of faults in the tour."""

    GREY = "grey link"
    BLACKHOLE = "blackhole"
    FLAPPING = "flapping"
    COLLISION = "collision"
    INCAST = "incast"


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the tour. Its fault lasts until it is detected, but at least `min_s` and at most `max_s`."""

    fault: Fault
    title: str
    min_s: float
    max_s: float

    @property
    def is_link(self) -> bool:
        """Whether the fault breaks a link; otherwise it fills a queue."""
        return self.fault in (Fault.GREY, Fault.BLACKHOLE, Fault.FLAPPING)


STEPS: Final = (
    Step(Fault.GREY, "a grey link loses some of its packets", 7, 12),
    Step(Fault.BLACKHOLE, "a link loses every packet, and looks healthy", 5, 8),
    Step(Fault.FLAPPING, "a link fails and recovers, again and again", 8, 20),
    Step(Fault.COLLISION, "two large transfers meet on one link", 8, 12),
    Step(Fault.INCAST, "several hosts send to one at the same time", 10, 14),
)

JOBS: Final = ("job-a", "job-b")
_LEAVES_MAX: Final = 4
"""Largest number of ranks of a job, each of which is on its own leaf."""
_CONNECTIONS: Final = 2
_STEP_S: Final = 0.002
"""Time of one all-to-all step at line rate, so short that the jobs alone cause no contention window."""
_GAP_S: Final = 0.05
_RATE_MAX_BPS: Final = 200_000_000
"""Highest link rate for the tour, which has to fill links; two processors can carry little more than one."""
_PORTS: Final = range(20_000, 20_256)
_TRANSFER_PORTS: Final = range(44_000, 44_200)
_INCAST_CONNECTIONS: Final = 2
_INCAST_GAP_S: Final = 0.05


class FabricUnfit(ValueError):
    """The testbed is too small, too fast or has unlimited rates; `str()` gives the reason in one line."""


@dataclass(frozen=True, slots=True)
class Fabric:
    """The testbed's network. `hosts` has the leaf of each host's first NIC; `links` join switches."""

    hosts: Mapping[str, str]
    links: tuple[str, ...]
    last_links: Mapping[str, str]
    """The link from the leaf to the first NIC of each host, by host."""
    rate_bps: int
    parallel: bool
    """Whether a leaf and a spine share several links, so that names of switches do not identify a link."""

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Fabric:
        """Return the network from the control socket's answer to `show`. Raises FabricUnfit."""
        hosts: dict[str, str] = {}
        for nic in answer["nics"]:
            hosts.setdefault(nic["host"], nic["leaf"])
        links = tuple(link for link in answer["links"] if not {near_node(link), far_node(link)} & set(hosts))
        last_links: dict[str, str] = {}
        for link in answer["links"]:
            if far_node(link) in hosts:
                last_links.setdefault(far_node(link), link)
        settings = answer["settings"]
        rates = [settings["host_rate_bps"], settings["fabric_rate_bps"]]
        if not min(rates) or max(rates) > _RATE_MAX_BPS:
            raise FabricUnfit(
                f"fabric: links of {max(rates) / 1e6:g} Mbit/s (0: not limited), "
                f"expected at most {_RATE_MAX_BPS / 1e6:g}, as the tour fills them"
            )
        if settings["spines"] < 2:
            raise FabricUnfit("fabric: 1 spine, expected 2 at least, so that flows have other paths")
        fabric = cls(hosts, links, last_links, min(rates), settings["links_per_leaf_spine"] > 1)
        if len(fabric.ranks(JOBS[1])) < 2:
            raise FabricUnfit(f"fabric: {len(hosts)} hosts, expected 2 leaves at least with 2 hosts each")
        return fabric

    def ranks(self, job: str) -> list[str]:
        """Return the hosts of a job: each leaf's first host for one job, its second host for the other."""
        by_leaf: dict[str, list[str]] = {}
        for host in sorted(self.hosts, key=natural):
            by_leaf.setdefault(self.hosts[host], []).append(host)
        number = JOBS.index(job)
        return [hosts[number] for hosts in by_leaf.values() if len(hosts) > number][:_LEAVES_MAX]

    def name(self, link: str) -> str:
        """Return a readable name of a link or cable: its switches, with ports only where they are needed."""
        both = "<>" if "<>" in link else ">"
        ends = link.split(both)
        if not self.parallel and len(ends) == 2:
            ends = [end_parts(end).node for end in ends]
        return f" {both} ".join(ends)


def job_spec(fabric: Fabric, job: str, duration_s: float) -> dict[str, Any]:
    """Return the specification of one of the two jobs: an all-to-all at about a tenth of each host's rate."""
    ranks = fabric.ranks(job)
    return {
        "kind": "alltoall",
        "hosts": ranks,
        "connections": _CONNECTIONS,
        "size_bytes": round(fabric.rate_bps / 8 * _STEP_S) * len(ranks),
        "gap_s": _GAP_S,
        "duration_s": duration_s,
        "slot_s": 0,
        "seed": JOBS.index(job) + 1,
        "job": job,
    }


def crossed_links(
    fabric: Fabric,
    flows: Iterable[Flow],
    states: Mapping[str, LinkState],
    used: Collection[str],
    *,
    ascending: bool = False,
) -> list[str]:
    """Return the directed links between switches that carry data of the jobs' flows, in order.

    Each has a healthy cable that is not in `used`; with `ascending`, each leads from a leaf to a spine.
    """
    crossed = {link for flow in flows if flow["job"] in JOBS for link in flow["links"]}
    leaves = set(fabric.hosts.values())
    fit = [
        link
        for link in fabric.links
        if link in crossed
        and cable_id(link) not in used
        and states.get(cable_id(link), LinkState.UP) == LinkState.UP
        and (near_node(link) in leaves or not ascending)
    ]
    return sorted(fit, key=natural)


@dataclass(frozen=True, slots=True)
class Transfer:
    """One of two transfers that share a link."""

    source: str
    destination: str
    sport: int
    dport: int
    share: float
    """Rate as a share of the link's rate."""

    def spec(self, fabric: Fabric, duration_s: float) -> dict[str, Any]:
        """Return the testbed's specification of this transfer's flow."""
        return {
            "source": self.source,
            "destination": self.destination,
            "sport": self.sport,
            "dport": self.dport,
            "rate_bps": round(fabric.rate_bps * self.share),
            "duration_s": duration_s,
            "job": "transfer",
        }


def meeting_transfers(fabric: Fabric, link: str, path_of: PathOf, draw: Draw) -> list[Transfer]:
    """Draw two transfers from hosts of a leaf that share its uplink `link`.

    They share no other link if the testbed allows that. Raises FabricUnfit if no source port leads there.
    """
    leaf, hosts = near_node(link), draw.shuffled(sorted(fabric.hosts, key=natural))
    sources = [host for host in hosts if fabric.hosts[host] == leaf][:2]
    first_at: dict[str, str] = {}
    for host in hosts:
        if fabric.hosts[host] != leaf:
            first_at.setdefault(fabric.hosts[host], host)
    others = list(first_at.values())
    destinations = [others[0], others[1 % len(others)]]
    share, dports = draw.transfer_share(), draw.shuffled(_TRANSFER_PORTS)
    transfers = []
    for source, destination, dport in zip(sources, destinations, dports[:2], strict=True):
        ports = (port for port in draw.shuffled(_PORTS) if link in path_of(source, destination, port, dport))
        sport = next(ports, None)
        if sport is None:
            raise FabricUnfit(f"{link}: none of {len(_PORTS)} source ports from {source} leads over it")
        transfers.append(Transfer(source, destination, sport, dport, share))
    return transfers


def incast_hosts(fabric: Fabric, draw: Draw) -> tuple[str, list[str]]:
    """Draw the receiver and the senders of an incast; senders are on other leaves with enough hosts."""
    receiver, *others = draw.shuffled(sorted(fabric.hosts, key=natural))
    far_first = sorted(others, key=lambda host: fabric.hosts[host] == fabric.hosts[receiver])
    return receiver, far_first[: draw.senders()]


def incast_spec(
    fabric: Fabric, receiver: str, senders: Sequence[str], duration_s: float, batch_s: float
) -> dict[str, Any]:
    """Return the testbed's specification of the incast: batches that mostly fill the receiver's link."""
    share = len(senders) * _INCAST_CONNECTIONS
    return {
        "kind": "incast",
        "hosts": [receiver, *senders],
        "connections": _INCAST_CONNECTIONS,
        "size_bytes": round(fabric.rate_bps / 8 * batch_s / share),
        "gap_s": _INCAST_GAP_S,
        "duration_s": duration_s,
        "slot_s": 0,
        "seed": 7,
        "job": "incast",
    }
