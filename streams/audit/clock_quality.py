"""Clock quality of each NIC: state, uncertainty against the fleet, and one timescale for all. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from schemas.ids import natural
from schemas.records import AuditStatus, ClockEvent, ClockState, ClockSync
from streams.audit.fabric_records import FabricRecords
from streams.audit.results import FLEET, Found
from streams.audit.robust import MIN_VALUES, odd_ones

__all__ = ["clock_quality"]

BOUND_FLOOR_NS: Final = 500.0
"""Bound of a clock that is never an outlier: delays within a rack are of this size."""
BOUND_RELATIVE: Final = 2.0
"""Bounds up to three times the median come from few or slow probes."""


def clock_quality(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC: FAILED if its clock is not synchronised, a falseticker, apart or uncertain."""
    newest: dict[str, tuple[int, ClockState, str]] = {}
    for record in fabric.offsets:
        for clock in record["clocks"]:
            known = newest.get(clock["clock"])
            if known is None or known[0] < record["window_end_ns"]:
                newest[clock["clock"]] = record["window_end_ns"], clock, record["domain"]
    if not newest:
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no clock was solved")
        return
    usual_domain = Counter(domain for _, _, domain in newest.values()).most_common(1)[0][0]
    uncertain, median_ns = _uncertain({name: clock for name, (_, clock, _) in newest.items()})
    for nic in sorted(fabric.nic_of, key=natural):
        name = fabric.nic_of[nic]["clock"]
        if name not in newest:
            yield fabric.of_nic(nic, AuditStatus.UNKNOWN, f"{nic}: clock {name} was not solved")
            continue
        _, clock, domain = newest[name]
        bound = f"bound {clock['bound_ns']:,.0f} ns, median {median_ns:,.0f} ns"
        fault = _fault(clock)
        if not fault and domain != usual_domain:
            fault = f"is of domain {domain}, apart from the fleet's {usual_domain}"
        if not fault and name in uncertain:
            fault = "is less certain than the others"
        if fault:
            yield fabric.of_nic(nic, AuditStatus.FAILED, f"clock {name} {fault}; {bound}")
        else:
            yield fabric.of_nic(nic, AuditStatus.PASSED, f"clock {name} is synchronised; {bound}")


def _fault(clock: ClockState) -> str:
    if clock["state"] != ClockSync.SYNCED:
        return f"is {clock['state']}"
    if clock["event"] == ClockEvent.FALSETICKER:
        return f"contradicts its peers by {clock['event_ns']:,.0f} ns"
    return ""


def _uncertain(clocks: dict[str, ClockState]) -> tuple[set[str], float]:
    """Return the synchronised clocks with an oddly large bound, and the median bound in ns."""
    names = [name for name, clock in clocks.items() if clock["state"] == ClockSync.SYNCED]
    bounds = np.array([clocks[name]["bound_ns"] for name in names])
    if not len(bounds):
        return set(), 0.0
    spread, odd = odd_ones(bounds, BOUND_RELATIVE, BOUND_FLOOR_NS)
    if len(bounds) < MIN_VALUES:
        return set(), spread.median
    large = odd & (bounds > spread.median)
    return {names[at] for at in np.flatnonzero(large).tolist()}, spread.median
