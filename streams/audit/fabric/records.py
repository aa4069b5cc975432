"""Holds the records that the checks of the fabric evaluate, and maps their subjects to hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from schemas.ids import device_of, end_id, end_parts, host_of
from schemas.records import (
    AuditStatus,
    ClockOffsets,
    CollectiveBatch,
    FlowRoutes,
    Leg,
    LinkHealth,
    LinkQueues,
    LinkState,
    Nic,
    PathDelays,
    PathMaps,
    PathSource,
)
from schemas.topology import Topology, nic_end
from streams.audit.hosts.part_history import PartHistory
from streams.audit.results import FLEET, Found


@dataclass(frozen=True, slots=True)
class Traced:
    """A traced route: its links in order from `nic` to `peer`."""

    nic: str
    peer: str
    links: tuple[str, ...]
    at_ns: int


@dataclass(frozen=True)
class FabricRecords:
    """Records of one fabric: delays, queues and clocks of recent windows, otherwise the newest records.

    `since_ns`: time of the last audit; `topology`: the plan, empty without a plan; `full_mesh`: True if every
    NIC probed every other NIC.
    """

    nics: Sequence[Nic]
    paths: Sequence[PathMaps] = ()
    routes: Sequence[FlowRoutes] = ()
    delays: Sequence[PathDelays] = ()
    offsets: Sequence[ClockOffsets] = ()
    health: Sequence[LinkHealth] = ()
    queues: Sequence[LinkQueues] = ()
    collectives: Sequence[CollectiveBatch] = ()
    topology: Topology = field(default_factory=Topology)
    since_ns: int = 0
    full_mesh: bool = False
    history: PartHistory = field(default_factory=PartHistory)
    """Readings of the hosts' links and modules over weeks."""

    @cached_property
    def nic_of(self) -> dict[str, Nic]:
        """Inventory record of each NIC, by its id."""
        return {nic["nic"]: nic for nic in self.nics}

    @cached_property
    def hosts(self) -> set[str]:
        """Names of all hosts with a NIC."""
        return {nic["host"] for nic in self.nics}

    @cached_property
    def nic_at(self) -> dict[str, str]:
        """NIC at the end of a cable, by the end's id, `node:port`."""
        ends = {nic: nic_end(nic) for nic in self.nic_of}
        return {end_id(*end): nic for nic, end in ends.items()}

    @cached_property
    def newest_health(self) -> dict[str, LinkHealth]:
        """Newest link health record, by subject."""
        ordered = sorted(self.health, key=lambda record: (record["seq"], record["evaluated_ns"]))
        return {health["subject"]: health for health in ordered}

    @cached_property
    def down_nics(self) -> dict[str, str]:
        """Subject that is DOWN by its newest link health (the NIC, its cable or its host), by NIC."""
        down: dict[str, str] = {}
        for subject, health in self.newest_health.items():
            if health["state"] != LinkState.DOWN:
                continue
            if subject in self.hosts:
                down |= {nic: subject for nic in self.nic_of if host_of(nic) == subject}
            elif subject in self.nic_of:
                down[subject] = subject
            elif nic := self.nic_on(subject):
                down[nic] = subject
        return down

    @cached_property
    def traced(self) -> list[Traced]:
        """Routes that were traced from end to end; routes known only from the plan are left out."""
        routes = [
            Traced(record["nic"], record["peer"], tuple(path["links"]), record["traced_ns"])
            for record in self.paths
            for path in record["paths"]
            if path["complete"] and path["links"] and path["found"] != PathSource.TOPOLOGY
        ]
        routes += [
            Traced(flows["nic"], flows["peer"], tuple(route["links"]), flows["traced_ns"])
            for flows in self.routes
            for route in flows["routes"]
            if route["complete"] and route["links"]
        ]
        return routes

    @cached_property
    def route_of(self) -> dict[tuple[str, str, int, bool], tuple[str, ...]]:
        """Links of a prober's requests, or of the answers, by (NIC, peer, path, True for answers)."""
        return {
            (record["nic"], record["peer"], path["path"], path["leg"] == Leg.ANSWER): tuple(path["links"])
            for record in self.paths
            for path in record["paths"]
            if path["complete"]
        }

    def of_nic(self, nic: str, status: AuditStatus, text: str, remedy: str = "") -> Found:
        """Return a finding about a NIC: its host, and its device as the subject."""
        return Found(host_of(nic), device_of(nic), status, text, remedy)

    def of_link(self, link: str, status: AuditStatus, text: str, remedy: str = "") -> Found:
        """Return a finding about a link or cable; its host is that of the NIC at its end, else the fleet."""
        nic = self.nic_on(link)
        return self.of_nic(nic, status, text, remedy) if nic else Found(FLEET, link, status, text, remedy)

    def of_subject(self, subject: str, status: AuditStatus, text: str) -> Found:
        """Return a finding about a NIC, a host, a link or a switch."""
        if subject in self.nic_of:
            return self.of_nic(subject, status, text)
        if subject in self.hosts:
            return Found(subject, "", status, text)
        return self.of_link(subject, status, text)

    def nic_on(self, link: str) -> str | None:
        """Return the NIC at an end of a link or cable; None if both ends are switches."""
        return next((self.nic_at[end] for end in _ends(link) if end in self.nic_at), None)

    def all_passed(self, findings: Iterable[Found], nics: Iterable[str], text: str) -> Iterator[Found]:
        """Yield the findings, then a PASSED finding for each of `nics` without a finding."""
        noted = set()
        for finding in findings:
            noted.add((finding.host, finding.subject))
            yield finding
        for nic in nics:
            if (host_of(nic), device_of(nic)) not in noted:
                yield self.of_nic(nic, AuditStatus.PASSED, text)

    def is_host_end(self, end: str) -> bool:
        """Return whether an end of a cable is at a host."""
        node = end_parts(end).node
        return node in self.hosts or self.topology.tier(node) == 0


def _ends(link: str) -> list[str]:
    return link.replace("<>", ">").split(">")
