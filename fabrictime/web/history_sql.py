"""SQL fragments and value conversions that the history queries of all tabs share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from fabrictime.web.history_client import History

Direction = Literal["forward", "reverse"]
"""Forward: from the prober to its peer."""

SECOND_NS = 1_000_000_000

MAX_BOUND_RTTS = 20
"""A one-way delay with an error bound above this many round trips is unknown. This is normal while clocks
start from the hosts' system clocks."""

SINCE = "window_start >= fromUnixTimestamp64Nano({since_ns:Int64}, 'UTC')"
UNTIL = "window_start < fromUnixTimestamp64Nano({until_ns:Int64}, 'UTC')"
START = "toUnixTimestamp64Nano(window_start)"
END = "toUnixTimestamp64Nano(window_end)"
# A window belongs to the step that contains its middle: its ends lie near a step's edge, and jitter.
MIDDLE = f"intDiv({START} + {END}, 2)"
STEP = f"intDiv({MIDDLE}, {{step_ns:Int64}}) * {{step_ns:Int64}}"
# The offset of the window nearest to the step's middle, extrapolated to the middle by its drift. An
# incomplete step and one with missing windows thus have the same value as a full one.
_TO_MIDDLE = f"({{step_ns:Int64}} - 2 * positiveModulo({MIDDLE}, {{step_ns:Int64}})) / 2"
_AT_MIDDLE = f"argMin((offset_ns, offset_fraction_ns + drift_ppb * 1e-9 * {_TO_MIDDLE}), abs({_TO_MIDDLE}))"
# Whole ns and the rest: a double holds the offset of a clock that counts from power-on to 256 ns only.
MIDDLE_OFFSET = f"tupleElement({_AT_MIDDLE}, 1)"
MIDDLE_REST = f"tupleElement({_AT_MIDDLE}, 2)"


def unknown_delay(rtt: str) -> str:
    """Return the condition that a row's one-way delay is unknown. `rtt` is the round-trip column."""
    return f"ifNull(bound_ns > {MAX_BOUND_RTTS} * {rtt}, 0)"


def rows(history: History, sql: str, **parameters: Any) -> Iterator[tuple[Any, ...]]:
    """Return the rows of a query."""
    return zip(*history.columns(sql, parameters), strict=True)


def to_float(value: Any) -> float | None:
    """Return a float, or None for NULL and NaN."""
    return None if value is None or value != value else float(value)


def to_int(value: Any) -> int | None:
    """Return an int, or None for NULL."""
    return None if value is None else int(value)
