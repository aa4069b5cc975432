"""Verdicts about single NICs from the round trips of their flows: a lower rate, a policer, a bad cable.

Probes are small and see no queue at a NIC that sends slowly, and MPI reports no queue pairs. The round trips
that the kernel measures of the job's own flows show that queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Final

from schemas.ids import host_of
from schemas.records import Verdict
from schemas.topics import FLOWS
from schemas.units import bps_text, delay_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.explained import explains_loss, fills_its_nic, min_excess_ns
from streams.diagnosis.network.outliers import network_is_normal
from streams.diagnosis.symptoms import Symptom

MIN_OTHERS: Final = 2
"""Number of flows that do not touch a NIC, needed for a comparison."""
SLOW_SHARE: Final = 0.7
"""Share of a NIC's flows that must be slower than the others."""


def slow_nic_by_rtt(case: Case) -> Iterator[Candidate]:
    """Explain a slower job by the NIC of which all flows have long round trips, and no other flow has."""
    if not (case.network_excess or 0.0) >= case.rules.min_loss_share:
        return
    flows = [flow for flow in case.traffic.flows.values() if flow["rtt_ns"] and flow["peer"]]
    worst: tuple[float, str, float, float] | None = None
    for nic in sorted({flow["nic"] for flow in flows}):
        own = [float(flow["rtt_ns"] or 0) for flow in flows if nic in (flow["nic"], flow["peer"])]
        others = [float(flow["rtt_ns"] or 0) for flow in flows if nic not in (flow["nic"], flow["peer"])]
        if len(others) < MIN_OTHERS or len(own) < MIN_OTHERS:
            continue
        typical, value = median(others), median(own)
        slow = sum(rtt >= case.rules.flow_times * typical for rtt in own)
        if slow >= SLOW_SHARE * len(own) and (worst is None or value / typical > worst[0]):
            worst = value / typical, nic, value, typical
    if worst is None:
        return
    times, nic, value, typical = worst
    pairs = [pair for pair in case.traffic.pairs.values() if nic in (pair.nic, pair.peer)]
    too_short = any(value - typical < min_excess_ns(case, pair) for pair in pairs)
    if too_short or fills_its_nic(case, nic) or not explains_loss(case, value - typical):
        return
    rate = sum(flow["rate_bps"] for flow in flows if flow["nic"] == nic)
    text = (
        f"{nic} sends slowly: its flows have round trips of {delay_text(value)}, flows of other NICs "
        f"{delay_text(typical)}, at {bps_text(rate)}"
    )
    normal = network_is_normal(case, pairs)
    yield Candidate(
        Verdict.SLOW_SENDER,
        case.network_excess or 0.0,
        nic,
        text,
        f"check negotiated speed, cable, rate limits and processors of {host_of(nic)}",
        subjects=[nic, host_of(nic)],
        nics=[nic],
        ranks=sorted(rank.number for rank in case.members if nic in rank.nics),
        evidence=[
            observation(FLOWS.name, nic, "rtt_us", value / 1e3, typical / 1e3, text),
            observation(FLOWS.name, nic, "times_others", times, 1.0, f"{times:.1f} times the others"),
        ],
        pairs={(pair.nic, pair.peer) for pair in pairs},
        symptoms={Symptom.PROBES_NORMAL: bool(normal), Symptom.ROUND_TRIPS: True},
    )
