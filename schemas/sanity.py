"""What readers believe of a record, by the time that the log took it: what an honest writer can have made.

In: a decoded record, its log append time, of `ClockOffsets` the window's length. Out: the record, without
those clocks whose figures no clock has; or `BadRecord`. One window far ahead would else end a shard, for
every later one would be late; so would one epoch: every later owner of the policy would be stale.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from schemas import codec

__all__ = ["EPOCH_AHEAD_MS", "MAX_NS", "check_epoch", "sound_offsets"]

MAX_NS: Final = 2**62
"""Times are held within this, as the decoder of samples holds them."""
MAX_PPB: Final = 1e9
MAX_BOUND_NS: Final = 1e18
AHEAD_WINDOWS: Final = 1
"""Windows that a record may be ahead of the log's clock. Any number behind: a solver may be catching up."""
EPOCH_AHEAD_MS: Final = 86_400_000
"""By how much an epoch, which begins as ms since the Unix epoch on the log's clock, may be ahead of it: each
new owner counts one up."""


def check_epoch(record: Mapping[str, Any], append_ms: int) -> None:
    """Refuse the epoch of a `Decision` or `Fallbacks` that no owner of the policy can have had when the log
    took it. `append_ms`: 0 or less where that is not known. Raises BadRecord."""
    if append_ms > 0 and record["epoch"] > append_ms + EPOCH_AHEAD_MS:
        raise codec.BadRecord(
            "OUT_OF_RANGE", f"epoch {record['epoch']}, expected at most {append_ms + EPOCH_AHEAD_MS}"
        )


def sound_offsets(record: codec.Record, append_ns: int, window_ns: int) -> tuple[codec.Record, int]:
    """Return the record as it may be used, and how many of its clocks were left out. Raises BadRecord."""
    window, part, parts = record["window"], record["part"], record["parts"]
    latest = append_ns // window_ns + AHEAD_WINDOWS
    _expect(0 <= window <= latest, "window", window, f"0 to {latest}")
    _expect(0 <= part < parts, "part", part, f"0 to {parts - 1}, of {parts} parts")
    offset_ns = record["log_offset_ns"]
    _expect(abs(offset_ns) <= MAX_NS, "log_offset_ns", offset_ns, f"at most {MAX_NS} either way")
    start_ns = window * window_ns + offset_ns
    _expect(
        record["window_start_ns"] == start_ns, "window_start_ns", record["window_start_ns"], f"{start_ns}"
    )
    end_ns = start_ns + window_ns
    _expect(record["window_end_ns"] == end_ns, "window_end_ns", record["window_end_ns"], f"{end_ns}")
    clocks = [clock for clock in record["clocks"] if _sound_clock(clock)]
    left_out = len(record["clocks"]) - len(clocks)
    return ({**record, "clocks": clocks} if left_out else record), left_out


def _expect(right: bool, field: str, value: int, expected: str) -> None:
    if not right:
        raise codec.BadRecord("OUT_OF_RANGE", f"ClockOffsets.{field}: {value}, expected {expected}")


def _sound_clock(clock: Mapping[str, Any]) -> bool:
    return bool(
        abs(clock["at_ns"]) <= MAX_NS
        and abs(clock["offset_ns"]) <= MAX_NS
        and abs(clock["drift_ppb"]) <= MAX_PPB
        and 0 <= clock["bound_ns"] <= MAX_BOUND_NS
    )
