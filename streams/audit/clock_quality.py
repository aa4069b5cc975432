"""Clock quality of each NIC: state, uncertainty against the fleet, and one timescale for all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from schemas.ids import natural
from schemas.records import AuditStatus, ClockEvent, ClockState, ClockSync
from streams.audit.fabric_records import FabricRecords
from streams.audit.results import FLEET, Found
from streams.audit.robust import MIN_VALUES, odd_ones

__all__ = ["clock_quality", "suspect_clocks"]

BOUND_FLOOR_NS: Final = 500.0
"""Bound of a clock that is never an outlier: delays within a rack are of this size."""
BOUND_RELATIVE: Final = 2.0
"""Bounds up to three times the median come from few or slow probes."""


def clock_quality(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC: FAILED if its clock is not synchronised, a falseticker, apart or uncertain."""
    newest = _newest(fabric)
    if not newest:
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no clock was solved")
        return
    suspect = suspect_clocks(fabric)
    median_ns = _uncertain(newest)[1]
    for nic in sorted(fabric.nic_of, key=natural):
        name = fabric.nic_of[nic]["clock"]
        if name not in newest:
            yield fabric.of_nic(nic, AuditStatus.UNKNOWN, f"{nic}: clock {name} was not solved")
            continue
        bound = f"bound {newest[name].clock['bound_ns']:,.0f} ns, median {median_ns:,.0f} ns"
        if name in suspect:
            yield fabric.of_nic(nic, AuditStatus.FAILED, f"clock {name} {suspect[name]}; {bound}")
        else:
            yield fabric.of_nic(nic, AuditStatus.PASSED, f"clock {name} is synchronised; {bound}")


def suspect_clocks(fabric: FabricRecords) -> dict[str, str]:
    """Return the clocks whose timestamps cannot be compared with the fleet's, and why."""
    newest = _newest(fabric)
    domains = Counter(each.domain for each in newest.values())
    uncertain = _uncertain(newest)[0]
    found = {}
    for name, (_, clock, domain) in newest.items():
        fault = _fault(clock)
        usual_domain = domains.most_common(1)[0][0]
        if not fault and domain != usual_domain:
            fault = f"is of domain {domain}, apart from the fleet's {usual_domain}"
        if not fault and name in uncertain:
            fault = "is less certain than the others"
        if fault:
            found[name] = fault
    return found


class _Newest(NamedTuple):
    """A clock in its newest window."""

    window_end_ns: int
    clock: ClockState
    domain: str


def _newest(fabric: FabricRecords) -> dict[str, _Newest]:
    found: dict[str, _Newest] = {}
    for record in fabric.offsets:
        for clock in record["clocks"]:
            known = found.get(clock["clock"])
            if known is None or known.window_end_ns < record["window_end_ns"]:
                found[clock["clock"]] = _Newest(record["window_end_ns"], clock, record["domain"])
    return found


def _fault(clock: ClockState) -> str:
    if clock["state"] != ClockSync.SYNCED:
        return f"is {clock['state']}"
    if clock["event"] == ClockEvent.FALSETICKER:
        return f"contradicts its peers by {clock['event_ns']:,.0f} ns"
    if clock["event"] == ClockEvent.STEP:
        return f"stepped by {clock['event_ns']:,.0f} ns"
    if clock["event"] == ClockEvent.RATE_CHANGE:
        return f"changed its rate by {clock['event_ns']:,.0f} ppb"
    return ""


def _uncertain(newest: Mapping[str, _Newest]) -> tuple[set[str], float]:
    """Return the synchronised clocks with an oddly large bound, and the median bound in ns."""
    clocks = {name: each.clock for name, each in newest.items()}
    names = [name for name, clock in clocks.items() if clock["state"] == ClockSync.SYNCED]
    bounds = np.array([clocks[name]["bound_ns"] for name in names])
    if not len(bounds):
        return set(), 0.0
    spread, odd = odd_ones(bounds, BOUND_RELATIVE, BOUND_FLOOR_NS)
    if len(bounds) < MIN_VALUES:
        return set(), spread.median
    large = odd & (bounds > spread.median)
    return {names[at] for at in np.flatnonzero(large).tolist()}, spread.median
