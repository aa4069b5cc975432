"""Verdicts about single NICs from the round trips of their flows: a lower rate, a policer, a bad cable.

Probes are small and see no queue at a NIC that sends slowly, and MPI reports no queue pairs. The round trips
that the kernel measures of the job's own flows show that queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from schemas.ids import host_of
from schemas.records import Flow, Verdict
from schemas.topics import FLOWS
from schemas.units import bps_text, delay_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.explained import explains_loss, fills_its_nic, min_excess_ns
from streams.diagnosis.network.outliers import network_is_normal
from streams.diagnosis.network.traffic import keys_of
from streams.diagnosis.symptoms import Symptom

MIN_OTHERS: Final = 2
"""Number of flows that do not touch a NIC, needed for a comparison."""
SLOW_SHARE: Final = 0.7
"""Share of a NIC's flows that must be slower than the others."""


def slow_nic_by_rtt(case: Case) -> Iterator[Candidate]:
    """Explain a slower job by the NIC of which all flows have long round trips, and no other flow has."""
    if not (case.network_excess or 0.0) >= case.rules.min_loss_share:
        return
    slowest = _slowest_nic(case)
    if slowest is None:
        return
    nic, value, typical = slowest.nic, slowest.rtt_ns, slowest.others_ns
    pairs = [pair for pair in case.traffic.pairs.values() if nic in pair.key]
    too_short = any(value - typical < min_excess_ns(case, pair) for pair in pairs)
    if too_short or fills_its_nic(case, nic) or not explains_loss(case, value - typical):
        return
    times = slowest.times
    text = (
        f"{nic} sends slowly: its flows have round trips of {delay_text(value)}, flows of other NICs "
        f"{delay_text(typical)}, at {bps_text(slowest.rate_bps)}"
    )
    yield Candidate(
        Verdict.SLOW_SENDER,
        case.network_excess or 0.0,
        nic,
        text,
        f"check negotiated speed, cable, rate limits and processors of {host_of(nic)}",
        subjects=[nic, host_of(nic)],
        nics=[nic],
        ranks=case.numbers_at(nic),
        evidence=[
            observation(FLOWS.name, nic, "rtt_us", value / 1e3, typical / 1e3, text),
            observation(FLOWS.name, nic, "times_others", times, 1.0, f"{times:.1f} times the others"),
        ],
        pairs=keys_of(pairs),
        symptoms={Symptom.PROBES_NORMAL: bool(network_is_normal(case, pairs)), Symptom.ROUND_TRIPS: True},
    )


class _SlowNic(NamedTuple):
    """A NIC with the median round trips of its flows and of the others, ns."""

    nic: str
    rtt_ns: float
    others_ns: float
    rate_bps: float

    @property
    def times(self) -> float:
        """Factor by which its flows' round trips are longer."""
        return self.rtt_ns / self.others_ns


def _slowest_nic(case: Case) -> _SlowNic | None:
    """Return the NIC whose flows have the longest round trips, if nearly all of them have long ones."""
    flows = [flow for flow in case.traffic.flows.values() if flow["rtt_ns"] and flow["peer"]]
    rtts: dict[str, list[float]] = defaultdict(list)
    for flow in flows:
        for name in {flow["nic"], flow["peer"]}:
            rtts[name].append(float(flow["rtt_ns"] or 0))
    ordered, min_times = sorted(float(flow["rtt_ns"] or 0) for flow in flows), case.rules.flow_times
    names = sorted({flow["nic"] for flow in flows})
    slow = filter(None, (_slow_nic(flows, name, rtts[name], ordered, min_times) for name in names))
    return max(slow, key=lambda nic: nic.times, default=None)


def _slow_nic(
    flows: list[Flow], name: str, own: list[float], ordered: list[float], min_times: float
) -> _SlowNic | None:
    """Return a NIC if its flows are slower. `own`: their round trips; `ordered`: those of all, sorted."""
    count = len(ordered) - len(own)
    if min(len(own), count) < MIN_OTHERS:
        return None

    def are_slow(typical: float) -> bool:
        return sum(rtt >= min_times * typical for rtt in own) >= SLOW_SHARE * len(own)

    if not are_slow(ordered[(count - 1) // 2]):  # the others' median is at least that
        return None
    others = [flow for flow in flows if name not in (flow["nic"], flow["peer"])]
    typical = median(float(flow["rtt_ns"] or 0) for flow in others)
    rate_bps = sum(flow["rate_bps"] for flow in flows if flow["nic"] == name)
    return _SlowNic(name, median(own), typical, rate_bps) if are_slow(typical) else None
