"""Judges whether a delay of probes or flows can explain the time that a job loses.

A collective of n ranks takes at most 2(n - 1) rounds, one after the other, in each of which a message crosses
the slow pair. A TCP flow also waits one round trip for each doubling of its window. So a slow pair costs an
operation at most its excess times the rounds. Any further loss has another cause: one packet in a NIC that
the job itself fills proves nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from statistics import median
from typing import Final

from streams.diagnosis.case import Case, Outlier
from streams.diagnosis.network.traffic import NicPair

PACKET_BITS: Final = 1_500 * 8
MIN_PACKETS: Final = 3.0
"""Number of full packets in a queue below which it is the usual traffic of the link itself."""
FIRST_WINDOW_BYTES: Final = 10 * 1_448
"""Bytes that TCP sends before the first acknowledgement (RFC 6928)."""
EXPLAINED_SHARE: Final = 0.3
"""Part of the lost time that an excess must be able to cost at most."""
FULL_SHARE: Final = 0.7
"""Share of a NIC's rate from which on its own flows fill it."""
MORE_THAN_OTHERS: Final = 1.5
"""Multiple of the other NICs' median rate from which on a NIC of unknown rate sends much itself."""
MIN_RTT_TIMES: Final = 2.0
"""Ratio of a pair's round trips to the others' from which on its flows agree with slow probes."""


def rounds_of(ranks: int, message_bytes: float) -> float:
    """Return the largest number of round trips of a collective of `ranks` ranks and that many bytes."""
    steps = 2 * max(1, ranks - 1)
    chunk = message_bytes / max(1, ranks)
    return steps * (1 + math.ceil(math.log2(1 + chunk / FIRST_WINDOW_BYTES)))


def explains_loss(case: Case, excess_ns: float) -> bool:
    """Return whether an excess of a pair's delay can cost a good part of the time that operations lose."""
    operations = float(case.work.times.operations.max(initial=0))
    lost_ns = (case.network_excess or 0.0) * case.length_ns
    if not operations or not lost_ns:
        return True
    rounds = rounds_of(case.ranks.total or len(case.members), case.operation_bytes or 0.0)
    return excess_ns * rounds * operations >= EXPLAINED_SHARE * lost_ns


def min_excess_ns(case: Case, pair: NicPair) -> float:
    """Return the excess delay, ns, up to which hosts' noise or packets in transmission explain it."""
    speeds = [speed for nic in pair.key if (speed := _speed_bps(case, nic))]
    packets_ns = MIN_PACKETS * PACKET_BITS / min(speeds) * 1e9 if speeds else 0.0
    return max(case.rules.flow_excess_us * 1e3, packets_ns)


def fills_nics(case: Case, nics: Iterable[str]) -> bool:
    """Return whether the job's own flows fill a NIC's cable in a direction: probes queue behind the flows."""
    return any(_fills(case, nic, rates) for rates in _own_bps(case) for nic in nics)


def _fills(case: Case, nic: str, rates: dict[str, float]) -> bool:
    own, speed = rates.get(nic, 0.0), _speed_bps(case, nic)
    if speed and own >= FULL_SHARE * speed:
        return True
    others = [rate for name, rate in rates.items() if name != nic]
    return len(others) > 1 and own >= MORE_THAN_OTHERS * max(median(others), 1.0)


def _own_bps(case: Case) -> tuple[dict[str, float], dict[str, float]]:
    """Return the rates, bit/s, at which each NIC sends and at which it receives data of the busy job."""
    sent: dict[str, float] = {}
    received: dict[str, float] = {}
    for flow in case.traffic.flows.values():
        busy = flow["busy_share"]
        share = 1.0 if busy is None else min(1.0, max(busy, case.network_share, 0.05))
        sent[flow["nic"]] = sent.get(flow["nic"], 0.0) + flow["rate_bps"] / share
        received[flow["peer"]] = received.get(flow["peer"], 0.0) + flow["rate_bps"] / share
    return sent, received


def _speed_bps(case: Case, nic: str) -> float:
    known = case.network.inventory.get(nic)
    return float(known["speed_bps"] or 0.0) if known is not None else 0.0


def round_trips(case: Case, pair: NicPair) -> tuple[float, float] | None:
    """Return a pair's longest round trip and the median of the others' longest, ns; None without reports."""
    own = max((flow["rtt_ns"] or 0 for flow in pair.flows), default=0)
    others = [
        max((flow["rtt_ns"] or 0 for flow in other.flows), default=0)
        for other in case.traffic.pairs.values()
        if other is not pair
    ]
    reported = [rtt for rtt in others if rtt]
    return (own, median(reported)) if own and reported else None


def explains_messages(pair: NicPair, late_ns: float, excess_ns: float) -> bool:
    """Return whether an excess of packet delays explains a good part of the lateness of a pair's messages.

    A message takes as many round trips as its window doubles.
    """
    windows = 1 + math.floor(math.log2(1 + pair.chunk_bytes / FIRST_WINDOW_BYTES))
    return excess_ns * windows >= EXPLAINED_SHARE * late_ns


def is_only_sent(case: Case, slow: Outlier) -> bool:
    """Return whether only times of sends, which MPI may prolong, show that a pair is slow.

    Round trips or probes whose excess is a good part of the excess of the sends are further proof.
    """
    pair, late_ns = slow.pair, slow.value_ns - slow.like_ns
    if pair.source != "operation":
        return False
    own, typical = round_trips(case, pair) or (0.0, 0.0)
    if own >= MIN_RTT_TIMES * typical and explains_messages(pair, late_ns, own - typical):
        return False
    excess_ns = probe_excess_ns(case, pair)
    return excess_ns is None or not explains_messages(pair, late_ns, excess_ns)


def probe_excess_ns(case: Case, pair: NicPair) -> float | None:
    """Return the excess of a pair's probe delay over that of other pairs, ns; None without probes."""
    probes, others_ns = case.probes(pair), usual_probe_ns(case, pair)
    if probes is None or probes.worst_ns is None or others_ns is None:
        return None
    return probes.worst_ns - others_ns


def usual_probe_ns(case: Case, pair: NicPair) -> float | None:
    """Return the median probe delay of the other pairs, ns; None if unknown."""
    others = [
        probes.p50_ns
        for key in sorted(case.traffic.pairs)[:256]
        if key != pair.key
        and (probes := case.probes(case.traffic.pairs[key])) is not None
        and probes.p50_ns is not None
    ]
    return sorted(others)[len(others) // 2] if others else None
