"""Checks that decoded records are plausible, relative to their log append time.

If a `ClockOffsets` window were far in the future, readers would ignore its shard's later windows for long. If
an epoch were far in the future, every later owner of the policy would count as stale.
"""

from __future__ import annotations

from typing import Final

from schemas import codec
from schemas.log_time import MAX_AHEAD_NS
from schemas.records import ClockOffsets, ClockState, Decision, Fallbacks, LinkEvent

MAX_NS: Final = 2**62
"""Largest time in any record, ns; the decoder of samples has the same limit."""
MAX_PPB: Final = 1e9
MAX_BOUND_NS: Final = 1e18
EPOCH_AHEAD_MS: Final = 86_400_000
"""Largest time by which an epoch may be ahead of the log's clock, ms. An owner's epoch is that clock's ms
since the Unix epoch, or one more than the previous owner's."""


def check_epoch(record: Decision | Fallbacks, append_ms: int) -> None:
    """Raise BadRecord for a `Decision` or `Fallbacks` whose epoch no owner of the policy can have.

    `append_ms`: log append time in ms; 0 or less if it is unknown.
    """
    if append_ms > 0 and record["epoch"] > append_ms + EPOCH_AHEAD_MS:
        raise codec.BadRecord(
            "OUT_OF_RANGE", f"epoch {record['epoch']}, expected at most {append_ms + EPOCH_AHEAD_MS}"
        )


def is_window_consistent(record: ClockOffsets) -> bool:
    """Return whether a window's times agree with its number and length, as in all correct records."""
    window_ns = record["window_end_ns"] - record["window_start_ns"]
    start_ns = record["window"] * window_ns + record["log_offset_ns"]
    return window_ns > 0 and record["window_start_ns"] == start_ns


def validate_offsets(record: ClockOffsets, append_ns: int, window_ns: int) -> tuple[ClockOffsets, int]:
    """Return the record without impossible clocks, and the number of clocks removed. Raises BadRecord."""
    window, part, parts = record["window"], record["part"], record["parts"]
    latest = (append_ns + MAX_AHEAD_NS) // window_ns
    _expect(0 <= window <= latest, "ClockOffsets.window", window, f"0 to {latest}")
    _expect(0 <= part < parts, "ClockOffsets.part", part, f"0 to {parts - 1}, of {parts} parts")
    offset_ns = record["log_offset_ns"]
    _expect(abs(offset_ns) <= MAX_NS, "ClockOffsets.log_offset_ns", offset_ns, f"at most {MAX_NS} either way")
    start_ns = window * window_ns + offset_ns
    _expect(
        record["window_start_ns"] == start_ns,
        "ClockOffsets.window_start_ns",
        record["window_start_ns"],
        f"{start_ns}",
    )
    end_ns = start_ns + window_ns
    _expect(
        record["window_end_ns"] == end_ns, "ClockOffsets.window_end_ns", record["window_end_ns"], f"{end_ns}"
    )
    clocks = [clock for clock in record["clocks"] if _is_plausible(clock)]
    left_out = len(record["clocks"]) - len(clocks)
    return ({**record, "clocks": clocks} if left_out else record), left_out


def validate_link_event(event: LinkEvent) -> LinkEvent:
    """Return a `LinkEvent` unchanged. Raise BadRecord if its times or NICs are impossible."""
    _expect(
        abs(event["clock_ns"]) <= MAX_NS,
        "LinkEvent.clock_ns",
        event["clock_ns"],
        f"at most {MAX_NS} either way",
    )
    nic = event["nic"]
    _expect("/" in nic and ">" not in nic, "LinkEvent.nic", nic, "host/device")
    for path in event["paths"]:
        peer = path["peer"]
        _expect("/" in peer and ">" not in peer and peer != nic, "LinkEvent.paths.peer", peer, "another NIC")
        ages = {
            "first_lost_age_ns": path["first_lost_age_ns"],
            "last_lost_age_ns": path["last_lost_age_ns"],
            "answered_age_ns": path["answered_age_ns"],
            "arrived_age_ns": path["arrived_age_ns"],
        }
        for name, age_ns in ages.items():
            _expect(-1 <= age_ns <= MAX_NS, f"LinkEvent.paths.{name}", age_ns, f"-1 to {MAX_NS}")
        _expect(
            path["timeout_ns"] <= MAX_NS,
            "LinkEvent.paths.timeout_ns",
            path["timeout_ns"],
            f"at most {MAX_NS}",
        )
    return event


def _expect(right: bool, field: str, value: object, expected: str) -> None:
    if not right:
        raise codec.BadRecord("OUT_OF_RANGE", f"{field}: {value!r}, expected {expected}")


def _is_plausible(clock: ClockState) -> bool:
    return bool(
        abs(clock["at_ns"]) <= MAX_NS
        and abs(clock["offset_ns"]) <= MAX_NS
        and abs(clock["offset_fraction_ns"]) <= 1
        and abs(clock["drift_ppb"]) <= MAX_PPB
        and 0 <= clock["bound_ns"] <= MAX_BOUND_NS
    )
