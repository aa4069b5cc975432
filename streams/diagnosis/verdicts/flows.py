"""Explains lost time by flows: SLOW_FLOW, CONTENTION, FEW_QUEUE_PAIRS."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from schemas.records import ContentionKind, ContentionWindow, DiagnosisEvidence, Flow, Verdict
from schemas.topics import COLLECTIVES, CONTENTION, DELAYS, FLOWS
from schemas.units import bps_text, counted, delay_text
from streams.diagnosis.base import Candidate, Case, observation, window_evidence
from streams.diagnosis.case import LinkLoad, Outlier
from streams.diagnosis.explained import (
    EXPLAINED_SHARE,
    MIN_RTT_TIMES,
    explains_loss,
    fills_nics,
    min_excess_ns,
    probe_excess_ns,
    round_trips,
    usual_probe_ns,
)
from streams.diagnosis.network.marks import Marks, links_of_marks, marks_of, usual_share
from streams.diagnosis.network.outliers import common_end
from streams.diagnosis.network.traffic import NicPair, keys_of, nics_of
from streams.diagnosis.record import slow_text
from streams.diagnosis.symptoms import Symptom

MIN_PAIRS: Final = 6
"""Smallest number of NIC pairs with usual delays that is needed before the job's baseline is known."""
OTHERS_UNKNOWN: Final = "flows without a job"
MORE_TIMES: Final = 1.25
"""Ratio, to the fullest link's pairs in the job's baseline, from which on a link has more pairs than then.

A link with this ratio of its traffic to that of comparable links also counts as uneven.
"""
MIN_MOVING: Final = 0.2
"""Smallest share of the time counted as moving data: what is shorter cannot cost much."""
MIN_BUSY: Final = 0.05
"""Smallest share of an interval in which a flow counts as sending: below, reports are too coarse."""
SHARED_KINDS: Final = (ContentionKind.COLLISION, ContentionKind.INCAST, ContentionKind.UNKNOWN)


def slow_flow(case: Case) -> Iterator[Candidate]:
    """Explain lost time by one pair with in-band delays far above the delays of comparable pairs.

    New connections are slow. So before the job's baseline is known, only a comparison with many pairs counts.
    """
    outliers = [outlier for outlier in case.outliers if _is_comparable(case, outlier)]
    if not outliers:
        return
    worst = outliers[0]
    pair, probes = worst.pair, case.probes(worst.pair)
    nic, role, _ = common_end(case, outliers)
    others_ns = usual_probe_ns(case, pair)
    is_confirmed = (probe_excess_ns(case, pair) or 0.0) >= case.rules.flow_excess_us * 1e3
    links = case.traffic.links_of(pair.flows)
    text = slow_text(case, worst)
    evidence = [
        observation(COLLECTIVES.name, pair.name, "data_us", worst.value_ns / 1e3, worst.like_ns / 1e3, text)
    ]
    if probes is not None and probes.p50_ns is not None:
        others_us = None if others_ns is None else others_ns / 1e3
        own_us, own_text = probes.p50_ns / 1e3, f"probes of that pair {delay_text(probes.p50_ns)}"
        evidence.append(observation(DELAYS.name, pair.name, "delay_p50_us", own_us, others_us, own_text))
    yield Candidate(
        Verdict.SLOW_FLOW,
        case.pair_loss(worst),
        pair.name,
        text,
        f"move the flow to another path, and check the links of {pair.name}",
        blames_network=is_confirmed or not _is_quiet(case, pair),
        subjects=[pair.name, *filter(None, [nic]), *links][:64],
        links=links,
        nics=[pair.nic, pair.peer],
        ranks=sorted(pair.ranks),
        evidence=evidence,
        is_new=not case.was_slow(worst),
        may_pass=True,
        pairs=_slowest_pairs(outliers),
        symptoms={Symptom.COMMON_END: bool(nic and role), Symptom.SLOW_PROBES: is_confirmed},
    )


def _is_comparable(case: Case, worst: Outlier) -> bool:
    many = worst.compared_with == "others" and len(case.traffic.measured) >= MIN_PAIRS
    return many or case.has_clean_baseline(case.begin_ns)


def _slowest_pairs(outliers: list[Outlier]) -> set[tuple[str, str]]:
    """Return the pairs that are at least half as slow as the first and slowest outlier."""
    return {outlier.pair.key for outlier in outliers if outlier.times >= 0.5 * outliers[0].times}


def _is_quiet(case: Case, pair: NicPair) -> bool:
    probes = case.probes(pair)
    if probes is None or probes.p50_ns is None or probes.min_ns is None:
        return False
    return probes.p50_ns - probes.min_ns <= case.rules.flow_excess_us * 1e3


def slow_flow_by_probes(case: Case) -> Iterator[Candidate]:
    """Explain a slower job without in-band delays by the pair with by far the slowest probes and flows.

    The excess must be long enough for the time that the job loses.
    """
    min_share = max(case.rules.min_loss_share, EXPLAINED_SHARE * case.loss_share)
    if case.traffic.measured or not (case.network_excess or 0.0) >= min_share:
        return
    slow = _slow_by_probes(case)
    if slow is None:
        return
    worst_ns, middle, pair = slow
    if worst_ns < case.rules.flow_times * middle or not explains_loss(case, worst_ns - middle):
        return
    rtts = round_trips(case, pair)
    if rtts is not None and rtts[0] < MIN_RTT_TIMES * rtts[1]:
        return
    text = f"probes of {pair.name} take {delay_text(worst_ns)} on their slowest path, "
    text += f"others {delay_text(middle)}"
    yield Candidate(
        Verdict.SLOW_FLOW,
        case.network_excess or 0.0,
        pair.name,
        text,
        f"move the flows of {pair.name} to another path",
        blames_network=True,
        subjects=[pair.name],
        nics=[pair.nic, pair.peer],
        links=sorted(case.traffic.links_of(pair.flows)),
        evidence=[observation(DELAYS.name, pair.name, "delay_p50_us", worst_ns / 1e3, middle / 1e3, text)],
        may_pass=True,
        pairs={pair.key},
        symptoms={Symptom.SLOW_PROBES: True, Symptom.ROUND_TRIPS: rtts is not None},
    )


def _slow_by_probes(case: Case) -> tuple[float, float, NicPair] | None:
    """Return the pair with the slowest probes, after its and the median delay, ns; None if many are slow."""
    pairs = [case.traffic.pairs[key] for key in sorted(case.traffic.pairs)[:512]]
    delays = [(probes.worst_ns, pair) for pair in pairs if (probes := case.probes(pair)) and probes.worst_ns]
    if len(delays) < 3:
        return None
    middle = sorted(ns for ns, _ in delays)[len(delays) // 2]
    slow = [
        (ns, pair)
        for ns, pair in delays
        if ns - middle >= min_excess_ns(case, pair) and not fills_nics(case, pair.key)
    ]
    if not 0 < len(slow) <= len(pairs) // 3:
        return None
    worst_ns, pair = max(slow, key=lambda item: (item[0], item[1].name))
    return worst_ns, middle, pair


# ------------------------------------------------------------------------------------------- contention


def contention(case: Case) -> Iterator[Candidate]:
    """Explain lost time by queues on links that the job's flows share with other flows."""
    by_link: dict[str, list[ContentionWindow]] = defaultdict(list)
    for window in case.windows:
        if window["kind"] in SHARED_KINDS:
            by_link[window["link"]].append(window)
    by_rates = _contended_by_rates(case)
    for link, windows in sorted(by_link.items()):
        queued = min(1.0, _overlap_share(case, windows) / max(case.network_share, MIN_MOVING))
        candidate = _contended(case, link, windows, queued)
        if candidate is None:
            continue
        is_same = by_rates is not None and by_rates.subject == link
        if queued < case.rules.queue_share:
            if is_same or not candidate.jobs:
                continue
            candidate.loss_share = 0.0  # it is too short to cost time that can be measured
        elif is_same:
            by_rates = None
        yield candidate
    if by_rates is not None:
        yield by_rates


class _Crowd(NamedTuple):
    """A link on which a pair's flows meet flows of other jobs, with their rates while they send."""

    is_named: bool
    """Whether the last verdict names the link."""
    times: float
    """All rates divided by the link's."""
    link: str
    own_bps: float
    others_bps: float
    jobs: list[str]


def _contended_by_rates(case: Case) -> Candidate | None:
    """Explain the slowest pair by its flows and other jobs' flows that together exceed a link's rate.

    Their queue exists only during a part of each burst, so probes may not meet the queue.
    """
    if not case.outliers:
        return None
    worst = case.outliers[0]
    pair = worst.pair
    crowd = max((crowd for crowd in _crowds(case, pair) if crowd.times > 1), default=None)
    if crowd is None:
        return None
    rate_bps = case.network.link_rate_bps(crowd.link)
    text = (
        f"{pair.name} crosses {crowd.link}, contended by {_names(crowd.jobs)}: they send "
        f"{bps_text(crowd.others_bps)} in bursts and the pair {bps_text(crowd.own_bps)}, the link "
        f"carries {bps_text(rate_bps)}"
    )
    total_bps = crowd.others_bps + crowd.own_bps
    return Candidate(
        Verdict.CONTENTION,
        case.pair_loss(worst),
        crowd.link,
        text,
        f"move flows off {crowd.link}, or place the jobs apart",
        blames_network=True,
        subjects=[crowd.link, *crowd.jobs][:64],
        links=[crowd.link],
        nics=[pair.nic, pair.peer],
        ranks=sorted(pair.ranks),
        jobs=crowd.jobs,
        evidence=[observation(FLOWS.name, crowd.link, "burst_bps", total_bps, rate_bps, text)],
        pairs={pair.key},
        symptoms={Symptom.CROSSED: True, Symptom.OTHERS_TRAFFIC: True},
    )


def _crowds(case: Case, pair: NicPair) -> Iterator[_Crowd]:
    """Yield the links of known rate that a pair's flows share with other jobs' flows that send often."""
    job, last = case.job.job, case.job.last
    links = {link for flow in pair.flows for link in case.traffic.routes.get(flow["flow_id"], ())[1:]}
    for link, flows in case.network.flows_across(links).items():
        others = [flow for flow in flows if flow["job"] not in (None, job)]
        rate_bps = case.network.link_rate_bps(link)
        if rate_bps and max(map(_busy_share, others), default=0.0) >= case.rules.queue_share:
            own_bps = sum(_burst_bps(flow) for flow in pair.flows if flow in flows)
            others_bps = sum(map(_burst_bps, others))
            jobs = sorted({str(flow["job"]) for flow in others})
            is_named = last is not None and last.subject == link
            yield _Crowd(is_named, (own_bps + others_bps) / rate_bps, link, own_bps, others_bps, jobs)


def _busy_share(flow: Flow) -> float:
    """Return the share of the interval, 0 to 1, in which a flow had data to send; 1 if unknown."""
    return 1.0 if flow["busy_share"] is None else max(MIN_BUSY, min(1.0, flow["busy_share"]))


def _burst_bps(flow: Flow) -> float:
    """Return the rate of a flow while it had data to send, bit/s."""
    return flow["rate_bps"] / _busy_share(flow)


def _overlap_share(case: Case, windows: list[ContentionWindow]) -> float:
    total = 0
    for window in windows:
        closed_ns = window["closed_ns"] if window["closed_ns"] is not None else case.end_ns
        total += max(0, min(closed_ns, case.end_ns) - max(window["opened_ns"], case.begin_ns))
    return total / max(1, case.end_ns - case.begin_ns)


class _Queue(NamedTuple):
    """The contention windows of a link, with the jobs that send into its queue."""

    link: str
    newest: ContentionWindow
    jobs: list[str]
    """Other jobs that the windows name."""
    share: float
    """Share of the link's traffic that is of others."""
    is_shared: bool
    begin_ns: int
    end_ns: int
    delay_ns: float

    @property
    def names(self) -> str:
        """Names of the jobs that send the other traffic, as text."""
        return _names(self.jobs) or (OTHERS_UNKNOWN if self.is_shared else "its own flows")


def _names(jobs: list[str]) -> str:
    return " and ".join(f"job {name}" for name in jobs[:3])


def _queue_on(case: Case, link: str, windows: list[ContentionWindow]) -> _Queue:
    newest = max(windows, key=lambda window: (window["updated_ns"], window["window_id"]))
    jobs = sorted({name for window in windows for name in window["jobs"]} - {case.job.job})
    share = others_share(case, newest) if newest["flows"] else (0.5 if jobs else 0.0)
    begin_ns = min(window["opened_ns"] for window in windows)
    begin_ns = case.job.causes.began(Verdict.CONTENTION, link, begin_ns)
    end_ns = max(case.end_ns if window["closed_ns"] is None else window["closed_ns"] for window in windows)
    delay_ns = max(window["delay_ns"] for window in windows)
    return _Queue(link, newest, jobs, share, share >= case.rules.other_share, begin_ns, end_ns, delay_ns)


def _contended(case: Case, link: str, windows: list[ContentionWindow], queued: float) -> Candidate | None:
    queue = _queue_on(case, link, windows)
    pairs, certain = case.traffic.crossing([link, *queue.newest["candidates"]])
    named = any(case.job.job in window["jobs"] for window in windows)
    if not queue.delay_ns or not (pairs or named):
        return None  # an empty queue, whose window is not closed yet, delays nothing
    loss, since_ns = _queue_loss(case, queue, keys_of(pairs), queued)
    shares = queue.is_shared
    return Candidate(
        Verdict.CONTENTION,
        loss,
        link,
        _queue_text(case, queue, pairs),
        f"move flows off {link}, or place the jobs apart" if shares else f"spread the job's flows off {link}",
        blames_network=True,
        subjects=[link, *queue.jobs][:64],
        links=[link, *(name for name in queue.newest["links"] if name != link)][:64],
        nics=nics_of(pairs)[:64],
        jobs=queue.jobs,
        evidence=list(_queue_evidence(case, queue)),
        since_ns=since_ns,
        pairs=keys_of(pairs),
        symptoms={
            Symptom.CROSSED: named or certain,
            Symptom.OTHERS_TRAFFIC: shares,
            Symptom.OWN_TRAFFIC: not shares,
            Symptom.LATE_QUEUE: since_ns is None,
        },
    )


def _queue_loss(
    case: Case, queue: _Queue, crossing: set[tuple[str, str]], queued: float
) -> tuple[float, int | None]:
    """Return the share of time that a queue costs, and its begin, ns; None if the queue was seen too late."""
    estimate = case.network_share * (queue.share if queue.is_shared else 0.3) * queued
    loss = case.network_loss(queue.begin_ns, queue.end_ns, estimate)
    is_on_worst = queue.is_shared and not crossing.isdisjoint(_slowest_pairs(case.outliers))
    if not loss and is_on_worst and not case.was_fast_during(queue.begin_ns):
        return case.network_loss(None, queue.end_ns, 0.0), None
    return loss, queue.begin_ns


def _queue_text(case: Case, queue: _Queue, pairs: list[NicPair]) -> str:
    link, delay = queue.link, delay_text(queue.delay_ns)
    path = _path_over(case, link, pairs)
    if path is not None:
        return f"{pairs[0].name}: path {path} crosses {link}, contended by {queue.names}, {delay} queued"
    return f"{pairs[0].name if pairs else 'it'} crosses {link}, contended by {queue.names}: {delay} queued"


def _queue_evidence(case: Case, queue: _Queue) -> Iterator[DiagnosisEvidence]:
    """Yield a queue's delay and senders, the CE marks by traffic class, and the job's time as evidence."""
    link, window, delay_us = queue.link, queue.newest, queue.delay_ns / 1e3
    yield observation(CONTENTION.name, link, "delay_us", delay_us, None, window["text"], queue.begin_ns)
    text = f"{queue.share:.0%} of the link's traffic is of {queue.names}"
    yield observation(CONTENTION.name, link, "others_share", queue.share, case.rules.other_share, text)
    if window["ce_share"] > 0:
        text = f"{link} marked {window['ce_share']:.0%} of the probes with DSCP {window['dscp']}"
        yield observation(CONTENTION.name, link, "ce_share", window["ce_share"], 0.0, text)
    text = f"{case.network_share:.0%} of the job's time moves data"
    yield observation(COLLECTIVES.name, case.job.job, "network_share", case.network_share, None, text)


def others_share(case: Case, window: ContentionWindow) -> float:
    """Return the share of a contended link's traffic, 0 to 1, that does not belong to the job."""
    job, own = case.job.job, case.traffic.flows
    return sum(f["share"] for f in window["flows"] if f["job"] != job and f["flow_id"] not in own)


def contention_by_marks(case: Case) -> Iterator[Candidate]:
    """Explain the slowest pair by a queue that CE-marks its probes and has no contention window."""
    if not case.outliers:
        return
    worst = case.outliers[0]
    pair = worst.pair
    ranked = _unnamed_marks(case, pair)
    if not ranked:
        return
    marks, typical_share = ranked[0], usual_share(case, pair, ranked[0].dscp)
    links = links_of_marks(case, pair, marks)
    subject = links[0] if links else pair.name
    place = f"at one of {' and '.join(links[:3])}" if len(links) > 1 else f"at {subject}"
    text = f"{pair.name}: {marks.text}: its class is congested {place if links else 'on its path'}"
    is_alone = typical_share is None or typical_share <= marks.share / 2
    yield Candidate(
        Verdict.CONTENTION,
        case.pair_loss(worst),
        subject,
        text,
        f"move flows off {subject}, or give the job's class a larger share there"
        if links
        else f"move the flows of {pair.name} to another path",
        blames_network=True,
        subjects=[*links[:32], pair.name],
        links=list(links[:64]),
        nics=[pair.nic, pair.peer],
        ranks=sorted(pair.ranks),
        evidence=[
            _marks_evidence(pair, item, typical_share if item is marks else None) for item in ranked[:4]
        ],
        pairs={pair.key},
        symptoms={Symptom.MARKED: True, Symptom.CROSSED: bool(links), Symptom.ALONE: is_alone},
    )


def _unnamed_marks(case: Case, pair: NicPair) -> list[Marks]:
    """Return the CE marks of a pair's probes that indicate a queue without a contention window."""
    ranked = marks_of(case, pair)
    crossed = case.traffic.links_of(pair.flows)
    is_named = any(window["kind"] in SHARED_KINDS and window["link"] in crossed for window in case.windows)
    is_marked = bool(ranked) and ranked[0].share >= case.rules.marked_share
    return ranked if is_marked and not is_named else []


def _marks_evidence(pair: NicPair, marks: Marks, typical_share: float | None) -> DiagnosisEvidence:
    return observation(DELAYS.name, pair.name, "ce_share", marks.share, typical_share, marks.text)


def _path_over(case: Case, link: str, pairs: list[NicPair]) -> int | None:
    for pair in pairs:
        for flow in pair.flows:
            if link in case.traffic.routes.get(flow["flow_id"], ()):
                return flow["source_port"]
    return None


# ------------------------------------------------------------------------------------------- entropy


def few_queue_pairs(case: Case) -> Iterator[Candidate]:
    """Explain lost time by too few flows for the unevenly loaded links between leaf and spines.

    The link must have more of the job's pairs than any link had in the job's baseline. If the baseline is
    unknown, a queue of the job's own flows must show that the link costs time.
    """
    per_pair = max(
        (max(pair.queue_pairs, len(pair.flows)) for pair in case.traffic.pairs.values()), default=0
    )
    queued = _queued_by_own(case)
    fullest = _worst_load(case, per_pair, queued)
    if fullest is None:
        return
    link, times, of_links = fullest.link, fullest.times, fullest.available
    own, since_ns = queued.get(link, []), None
    if own:
        since_ns = _began(case, own)
    estimate = case.network_share * (1 - 1 / times)
    loss = case.network_loss(since_ns, case.end_ns, estimate)
    is_late = since_ns is not None and not case.was_fast_during(since_ns)
    if not loss and is_late and _is_fuller(case, fullest):  # the queue was seen too late
        own, since_ns = [], None
        loss = case.network_loss(since_ns, case.end_ns, estimate)
    text = (
        f"{counted(per_pair, 'flow')} between two NICs for {of_links} {fullest.place}: {fullest.used} "
        f"in use, {link} carries {times:.1f} times the mean"
    )
    flows_text = f"{fullest.flows} flows in all"
    yield Candidate(
        Verdict.FEW_QUEUE_PAIRS,
        loss,
        link,
        text,
        f"use at least {of_links} queue pairs per connection (NCCL_IB_QPS_PER_CONNECTION)",
        blames_network=True,
        subjects=[link, fullest.switch],
        links=[link],
        evidence=[
            observation(FLOWS.name, link, "times_mean", times, 1, text),
            observation(FLOWS.name, case.job.job, "flows_per_pair", per_pair, of_links, flows_text),
            *map(window_evidence, own[:1]),
        ],
        since_ns=since_ns,
        pairs={
            pair
            for load in case.loads
            if load is fullest or _is_fuller(case, load)
            for pair in case.traffic.links.get(load.link, ())
        },
        symptoms={Symptom.OWN_QUEUE: bool(own), Symptom.FULLER: _is_fuller(case, fullest)},
    )


def _worst_load(case: Case, per_pair: int, queued: Mapping[str, list[ContentionWindow]]) -> LinkLoad | None:
    """Return the uneven link that costs time: that of the last verdict, else one of the slowest pair, else of
    a slow pair, else the fullest.

    `per_pair`: number of flows between two NICs; `queued`: contention windows of the job's own flows, by
    link.
    """
    slow = [keys_of(outlier.pair for outlier in case.outliers[:count]) for count in (1, None)]
    last = case.job.last
    last_link = last.subject if last is not None and last.verdict == Verdict.FEW_QUEUE_PAIRS else ""

    def rank(load: LinkLoad) -> tuple[bool, bool, bool, float]:
        crossed = case.traffic.links.get(load.link, {}).keys()
        is_slow = [not crossed.isdisjoint(pairs) for pairs in slow]
        return load.link == last_link, is_slow[0], is_slow[1], load.times

    uneven = (load for load in case.loads if _is_uneven(case, load, per_pair, queued.get(load.link, [])))
    return max(uneven, key=rank, default=None)


def _is_uneven(case: Case, load: LinkLoad, per_pair: int, own: list[ContentionWindow]) -> bool:
    """Return whether a link has been unevenly loaded since the job became slow, and costs time."""
    is_fuller = _is_fuller(case, load)
    uneven_times = min(case.rules.uneven_times, MORE_TIMES) if is_fuller else case.rules.uneven_times
    is_uneven = load.times >= uneven_times and per_pair < load.available
    is_cause = is_fuller or (own and not case.has_clean_baseline(_began(case, own)))
    return bool(is_uneven and is_cause and _costs_time(case, load.link, own))


def _began(case: Case, own: list[ContentionWindow]) -> int:
    """Return the time, ns, at which a queue of the job's own flows on a link began."""
    opened_ns = min(window["opened_ns"] for window in own)
    return case.job.causes.began(Verdict.FEW_QUEUE_PAIRS, own[0]["link"], opened_ns)


def _is_fuller(case: Case, load: LinkLoad) -> bool:
    """Return whether a link has more of the job's pairs than any link had while the job was fast."""
    before = case.usual_pairs
    return before is not None and load.pairs >= MORE_TIMES * before


def _queued_by_own(case: Case) -> dict[str, list[ContentionWindow]]:
    """Return, by link, the contention windows that involve only the job's own flows."""
    by_link: dict[str, list[ContentionWindow]] = defaultdict(list)
    for window in case.windows:
        if window["kind"] in SHARED_KINDS and set(window["jobs"]) <= {case.job.job}:
            by_link[window["link"]].append(window)
    return by_link


def _costs_time(case: Case, link: str, own: list[ContentionWindow]) -> bool:
    """Return whether an uneven link can cost time: with a single flow, only a long queue can do so."""
    sharing = sum(
        link in case.traffic.routes.get(flow["flow_id"], ())
        for pair in case.traffic.crossing([link])[0]
        for flow in pair.flows
    )
    return sharing >= 2 or _overlap_share(case, own) >= case.rules.queue_share
