"""Formats names of subjects, times and counts for the texts of link-health records."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from schemas.ids import end_parts, host_of
from schemas.records import HealthKind
from streams.links.evidence.path_table import PathTable
from streams.runtime.loss_rates import Lossy

__all__ = ["clock_text", "count_text", "host_of", "loss_text", "subject_text"]


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun: '1 path', '1,204 paths'."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def clock_text(at_ns: int) -> str:
    """Format a fabric time as the time of day, to the millisecond."""
    at = datetime.fromtimestamp(at_ns / 1e9, UTC)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def loss_text(loss: Lossy, since: str) -> str:
    """Format a loss rate; if only some traffic classes are lossy, the rate of each class."""
    lossy = sorted(
        (class_rate for class_rate in loss.classes if class_rate.is_lossy),
        key=lambda class_rate: -class_rate.rate,
    )
    if not lossy:
        return f"loses {loss.rate:.1%} of its packets since {since} (95%: {loss.low:.1%} to {loss.high:.1%})"
    rates = [
        f"{c.rate:.1%} of its packets of DSCP {c.dscp} (95%: {c.low:.1%} to {c.high:.1%})" for c in lossy
    ]
    others = [f"DSCP {c.dscp}: {c.rate:.1%}, at most {c.high:.1%}" for c in loss.classes if not c.is_lossy]
    return f"loses {' and '.join(rates)} since {since}; other classes are not affected ({', '.join(others)})"


def subject_text(evidence: PathTable, name: str, kind: HealthKind, bad_links: Iterable[str]) -> str:
    """Return the readable name of a subject: 'leaf2 to spine3', 'h1/eth1 to leaf1', 'host h1'.

    If only one direction of a cable is bad, name the cable in that direction.
    """
    if kind != HealthKind.LINK:
        return f"{'NIC' if kind == HealthKind.NIC else 'host'} {name}"
    bad = list(bad_links)
    if len(bad) == 1:
        near, far = bad[0].split(">")
    else:
        near, far = name.split("<>")
        if _end(evidence, far)[1] and not _end(evidence, near)[1]:
            near, far = far, near
    (a, _), (b, _) = _end(evidence, near), _end(evidence, far)
    first, second = sorted((end_parts(near).node, end_parts(far).node))
    is_bundle = len(evidence.parallel_cables.get((first, second), ())) > 1
    if is_bundle and not {a, b} & evidence.nics.keys():
        return f"{near} to {far}"
    return f"{a} to {b}"


def _end(evidence: PathTable, end: str) -> tuple[str, bool]:
    """Return the name of a cable's end, and whether it is a NIC."""
    node, port = end_parts(end)
    nic = f"{node}/{port}"
    return (nic, True) if nic in evidence.index else (node, False)
