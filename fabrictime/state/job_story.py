"""Explains a job from its diagnoses: the present verdict, its changes, and the difference of two runs.

Pure: takes records, returns plain values. A record's head is the record without its parts by rank and by
flow, which are nearly all of its bytes. Heads suffice for verdicts and rates; the parts are read from few
records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from fabrictime.state.labels import arrow
from schemas.units import bps_text, delay_text, percent_text

HEAD: Final = "bound_ns"
"""Last field of a record's head."""
PARTS: Final = ("time_splits", "flows")
"""Fields of the parts by rank and flow. While the verdict does not change, one record a minute has them."""
MAX_SEARCHED: Final = 64
"""Largest number of records that are decoded to find the parts for another one; a minute has 12 records."""
SPLITS: Final = (
    ("compute_ns", "compute"),
    ("launch_ns", "launch"),
    ("gpu_late_ns", "GPU late"),
    ("peer_late_ns", "peers late"),
    ("network_late_ns", "network"),
    ("flush_ns", "flush"),
)
"""Parts of a rank's time and their names, in the order of an operation."""
OUTLIER_TIMES: Final = 3.0
"""A comparison names a pair whose delay is at least this many times the median of the others."""
OUTLIER_NS: Final = 20_000
"""A comparison names a pair only if its delay is this far above that median, ns: less is noise of hosts."""
SHIFT: Final = 0.03
"""A comparison names a part of the time whose share changed by at least this much."""
SHOWN_FLOWS: Final = 10
MAX_SPANS: Final = 200
"""Largest number of spans that an explanation lists; the newest are kept."""
HEALTHY: Final = "HEALTHY"

Head = Mapping[str, Any]


@dataclass(slots=True)
class Run:
    """The diagnoses of one run of a job, in the order of their intervals."""

    job: str
    heads: list[Head] = field(default_factory=list)
    full_records: list[Mapping[str, Any]] = field(default_factory=list)
    """Records with all parts: the one that explains the run best, and the newest one."""

    @property
    def newest(self) -> Head:
        """The head of the run's newest record."""
        return self.heads[-1]


@dataclass(frozen=True, slots=True)
class Span:
    """A time range in which one verdict held."""

    verdict: str
    subject: str
    begin_ns: int
    end_ns: int
    text: str
    loss_share: float


def ordered(heads: Iterable[Head]) -> list[Head]:
    """Return the heads in the order of their record numbers, without duplicates."""
    head_by_identity = {(head["number"], head["begin_ns"]): head for head in heads}
    return [head_by_identity[key] for key in sorted(head_by_identity)]


def spans_of(heads: Sequence[Head]) -> list[Span]:
    """Return the time ranges in which verdict and subject stayed the same, in their order."""
    spans: list[Span] = []
    for head in heads:
        last = spans[-1] if spans else None
        same = last is not None and (last.verdict, last.subject) == (head["verdict"], head["subject"])
        if last is not None and same:
            spans[-1] = Span(
                last.verdict,
                last.subject,
                last.begin_ns,
                max(last.end_ns, head["end_ns"]),
                head["text"],
                max(last.loss_share, head["loss_share"]),
            )
        else:
            begin_ns = head["since_ns"] if last is None else max(last.end_ns, head["since_ns"])
            begin_ns = min(begin_ns, head["end_ns"])
            spans.append(
                Span(
                    str(head["verdict"]),
                    head["subject"],
                    begin_ns,
                    head["end_ns"],
                    head["text"],
                    head["loss_share"],
                )
            )
    return spans


def telling(heads: Sequence[Head]) -> Head:
    """Return the most confident record of a run with the costliest verdict; it explains the run best."""
    cost: dict[tuple[str, str], float] = defaultdict(float)
    for head in heads:
        if head["verdict"] != HEALTHY:
            cost[str(head["verdict"]), head["subject"]] += head["loss_share"] + 1e-9
    if not cost:
        return heads[-1]
    kind = max(sorted(cost), key=lambda candidate: cost[candidate])
    same_kind = [head for head in heads if (str(head["verdict"]), head["subject"]) == kind]
    return max(same_kind, key=lambda head: (head["confidence"], head["number"]))


def has_parts(record: Mapping[str, Any]) -> bool:
    """Return whether a record contains ranks or flows."""
    return any(record[name] for name in PARTS)


def with_parts(
    heads: Sequence[Head], head: Head, decoded: Callable[[Head], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the decoded record of `head`. If it has no parts, it gets those of the nearest earlier record
    with parts, or else of a later one.

    `heads` are all heads of the run in order. `decoded` returns the record of a head.
    """
    record, at = decoded(head), heads.index(head)
    nearest = (*reversed(heads[max(0, at - MAX_SEARCHED) : at]), *heads[at + 1 : at + MAX_SEARCHED])
    if not has_parts(record):
        for other in nearest:
            other_record = decoded(other)
            if has_parts(other_record):
                return {**record, **{name: other_record[name] for name in PARTS}}
    return record


def shares(record: Mapping[str, Any]) -> dict[str, float]:
    """Return the share of all ranks' time by part, such as computing; empty without ranks."""
    sums = Counter({name: sum(split[name] for split in record["time_splits"]) for name, _ in SPLITS})
    total = sums.total()
    return {name: sums[name] / total for name, _ in SPLITS} if total else {}


def outliers(flows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Return (flow, median delay of all flows in ns) for each flow far above the median, slowest first."""
    timed_flows = [flow for flow in flows if flow["delay_ns"] is not None]
    if len(timed_flows) < 3:
        return []
    usual_ns = float(median(flow["delay_ns"] for flow in timed_flows))
    limit_ns = max(OUTLIER_TIMES * usual_ns, usual_ns + OUTLIER_NS)
    slow = [flow for flow in timed_flows if flow["delay_ns"] >= limit_ns]
    return [(flow, usual_ns) for flow in sorted(slow, key=lambda flow: -flow["delay_ns"])]


def explain(run: Run, now_ns: int) -> dict[str, Any]:
    """Return a run's newest diagnosis, its age, and its last verdicts with their times, as plain values."""
    newest = run.full_records[-1]
    spans = spans_of(run.heads)
    return {
        "job": run.job,
        "age_ns": max(0, now_ns - newest["end_ns"]),
        "diagnosis": dict(newest),
        "verdicts": [
            {
                "verdict": span.verdict,
                "subject": span.subject,
                "begin_ns": span.begin_ns,
                "end_ns": span.end_ns,
                "text": span.text,
                "loss_share": span.loss_share,
            }
            for span in spans[-MAX_SPANS:]
        ],
    }


def _median(heads: Sequence[Head], name: str) -> float | None:
    values = [head[name] for head in heads if head[name] is not None]
    return float(median(values)) if values else None


def figures(run: Run) -> dict[str, Any]:
    """Return the median speed, the decisive verdict and the unhealthy time of a run, for `compare`."""
    decisive = telling(run.heads)
    bad_ns = sum(span.end_ns - span.begin_ns for span in spans_of(run.heads) if span.verdict != HEALTHY)
    return {
        "job": run.job,
        "begin_ns": run.heads[0]["begin_ns"],
        "end_ns": run.newest["end_ns"],
        "records": len(run.heads),
        "bus_bps": _median(run.heads, "bus_bps"),
        "iteration_ns": _median(run.heads, "iteration_ns"),
        "verdict": str(decisive["verdict"]),
        "unhealthy_ns": bad_ns,
        "text": decisive["text"],
        "remedy": decisive["remedy"],
        "confidence": decisive["confidence"],
        "subject": decisive["subject"],
        "links": list(decisive["links"]),
        "jobs": list(decisive["jobs"]),
        "evidence": [dict(evidence) for evidence in decisive["evidence"]],
        "missing": list(decisive["missing"]),
    }


def compare(first: Run, second: Run) -> dict[str, Any]:
    """Return the differences of two runs. `text` names the slower run and its cause in one line."""
    one, two = figures(first), figures(second)
    slower = 0 if _is_slower(one, two) else 1
    slow, fast = ((one, first), (two, second)) if slower == 0 else ((two, second), (one, first))
    records = (slow[1].full_records[0], fast[1].full_records[0])
    parts = [*_rates(slow[0], fast[0]), *_flows(*records), *_crossed(slow[0])]
    if len(parts) == 1 and slow[0]["verdict"] != HEALTHY:
        parts.append(slow[0]["text"])
    shifts = _shifts(*records)
    parts += [
        f"{name} {percent_text(now)} of the time, {percent_text(before)} in run {2 - slower}"
        for name, now, before in shifts[:1]
    ]
    if slow[0]["verdict"] == fast[0]["verdict"] == HEALTHY and not shifts:
        parts.append("no cause is known: both runs are HEALTHY")
    return {
        "runs": [one, two],
        "slower": slower + 1,
        "shifts": [{"part": name, "slower": now, "faster": before} for name, now, before in shifts],
        "text": f"run {slower + 1}: " + "; ".join(parts),
    }


def _is_slower(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    if one["bus_bps"] is not None and two["bus_bps"] is not None:
        return bool(one["bus_bps"] < two["bus_bps"])
    if one["iteration_ns"] is not None and two["iteration_ns"] is not None:
        return bool(one["iteration_ns"] > two["iteration_ns"])
    return bool(one["unhealthy_ns"] > two["unhealthy_ns"])


def _rates(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> list[str]:
    if slow["bus_bps"] is not None and fast["bus_bps"] is not None:
        (low, unit), (high, other) = (bps_text(head["bus_bps"]).split(" ") for head in (slow, fast))
        return [f"{low} of {high} {other}" if unit == other else f"{low} {unit} of {high} {other}"]
    if slow["iteration_ns"] is not None and fast["iteration_ns"] is not None:
        now, before = delay_text(slow["iteration_ns"]), delay_text(fast["iteration_ns"])
        return [f"an iteration takes {now}, in the other run {before}"]
    return ["no rates are known"]


def _flows(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> list[str]:
    """Return a line on the slowest flow of the slow run, unless this flow was as slow in the fast run."""
    before = {(flow["nic"], flow["peer"]): flow["delay_ns"] for flow in fast["flows"]}
    for flow, usual_ns in outliers(slow["flows"])[:1]:
        was_ns = before.get((flow["nic"], flow["peer"]))
        if was_ns is None or was_ns * OUTLIER_TIMES <= flow["delay_ns"]:
            pair = f"{flow['nic']} to {flow['peer']}"
            return [f"{pair} saw {delay_text(flow['delay_ns'])}, others {delay_text(usual_ns)}"]
    return []


def _crossed(run: Mapping[str, Any]) -> list[str]:
    if run["verdict"] == HEALTHY or not run["links"]:
        return []
    paths = [e["number"] for e in run["evidence"] if e["quantity"] == "path" and e["number"] is not None]
    subject = f"path {paths[0]:.0f} crosses " if paths else "crosses "
    jobs = f", contended by {'job' if len(run['jobs']) == 1 else 'jobs'} {', '.join(run['jobs'])}"
    return [subject + arrow(run["links"][0]) + (jobs if run["jobs"] else f": {run['text']}")]


def _shifts(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """Return (name, share in the slow run, share in the fast run) of each part of time that grew."""
    now, before = shares(slow), shares(fast)
    if not now or not before:
        return []
    grown = [(title, now[name], before[name]) for name, title in SPLITS if now[name] - before[name] >= SHIFT]
    return sorted(grown, key=lambda shift: shift[2] - shift[1])
