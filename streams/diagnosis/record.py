"""Makes `Diagnosis` records: their fields, their text, and the list of missing evidence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from schemas.records import Alternative, ClockSync, Diagnosis, JobFlow, RankTime, Verdict
from schemas.units import delay_text, seconds_text
from streams.diagnosis.base import Candidate, Case
from streams.diagnosis.case import Outlier, Stuck
from streams.diagnosis.job.ranks import Rank
from streams.diagnosis.model import fitted_weights
from streams.diagnosis.network.view import Links
from streams.diagnosis.symptoms import Symptom
from streams.runtime.units import NS_PER_S

MAX_TEXT: Final = 1_000
MAX_LISTED: Final = 4_096
MAX_PROBED: Final = 256
"""Largest number of pairs for which the record contains probe delays."""
MAX_NAMED: Final = 4
MAX_HOSTS: Final = 8
"""Number of hosts, and of ranks on a host, that a text names by default."""
MAX_LINKS: Final = 64
BUSY_SHARE: Final = 0.3
"""Processors that a process uses from which on it computes."""
DISK_SHARE: Final = 0.3
"""Share of the time in which a process waits for a disk from which on the disk holds it up."""
IO_BPS: Final = 8e6
"""bit/s of files and pipes from which on a process reads or writes: 1 MB/s."""
RECENT_NS: Final = 30 * NS_PER_S
"""Time after a stall in which a slow job is not HEALTHY."""
_LIMIT_NS: Final = 10**18
_LOSSES: Final = {
    "dropped": "{count} events were dropped by full rings of {names}",
    "invalid": "{count} events of {names} were refused",
    "ignored": "the profilers of {names} ignored {count} calls that fit no earlier one",
}
"""Text about each count of a rank's lost events, by the field of `Rank`."""


def missing_evidence(case: Case) -> list[str]:
    """Return the kinds of evidence that an evaluation lacks, one line each, the most important first."""
    lines = [*case.ranks.conflicts[:MAX_NAMED], *_missing_ranks(case), *_missing_events(case)]
    if case.job.forgotten:
        lines.append(f"{case.job.forgotten} operations were forgotten, because the job publishes too many")
    if case.members:
        lines += [*_missing_network(case), *_missing_times(case)]
    return lines


def _missing_ranks(case: Case) -> Iterator[str]:
    members, total = case.members, case.ranks.total
    if not members:
        is_reported = bool(case.job.ras.reports)
        line = "no profiler in the job: RAS services report counts of operations, and no times"
        yield line if is_reported else "no rank of the job reports"
    silent = [rank for rank in members if not rank.reported and not rank.ended]
    if silent:
        yield f"{ranks_text(silent, MAX_NAMED)} reports nothing in the interval"
    if total > len(members):
        yield f"{total - len(members)} of {total} ranks are not known"
    unsynced = [rank for rank in members if rank.reported and not rank.synced]
    if unsynced:
        yield f"clocks UNSYNCED: arrivals of {ranks_text(unsynced, MAX_NAMED)} cannot be compared"


def _missing_events(case: Case) -> Iterator[str]:
    worst = max(case.members, key=lambda rank: (rank.late_ns, -rank.number), default=None)
    if worst is not None and worst.late_ns:
        yield f"records of {worst.name} came {worst.late_ns / 1e9:.0f} s late"
    for name, text in _LOSSES.items():
        ranks = [rank for rank in case.members if getattr(rank, name)]
        if ranks:
            yield text.format(
                names=ranks_text(ranks, MAX_NAMED), count=sum(getattr(rank, name) for rank in ranks)
            )


def _missing_network(case: Case) -> Iterator[str]:
    if not case.traffic.nics:
        yield "NICs of the ranks are not known"
    elif not case.traffic.flows:
        yield "no flow of the job is reported"
    pairs = [case.traffic.pairs[key] for key in sorted(case.traffic.pairs)[:MAX_PROBED]]
    if pairs and not any(case.probes(pair) for pair in pairs):
        newest_ns = case.network.probed.newest_ns(case.traffic.nics)
        line = "no delays of probes between the job's NICs"
        if newest_ns is not None and newest_ns <= case.begin_ns:
            line += f": they come {(case.end_ns - newest_ns) / 1e9:.0f} s late"
        yield line


def _missing_times(case: Case) -> Iterator[str]:
    states = {case.network.clock_of(nic) for nic in case.traffic.nics}
    if ClockSync.UNSYNCED in states and all(rank.synced for rank in case.members):
        yield "clocks of some NICs are UNSYNCED: one-way delays there are not used"
    if case.iteration_ns is None and case.work.pace_ns is None:
        yield "no iterations found"
    elif case.ratio is None:
        yield "no baseline of the job is known yet"


def make_record(
    case: Case, best: Candidate, others: list[Candidate], further: list[Candidate], missing: list[str]
) -> Diagnosis:
    """Return the `Diagnosis` of a verdict, without details; see `add_details`.

    `further`: those of `others` that are causes with a cost of their own.
    """
    work, times, actual = case.work, case.work.times, case.iteration_ns
    bus_baseline = case.job.baselines.value(("bus",))
    bounds = [rank.bound_ns for rank in case.ranks.reported]
    expected = case.expected_iteration_ns
    return {
        "job": case.job.job,
        "tenant": case.job.tenant,
        "shard": case.job.shard,
        "number": case.job.number,
        "begin_ns": case.begin_ns,
        "end_ns": case.end_ns,
        "since_ns": case.begin_ns,
        "verdict": best.verdict,
        "confidence": fitted_weights().calibrated(best.confidence),
        "blames_network": best.blames_network,
        "subject": best.subject,
        "subjects": list(dict.fromkeys([*([best.subject] if best.subject else []), *best.subjects])),
        "links": best.links,
        "nics": best.nics,
        "ranks": best.ranks,
        "jobs": best.jobs,
        "text": _text(case, best, further),
        "remedy": best.remedy[:MAX_TEXT],
        "loss_share": float(np.clip(best.loss_share, 0.0, 1.0)),
        "evidence": best.evidence[:64],
        "alternatives": [_alternative(candidate) for candidate in others],
        "missing": [line[:MAX_TEXT] for line in missing],
        "ranks_seen": len(case.ranks.reported),
        "ranks_total": case.ranks.total or case.job.ras.ranks,
        "hosts": len(case.ranks.hosts),
        "operations": int(times.operations.max(initial=0)),
        "bytes": int(min(float(times.bytes.sum()), _LIMIT_NS)),
        "iteration_ns": None if actual is None else _whole(actual),
        "expected_iteration_ns": None if expected is None else _whole(expected),
        "bus_bps": work.bus_bps,
        "expected_bus_bps": 1 / bus_baseline if bus_baseline else None,
        "bound_ns": max(bounds, default=0.0),
        "time_splits": [],
        "flows": [],
    }


def add_details(case: Case, diagnosis: Diagnosis) -> None:
    """Add the ranks' times and the flows: 98 % of a record's size; most evaluations publish neither."""
    diagnosis["time_splits"], diagnosis["flows"] = _time_splits(case), _flows(case)


def _text(case: Case, best: Candidate, further: list[Candidate]) -> str:
    """Return the verdict as one line, with the length of iterations if they are slow, and further causes."""
    text, actual, baseline = best.text, case.iteration_ns, case.expected_iteration_ns
    if best.verdict == Verdict.HEALTHY or best.decisive:
        return text[:MAX_TEXT]
    if best.symptoms.get(Symptom.OWN_TIME) and not any(cause.blames_network for cause in further):
        text += "; nothing is wrong with the network"
    causes = {(cause.verdict, cause.subject): cause for cause in further[:MAX_NAMED]}
    text += "".join(f"; also {cause.verdict}: {cause.text}" for cause in causes.values())
    if actual is not None and baseline is not None and case.is_slow:
        text = f"iterations take {delay_text(actual)} on average, {delay_text(baseline)} before: {text}"
    return text[:MAX_TEXT]


def _alternative(candidate: Candidate) -> Alternative:
    return {
        "verdict": candidate.verdict,
        "confidence": float(np.clip(candidate.confidence, 0.0, 1.0)),
        "subject": candidate.subject,
        "text": candidate.text[:MAX_TEXT],
    }


def _whole(ns: float) -> int:
    return int(min(max(ns, 0.0), _LIMIT_NS))


def _time_splits(case: Case) -> list[RankTime]:
    times = case.work.times
    sums = (
        *(times.compute, times.launch, times.gpu_late),
        *(times.peer_late, times.network_late, times.flush),
    )
    columns = [np.clip(column, 0.0, _LIMIT_NS).astype(np.int64).tolist() for column in sums]
    parts = zip(*columns, times.last_arrivals.tolist(), strict=True)
    return [
        {
            "rank": min(rank.number, 2**24 - 1),
            "host": rank.host,
            "nic": rank.nic,
            "compute_ns": compute,
            "launch_ns": launch,
            "gpu_late_ns": gpu_late,
            "peer_late_ns": peer_late,
            "network_late_ns": network_late,
            "flush_ns": flush,
            "last_arrivals": last_arrivals,
        }
        for rank, (compute, launch, gpu_late, peer_late, network_late, flush, last_arrivals) in zip(
            case.members[:MAX_LISTED], parts, strict=False
        )
    ]


def _flows(case: Case) -> list[JobFlow]:
    """Return the job's traffic by pair; the slowest and heaviest pairs come first."""
    slow = {outlier.pair.key for outlier in case.outliers}
    ordered = sorted(
        case.traffic.pairs.items(),
        key=lambda item: (item[0] not in slow, -(item[1].rate_bps or item[1].bytes), item[0]),
    )
    flows: list[JobFlow] = []
    for at, ((nic, peer), pair) in enumerate(ordered[:MAX_LISTED]):
        probes = case.probes(pair) if at < MAX_PROBED else None
        p50_ns = probes.p50_ns if probes is not None else None
        flows.append(
            {
                "nic": nic,
                "peer": peer,
                "paths": max(len(pair.flows), pair.queue_pairs),
                "rate_bps": min(pair.rate_bps, 1e15),
                "delay_ns": None if p50_ns is None else _whole(p50_ns),
                "data_ns": None if pair.data_ns is None else _whole(pair.data_ns),
                "links": sorted(case.traffic.links_of(pair.flows))[:MAX_LINKS],
            }
        )
    return flows


# ----------------------------------------------------------------------------------------------- texts


def listed(names: list[str], limit: int) -> str:
    """Return a text with the first `limit` names, and the number of the others."""
    text = ", ".join(names[:limit])
    return f"{text} and {len(names) - limit} more" if len(names) > limit else text


def ranks_text(ranks: Iterable[Rank], limit: int = MAX_HOSTS) -> str:
    """Return a text that names ranks, grouped by host: `ranks 40 to 47 on h20`."""
    by_host: dict[str, list[int]] = {}
    for rank in ranks:
        by_host.setdefault(rank.host, []).append(rank.number)
    return listed([f"{_numbers_text(numbers, limit)} on {host}" for host, numbers in by_host.items()], limit)


def _numbers_text(numbers: list[int], limit: int) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"rank {first}"
    if len(numbers) > 2 and numbers == list(range(first, last + 1)):
        return f"ranks {first} to {last}"
    return f"ranks {listed([str(number) for number in numbers], limit)}"


def operation_text(case: Case, stuck: Stuck) -> str:
    """Return a text about the operation that does not end, with the time for which it has run."""
    communicator = case.ranks.communicators.get(stuck.communicator)
    name = communicator.id if communicator is not None else "?"
    age_s = (case.end_ns - stuck.since_ns) / 1e9
    return f"{stuck.function} {stuck.seq} of {name} runs for {age_s:.1f} s"


def pause_text(case: Case, proof: str) -> str:
    """Return a text on how a pause ends, and which time or `proof` makes it a hang."""
    limit_s = max(case.rules.pause_s, case.rules.hang_pauses * case.job.stalls.longest_ns / 1e9)
    return f"a pause ends; it is HANG after {limit_s:.0f} s, or once a rank dies or {proof}"


def activity_text(rank: Rank) -> str:
    """Return a text on a process's activity, by the kernel's accounting; empty if unknown."""
    activity = rank.activity
    if activity is None:
        return ""
    if rank.is_stopped:
        return "its process is stopped by a signal, a debugger or its cgroup"
    if activity.disk_share >= DISK_SHARE:
        return "its process waits for a disk or a driver"
    if activity.io_bps >= IO_BPS:
        return f"its process reads or writes {activity.io_bps / 8e6:.0f} MB/s"
    if activity.cpu_share >= BUSY_SHARE:
        return f"its process computes on {activity.cpu_share:.1f} processors"
    return "its process sleeps: it uses neither processor nor disk"


def lateness_text(case: Case, places: list[int]) -> str:
    """Return a text on the greatest lateness of ranks and how often it occurs: a mean hides one pause."""
    work, arrivals = case.work, case.work.arrivals
    owner = work.rank[work.grouped[arrivals.group_last]]
    own = arrivals.group_late_ns[arrivals.group_clear & np.isin(owner, places)]
    greatest = float(own.max(initial=0.0))
    often = int((own >= greatest / 2).sum())
    times = "once" if often == 1 else f"in {often} operations"
    total = len(work.groups.starts)
    return f"arrived last, up to {delay_text(greatest)} after the median rank, {times} of {total}"


def recent_stall_text(case: Case) -> str:
    """Return a text about a stall that ended within the last half minute; empty if there was none."""
    stalls = case.job.stalls
    if stalls.over_ns is None or case.end_ns - stalls.over_ns > RECENT_NS:
        return ""
    ago_s = max(0.0, (case.end_ns - stalls.over_ns) / NS_PER_S)
    return f"; an operation stalled for {delay_text(stalls.last_ns)} until {seconds_text(ago_s)} ago"


def slow_text(case: Case, worst: Outlier) -> str:
    """Return a text about the slowest pair, with the path of its flows."""
    flows = worst.pair.flows
    reference = "others" if worst.compared_with == "others" else "before"
    text = f"{worst.pair.name} saw {delay_text(worst.value_ns)}, {reference} {delay_text(worst.like_ns)}"
    if not flows:
        return text
    links = case.traffic.routes.get(flows[0]["flow_id"], ())
    return f"{text}; path {min(flow['source_port'] for flow in flows)}{_route_text(links)}"


def _route_text(links: Links) -> str:
    return f" crosses {' and '.join(links[1:-1])}" if len(links) > 2 else ""
