"""Explains lost time by single NICs, from their flows' round trips: a lower rate, a policer, a bad cable.

Probes are small and meet no queue at a NIC that sends slowly, and MPI reports no queue pairs. The round trips
that the kernel measures of the job's own flows include the time in that queue.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from schemas.ids import host_of
from schemas.records import DiagnosisEvidence, Flow, Verdict
from schemas.topics import FLOWS
from schemas.units import bps_text, delay_text
from streams.diagnosis.base import Candidate, Case, observation
from streams.diagnosis.explained import explains_loss, fills_nics, min_excess_ns
from streams.diagnosis.network.outliers import network_is_normal
from streams.diagnosis.network.traffic import keys_of
from streams.diagnosis.symptoms import Symptom

MIN_OTHERS: Final = 2
"""Number of flows that do not touch a NIC, needed for a comparison."""
LONGER_TIMES, SLOWER_TIMES = 1.3, 2.5
"""Growth of a NIC's round trips, and of its time for a bit, from which on it has become slow."""
MIN_SENT: Final = 10_000
"""Bytes of a flow in a report below which its rate while it sends is not known."""
SLOW_SHARE: Final = 0.7
"""Share of a NIC's flows that must be slower than the others."""


def note_nics(case: Case) -> None:
    """Record the median round trip of each NIC's flows, and their median time for a bit while they send."""
    rtts: dict[str, list[float]] = defaultdict(list)
    bits: dict[str, list[float]] = defaultdict(list)
    for flow in _reported(case):
        rtts[flow["nic"]].append(float(flow["rtt_ns"] or 0))
        if flow["busy_share"] and flow["rate_bps"] and flow["bytes"] >= MIN_SENT:
            bits[flow["nic"]].append(1e9 * flow["busy_share"] / flow["rate_bps"])
    for name, by_nic in (("rtt", rtts), ("bit", bits)):
        for nic, values in by_nic.items():
            case.job.nic_baselines.note((name, nic), median(values))


def slow_nic_by_rtt(case: Case) -> Iterator[Candidate]:
    """Explain a slower job by the one NIC whose flows all have long round trips, unlike all other flows.

    The round trips must be longer than before, too: programs send more over some NICs than over others.
    """
    slowest, loss = _slowest_nic(case), case.network_excess or 0.0
    if slowest is None or not loss >= case.rules.min_loss_share:
        yield from _slower_nic(case, loss)
        return
    nic, value, typical = slowest.nic, slowest.rtt_ns, slowest.others_ns
    growth = case.job.nic_baselines.growth(("rtt", nic))
    pairs = [pair for pair in case.traffic.pairs.values() if nic in pair.key]
    too_short = any(value - typical < min_excess_ns(case, pair) for pair in pairs)
    if too_short or (growth is not None and growth < LONGER_TIMES) or fills_nics(case, [nic]):
        return
    if not explains_loss(case, value - typical):
        return
    times = slowest.times
    text = (
        f"{nic} sends slowly: its flows have round trips of {delay_text(value)}, flows of other NICs "
        f"{delay_text(typical)}, at {bps_text(slowest.rate_bps)}"
    )
    evidence = [
        observation(FLOWS.name, nic, "rtt_us", value / 1e3, typical / 1e3, text),
        observation(FLOWS.name, nic, "times_others", times, 1.0, f"{times:.1f} times the others"),
    ]
    yield _slow_sender(case, nic, loss, text, evidence)


def _slower_nic(case: Case, loss: float) -> Iterator[Candidate]:
    """Yield the NIC that has become slow. Beside another cause it costs no time until that is repaired."""
    last, (nic, bit, typical, rtt) = case.job.last, _max_growth(case)
    is_alone = (last.subject if last else "") in ("", nic)
    is_slower = bit >= SLOWER_TIMES * typical and rtt >= LONGER_TIMES
    if is_slower and (loss >= case.rules.min_loss_share or not is_alone):
        beside = "" if is_alone else "; it costs no time while the job waits for another cause"
        times = f"{bit:.1f} times as long to send a bit as before, with round trips of {rtt:.1f} times"
        text = f"{nic} takes {times}{beside}"
        evidence = [observation(FLOWS.name, nic, "times_before", bit, 1.0, text)]
        yield _slow_sender(case, nic, loss if is_alone else 0.0, text, evidence)


def _max_growth(case: Case) -> tuple[str, float, float, float]:
    """Return the NIC whose time for a bit grew most, that growth, the others' median, its round trips'."""
    baselines, nics = case.job.nic_baselines, sorted(case.traffic.nics)
    bits, rtts = ({nic: baselines.growth((name, nic)) or 0.0 for nic in nics} for name in ("bit", "rtt"))
    nic = max(nics, key=lambda name: bits[name], default="")
    others = [growth for name, growth in bits.items() if name != nic]
    typical = max(1.0, median(others)) if len(others) >= MIN_OTHERS else float("inf")
    return nic, bits.get(nic, 0.0), typical, rtts.get(nic, 0.0)


def _slow_sender(
    case: Case, nic: str, loss: float, text: str, evidence: list[DiagnosisEvidence]
) -> Candidate:
    pairs = [pair for pair in case.traffic.pairs.values() if nic in pair.key]
    return Candidate(
        Verdict.SLOW_SENDER,
        loss,
        nic,
        text,
        f"check negotiated speed, cable, rate limits and processors of {host_of(nic)}",
        subjects=[nic, host_of(nic)],
        nics=[nic],
        ranks=case.numbers_at(nic),
        evidence=evidence,
        may_pass=True,
        pairs=keys_of(pairs),
        symptoms={Symptom.PROBES_NORMAL: bool(network_is_normal(case, pairs)), Symptom.ROUND_TRIPS: True},
    )


class _SlowNic(NamedTuple):
    """A NIC with the median round trip of its flows, and the median of other NICs' flows, ns."""

    nic: str
    rtt_ns: float
    others_ns: float
    rate_bps: float

    @property
    def times(self) -> float:
        """Factor by which the round trips of the NIC's flows are longer than others."""
        return self.rtt_ns / self.others_ns


def _slowest_nic(case: Case) -> _SlowNic | None:
    """Return the NIC whose flows have the longest round trips, if nearly all of its flows have long ones."""
    flows = _reported(case)
    rtts: dict[str, list[float]] = defaultdict(list)
    for flow in flows:
        for name in {flow["nic"], flow["peer"]}:
            rtts[name].append(float(flow["rtt_ns"] or 0))
    ordered, min_times = sorted(float(flow["rtt_ns"] or 0) for flow in flows), case.rules.flow_times
    names = sorted({flow["nic"] for flow in flows})
    slow = filter(None, (_slow_nic(flows, name, rtts[name], ordered, min_times) for name in names))
    return max(slow, key=lambda nic: nic.times, default=None)


def _reported(case: Case) -> list[Flow]:
    return [flow for flow in case.traffic.flows.values() if flow["rtt_ns"] and flow["peer"]]


def _slow_nic(
    flows: list[Flow], name: str, own: list[float], ordered: list[float], min_times: float
) -> _SlowNic | None:
    """Return the NIC if its flows are slower. `own`: their round trips; `ordered`: all flows', sorted; ns."""
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
