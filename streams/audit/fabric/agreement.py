"""Checks settings that must agree across the fleet: MTU, egress, ECN and traffic classes, by probes. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

from schemas.audit_remedy import remedy
from schemas.records import AuditStatus, Nic
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, error, warning

Value = TypeVar("Value", int, tuple[int, ...])

MIN_SAMPLES: Final = 20
"""Number of samples of a pair below which they prove nothing."""
MIN_PAIRS: Final = 2
"""Number of pairs whose packets lose the ECN field at a NIC before that NIC is named."""
BAD_SHARE: Final = 0.5
"""Share of packets that arrive without the ECN field from which on something on the way must clear it."""


@error("fabric.mtu", "NICs of a rail have the same MTU")
@remedy.monitor("ip link set dev INTERFACE mtu MTU, and in the network's configuration")
def mtus(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC that states its MTU: FAILED unless most of its shard and rail use that MTU."""
    groups: dict[tuple[str, int | None], list[Nic]] = defaultdict(list)
    for nic in fabric.nics:
        if nic["mtu_bytes"] is not None:
            groups[nic["shard"], nic["rail"]].append(nic)
    if not groups:
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no NIC states its MTU")
    for of_group in groups.values():
        majority_bytes = _usual_of(nic["mtu_bytes"] or 0 for nic in of_group)
        for nic in of_group:
            is_usual = nic["mtu_bytes"] == majority_bytes
            text = f"MTU {nic['mtu_bytes']:,} bytes, most of {len(of_group)} NICs have {majority_bytes:,}"
            yield fabric.of_nic(nic["nic"], AuditStatus.PASSED if is_usual else AuditStatus.FAILED, text)


@error("fabric.egress", "Packets of a NIC leave by that NIC")
@remedy.monitor("Add a policy rule for the NIC's address, with a routing table of its own: `ip rule`")
def egress(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC: FAILED if its packets were seen to leave by another NIC."""
    for nic in fabric.nics:
        other = nic["egress"]
        if other is None:
            yield fabric.of_nic(
                nic["nic"], AuditStatus.PASSED, "packets were not seen to leave by another NIC"
            )
        else:
            yield fabric.of_nic(nic["nic"], AuditStatus.FAILED, f"its packets leave by {other}")


@warning("fabric.ecn", "Packets stay ECN-capable on the way")
@remedy.monitor("Find the host or switch that clears the ECN field: firewall rules, tunnels, QoS policies")
def ecn(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC: FAILED if packets from or to it arrive without the ECN field sent.

    A NIC alone is blamed if most of its pairs, at least two, lose the field; other pairs are attributed to a
    link. If no packet arrives ECN-capable, probes are sent without the field, and the finding is UNKNOWN.
    """
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for record in fabric.delays:
        for path in record["paths"]:
            pair = counts[record["nic"], path["peer"]]
            pair[0] += path["count"]
            pair[1] += path["ecn"]
    pairs = {pair: capable / count for pair, (count, capable) in counts.items() if count >= MIN_SAMPLES}
    if not any(pairs.values()):
        text = "no probe arrives ECN-capable: probes.ecn is off, or there are no probes"
        yield Found(FLEET, "", AuditStatus.UNKNOWN, text)
        return
    cleared = {pair for pair, share in pairs.items() if share < BAD_SHARE}
    at_nic = Counter(nic for pair in pairs for nic in pair)
    cleared_at = Counter(nic for pair in cleared for nic in pair)
    named = {
        nic: count
        for nic, count in cleared_at.items()
        if count >= MIN_PAIRS and count > BAD_SHARE * at_nic[nic]
    }

    def found() -> Iterator[Found]:
        for nic, count in sorted(named.items()):
            text = f"the ECN field is cleared on {count} of {at_nic[nic]} pairs from or to it"
            yield fabric.of_nic(nic, AuditStatus.FAILED, text)
        for nic, peer in sorted(cleared):
            if not {nic, peer} & named.keys():
                text = f"the ECN field is cleared between it and {peer}"
                yield fabric.of_nic(nic, AuditStatus.FAILED, text)

    yield from fabric.all_passed(found(), sorted(at_nic), "packets stay ECN-capable")


@warning("fabric.classes", "All NICs probe the same traffic classes")
@remedy.monitor("Set probes.classes alike on all hosts, and restart the agent")
def classes(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per probing NIC: FAILED if it probes other traffic classes than most NICs do."""
    of_nic: dict[str, set[int]] = defaultdict(set)
    for record in fabric.delays:
        of_nic[record["nic"]] |= {path["dscp"] for path in record["paths"]}
    probing = {nic: tuple(sorted(dscps)) for nic, dscps in of_nic.items() if dscps}
    if not probing:
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no probes")
        return
    majority = _usual_of(probing.values())
    for nic, dscps in sorted(probing.items()):
        text = f"probes DSCP {_listed(dscps)}"
        if dscps == majority:
            yield fabric.of_nic(nic, AuditStatus.PASSED, text)
        else:
            yield fabric.of_nic(nic, AuditStatus.FAILED, f"{text}, most NICs probe {_listed(majority)}")


def _usual_of(values: Iterable[Value]) -> Value:
    """Return the most frequent value; among equally frequent values, the largest."""
    return max(Counter(values).items(), key=lambda item: (item[1], item[0]))[0]


def _listed(dscps: Iterable[int]) -> str:
    return ", ".join(map(str, dscps))
