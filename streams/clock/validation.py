"""Validates `ClockFits` before the clock solve.

Implausible pairs and probers are left out, and an implausible record raises `BadRecord`. Otherwise one absurd
number would stop the solver, or make it skip to a far window, each time the record is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas import codec
from schemas.log_time import MAX_AHEAD_NS
from schemas.records import ClockFits, NicWindow, PairFit

MAX_NS: Final = 2**62
"""Limit of all times, ns, as in the decoder of samples."""
MAX_PPB: Final = 1e9
MAX_SIGMA: Final = 1e18
MAX_VERTICES: Final = 64
MAX_AFTER_NS: Final = 1e12
MAX_FROM_WINDOW_NS: Final = MAX_AHEAD_NS
"""Largest distance of a prober's append time from its window. A late message is counted in the open window,
which is later than its append time. An agent that fits its own samples may be late while the log is down."""


def validate_fits(fits: ClockFits, append_ns: int, window_ns: int) -> tuple[ClockFits, int]:
    """Return the record without implausible pairs and probers, and the number of pairs and probers removed.

    A prober's append time must be near the record's window. Raises BadRecord if the window is too far ahead
    of the log's clock or does not fit `window_ns`, or if the offsets end before they begin.
    """
    window = fits["window"]
    latest = (append_ns + MAX_AHEAD_NS) // window_ns
    if not 0 <= window <= latest:
        raise codec.BadRecord("OUT_OF_RANGE", f"ClockFits.window: {window}, expected 0 to {latest}")
    if fits["window_start_ns"] != window * window_ns:
        raise codec.BadRecord(
            "OUT_OF_RANGE",
            f"ClockFits.window_start_ns: {fits['window_start_ns']}, expected {window * window_ns}",
        )
    first, following = fits["first_offset"], fits["next_offset"]
    if first > following:
        raise codec.BadRecord(
            "OUT_OF_RANGE", f"ClockFits.first_offset: {first}, expected at most next_offset {following}"
        )
    pairs = [pair for pair in fits["pairs"] if _is_plausible_pair(pair)]
    middle_ns = (fits["window_start_ns"] + fits["window_end_ns"]) // 2
    nics = [nic for nic in fits["nics"] if _is_plausible_nic(nic, middle_ns)]
    left_out = len(fits["pairs"]) - len(pairs) + len(fits["nics"]) - len(nics)
    return ({**fits, "pairs": pairs, "nics": nics} if left_out else fits), left_out


def _is_plausible_pair(pair: PairFit) -> bool:
    return bool(
        abs(pair["at_ns"]) <= MAX_NS
        and abs(pair["offset_ns"]) < 2 * MAX_NS
        and abs(pair.get("offset_fraction_ns", 0.0)) <= 1
        and abs(pair["drift_ppb"]) <= MAX_PPB
        and 0 <= pair["sigma_ns"] <= MAX_SIGMA
        and 0 <= pair["drift_sigma_ppb"] <= MAX_SIGMA
        and 0 <= pair["rtt_min_ns"] <= 2 * MAX_NS
        and 0 <= pair.get("margin_ns", 0) <= 2 * MAX_NS
        and 0 <= pair.get("noise_ns", 0) <= MAX_SIGMA
        and _is_plausible_hull(pair.get("forward_after_ns", ()), pair.get("forward_delay_ns", ()))
        and _is_plausible_hull(pair.get("reverse_after_ns", ()), pair.get("reverse_delay_ns", ()))
    )


def _is_plausible_hull(after: Sequence[float], delay: Sequence[float]) -> bool:
    return (
        len(after) == len(delay) <= MAX_VERTICES
        and all(abs(after_ns) <= MAX_AFTER_NS for after_ns in after)
        and all(abs(delay_ns) <= 2 * MAX_NS for delay_ns in delay)
    )


def _is_plausible_nic(nic: NicWindow, middle_ns: int) -> bool:
    return (
        abs(nic["clock_ns"]) <= MAX_NS
        and abs(nic["system_ns"]) <= MAX_NS
        and abs(nic["append_ns"] - middle_ns) <= MAX_FROM_WINDOW_NS
    )
