"""Compares the one-way delay and asymmetry of each path with the fleet's. Pure.

Deviations that many paths share are attributed to a link. Paths with equally many links are compared with
each other. A path is odd only if it deviates from their median by more than the noise, and by more than its
own uncertainty, the bound of the two clocks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.audit_remedy import remedy
from schemas.ids import host_of, natural
from schemas.records import AuditStatus, PathDelay
from streams.audit.fabric.attribution import explain
from streams.audit.fabric.clock_quality import suspect_clocks
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, warning
from streams.audit.robust import MIN_VALUES, odd_ones

RELATIVE_FLOOR: Final = 0.25
"""Deviation of a minimum delay, as a share of the median, that different cable lengths explain."""
FLOOR_NS: Final = 200.0
"""The same deviation in ns: 40 m of fibre."""
MIN_SAMPLES: Final = 20
"""Number of samples that an odd path which no link explains must have: fewer may include queueing."""
MAX_FEW_SHARE: Final = 0.1
"""Largest share of paths that may be left out, for example if they moved; above it the check is UNKNOWN."""
MAX_NAMED: Final = 20
"""Largest number of single odd paths that become findings; the others are only counted."""


@dataclass(slots=True)
class _Rows:
    """Measured directions of paths as columns: ends, links, value, uncertainty and class."""

    name: list[str] = field(default_factory=list)
    nic: list[str] = field(default_factory=list)
    elements: list[tuple[str, ...]] = field(default_factory=list)
    value_ns: list[float] = field(default_factory=list)
    error_ns: list[float] = field(default_factory=list)
    samples: list[int] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)

    def add(
        self, names: tuple[str, str], elements: tuple[str, ...], value_ns: float, best: _Best, kind: str
    ) -> None:
        """Add one direction of a path: `names` are its sender and receiver, `elements` its links and NICs."""
        self.name.append(f"{names[0]} to {names[1]}")
        self.nic.append(names[0])
        self.elements.append(elements)
        self.value_ns.append(value_ns)
        self.error_ns.append(best.bound_ns)
        self.samples.append(best.samples)
        self.kind.append(kind)


@warning("fabric.delay", "One-way delays are as on other paths of equal length")
@remedy.monitor("Check length and transceiver of the cable, and FEC and queueing of the port")
def one_way_delays(fabric: FabricRecords) -> Iterator[Found]:
    """Yield the links, NICs and paths with an unusual one-way delay, and PASSED for every other NIC."""
    yield from _without_clocks(fabric, "one-way delay")
    rows = _Rows()
    for (nic, peer, path), best in _minimum(fabric).items():
        for answer, a, b, value in (
            (False, nic, peer, best.forward_ns),
            (True, peer, nic, best.reverse_ns),
        ):
            links = fabric.route_of.get((a, b, path, answer), ())
            elements = links or (f"{a} sends", f"{b} receives")
            rows.add((a, b), elements, value, best, _kind(fabric, a, b, len(links)))
    yield from _findings(fabric, rows, "one-way delay")


@warning("fabric.asymmetry", "Paths take equally long in both directions")
@remedy.monitor("Check the fibres of both directions, and the timestamps of the NIC")
def asymmetries(fabric: FabricRecords) -> Iterator[Found]:
    """Yield NICs and paths whose requests and answers differ unusually in delay; PASSED for other NICs."""
    yield from _without_clocks(fabric, "delay forward minus back")
    rows = _Rows()
    for (nic, peer, path), best in _minimum(fabric).items():
        hops = [
            len(fabric.route_of.get(key, ())) for key in ((nic, peer, path, False), (peer, nic, path, True))
        ]
        kind = _kind(fabric, nic, peer, 100 * hops[0] + hops[1])
        value = best.forward_ns - best.reverse_ns
        rows.add((nic, peer), (nic, peer), value, replace(best, bound_ns=2 * best.bound_ns), kind)
    yield from _findings(fabric, rows, "delay forward minus back")


@dataclass(slots=True)
class _Best:
    """Minimum delays of a path over all windows, and the error bound of its two clocks, ns."""

    forward_ns: float
    reverse_ns: float
    bound_ns: float
    samples: int


def _minimum(fabric: FabricRecords) -> dict[tuple[str, str, int], _Best]:
    """Return, by (NIC, peer, path), the minimum delays of paths whose clocks are synchronised."""
    best_by_path: dict[tuple[str, str, int], _Best] = {}
    suspect = _suspect_nics(fabric)
    for record in fabric.delays:
        for path in record["paths"]:
            new = _best(path)
            if new is None or record["nic"] in suspect or path["peer"] in suspect:
                continue
            key = record["nic"], path["peer"], path["path"]
            best = best_by_path.get(key)
            if best is None:
                best_by_path[key] = new
            else:
                best.forward_ns = min(best.forward_ns, new.forward_ns)
                best.reverse_ns = min(best.reverse_ns, new.reverse_ns)
                best.bound_ns = max(best.bound_ns, new.bound_ns)
                best.samples += new.samples
    return best_by_path


def _suspect_nics(fabric: FabricRecords) -> dict[str, str]:
    """Return, by NIC, the reason why its clock cannot be compared with the others."""
    reasons = suspect_clocks(fabric)
    return {
        nic: f"clock {record['clock']} {reasons[record['clock']]}"
        for nic, record in fabric.nic_of.items()
        if record["clock"] in reasons
    }


def _without_clocks(fabric: FabricRecords, thing: str) -> Iterator[Found]:
    """Yield an UNKNOWN finding per NIC with a wrong clock, which would otherwise blame its cables."""
    for nic, reason in sorted(_suspect_nics(fabric).items(), key=lambda item: natural(item[0])):
        yield fabric.of_nic(nic, AuditStatus.UNKNOWN, f"{thing} is not known: {reason}")


def _best(path: PathDelay) -> _Best | None:
    forward, reverse, bound = path["forward_min_ns"], path["reverse_min_ns"], path["bound_ns"]
    if forward is None or reverse is None or bound is None:
        return None
    return _Best(forward, reverse, bound, path["count"])


def _kind(fabric: FabricRecords, a: str, b: str, hops: int) -> str:
    """Return the class of a direction: by number of links if traced, else by common host, rack and rail."""
    if hops:
        return f"{hops} links"
    if host_of(a) == host_of(b):
        return "one host"
    first, second = fabric.nic_of.get(a), fabric.nic_of.get(b)
    if first is None or second is None:
        return "unknown"
    racks = "one rack" if first["rack"] == second["rack"] else "two racks"
    return f"{racks}, {'one rail' if first['rail'] == second['rail'] else 'two rails'}"


def _findings(fabric: FabricRecords, rows: _Rows, thing: str) -> Iterator[Found]:
    if not rows.name:
        text = f"no {thing}: it needs probes and synchronised clocks"
        yield Found(FLEET, "", AuditStatus.UNKNOWN, text)
        return
    value_ns, error_ns = np.array(rows.value_ns), np.array(rows.error_ns)
    median_ns, outliers, few = _odd_rows(rows.kind, value_ns, error_ns)
    explained = explain(rows.elements, outliers)
    for element, at in explained.elements.items():
        text = (
            f"{thing} over {element}: {_ns(value_ns[at])}, others have {_ns(median_ns[at])} "
            f"({len(at)} of {explained.crossing[element]} paths)"
        )
        yield fabric.of_subject(element.partition(" ")[0], AuditStatus.FAILED, text)
    for row in [row for row in explained.rest if rows.samples[row] >= MIN_SAMPLES][:MAX_NAMED]:
        text = (
            f"{thing} {rows.name[row]}: {value_ns[row]:,.0f} ns (+-{error_ns[row]:,.0f}), "
            f"others have {median_ns[row]:,.0f} ns"
        )
        yield fabric.of_nic(rows.nic[row], AuditStatus.FAILED, text)
    if len(few) > MAX_FEW_SHARE * len(rows.name):
        text = f"{len(few)} of {len(rows.name)} paths have too few others to compare their {thing} with"
        yield Found(FLEET, "", AuditStatus.UNKNOWN, text)
    if not outliers:
        yield from _passed(fabric, [nic for row, nic in enumerate(rows.nic) if row not in few], thing)


def _passed(fabric: FabricRecords, nics: Sequence[str], thing: str) -> Iterator[Found]:
    """Yield a PASSED finding per NIC. `nics`: sender of each compared path; `thing`: measured quantity."""
    counts = Counter(nics)
    for nic in sorted(counts, key=natural):
        text = f"{thing} of {counts[nic]} paths from {nic} as on the others"
        yield fabric.of_nic(nic, AuditStatus.PASSED, text)


def _odd_rows(
    kinds: Sequence[str], value_ns: NDArray[np.float64], error_ns: NDArray[np.float64]
) -> tuple[NDArray[np.float64], list[int], set[int]]:
    """Return each row's median, ns, the indices of odd rows, and those of rows in too small classes."""
    median_ns = np.zeros(len(kinds))
    outliers: list[int] = []
    few: set[int] = set()
    by_kind: dict[str, list[int]] = defaultdict(list)
    for row, kind in enumerate(kinds):
        by_kind[kind].append(row)
    for at in by_kind.values():
        if len(at) < MIN_VALUES:
            few.update(at)
            continue
        rows = np.array(at)
        spread, wrong = odd_ones(value_ns[rows], RELATIVE_FLOOR, FLOOR_NS, error_ns[rows])
        median_ns[rows] = spread.median
        outliers += rows[wrong].tolist()
    return median_ns, outliers, few


def _ns(values: NDArray[np.float64]) -> str:
    return f"{float(np.median(values)):,.0f} ns"
