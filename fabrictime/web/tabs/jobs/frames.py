"""Frames and rows of the tab Jobs: jobs, iterations over time, ranks by parts of their time. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from operator import itemgetter
from typing import Any, Final, Literal

import numpy as np

from fabrictime.state.alert_now import is_slow
from fabrictime.state.job_state import Interval, Job
from fabrictime.state.labels import arrow, readable, verdict_label
from fabrictime.web.addresses import fabric_address, jobs_address
from fabrictime.web.elements import utc_time
from schemas.ids import natural
from schemas.records import RankTime, Verdict
from schemas.units import (
    bps_text,
    bytes_text,
    count_text,
    delay_text,
    ms_text,
    number_text,
    percent_text,
    rate_text,
    seconds_text,
)

Part = Literal["compute_ns", "launch_ns", "gpu_late_ns", "peer_late_ns", "network_late_ns", "flush_ns"]
PARTS: Final[dict[Part, str]] = {
    "compute_ns": "compute",
    "launch_ns": "launch",
    "gpu_late_ns": "GPU late",
    "peer_late_ns": "peer late",
    "network_late_ns": "network late",
    "flush_ns": "flush",
}
"""Label of each part of a rank's time, in the order of an operation."""
SORTS: Final[dict[str, str]] = {"rank": "rank", **{str(part): name for part, name in PARTS.items()}}
BARS_SHOWN: Final = 24
"""Largest number of ranks that are drawn as bars."""
TREND_POINTS: Final = 60
TREND_NS: Final = 600_000_000_000
MIN_HEALTHY: Final = 5
"""Least number of healthy intervals with which the expected band is drawn."""
CHIPS_SHOWN: Final = 12
MISSING_SHOWN: Final = 8
_SORT_OF_VERDICT: Final = {
    Verdict.STRAGGLER: "compute_ns",
    Verdict.LAUNCH_SKEW: "launch_ns",
    Verdict.PCIE_LIMIT: "gpu_late_ns",
}
_TEXTS: Final = (
    ("_ns", delay_text),
    ("_us", lambda us: delay_text(us * 1e3)),
    ("_ms", ms_text),
    ("_per_s", rate_text),
    ("_bps", bps_text),
    ("_bytes", bytes_text),
    ("_share", percent_text),
    ("loss_rate", percent_text),
    ("age_s", seconds_text),
)


KINDS: Final = ("network", "host", "unknown", "healthy")
"""Kinds of verdict, the worst first; each has a colour."""
_KIND_ORDER: Final = {kind: k for k, kind in enumerate(KINDS)}
JOBS_SHOWN: Final = 200


def kind_of(verdict: str, blames_network: bool) -> str:
    """Return the kind by which a verdict is coloured: healthy, network, host or unknown."""
    if verdict in (Verdict.HEALTHY, Verdict.UNKNOWN):
        return verdict.lower()
    return "network" if blames_network else "host"


def kind_now(head: Mapping[str, Any]) -> str:
    """Return the kind that colours a diagnosis; `unknown` if the verdict does not lengthen iterations."""
    kind = kind_of(head["verdict"], head["blames_network"])
    return kind if kind == "healthy" or is_slow(head) else "unknown"


def verdict_text(head: Mapping[str, Any]) -> str:
    """Return the text of a diagnosis, with a note if iterations take the expected time nevertheless."""
    text = readable(head["text"])
    is_harmless = head["verdict"] not in (Verdict.HEALTHY, Verdict.UNKNOWN) and not is_slow(head)
    return f"iterations take the expected time; {text}" if is_harmless else text


def figure_text(quantity: str, number: float | None) -> str:
    """Return a figure as text, in the unit that the ending of `quantity` names; a dash for None."""
    if number is None:
        return "—"
    for ending, text in _TEXTS:
        if quantity.endswith(ending):
            return text(number)
    return number_text(number, 4)


# -------------------------------------------------------------------------------------------------- jobs


def job_rows(jobs: Mapping[str, Job], now_ns: int) -> list[dict[str, Any]]:
    """Return a table row for each job: running jobs first, then jobs with a fault, then by name."""

    def order(name: str) -> tuple[bool, int, Any]:
        job = jobs[name]
        kind = kind_now(job.head)
        return not job.is_running(now_ns), _KIND_ORDER[kind], natural(name)

    return [_job_row(name, jobs[name], now_ns) for name in sorted(jobs, key=order)[:JOBS_SHOWN]]


def _job_row(name: str, job: Job, now_ns: int) -> dict[str, Any]:
    head = job.head
    since = since_text(head["since_ns"], now_ns) if job.is_running(now_ns) else ended_text(head, now_ns)
    return _row(name, head) | {"since": since, "trend": trend(job.intervals, now_ns), "past": False}


def past_row(head: Mapping[str, Any], now_ns: int) -> dict[str, Any]:
    """Return the row of a job that only the history knows."""
    return _row(head["job"], head) | {"since": ended_text(head, now_ns), "trend": [], "past": True}


def _row(name: str, head: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": name,
        "key": f"{head['begin_ns']}-{head['number']}",
        "job": name,
        "tenant": head["tenant"] or "",
        "verdict": verdict_label(head["verdict"]),
        "kind": kind_now(head),
        "text": verdict_text(head),
        "iteration": against_text(head["iteration_ns"], head["expected_iteration_ns"], delay_text),
        "ranks": ranks_text(head),
        "hosts": count_text(head["hosts"]),
        "bandwidth": against_text(head["bus_bps"], head["expected_bus_bps"], bps_text),
    }


def ended_text(head: Mapping[str, Any], now_ns: int) -> str:
    """Return as text how long ago a job ended."""
    return f"ended {seconds_text((now_ns - head['end_ns']) / 1e9)} ago"


def since_text(since_ns: int, now_ns: int) -> str:
    """Return as text the time since which a verdict holds, and for how long it has held."""
    return f"{utc_time(since_ns)}, {delay_text(max(0, now_ns - since_ns))}"


def against_text(value: float | None, expected: float | None, text: Any) -> str:
    """Return a figure as text with the expected figure beside it. `text` formats a figure."""
    if value is None:
        return "—"
    return str(text(value)) if expected is None else f"{text(value)}, expected {text(expected)}"


def ranks_text(head: Mapping[str, Any]) -> str:
    """Return as text the number of ranks that report, and the number of all ranks if some do not report."""
    reporting, total = head["ranks_seen"], head["ranks_total"]
    return (
        count_text(reporting)
        if not total or reporting == total
        else f"{count_text(reporting)} of {count_text(total)}"
    )


def trend(intervals: Sequence[Interval], now_ns: int) -> list[float]:
    """Return the iteration times of the last ten minutes, ns, thinned out; without any, the bus bandwidths in
    bit/s.
    """
    recent = [
        *itertools.takewhile(lambda interval: interval.end_ns > now_ns - TREND_NS, reversed(intervals))
    ][::-1]
    values: list[float] = [interval.iteration_ns for interval in recent if interval.iteration_ns is not None]
    values = values or [interval.bus_bps for interval in recent if interval.bus_bps is not None]
    step = max(1, -(-len(values) // TREND_POINTS))
    return values[::-1][::step][::-1]


# --------------------------------------------------------------------------------------------- iterations


def within(intervals: Iterable[Interval], now_ns: int, span_ns: int) -> list[Interval]:
    """Return the intervals of the last `span_ns`."""
    return [interval for interval in intervals if interval.end_ns > now_ns - span_ns]


def iterations_frame(
    intervals: Sequence[Interval], now_ns: int, span_ns: int, chosen_key: str | None
) -> dict[str, Any]:
    """Return the chart frame of iterations, bandwidth and verdicts over time. Times are in ms."""
    names: dict[str, int] = {}
    verdicts = [names.setdefault(interval.verdict, len(names)) for interval in intervals]
    return {
        "from": (now_ns - span_ns) // 1_000_000,
        "to": now_ns // 1_000_000,
        "keys": [interval.key for interval in intervals],
        "begin": [interval.begin_ns // 1_000_000 for interval in intervals],
        "end": [interval.end_ns // 1_000_000 for interval in intervals],
        "iteration": [interval.iteration_ns for interval in intervals],
        "expected": [interval.expected_iteration_ns for interval in intervals],
        "bus": [interval.bus_bps for interval in intervals],
        "expected_bus": [interval.expected_bus_bps for interval in intervals],
        "band": healthy_band(intervals),
        "names": [verdict_label(name) for name in names],
        "verdict": verdicts,
        "kind": [kind_of(interval.verdict, interval.blames_network) for interval in intervals],
        "marks": marks_of(intervals),
        "chosen": chosen_key or "",
    }


def healthy_band(intervals: Iterable[Interval]) -> list[int] | None:
    """Return the 10th and 90th percentile of the iteration times of healthy intervals, ns; None if too few
    intervals are healthy.
    """
    healthy = [
        interval.iteration_ns
        for interval in intervals
        if interval.verdict == Verdict.HEALTHY and interval.iteration_ns is not None
    ]
    if len(healthy) < MIN_HEALTHY:
        return None
    return [round(float(quantile)) for quantile in np.quantile(np.array(healthy, np.float64), (0.1, 0.9))]


def marks_of(intervals: Sequence[Interval]) -> list[list[Any]]:
    """Return [time in ms, text, kind] for each change of the verdict or its subject."""
    return [
        [
            after.begin_ns // 1_000_000,
            f"{verdict_label(after.verdict)} {after.subject}".strip(),
            kind_of(after.verdict, after.blames_network),
        ]
        for before, after in itertools.pairwise(intervals)
        if (before.verdict, before.subject) != (after.verdict, after.subject)
    ]


# ------------------------------------------------------------------------------------------------- verdict


def evidence_rows(head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each observation of the evidence, the weightiest first."""
    return [
        {
            "id": str(k),
            "text": readable(evidence["text"]),
            "measured": figure_text(evidence["quantity"], evidence["number"]),
            "expected": figure_text(evidence["quantity"], evidence["expected"]),
            "from": f"{evidence['topic']} {readable(evidence['subject'])}",
        }
        for k, evidence in enumerate(head["evidence"])
    ]


def alternative_rows(head: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each alternative explanation of a verdict."""
    return [
        {
            "id": str(k),
            "verdict": verdict_label(alternative["verdict"]),
            "confidence": percent_text(alternative["confidence"]),
            "text": readable(alternative["text"]),
        }
        for k, alternative in enumerate(head["alternatives"])
    ]


def head_figures(head: Mapping[str, Any], now_ns: int) -> list[tuple[str, str]]:
    """Return a verdict's figures as names and texts."""
    begin, end = utc_time(head["begin_ns"]), utc_time(head["end_ns"])
    return [
        ("interval", f"{begin} to {end} UTC"),
        ("verdict since", since_text(head["since_ns"], now_ns)),
        ("confidence", percent_text(head["confidence"])),
        ("time lost to it", percent_text(head["loss_share"])),
        ("iteration", against_text(head["iteration_ns"], head["expected_iteration_ns"], delay_text)),
        ("bus bandwidth", against_text(head["bus_bps"], head["expected_bus_bps"], bps_text)),
        ("ranks, hosts", f"{ranks_text(head)}, {count_text(head['hosts'])}"),
        ("operations", f"{count_text(head['operations'])}, {bytes_text(head['bytes'])} sent"),
        ("bound of the clocks", delay_text(head["bound_ns"])),
    ]


def missing_markup(missing: Sequence[str]) -> str:
    """Return HTML that lists the missing evidence; text is escaped."""
    return "".join(f"<p>not known: {escape(line)}</p>" for line in missing[:MISSING_SHOWN])


def subject_chips(head: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return chips that link to the links, NICs and jobs that a verdict names."""
    job = head["job"]
    chips = [(link, arrow(link), fabric_address(link=link, job=job)) for link in head["links"]]
    chips += [(nic, nic, jobs_address(job=job, nic=nic)) for nic in head["nics"]]
    chips += [(other, f"job {other}", jobs_address(job=other)) for other in head["jobs"] if other != job]
    return list({chip[0]: chip for chip in chips}.values())[:CHIPS_SHOWN]


# --------------------------------------------------------------------------------------------------- ranks


def sort_for(verdict: str) -> str:
    """Return the part of time by which ranks are sorted for a verdict, until the user chooses another."""
    return _SORT_OF_VERDICT.get(Verdict(verdict), "network_late_ns")


def ranks_frame(
    splits: Sequence[RankTime], named: Iterable[int], length_ns: int, sort: str, chosen_rank: int | None
) -> dict[str, Any]:
    """Return the frame of the sorted ranks, with each part of their time in thousandths of the interval.

    `ranks` is [rank, host, NIC, 1 if the verdict names it, number of last arrivals]. `parts[p][k]` is part p
    of the k-th rank.
    """
    by_rank = sorted(splits, key=lambda split: split["rank"])
    for part in PARTS:
        if part == sort:
            by_rank.sort(key=itemgetter(part), reverse=True)
    marked, length_ns = set(named), max(1, length_ns)
    return {
        "ranks": [
            [split["rank"], split["host"], split["nic"], int(split["rank"] in marked), split["last_arrivals"]]
            for split in by_rank
        ],
        "parts": [[round(1000 * split[part] / length_ns) for split in by_rank] for part in PARTS],
        "names": list(PARTS.values()),
        "length": length_ns,
        "sort": list(SORTS).index(sort) - 1,
        "shown": BARS_SHOWN,
        "chosen": -1 if chosen_rank is None else chosen_rank,
    }


def rank_figures(split: RankTime) -> list[tuple[str, str]]:
    """Return the parts of one rank's time as names and texts."""
    total = sum(split[part] for part in PARTS)
    return [
        (name, f"{delay_text(split[part])}, {percent_text(split[part] / max(1, total))}")
        for part, name in PARTS.items()
    ] + [("arrived last", f"in {count_text(split['last_arrivals'])} operations")]
