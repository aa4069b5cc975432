"""Explains lost time by settings: RAIL_MISMATCH, DELAY_MISMATCH, OWN_PACING."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Final, NamedTuple

from schemas.ids import device_of, host_of
from schemas.records import AuditResult, DiagnosisEvidence, Flow, GidKind, Verdict
from schemas.topics import AUDIT, COLLECTIVES, DECISIONS, DELAYS, FLOWS, INVENTORY
from schemas.units import bps_text, delay_text
from streams.diagnosis.base import Candidate, Case, audit_evidence, observation
from streams.diagnosis.network.traffic import NicPair, keys_of, nics_of
from streams.diagnosis.network.view import Pace
from streams.diagnosis.symptoms import Symptom

QUIET_US: Final = 20.0
"""Difference between the median and the smallest delay of probes up to which they see no queue, us."""
CLASS_CHECKS: Final = ("roce", "gid", "dscp", "traffic", "pfc", "ecn", "priority", "trust")
"""Parts of the ids of checks that concern the kind and class of RDMA traffic."""
MINORITY: Final = 0.5
"""Largest share of pairs between rails that counts as a mistake; a larger one is the job's pattern."""
NIC_SHARE: Final = 0.7
"""Share of a NIC's pairs with a mismatch from which on the NIC is the common cause."""


def rail_mismatch(case: Case) -> Iterator[Candidate]:
    """Explain lost time by pairs of NICs of different rails, in a job that otherwise stays within rails."""
    rails = {name: nic["rail"] for name, nic in case.network.inventory.items() if nic["rail"] is not None}
    pairs = [p for p in case.traffic.pairs.values() if p.nic in rails and p.peer in rails]
    crossing = [p for p in pairs if rails[p.nic] != rails[p.peer]]
    if crossing and len(crossing) <= MINORITY * len(pairs):
        within = [p for p in pairs if rails[p.nic] == rails[p.peer]]
        yield from _between_rails(case, rails, crossing, within)


def _between_rails(
    case: Case, rails: dict[str, int], crossing: list[NicPair], within: list[NicPair]
) -> Iterator[Candidate]:
    outliers = {outlier.pair.key: outlier for outlier in case.outliers}
    slow = next((outliers[p.key] for p in crossing if p.key in outliers), None)
    times = _times_slower(crossing, within)
    if times < 1.2 and slow is None:
        return
    loss = case.network_share * (1 - 1 / times) if slow is None else case.pair_loss(slow)
    ends = [end for p in crossing for end in p.key]
    counted = Counter(ends)
    nic = min(counted, key=lambda name: (-counted[name], name))
    example = min(crossing, key=lambda p: (nic not in p.key, p.name))
    text = (
        f"{example.name} connects rail {rails[example.nic]} with rail {rails[example.peer]}, as "
        f"{len(crossing)} of {len(crossing) + len(within)} pairs do; they take {times:.1f} times as long as "
        f"the others"
    )
    compared = "in-band delay over that of other pairs"
    yield Candidate(
        Verdict.RAIL_MISMATCH,
        loss,
        nic,
        text,
        f"name the NICs of {host_of(nic)} in the order of the rails (NCCL_IB_HCA)",
        blames_network=False,
        subjects=list(dict.fromkeys([nic, host_of(nic), *ends]))[:64],
        nics=nics_of(crossing)[:64],
        ranks=sorted({rank for p in crossing for rank in p.ranks})[:64],
        evidence=[
            observation(INVENTORY.name, example.name, "pairs_between_rails", len(crossing), 0, text),
            observation(COLLECTIVES.name, example.name, "times_others", times, 1, compared),
        ],
        pairs=keys_of(crossing),
    )


def _times_slower(some: list[NicPair], others: list[NicPair]) -> float:
    """Return the ratio of the median in-band delays of `some` and of `others`; 1 if unknown.

    Only pairs whose delays come from the same source are compared.
    """
    for source in ("queue pair", "transfer", "operation"):
        first = [p.data_ns for p in some if p.source == source and p.data_ns]
        second = [p.data_ns for p in others if p.source == source and p.data_ns]
        if first and second:
            return median(first) / max(median(second), 1.0)
    return 1.0


# ------------------------------------------------------------------------------------------- delays


def delay_mismatch(case: Case) -> Iterator[Candidate]:
    """Explain in-band delays far above the delays of probes without queues by wrong settings of the data."""
    pairs = [p for p in case.traffic.measured if p.source in ("queue pair", "transfer")]
    excess = {p.key: pair_excess for p in pairs if (pair_excess := _excess(case, p)) is not None}
    wrong = [p for p in pairs if p.key in excess and _is_wrong(case, excess[p.key])]
    nic = _common_nic(pairs, wrong)
    if wrong and (nic is not None or len(wrong) >= NIC_SHARE * len(excess)):
        worst = max(wrong, key=lambda p: (excess[p.key][0], p.name))
        yield _mismatch(case, nic, wrong, worst, excess[worst.key])


def _mismatch(
    case: Case, nic: str | None, wrong: list[NicPair], worst: NicPair, excess: tuple[float, float]
) -> Candidate:
    data_ns, probe_ns = excess
    nics = [nic] if nic is not None else nics_of(wrong)
    subject = nic or wrong[0].name  # the worst pair changes from one second to the next
    settings = _settings_of(case, nics)
    waits = max(max(p.gpu_late_share, p.receive_gpu_share) for p in wrong)
    delays = f"data takes {delay_text(data_ns)}, probes {delay_text(probe_ns)} without a queue"
    text = f"{worst.name}: {delays}: {settings.text}"
    return Candidate(
        Verdict.DELAY_MISMATCH,
        case.network_share * (1 - probe_ns / max(data_ns, 1.0)),
        subject,
        text,
        "check GID index, RoCE version, DSCP and priority of the data against those of the probes",
        blames_network=False,
        subjects=list(dict.fromkeys([subject, worst.name, *map(host_of, nics)]))[:64],
        nics=nics[:64],
        ranks=sorted({rank for p in wrong for rank in p.ranks})[:64],
        evidence=[
            observation(COLLECTIVES.name, worst.name, "data_us", data_ns / 1e3, probe_ns / 1e3, text),
            observation(DELAYS.name, worst.name, "delay_p50_us", probe_ns / 1e3, None, "probes see no queue"),
            *settings.classes[:4],
            *audit_evidence(settings.failures),
        ],
        pairs=keys_of(wrong),
        symptoms={
            Symptom.AUDIT_FAILED: bool(settings.failures or settings.is_roce_v1),
            Symptom.CLASS_DIFFERS: settings.differ,
            Symptom.NO_FIRST_CHUNK: worst.min_ns is None,
            Symptom.GPU_WAITS: nic is not None and case.gpu_wait_of(nic) != 0.0,
            Symptom.GPU_LATE: waits >= case.rules.gpu_share,
        },
    )


class _Settings(NamedTuple):
    """Settings of NICs that explain why their data takes longer than probes."""

    failures: list[AuditResult]
    is_roce_v1: bool
    differ: bool
    """Whether a NIC's class differs from that of most NICs of the job."""
    classes: list[DiagnosisEvidence]

    @property
    def text(self) -> str:
        """Text of the likeliest wrong setting."""
        texts = ["RoCE v1 in use"] if self.is_roce_v1 else []
        texts += [evidence["text"] for evidence in self.classes]
        texts += [failure["text"] for failure in self.failures]
        return texts[0] if texts else "wrong traffic class or RoCE version"


def _settings_of(case: Case, nics: list[str]) -> _Settings:
    checks = [check for nic in nics for check in case.network.failed_checks(host_of(nic))]
    failures = [check for check in checks if any(part in check["check"] for part in CLASS_CHECKS)]
    outliers = list(filter(None, (_odd_class(case, nic) for nic in nics)))
    classes = outliers or list(filter(None, (_unprobed_class(case, nic) for nic in nics)))
    return _Settings(failures, any(_is_roce_v1(case, nic) for nic in nics), bool(outliers), classes)


def _odd_class(case: Case, name: str) -> DiagnosisEvidence | None:
    """Return the DSCP of a NIC's RDMA data as evidence if most NICs of the job have another DSCP.

    None if the DSCP is the same, or unknown. The host's audit reports it.
    """
    own = _data_dscp(case, name)
    others = Counter(
        dscp
        for nic in case.traffic.nics
        if host_of(nic) != host_of(name) and (dscp := _data_dscp(case, nic)) is not None
    )
    common = min(others, key=lambda dscp: (-others[dscp], dscp), default=own)
    if own is None or common is None or common == own:
        return None
    text = f"wrong traffic class: data of {name} leaves with DSCP {own}, of most others with {common}"
    return observation(AUDIT.name, name, "roce_dscp", own, common, text)


def _unprobed_class(case: Case, name: str) -> DiagnosisEvidence | None:
    """Return the DSCP of a NIC's RDMA data as evidence if its probes have other DSCPs and other queues."""
    own = _data_dscp(case, name)
    probed = sorted(
        {
            delay.dscp
            for nic, peer in case.traffic.pairs
            if nic == name
            for delay in case.network.delays(nic, peer, case.begin_ns, case.end_ns)
        }
    )
    if own is None or not probed or own in probed:
        return None
    listed = ", ".join(map(str, probed))
    text = f"wrong traffic class: data of {name} leaves with DSCP {own}, its probes with {listed}"
    return observation(AUDIT.name, name, "roce_dscp", own, probed[0], text)


def _data_dscp(case: Case, name: str) -> int | None:
    """Return the DSCP of a NIC's RDMA data, set at its port or alike at all ports of its host; else None."""
    dscp_by_port = {
        fact["subject"]: fact["number"]
        for result in case.network.audit_results(host_of(name))
        for fact in result["facts"]
        if fact["name"] == "roce_dscp" and fact["number"] is not None
    }
    own = {dscp for port, dscp in dscp_by_port.items() if port.partition("/")[0] == device_of(name)}
    values = own or set(dscp_by_port.values())
    return int(next(iter(values))) if len(values) == 1 else None


def _excess(case: Case, pair: NicPair) -> tuple[float, float] | None:
    """Return a pair's in-band delay without serialisation, and its probes' delay, ns.

    None if unknown or if there is a queue. Of a queue pair, the smallest delay counts: later chunks wait for
    earlier chunks.
    """
    probes = case.probes(pair)
    if probes is None or probes.p50_ns is None or probes.min_ns is None or pair.data_ns is None:
        return None
    if probes.p50_ns - probes.min_ns > QUIET_US * 1e3:
        return None
    nic = case.network.inventory.get(pair.nic)
    speed = nic["speed_bps"] if nic is not None else None
    wire_ns = pair.chunk_bytes * 8e9 / speed if speed else 0.0
    data_ns = pair.data_ns if pair.min_ns is None else pair.min_ns
    return max(0.0, data_ns - wire_ns), 2 * probes.p50_ns


def _is_wrong(case: Case, excess: tuple[float, float]) -> bool:
    data_ns, probe_ns = excess
    rules = case.rules
    return data_ns >= rules.mismatch_times * probe_ns and data_ns - probe_ns >= rules.mismatch_excess_us * 1e3


def _common_nic(pairs: list[NicPair], wrong: list[NicPair]) -> str | None:
    """Return the NIC that all mismatched pairs share, if nearly all of its pairs are mismatched, or None."""
    every = Counter(nic for p in pairs for nic in p.key)
    bad = Counter(nic for p in wrong for nic in p.key)
    nics = [
        nic
        for nic in sorted(bad)
        if bad[nic] >= NIC_SHARE * len(wrong) and bad[nic] >= NIC_SHARE * every[nic] and bad[nic] >= 2
    ]
    return nics[0] if nics and len(nics) == 1 else None


def _is_roce_v1(case: Case, name: str) -> bool:
    nic = case.network.inventory.get(name)
    return nic is not None and nic["ud"] is not None and nic["ud"]["kind"] == GidKind.ROCE_V1


# ------------------------------------------------------------------------------------------- pacing


def own_pacing(case: Case) -> Iterator[Candidate]:
    """Explain lost time by rate limits that this system put on the job's flows."""
    limited = _limited_flows(case)
    if not limited:
        return
    limit, flow, pace = min(limited, key=lambda entry: (entry[0], entry[1]["flow_id"]))
    line = _line_bps(case, flow)
    begins_ns = [own_pace.begin_ns for _, _, own_pace in limited if own_pace is not None]
    estimate = case.network_share * (1 - min(1.0, limit / line)) if line else 0.5 * case.network_share
    name = f"{flow['nic']} to {flow['peer']}"
    since_ns = case.began(Verdict.OWN_PACING, name, min(begins_ns, default=None))
    flows = [limited_flow for _, limited_flow, _ in limited]
    evidence = list(_limit_evidence(name, flow, limit, pace, line))
    yield Candidate(
        Verdict.OWN_PACING,
        case.network_loss(since_ns, case.end_ns, estimate),
        name,
        evidence[0]["text"],
        "lift the limit, or raise the tenant's ceiling, if the other traffic is worth less",
        blames_network=False,
        subjects=[name, *(f["flow_id"] for f in flows)][:64],
        links=sorted(case.traffic.links_of(flows))[:64],
        nics=sorted({f["nic"] for f in flows})[:64],
        evidence=evidence,
        since_ns=since_ns,
        pairs={(f["nic"], f["peer"]) for f in flows},
        symptoms={Symptom.DECISION: bool(begins_ns)},
    )


def _limited_flows(case: Case) -> list[tuple[float, Flow, Pace | None]]:
    """Return the job's flows that send at their limits, with limit, bit/s, and this system's pacing."""
    paces = case.network.paces(case.begin_ns, case.end_ns)
    limited: list[tuple[float, Flow, Pace | None]] = []
    for name, flow in sorted(case.traffic.flows.items()):
        pace = paces.get(name)
        limit = flow["rate_limit_bps"] if pace is None else pace.rate_bps
        if limit and _is_at_limit(case, flow, limit):
            limited.append((limit, flow, pace))
    return limited


def _limit_evidence(
    name: str, flow: Flow, limit: float, pace: Pace | None, line: float
) -> Iterator[DiagnosisEvidence]:
    flow_id, text = flow["flow_id"], f"{name} is limited to {bps_text(limit)}"
    decision = pace.decision if pace is not None else None
    if decision is not None:
        text += f" by decision {decision['decision_id']}: {decision['text']}"
    yield observation(FLOWS.name, flow_id, "rate_bps", flow["rate_bps"], limit, text)
    if pace is not None and decision is not None:
        reason, begin_ns = decision["text"], pace.begin_ns
        yield observation(DECISIONS.name, flow_id, "rate_bps", pace.rate_bps, line, reason, begin_ns)


def _is_at_limit(case: Case, flow: Flow, limit: float) -> bool:
    """Return whether a flow sends at its rate limit whenever it sends."""
    busy = flow["busy_share"] if flow["busy_share"] is not None else max(case.network_share, 0.05)
    while_busy = flow["rate_bps"] / min(1.0, max(busy, 0.05))
    return max(while_busy, flow["rate_bps"]) >= case.rules.paced_share * limit


def _line_bps(case: Case, flow: Flow) -> float:
    """Return the highest possible rate of a flow, bit/s: its NIC's, else the greatest of the job's flows."""
    nic = case.network.inventory.get(flow["nic"])
    if nic is not None and nic["speed_bps"]:
        return float(nic["speed_bps"])
    return max((other["rate_bps"] for other in case.traffic.flows.values()), default=0.0)
