"""Checks the clock of each NIC: its state, its uncertainty, and one timescale for the whole fleet. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from schemas.audit_remedy import remedy
from schemas.ids import natural
from schemas.records import AuditStatus, ClockEvent, ClockState, ClockSync
from streams.audit.fabric.records import FabricRecords
from streams.audit.results import FLEET, Found, warning
from streams.audit.robust import MIN_VALUES, odd_ones

BOUND_FLOOR_NS: Final = 500.0
"""Error bound up to which a clock is never an outlier, ns: delays within a rack are of this size."""
BOUND_RELATIVE: Final = 2.0
"""Relative deviation of a bound from the median that few or slow probes explain: three medians."""

MIN_FAULTY_SHARE: Final = 0.2
"""Share of the recent windows with a fault from which on a clock is unstable."""

MIN_RATES: Final = 5
"""Number of consecutive windows with a known rate that are needed to tell whether the rate wanders."""
RATE_SIGMAS: Final = 4.0
"""Number of standard errors below which changes of the rate are noise."""


@warning("fabric.clocks", "Clocks of NICs are synchronised to fabric time")
@remedy.reset("`fabrictime clock` gives the state; check the NIC's timestamps and its probes")
def clock_quality(fabric: FabricRecords) -> Iterator[Found]:
    """Yield a finding per NIC: FAILED if its clock is not synchronised, a falseticker, apart or uncertain."""
    newest = _newest(fabric)
    if not newest:
        yield Found(FLEET, "", AuditStatus.UNKNOWN, "no clock was solved")
        return
    suspects = _suspects(fabric)
    median_ns = _uncertain(newest)[1]
    for nic in sorted(fabric.nic_of, key=natural):
        name = fabric.nic_of[nic]["clock"]
        if name not in newest:
            yield fabric.of_nic(nic, AuditStatus.UNKNOWN, f"{nic}: clock {name} was not solved")
            continue
        bound = f"bound {newest[name].windows[-1]['bound_ns']:,.0f} ns, median {median_ns:,.0f} ns"
        fault, share = suspects.get(name, ("", 0.0))
        if share >= MIN_FAULTY_SHARE:
            yield fabric.of_nic(nic, AuditStatus.FAILED, f"clock {name} {fault}; {bound}")
        else:
            yield fabric.of_nic(nic, AuditStatus.PASSED, f"clock {name} is synchronised; {bound}")


def suspect_clocks(fabric: FabricRecords) -> dict[str, str]:
    """Return, by clock, why its timestamps could not be compared with the fleet's in some window."""
    return {name: text for name, (text, _) in _suspects(fabric).items()}


def _suspects(fabric: FabricRecords) -> dict[str, tuple[str, float]]:
    """Return, by faulty clock, its newest fault and its share of windows with one; 1 if the fault lasts."""
    newest = _newest(fabric)
    domains = Counter(recent.domain for recent in newest.values())
    uncertain = _uncertain(newest)[0]
    suspects = {}
    for name, (windows, _, domain) in newest.items():
        faults = [fault for clock in windows if (fault := _fault(clock))]
        lasting = _fault(windows[-1])
        usual_domain = domains.most_common(1)[0][0]
        if not lasting and domain != usual_domain:
            lasting = f"is of domain {domain}, apart from the fleet's {usual_domain}"
        if not lasting and name in uncertain:
            lasting = "is less certain than the others"
        if not lasting:
            lasting = _wander(windows)
        if lasting:
            suspects[name] = lasting, 1.0
        elif faults:
            share = len(faults) / len(windows) if len(faults) > 1 else 0.0  # a single one may be an event
            suspects[name] = f"had a fault in {len(faults)} of {len(windows)} windows: {faults[-1]}", share
    return suspects


class _Recent(NamedTuple):
    """A clock's states in its recent windows, in order, and its domain in the newest window."""

    windows: list[ClockState]
    window_end_ns: int
    domain: str


def _newest(fabric: FabricRecords) -> dict[str, _Recent]:
    recent_by_clock: dict[str, _Recent] = {}
    for record in sorted(fabric.offsets, key=lambda record: record["window_end_ns"]):
        for clock in record["clocks"]:
            recent = recent_by_clock.get(clock["clock"])
            windows = recent.windows if recent else []
            windows.append(clock)
            recent_by_clock[clock["clock"]] = _Recent(windows, record["window_end_ns"], record["domain"])
    return recent_by_clock


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


def _wander(windows: Sequence[ClockState]) -> str:
    """Return, as text, how far a clock's rate wanders from window to window; empty if irrelevant or unknown.

    The median of the changes ignores a single event. A change of r ppb moves a reading by r * T / 2 ns in
    half a window of T seconds, away from the line by which timestamps are corrected.
    """
    changes, errors, lengths_s = [], [], []
    for before, now in pairwise(window for window in windows if window["state"] == ClockSync.SYNCED):
        length_s = (now["at_ns"] - before["at_ns"]) / 1e9
        if length_s > 0:
            changes.append(abs(now["drift_ppb"] - before["drift_ppb"]))
            errors.append(float(np.hypot(now["drift_sigma_ppb"], before["drift_sigma_ppb"])))
            lengths_s.append(length_s)
    if len(changes) < MIN_RATES:
        return ""
    change = float(np.median(changes))
    moved_ns = change * float(np.median(lengths_s)) / 2
    if moved_ns < BOUND_FLOOR_NS or change < RATE_SIGMAS * float(np.median(errors)):
        return ""
    return f"changes its rate by {change:,.0f} ppb from window to window"


def _uncertain(newest: Mapping[str, _Recent]) -> tuple[set[str], float]:
    """Return the synchronised clocks with an unusually large bound of error, and the median bound, ns."""
    clocks = {name: recent.windows[-1] for name, recent in newest.items()}
    names = [name for name, clock in clocks.items() if clock["state"] == ClockSync.SYNCED]
    bounds = np.array([clocks[name]["bound_ns"] for name in names])
    if not len(bounds):
        return set(), 0.0
    spread, is_outlier = odd_ones(bounds, BOUND_RELATIVE, BOUND_FLOOR_NS)
    if len(bounds) < MIN_VALUES:
        return set(), spread.median
    large = is_outlier & (bounds > spread.median)
    return {names[at] for at in np.flatnonzero(large).tolist()}, spread.median
