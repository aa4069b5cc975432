"""Finds NICs that are not on a leaf of their rail, and the swaps of cables that repair this. Pure.

With a plan, the plan shows the swaps. Without a plan, the leaf of a rail is the leaf of most of its NICs, and
two misplaced NICs that are on each other's leaves changed places.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from schemas.ids import host_of, natural
from schemas.records import AuditStatus
from schemas.topology import End, end_text, nic_end
from streams.alerts.wiring import Misfit, misfits_of
from streams.audit.fabric.cabling import Swap, swap_text
from streams.audit.fabric.leaves import UNNAMED_PORTS
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found


def rails(
    fabric: FabricRecords, leaf_of: Mapping[str, str], actual: Mapping[End, End], swaps: Sequence[Swap]
) -> Iterator[Found]:
    """Yield a finding per NIC: FAILED if it is on the leaf of another rail, UNKNOWN if its leaf is unknown.

    `leaf_of`: NIC to leaf; `actual`: each end of a traced cable to its far end; `swaps`: swaps by the plan.
    """
    rail_of = {name: nic["rail"] for name, nic in fabric.nic_of.items()}
    if all(rail is None for rail in rail_of.values()):
        yield Found(FLEET, "", AuditStatus.SKIPPED, "no NIC announces a rail")
        return
    misfits = {misfit.nic: misfit for misfit in misfits_of(leaf_of, rail_of, fabric.topology)}
    remedies = {
        fabric.nic_at[end_text(end)]: swap.remedy
        for swap in swaps
        for end in swap.ends
        if end_text(end) in fabric.nic_at
    }
    by_majority = [misfit for nic, misfit in misfits.items() if nic not in remedies]
    remedies |= _Remedies(fabric, leaf_of, actual).of(by_majority)
    for nic in sorted(rail_of, key=natural):
        if nic in misfits:
            misfit = misfits[nic]
            text = f"{nic} of rail {misfit.rail} is on {misfit.leaf}: {misfit.evidence}"
            yield fabric.of_nic(nic, AuditStatus.FAILED, text, remedies[nic])
        elif nic in leaf_of:
            yield fabric.of_nic(nic, AuditStatus.PASSED, f"{nic} is on {leaf_of[nic]}")
        else:
            text = f"{nic}: neither a route nor a delay shows its leaf"
            yield fabric.of_nic(nic, AuditStatus.UNKNOWN, text)


class _Remedies:
    """Finds remedies for misplaced NICs without a plan."""

    def __init__(self, fabric: FabricRecords, leaf_of: Mapping[str, str], actual: Mapping[End, End]) -> None:
        self._fabric = fabric
        self._port_of = {nic: actual[nic_end(nic)] for nic in fabric.nic_of if nic_end(nic) in actual}
        """Maps NIC to the port of the leaf to which its cable leads."""
        self._group = {name: (nic["rack"], nic["rail"]) for name, nic in fabric.nic_of.items()}
        rails_at: dict[str, Counter[int | None]] = defaultdict(Counter)
        leaves: dict[tuple[str | None, int | None], Counter[str]] = defaultdict(Counter)
        for nic, leaf in leaf_of.items():
            rails_at[leaf][self._group[nic][1]] += 1
            leaves[self._group[nic]][leaf] += 1
        self._rail_at = {leaf: counts.most_common(1)[0][0] for leaf, counts in rails_at.items()}
        self._home = {group: counts.most_common(1)[0][0] for group, counts in leaves.items()}
        """Maps rack and rail to the leaf of its NICs."""
        ports: dict[str, Counter[str]] = defaultdict(Counter)
        for nic, port in self._port_of.items():
            ports[host_of(nic)][port.port] += 1
        self._usual_port = {host: counts.most_common(1)[0][0] for host, counts in ports.items()}
        """Maps host to the port that it usually has on its leaves."""

    def of(self, misfits: Sequence[Misfit]) -> dict[str, str]:
        """Return, by misplaced NIC, its remedy as text."""
        partner_of = self._partners(misfits)
        return {misfit.nic: self._remedy(misfit, partner_of.get(misfit.nic)) for misfit in misfits}

    def _remedy(self, misfit: Misfit, partner: str | None) -> str:
        if partner is None:
            home = self._home.get(self._group[misfit.nic])
            where = home if home is not None and home != misfit.leaf else f"the leaf of rail {misfit.rail}"
            return f"move the cable of {misfit.nic} to {where}"
        ports = [self._port_of[nic] for nic in (misfit.nic, partner) if nic in self._port_of]
        if len(ports) == 2 and not any(_is_unnamed(port) for port in ports):
            return swap_text(*ports)
        first, second = sorted((misfit.nic, partner), key=natural)
        return f"swap the cables of {first} and {second}"

    def _partners(self, misfits: Sequence[Misfit]) -> dict[str, str]:
        """Return, by misplaced NIC, the NIC with which it changed places: each is on the other's leaf.

        If several NICs qualify, one is preferred whose leaf and port are the usual ones of the first NIC's
        host, then one of the same host.
        """
        by_rails: dict[tuple[int | None, int], list[Misfit]] = defaultdict(list)
        for misfit in misfits:
            by_rails[self._rail_at[misfit.leaf], misfit.rail].append(misfit)
        scored = [
            (-self._score(a, b), a.nic, b.nic)
            for (at, rail), group in by_rails.items()
            if at is not None and at < rail
            for a in group
            for b in by_rails.get((rail, at), ())
        ]
        partner_of: dict[str, str] = {}
        for _, a_nic, b_nic in sorted(scored):
            if a_nic not in partner_of and b_nic not in partner_of:
                partner_of[a_nic], partner_of[b_nic] = b_nic, a_nic
        return partner_of

    def _score(self, a: Misfit, b: Misfit) -> int:
        return sum(
            4 * (self._home.get(self._group[x.nic]) == y.leaf) + 2 * self._fits(x.nic, y.nic)
            for x, y in ((a, b), (b, a))
        ) + (host_of(a.nic) == host_of(b.nic))

    def _fits(self, nic: str, other: str) -> bool:
        """Return whether `other` has the port that `nic`'s host usually has on its leaves."""
        port = self._port_of.get(other)
        return port is not None and self._usual_port.get(host_of(nic)) == port.port


def _is_unnamed(port: End) -> bool:
    """Return whether a port's name is a placeholder for an unknown port."""
    return port.port in UNNAMED_PORTS or "." in port.port
