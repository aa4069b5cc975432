"""Explains lost time by hosts: SLOW_SENDER, SLOW_RECEIVER, PCIE_LIMIT, PAUSE_STORM."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np

from schemas.ids import host_of
from schemas.records import (
    AuditCategory,
    AuditResult,
    ContentionKind,
    ContentionWindow,
    DiagnosisEvidence,
    Flow,
    LinkState,
    Verdict,
)
from schemas.topics import COLLECTIVES, FLOWS
from schemas.units import delay_text
from streams.diagnosis.base import Candidate, Case, audit_evidence, observation, window_evidence
from streams.diagnosis.job.arrivals import Floats
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.network.outliers import common_end, network_is_normal
from streams.diagnosis.network.traffic import keys_of
from streams.diagnosis.symptoms import Symptom
from streams.diagnosis.verdicts.flows import SHARED_KINDS, others_share
from streams.runtime.units import NS_PER_S

TIMES_OTHERS: Final = 3.0
"""Ratio to the other ranks' median from which on a rank's wait for its GPU stands out."""
MAX_SHORT_NS: Final = NS_PER_S // 2
"""Length of a contention window from which on it counts in any interval."""
LIMITED_SHARE: Final = 0.5
"""Share of the busy time from which on one end counts as limiting a flow."""
MIN_LIMITED_SHARE: Final = 0.1
"""Share of the interval below which a limit does not cost time."""
_END_KINDS: Final = {
    ContentionKind.SLOW_SENDER: Verdict.SLOW_SENDER,
    ContentionKind.SLOW_RECEIVER: Verdict.SLOW_RECEIVER,
}
REMEDIES: Final = {
    Verdict.SLOW_SENDER: "check processors, memory and NIC settings of {}",
    Verdict.SLOW_RECEIVER: "check processors, memory and NIC settings of {}",
    Verdict.PCIE_LIMIT: "check the PCIe link of {}, GPUDirect and ACS: run fabrictime audit there",
}


def _pcie_failures(case: Case, host: str) -> list[AuditResult]:
    return [result for result in case.network.failed_checks(host) if result["category"] == AuditCategory.PCIE]


def pcie_limit(case: Case) -> Iterator[Candidate]:
    """Explain lost time by ranks of one host that flush, or wait for data of their GPU."""
    rules, times = case.rules, case.work.times
    for values, limit, name in (
        (times.flush, rules.flush_share, "flushing received data to the GPU"),
        (times.gpu_late, rules.gpu_share, "waiting for the GPU's data"),
    ):
        places, own, typical = _standing_out(case, values, limit)
        if not places:
            continue
        share = values / np.maximum(times.observed, 1.0)
        lost = float(share[places].max() - np.median(share))
        if lost >= rules.min_loss_share:
            ranks = [case.members[at] for at in places]
            text = f"{ranks[0].host} spends {own:.0%} of its operations {name}, others {typical:.0%}"
            evidence = observation(COLLECTIVES.name, ranks[0].host, "share_of_operations", own, typical, text)
            yield _waiting_host(case, ranks, lost, values is times.flush, evidence)


def _waiting_host(
    case: Case, ranks: list[Rank], lost: float, is_flush: bool, evidence: DiagnosisEvidence
) -> Candidate:
    """Return a candidate about the host of `ranks`, which wait for their GPUs, with the evidence of that."""
    host, nics = ranks[0].host, [rank.nic for rank in ranks if rank.nic]
    failures = _pcie_failures(case, host)
    verdict = Verdict.PCIE_LIMIT if failures else _gpu_verdict(case, ranks[0].nic, is_flush)
    return Candidate(
        verdict,
        lost,
        ranks[0].nic or host,
        evidence["text"],
        REMEDIES[verdict].format(host),
        subjects=list(dict.fromkeys([*nics, host])),
        nics=nics,
        ranks=[rank.number for rank in ranks],
        evidence=[evidence, *audit_evidence(failures)],
        pairs={key for key in case.traffic.pairs if host in map(host_of, key)},
        symptoms={Symptom.GPU_WAITS: True, Symptom.AUDIT_FAILED: bool(failures)},
    )


def _standing_out(case: Case, values: Floats, limit: float) -> tuple[list[int], float, float]:
    """Return positions of a host's ranks that wait far longer, their share of time, and the others' share."""
    busy = np.maximum(case.work.times.busy, 1.0)
    share = values / busy
    if len(share) < 2:
        return [], 0.0, 0.0
    worst = int(np.argmax(share))
    host = case.members[worst].host
    inside = [at for at, rank in enumerate(case.members) if rank.host == host]
    others = np.delete(share, inside)
    typical = float(np.median(others)) if len(others) else 0.0
    floor = min(limit, 0.2)
    stands_out = share[worst] >= limit or (share[worst] >= floor and share[worst] >= TIMES_OTHERS * typical)
    if not stands_out or share[worst] < TIMES_OTHERS * typical:
        return [], 0.0, 0.0
    return [at for at in inside if share[at] >= 0.5 * share[worst]], float(share[worst]), typical


def _gpu_verdict(case: Case, nic: str, is_flush: bool) -> Verdict:
    """Return the verdict for the direction in which a NIC's transfers wait for the GPU."""
    limit = case.rules.gpu_share
    sends = any(p.gpu_late_share >= limit for p in case.traffic.pairs.values() if p.nic == nic)
    receives = any(p.receive_gpu_share >= limit for p in case.traffic.pairs.values() if p.peer == nic)
    if is_flush or sends == receives or _flushes(case, nic):
        return Verdict.PCIE_LIMIT
    return Verdict.SLOW_SENDER if sends else Verdict.SLOW_RECEIVER


def _flushes(case: Case, nic: str) -> bool:
    """Return whether ranks of a NIC spend a far larger share of their time flushing than the job's median."""
    share = case.work.times.flush / np.maximum(case.work.times.busy, 1.0)
    places = [at for at, rank in enumerate(case.members) if nic in rank.nics]
    return bool(places) and float(share[places].max()) >= max(0.05, TIMES_OTHERS * float(np.median(share)))


def slow_end_by_pairs(case: Case) -> Iterator[Candidate]:
    """Explain slow pairs by the NIC that they share, if probes find the network normal."""
    outliers = case.outliers
    nic, role, touched = common_end(case, outliers)
    if not nic:
        return
    pairs = [outlier.pair for outlier in outliers if nic in outlier.pair.key]
    normal = network_is_normal(case, pairs)
    if normal is False:
        return
    failures = _pcie_failures(case, host_of(nic))
    verdict = {"both": Verdict.PCIE_LIMIT, "sender": Verdict.SLOW_SENDER, "receiver": Verdict.SLOW_RECEIVER}[
        role
    ]
    if failures:
        verdict = Verdict.PCIE_LIMIT
    worst = outliers[0]
    direction = {"both": "both directions", "sender": "sends", "receiver": "receives"}[role]
    text = (
        f"{nic}: {len(pairs)} pairs slow ({direction}), {delay_text(worst.value_ns)} against "
        f"{delay_text(worst.like_ns)}; " + ("probes on them are normal" if normal else "no probes there")
    )
    value_us, like_us, part = worst.value_ns / 1e3, worst.like_ns / 1e3, f"part of {touched:.0%} of them"
    yield Candidate(
        verdict,
        case.pair_loss(worst),
        nic,
        text,
        REMEDIES[verdict].format(host_of(nic)),
        subjects=[nic, host_of(nic)],
        nics=[nic],
        ranks=case.numbers_at(nic),
        evidence=[
            observation(COLLECTIVES.name, worst.pair.name, "data_us", value_us, like_us, text),
            observation(COLLECTIVES.name, nic, "share_of_slow_pairs", touched, None, part),
            *audit_evidence(failures),
        ],
        is_new=not case.was_slow(worst),
        pairs=keys_of(pairs),
        symptoms={
            Symptom.PROBES_NORMAL: bool(normal),
            Symptom.AUDIT_FAILED: bool(failures),
            Symptom.NO_GPU_WAIT: case.gpu_wait_of(nic) == 0.0,
            Symptom.OTHERS_TRAFFIC: verdict == Verdict.SLOW_RECEIVER and _is_shared(case, nic),
        },
    )


def _is_shared(case: Case, nic: str) -> bool:
    """Return whether flows of others queue on the link to a NIC, so that the NIC itself need not be slow."""
    links = _links_to(case, nic)
    return any(
        window["kind"] in SHARED_KINDS
        and window["link"] in links
        and others_share(case, window) >= case.rules.other_share
        for window in case.windows
    )


def slow_end_by_flows(case: Case) -> Iterator[Candidate]:
    """Explain lost time by a host that limits its flows, as flow reports or contention windows show."""
    by_end: dict[tuple[Verdict, str], list[DiagnosisEvidence]] = defaultdict(list)
    begins: dict[tuple[Verdict, str], int] = {}
    for flow in case.traffic.flows.values():
        verdict, share = _limit_of(flow)
        if verdict is not None:
            nic = flow["nic"] if verdict == Verdict.SLOW_SENDER else flow["peer"]
            text = f"{nic} limits the flow {flow['nic']} to {flow['peer']} for {share:.0%} of its busy time"
            evidence = observation(FLOWS.name, flow["flow_id"], "limited_share", share, LIMITED_SHARE, text)
            by_end[verdict, nic].append(evidence)
    for window in case.windows:
        if window["kind"] in _END_KINDS and window["confidence"] > 0 and _lasts(case, window):
            verdict = _END_KINDS[window["kind"]]
            nic = _end_of(window, verdict)
            if nic in case.traffic.nics:
                by_end[verdict, nic].append(window_evidence(window))
                opened_ns = window["opened_ns"]
                begins[verdict, nic] = min(begins.get((verdict, nic), opened_ns), opened_ns)
    for (verdict, nic), of_end in sorted(by_end.items()):
        if nic:
            yield from _limited_host(case, verdict, nic, of_end, begins.get((verdict, nic)))


def _lasts(case: Case, window: ContentionWindow) -> bool:
    """Return whether a window covers enough of the interval to cost the job time."""
    return _open_ns(case, window) >= min(case.rules.queue_share * case.length_ns, MAX_SHORT_NS)


def _open_ns(case: Case, window: ContentionWindow) -> int:
    """Return the time within the interval for which a window was open, ns."""
    closed_ns = case.end_ns if window["closed_ns"] is None else min(window["closed_ns"], case.end_ns)
    return max(0, closed_ns - max(window["opened_ns"], case.begin_ns))


def _limited_host(
    case: Case, verdict: Verdict, nic: str, evidence: list[DiagnosisEvidence], begin_ns: int | None
) -> Iterator[Candidate]:
    sender = verdict == Verdict.SLOW_SENDER
    limited: tuple[list[bool], list[bool]] = [], []  # of other NICs' flows, of its own
    for flow in case.traffic.flows.values():
        limited[(flow["nic"] if sender else flow["peer"]) == nic].append(_limit_of(flow)[0] == verdict)
    others, own = limited
    is_common = bool(others) and sum(others) >= 0.5 * len(others)
    if begin_ns is None and (is_common or sum(own) < 0.5 * max(1, len(own))):
        return
    begin_ns = case.began(verdict, nic, begin_ns)
    loss = case.network_loss(begin_ns, case.end_ns, 0.5 * case.network_share)
    text = f"{nic} {'sends' if sender else 'receives'} slowly: {evidence[0]['text']}"
    yield Candidate(
        verdict,
        loss,
        nic,
        text,
        REMEDIES[verdict].format(host_of(nic)),
        subjects=[nic, host_of(nic)],
        nics=[nic],
        ranks=case.numbers_at(nic),
        evidence=evidence[:8],
        since_ns=begin_ns,
        pairs={key for key in case.traffic.pairs if key[0 if sender else 1] == nic},
        symptoms={Symptom.LIMITED_FLOWS: begin_ns is not None or any(own)},
    )


def _limit_of(flow: Flow) -> tuple[Verdict | None, float]:
    """Return which end limited a flow, as a verdict or None, and for which share of its sending time."""
    busy = 1.0 if flow["busy_share"] is None else flow["busy_share"]
    limit = flow["rate_limit_bps"]
    paced = limit is not None and flow["rate_bps"] >= 0.85 * limit
    min_share = max(LIMITED_SHARE * busy, MIN_LIMITED_SHARE)
    receiver = flow["receiver_limited_share"] or 0.0
    if receiver > min_share:
        return Verdict.SLOW_RECEIVER, min(1.0, receiver / max(busy, MIN_LIMITED_SHARE))
    # The sender's share contains the time in which its program has nothing to send.
    sender = (flow["sender_limited_share"] or 0.0) - (1 - busy)
    if not paced and sender > min_share:
        return Verdict.SLOW_SENDER, min(1.0, sender / max(busy, MIN_LIMITED_SHARE))
    return None, 0.0


def _end_of(window: ContentionWindow, verdict: Verdict) -> str:
    """Return the NIC at the slow end of a window's flows, by `verdict`; empty without flows."""
    flows = window["flows"]
    if not flows:
        return ""
    return flows[0]["nic"] if verdict == Verdict.SLOW_SENDER else flows[0]["peer"]


def pause_storm(case: Case) -> Iterator[Candidate]:
    """Explain lost time by a NIC that pauses the fabric, according to contention windows or counters."""
    storms = [
        window
        for window in case.windows
        if window["kind"] == ContentionKind.PAUSE_STORM and _lasts(case, window)
    ]
    sent = _pauses_per_s(case)
    nic = max(sent, key=lambda name: (sent[name], name), default="")
    by_counter = bool(nic) and sent[nic] >= case.rules.pause_per_s
    if not storms and not by_counter:
        return
    evidence = [window_evidence(storm) for storm in storms[:4]]
    if by_counter:
        pauses, limit = sent[nic], case.rules.pause_per_s
        counted = f"{nic} sends {pauses:.0f} pause frames per second"
        evidence.append(observation(COLLECTIVES.name, nic, "pause_sent_per_s", pauses, limit, counted))
    root = nic if by_counter else _end_of(storms[0], Verdict.SLOW_RECEIVER) or storms[0]["link"]
    yield _storm(case, root, by_counter, storms, evidence)


def _storm(
    case: Case, root: str, by_counter: bool, storms: list[ContentionWindow], evidence: list[DiagnosisEvidence]
) -> Candidate:
    links = sorted({link for storm in storms for link in (storm["link"], *storm["links"])})
    begin_ns = min((storm["opened_ns"] for storm in storms), default=None)
    begin_ns = case.began(Verdict.PAUSE_STORM, root, begin_ns)
    stops = by_counter and case.stuck is not None and _receives_nothing(case, root)
    loss = 1.0 if stops else case.network_loss(begin_ns, case.end_ns, 0.5 * case.network_share)
    text = f"{root} pauses the fabric: {evidence[0]['text']}"
    return Candidate(
        Verdict.PAUSE_STORM,
        loss,
        root,
        text,
        f"replace or reset {root}, and limit pause frames there",
        blames_network=True,
        decisive=stops,
        subjects=[root, *links][:64],
        links=links,
        nics=[root] if "/" in root else [],
        evidence=evidence,
        since_ns=begin_ns,
        pairs=keys_of(case.traffic.crossing(links)[0]),
        symptoms={
            Symptom.RECEIVES_NOTHING: stops,
            Symptom.STORM: bool(storms),
            Symptom.SLOW_FOR_LONGER: bool(storms) and _slow_for_longer(case, storms, root),
        },
    )


def _receives_nothing(case: Case, nic: str) -> bool:
    """Return whether probes find the link towards a NIC dead.

    A NIC that also sends pause frames is alive: it does not accept the packets that its switch holds for it.
    """
    episodes = case.network.episodes([nic], case.begin_ns, case.end_ns)
    episodes += case.network.episodes(_links_to(case, nic), case.begin_ns, case.end_ns)
    return any(episode.record["state"] == LinkState.DOWN for episode in episodes)


def _links_to(case: Case, nic: str) -> set[str]:
    """Return the last link of each route of the job's flows to a NIC."""
    flows = (flow for flow in case.traffic.flows.values() if flow["peer"] == nic)
    routes = (case.traffic.routes.get(flow["flow_id"], ()) for flow in flows)
    return {route[-1] for route in routes if route}


def _slow_for_longer(case: Case, storms: list[ContentionWindow], root: str) -> bool:
    """Return whether a NIC was a slow receiver for a longer time than it paused the fabric."""
    slow = [
        window
        for window in case.windows
        if window["kind"] == ContentionKind.SLOW_RECEIVER and _end_of(window, Verdict.SLOW_RECEIVER) == root
    ]
    by_link: dict[str, int] = defaultdict(int)
    for storm in storms:
        by_link[storm["link"]] += _open_ns(case, storm)
    return max(by_link.values(), default=0) < sum(_open_ns(case, window) for window in slow)


def _pauses_per_s(case: Case) -> dict[str, float]:
    """Return, by NIC, the number of pause frames per second that the NIC sent."""
    total: dict[str, int] = defaultdict(int)
    for counter in case.columns.counters:
        total[counter["nic"]] += counter["pause_sent"] or 0
    length_s = max(case.length_ns, 1.0) / 1e9
    shared: dict[str, int] = defaultdict(int)
    for rank in case.members:
        for nic in rank.nics:
            shared[nic] += 1
    return {nic: count / length_s / max(1, shared[nic]) for nic, count in total.items() if count}
