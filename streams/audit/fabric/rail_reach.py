"""Checks that each NIC reaches its rail's NICs on other hosts by its own device.

Probes prove it for the pairs that they measure, and the NICs' routing tables for all other pairs. Pure.
"""

from __future__ import annotations

import ipaddress
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from schemas.audit_remedy import remedy
from schemas.ids import host_of, natural
from schemas.records import AuditStatus, Nic
from streams.audit.fabric.connectivity import MAX_NAMED, MIN_PAIRS, NIC_SHARE, Pair, probed_pairs
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, error

_ENDS: Final = 2
"""Factor for counting pairs: each pair of NICs counts at both ends."""


@dataclass(slots=True)
class _Rail:
    """The NICs of a rail, and its directed pairs that do not reach each other."""

    name: str
    nics: list[Nic]
    unrouted: set[tuple[str, str]] = field(default_factory=set)
    """Pairs without a route through the NIC's own device."""
    silent: set[tuple[str, str]] = field(default_factory=set)
    """Pairs whose probes get no answer."""
    answered: Counter[str] = field(default_factory=Counter)
    """Maps NIC to the number of its peers in the rail that answer."""


@error("fabric.rail-reach", "NICs of a rail reach each other by their own device")
@remedy.monitor(
    "Add the rail's route to the table of the NIC's address: ip route add NETWORK via GATEWAY "
    "dev INTERFACE table N",
)
def rail_reach(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC: FAILED with the peers of its rail that it does not reach, and the reason.

    A NIC that is DOWN, or half of whose pairs fail, is the cause; its peers do not fail because of it. NICs
    announce the number of their rail; otherwise, it is the device's name on hosts with several NICs.
    """
    rails = _rails(fabric)
    if not rails:
        yield Found(FLEET, "", AuditStatus.SKIPPED, "no rail has NICs of two hosts")
        return
    pairs = probed_pairs(fabric)
    for rail in rails:
        _add_pairs(rail, pairs)
        yield from _findings(fabric, rail)


def _rails(fabric: FabricRecords) -> list[_Rail]:
    per_host = Counter(nic["host"] for nic in fabric.nics)
    groups: dict[tuple[str, str], list[Nic]] = defaultdict(list)
    for nic in fabric.nics:
        if nic["rail"] is not None:
            groups[nic["shard"], f"rail {nic['rail']}"].append(nic)
        elif per_host[nic["host"]] > 1:
            groups[nic["shard"], nic["device"]].append(nic)
    return [
        _Rail(name, nics)
        for (_, name), nics in sorted(groups.items(), key=lambda item: natural("/".join(item[0])))
        if len({nic["host"] for nic in nics}) > 1
    ]


def _add_pairs(rail: _Rail, probed: dict[tuple[str, str], Pair]) -> None:
    addresses = _Addresses(rail.nics)
    names = {nic["nic"] for nic in rail.nics}
    for nic in rail.nics:
        missing = addresses.outside(nic["networks"]) if nic["networks"] else set()
        rail.unrouted |= {(nic["nic"], peer) for peer in missing if host_of(peer) != nic["host"]}
    for (nic_name, peer), pair in probed.items():
        if {nic_name, peer} <= names and host_of(nic_name) != host_of(peer):
            rail.answered[nic_name] += bool(pair.answered)
            if pair.is_dead:
                rail.silent.add((nic_name, peer))


class _Addresses:
    """The addresses of a rail's NICs, sorted, so that the addresses in one network are contiguous."""

    def __init__(self, nics: Sequence[Nic]) -> None:
        rows = []
        for nic in nics:
            for address in map(ipaddress.ip_address, nic["addresses"]):
                rows.append((address.version, int(address), nic["nic"]))
        self._sorted = sorted(rows)
        self._keys = [row[:2] for row in self._sorted]
        self._names = {row[2] for row in rows}

    def outside(self, networks: Sequence[str]) -> set[str]:
        """Return the NICs without an address in any of the networks."""
        inside: set[str] = set()
        for network in map(ipaddress.ip_network, networks):
            first = bisect_left(self._keys, (network.version, int(network.network_address)))
            last = bisect_right(self._keys, (network.version, int(network.broadcast_address)))
            if last - first == len(self._sorted):
                return set()
            inside.update(name for _, _, name in self._sorted[first:last])
        return self._names - inside


def _findings(fabric: FabricRecords, rail: _Rail) -> Iterator[Found]:
    failed = rail.unrouted | rail.silent
    per_host = Counter(nic["host"] for nic in rail.nics)
    all_pairs = {nic["nic"]: _ENDS * (len(rail.nics) - per_host[nic["host"]]) for nic in rail.nics}
    at_down = Counter(nic for pair in rail.silent for nic in pair if nic in fabric.down_nics)
    causes = dict(at_down) | _causes({pair for pair in failed if not at_down.keys() & set(pair)}, all_pairs)
    rest: dict[str, list[str]] = defaultdict(list)
    for nic_name, peer in failed:
        if not {nic_name, peer} & causes.keys():
            rest[nic_name].append(peer)
    for nic in sorted(rail.nics, key=lambda record: natural(record["nic"])):
        name, others = nic["nic"], all_pairs[nic["nic"]] // _ENDS
        if not others:
            yield fabric.of_nic(name, AuditStatus.SKIPPED, f"no other host has a NIC of {rail.name}")
        elif nic["egress"] is not None:
            text = f"{name} reaches {rail.name} by {nic['egress']}, not by its own device"
            yield fabric.of_nic(name, AuditStatus.FAILED, text)
        elif name in causes:
            text = f"{causes[name]} of {all_pairs[name]} pairs of {name} within {rail.name} fail: "
            yield fabric.of_nic(name, AuditStatus.FAILED, text + _named(rail, name, _peers(failed, name)))
        elif name in rest:
            text = f"{name} does not reach {len(rest[name])} of {others} peers of {rail.name}: "
            yield fabric.of_nic(name, AuditStatus.FAILED, text + _named(rail, name, rest[name]))
        else:
            yield _living(fabric, rail, nic, others)


def _causes(failed: set[tuple[str, str]], all_pairs: dict[str, int]) -> dict[str, int]:
    """Return, by NIC that explains failed pairs, their number; the NIC with most pairs comes first."""
    pairs_of: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for pair in failed:
        for name in pair:
            pairs_of[name].add(pair)
    causes: dict[str, int] = {}
    totals = dict(all_pairs)
    while True:
        candidates = [
            (len(pairs), name)
            for name, pairs in pairs_of.items()
            if len(pairs) > MIN_PAIRS and len(pairs) >= NIC_SHARE * totals[name]
        ]
        if not candidates:
            return causes
        count, worst = max(candidates, key=lambda candidate: (candidate[0], candidate[1]))
        causes[worst] = count
        for pair in pairs_of.pop(worst):
            other = pair[0] if pair[1] == worst else pair[1]
            pairs_of[other].discard(pair)
            totals[other] -= 1


def _peers(failed: set[tuple[str, str]], name: str) -> list[str]:
    """Return the NICs at the other ends of a NIC's failed pairs, sorted."""
    return sorted({b if a == name else a for a, b in failed if name in (a, b)})


def _named(rail: _Rail, name: str, peers: Sequence[str]) -> str:
    """Return the names of the peers as text, each with the reason why it is not reached."""
    texts = []
    for peer in sorted(peers, key=natural)[:MAX_NAMED]:
        if (name, peer) in rail.unrouted:
            texts.append(f"{peer} (no route by its device)")
        elif (name, peer) in rail.silent:
            texts.append(f"{peer} (no answer)")
        else:
            texts.append(f"{peer} (in the other direction)")
    more = len(peers) - len(texts)
    return ", ".join(texts) + (f" and {more} more" if more > 0 else "")


def _living(fabric: FabricRecords, rail: _Rail, nic: Nic, others: int) -> Found:
    name = nic["nic"]
    count = rail.answered[name]
    if not count:
        return fabric.of_nic(name, AuditStatus.UNKNOWN, f"no probe of {name} within {rail.name} was answered")
    by_route = ", and has routes to all" if nic["networks"] else ""
    text = f"{count} of {others} peers of {rail.name} answer {name}{by_route}"
    return fabric.of_nic(name, AuditStatus.PASSED, text)
