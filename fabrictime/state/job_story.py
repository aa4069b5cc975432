"""The story of a job from its diagnoses: the verdict now, how it changed, and how two runs differ.

Pure: records in, plain values out. A record's head is its fields without the parts by rank and by flow, which
make up nearly all of its bytes. Heads suffice for verdicts and rates; the parts are read from few records.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final

from fabrictime.state.labels import arrow
from fabrictime.state.units import bps_text, delay_text, percent_text

HEAD: Final = "bound_ns"
"""The last field of a head."""
PARTS: Final = ("time_splits", "flows")
"""Parts by rank and by flow. A record whose verdict has not changed has them once a minute only."""
MAX_SEARCHED: Final = 64
"""Records that are decoded to find the parts of another one: a minute has 12."""
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
"""A pair's delay over the median of the others from which on a comparison names it."""
OUTLIER_NS: Final = 20_000
"""ns above that median: less is noise of hosts."""
SHIFT: Final = 0.03
"""Change of a part's share of the time that a comparison names."""
SHOWN_FLOWS: Final = 10
MAX_SPANS: Final = 200
"""Newest times of one verdict that an explanation lists."""
HEALTHY: Final = "HEALTHY"

Head = Mapping[str, Any]


@dataclass(slots=True)
class Run:
    """The records of one run of a job, in the order of their intervals."""

    job: str
    heads: list[Head] = field(default_factory=list)
    whole: list[Mapping[str, Any]] = field(default_factory=list)
    """Records with all parts: the one that explains the run best, and the newest one."""

    @property
    def newest(self) -> Head:
        """The newest record."""
        return self.heads[-1]


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which one verdict held."""

    verdict: str
    subject: str
    begin_ns: int
    end_ns: int
    text: str
    loss_share: float


def ordered(heads: Iterable[Head]) -> list[Head]:
    """Return records by number, one of each identity."""
    known = {(each["number"], each["begin_ns"]): each for each in heads}
    return [known[key] for key in sorted(known)]


def spans_of(heads: Sequence[Head]) -> list[Span]:
    """Return the times of one verdict and subject, in their order."""
    found: list[Span] = []
    for head in heads:
        last = found[-1] if found else None
        same = last is not None and (last.verdict, last.subject) == (head["verdict"], head["subject"])
        if last is not None and same:
            found[-1] = Span(
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
            found.append(
                Span(
                    str(head["verdict"]),
                    head["subject"],
                    begin_ns,
                    head["end_ns"],
                    head["text"],
                    head["loss_share"],
                )
            )
    return found


def telling(heads: Sequence[Head]) -> Head:
    """Return the record that explains a run best: of its costliest verdict, the most confident one."""
    cost: dict[tuple[str, str], float] = defaultdict(float)
    for head in heads:
        if head["verdict"] != HEALTHY:
            cost[str(head["verdict"]), head["subject"]] += head["loss_share"] + 1e-9
    if not cost:
        return heads[-1]
    kind = max(sorted(cost), key=lambda each: cost[each])
    same_kind = [each for each in heads if (str(each["verdict"]), each["subject"]) == kind]
    return max(same_kind, key=lambda each: (each["confidence"], each["number"]))


def has_parts(record: Mapping[str, Any]) -> bool:
    """Return whether a record contains ranks or flows."""
    return any(record[name] for name in PARTS)


def whole(
    heads: Sequence[Head], head: Head, decoded: Callable[[Head], Mapping[str, Any]]
) -> Mapping[str, Any]:
    """Return the record of a head, with the parts of the nearest record before it that has them, else after.

    `heads`: those of the run in their order. `decoded`: returns the record of a head.
    """
    record, at = decoded(head), heads.index(head)
    nearest = (*reversed(heads[max(0, at - MAX_SEARCHED) : at]), *heads[at + 1 : at + MAX_SEARCHED])
    if not has_parts(record):
        for other in nearest:
            found = decoded(other)
            if has_parts(found):
                return {**record, **{name: found[name] for name in PARTS}}
    return record


def shares(record: Mapping[str, Any]) -> dict[str, float]:
    """Return each part's share of all ranks' time; empty without ranks."""
    sums = Counter({name: sum(each[name] for each in record["time_splits"]) for name, _ in SPLITS})
    total = sums.total()
    return {name: sums[name] / total for name, _ in SPLITS} if total else {}


def outliers(flows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], float]]:
    """Return the flows far slower than the others, the slowest first, each with the others' median, ns."""
    known = [each for each in flows if each["delay_ns"] is not None]
    if len(known) < 3:
        return []
    usual_ns = float(median(each["delay_ns"] for each in known))
    limit_ns = max(OUTLIER_TIMES * usual_ns, usual_ns + OUTLIER_NS)
    slow = [each for each in known if each["delay_ns"] >= limit_ns]
    return [(each, usual_ns) for each in sorted(slow, key=lambda each: -each["delay_ns"])]


def explain(run: Run, now_ns: int) -> dict[str, Any]:
    """Return the explanation of a job as plain values."""
    newest = run.whole[-1]
    spans = spans_of(run.heads)
    return {
        "job": run.job,
        "age_ns": max(0, now_ns - newest["end_ns"]),
        "diagnosis": dict(newest),
        "verdicts": [
            {
                "verdict": each.verdict,
                "subject": each.subject,
                "begin_ns": each.begin_ns,
                "end_ns": each.end_ns,
                "text": each.text,
                "loss_share": each.loss_share,
            }
            for each in spans[-MAX_SPANS:]
        ],
    }


def _median(heads: Sequence[Head], name: str) -> float | None:
    known = [each[name] for each in heads if each[name] is not None]
    return float(median(known)) if known else None


def figures(run: Run) -> dict[str, Any]:
    """Return the figures of a run that a comparison uses."""
    shown = telling(run.heads)
    bad_ns = sum(each.end_ns - each.begin_ns for each in spans_of(run.heads) if each.verdict != HEALTHY)
    return {
        "job": run.job,
        "begin_ns": run.heads[0]["begin_ns"],
        "end_ns": run.newest["end_ns"],
        "records": len(run.heads),
        "bus_bps": _median(run.heads, "bus_bps"),
        "iteration_ns": _median(run.heads, "iteration_ns"),
        "verdict": str(shown["verdict"]),
        "unhealthy_ns": bad_ns,
        "text": shown["text"],
        "remedy": shown["remedy"],
        "confidence": shown["confidence"],
        "subject": shown["subject"],
        "links": list(shown["links"]),
        "jobs": list(shown["jobs"]),
        "evidence": [dict(each) for each in shown["evidence"]],
        "missing": list(shown["missing"]),
    }


def compare(first: Run, second: Run) -> dict[str, Any]:
    """Return how two runs differ; `text` names the slower one and its cause in one line."""
    one, two = figures(first), figures(second)
    slower = 0 if _is_slower(one, two) else 1
    slow, fast = ((one, first), (two, second)) if slower == 0 else ((two, second), (one, first))
    whole = (slow[1].whole[0], fast[1].whole[0])
    parts = [*_rates(slow[0], fast[0]), *_flows(*whole), *_crossed(slow[0])]
    if len(parts) == 1 and slow[0]["verdict"] != HEALTHY:
        parts.append(slow[0]["text"])
    shifts = _shifts(*whole)
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
        (low, unit), (high, other) = (bps_text(each["bus_bps"]).split(" ") for each in (slow, fast))
        return [f"{low} of {high} {other}" if unit == other else f"{low} {unit} of {high} {other}"]
    if slow["iteration_ns"] is not None and fast["iteration_ns"] is not None:
        now, before = delay_text(slow["iteration_ns"]), delay_text(fast["iteration_ns"])
        return [f"an iteration takes {now}, in the other run {before}"]
    return ["no rates are known"]


def _flows(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> list[str]:
    """Return the slowest flow of the slow run, if it was not as slow in the fast run."""
    before = {(each["nic"], each["peer"]): each["delay_ns"] for each in fast["flows"]}
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
    """Return the parts of the time that grew: (name, share in the slow run, in the fast run)."""
    now, before = shares(slow), shares(fast)
    if not now or not before:
        return []
    grown = [(title, now[name], before[name]) for name, title in SPLITS if now[name] - before[name] >= SHIFT]
    return sorted(grown, key=lambda each: each[2] - each[1])
