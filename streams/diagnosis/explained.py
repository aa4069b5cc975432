"""Whether a delay of probes or flows can explain the time that a job loses.

A collective of n ranks takes at most 2(n - 1) rounds, one after the other, in each of which a message crosses
the slow pair. A TCP flow also waits one round trip for each doubling of its window. So a slow pair costs an
operation at most its excess times the rounds. The rest has another cause: one packet in an own full NIC
proves nothing.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from streams.diagnosis.case import Case
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
    """Return the largest number of round trips of one collective of so many ranks and bytes."""
    steps = 2 * max(1, ranks - 1)
    chunk = message_bytes / max(1, ranks)
    return steps * (1 + math.ceil(math.log2(1 + chunk / FIRST_WINDOW_BYTES)))


def explains_loss(case: Case, excess_ns: float) -> bool:
    """Return whether an excess of one pair's delay can cost a good part of the time that operations lose."""
    operations = float(case.work.times.operations.max(initial=0))
    lost_ns = (case.network_excess or 0.0) * case.length_ns
    if not operations or not lost_ns:
        return True
    rounds = rounds_of(case.ranks.total or len(case.members), case.operation_bytes or 0.0)
    return excess_ns * rounds * operations >= EXPLAINED_SHARE * lost_ns


def min_excess_ns(case: Case, pair: NicPair) -> float:
    """Return the excess of a delay below which it is noise of hosts, or packets of the link itself."""
    speeds = [speed for nic in pair.key if (speed := _speed_bps(case, nic))]
    packets_ns = MIN_PACKETS * PACKET_BITS / min(speeds) * 1e9 if speeds else 0.0
    return max(case.rules.flow_excess_us * 1e3, packets_ns)


def fills_its_nic(case: Case, nic: str) -> bool:
    """Return whether the job's own flows fill a NIC, so that probes wait for them there."""
    rates = _sent_bps(case)
    own = rates.get(nic, 0.0)
    speed = _speed_bps(case, nic)
    if speed and own >= FULL_SHARE * speed:
        return True
    others = [rate for name, rate in rates.items() if name != nic]
    return len(others) > 1 and own >= MORE_THAN_OTHERS * max(median(others), 1.0)


def _sent_bps(case: Case) -> dict[str, float]:
    """Return the rate at which each NIC sends data of the job, bit/s, while it sends."""
    rates: dict[str, float] = {}
    for flow in case.traffic.flows.values():
        busy = flow["busy_share"]
        share = 1.0 if busy is None else min(1.0, max(busy, case.network_share, 0.05))
        rates[flow["nic"]] = rates.get(flow["nic"], 0.0) + flow["rate_bps"] / share
    return rates


def _speed_bps(case: Case, nic: str) -> float:
    known = case.network.inventory.get(nic)
    return float(known["speed_bps"] or 0.0) if known is not None else 0.0


def rtt_times_others(case: Case, pair: NicPair) -> float | None:
    """Return the ratio of a pair's longest round trip to the median of the others; None without reports."""
    own = max((flow["rtt_ns"] or 0 for flow in pair.flows), default=0)
    others = [
        max((flow["rtt_ns"] or 0 for flow in other.flows), default=0)
        for other in case.traffic.pairs.values()
        if other is not pair
    ]
    reported = [rtt for rtt in others if rtt]
    return own / median(reported) if own and reported else None
