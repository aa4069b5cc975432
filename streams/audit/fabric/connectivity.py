"""Checks that all NICs reach each other in both directions, by each NIC's probes to every peer. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from schemas.audit_remedy import remedy
from schemas.ids import natural
from schemas.records import AuditStatus
from streams.audit.fabric.attribution import explain
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, error

MIN_LOST: Final = 3
"""Number of lost probes, without any answer, that show a dead pair; fewer may be chance."""
NIC_SHARE: Final = 0.5
"""Share of a NIC's pairs without an answer from which on the NIC is the cause."""
MIN_PAIRS: Final = 2
"""Number of dead pairs by which a NIC is the cause. Those to a single peer do not show which end is dead."""
MAX_NAMED: Final = 4


@dataclass(slots=True)
class Pair:
    """Counts of answered and lost probes from one NIC to another."""

    answered: int = 0
    lost: int = 0

    @property
    def is_dead(self) -> bool:
        """Whether no probe was answered, although enough were sent."""
        return not self.answered and self.lost >= MIN_LOST


@error("fabric.connectivity", "Every NIC reaches every other", 39)
@remedy.isolate("Check the NIC's port, address and route; `fabrictime links` names dead links")
def connectivity(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC: PASSED if all its peers answer, else FAILED with the silent peers.

    A NIC that is DOWN, or half of whose pairs fail, is the cause; its peers do not fail because of it. With a
    full mesh, pairs that were not probed are UNKNOWN. A pair passes only if each of its NICs that sends
    probes at all has probed the other.
    """
    pairs = probed_pairs(fabric)
    if not pairs:
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no probes in these windows: connectivity is not known")
        return
    down = _down(fabric, pairs)
    names = sorted(name for name in pairs if not down.keys() & set(name))
    dead = [at for at, name in enumerate(names) if pairs[name].is_dead]
    causes = explain(names, dead, NIC_SHARE, MIN_PAIRS)
    single = [nic for nic, at in causes.elements.items() if len({*chain(*(names[one] for one in at))}) == 2]
    for nic in single:
        causes.rest += causes.elements.pop(nic)
    rest: dict[str, list[str]] = defaultdict(list)
    for at in causes.rest:
        nic, peer = names[at]
        back = pairs.get((peer, nic))
        direction = "" if back is None else ", and back" if back.is_dead else ", though it answers back"
        rest[nic].append(f"{peer}{direction}")
    peers: dict[str, set[str]] = defaultdict(set)
    for nic, peer in pairs:
        peers[nic].add(peer)
    for nic in sorted(fabric.nic_of.keys() | peers.keys(), key=natural):
        if nic in down:
            text = f"{nic} does not answer in {down[nic]} pairs: {fabric.down_nics[nic]} is down"
            yield fabric.of_nic(nic, AuditStatus.FAILED, text)
        elif nic in causes.elements:
            count = len(causes.elements[nic])
            text = f"{nic} reaches or is reached by no peer in {count} of {causes.crossing[nic]} pairs"
            yield fabric.of_nic(nic, AuditStatus.FAILED, text)
        elif nic in rest:
            named = "; ".join(sorted(rest[nic], key=natural)[:MAX_NAMED])
            text = f"{nic} does not reach {len(rest[nic])} of {len(peers[nic])} peers: {named}"
            yield fabric.of_nic(nic, AuditStatus.FAILED, text)
        else:
            yield _living(fabric, nic, peers[nic], down.keys())


def _down(fabric: FabricRecords, pairs: Mapping[tuple[str, str], Pair]) -> Counter[str]:
    """Return, by NIC that is DOWN, the number of its dead pairs; a NIC without dead pairs has recovered."""
    dead = Counter(nic for name, pair in pairs.items() if pair.is_dead for nic in name)
    return Counter({nic: dead[nic] for nic in fabric.down_nics if dead[nic]})


def _living(fabric: FabricRecords, nic: str, probed: Collection[str], down: Collection[str]) -> Found:
    """Return the finding for a NIC that has dead pairs at most with NICs that are DOWN."""
    expected = len(fabric.nic_of.keys() - {nic})
    if not probed:
        return fabric.of_nic(nic, AuditStatus.UNKNOWN, f"{nic} sent no probes in these windows")
    reached = len(probed) - len(set(down).intersection(probed))
    if not reached:
        text = f"no peer that {nic} probed is up: its connectivity is not known"
        return fabric.of_nic(nic, AuditStatus.UNKNOWN, text)
    if fabric.full_mesh and len(probed) < expected:
        text = f"{nic} probed {len(probed)} of {expected} peers; all of them answer"
        return fabric.of_nic(nic, AuditStatus.UNKNOWN, text)
    others = "" if reached == len(probed) else f"; {len(probed) - reached} others are down"
    return fabric.of_nic(nic, AuditStatus.PASSED, f"{nic} reaches all {reached} probed peers{others}")


def probed_pairs(fabric: FabricRecords) -> dict[tuple[str, str], Pair]:
    """Return, by (NIC, peer), the counts of answered and lost probes; pairs with too few are left out."""
    pairs: dict[tuple[str, str], Pair] = defaultdict(Pair)
    for record in fabric.delays:
        nic = record["nic"]
        for path in record["paths"]:
            pair = pairs[nic, path["peer"]]
            pair.answered += path["count"] + path["no_t3"]
            pair.lost += path["lost"]
    return {key: pair for key, pair in pairs.items() if pair.answered or pair.is_dead}
