"""SQL queries over stored clock solutions: clock models as lines, and timestamps converted to fabric time."""

from __future__ import annotations

from typing import Final

from schemas.tables import CLOCKS, DATABASE


def clock_lines_sql(database: str = DATABASE) -> str:
    """Return a query for the clock models: straight lines of the clocks' correction.

    Bind `{since_ns:Int64}` and `{until_ns:Int64}`, fabric time: windows that overlap that span are used. A
    row is `shard`, `clock`, `from_ns` and `to_ns` (the clock's own readings, from inclusive, to exclusive),
    `from_offset_ns` (whole ns), `from_fraction_ns`, `slope` (ns per ns) and `bound_ns`. Fabric time at
    a reading c is c + from_offset_ns + from_fraction_ns + slope * (c - from_ns). Its error is below bound_ns
    99.9% of the time. Offsets are subtracted as integers: near 1.8e18 ns a double resolves only 256 ns.

    A line goes from a window's knot to the next window's, with the wider of the two bounds. If the next
    window has no knot (the clock stepped, or the window is still to come), a line goes from the knot to
    at_ns, and another from there to the window's end with the slope drift_ppb. A window without a knot begins
    at its at_ns. An UNSYNCED window has no line. If a clock was set back and showed a reading twice, the
    later line counts.
    """
    windows = f"{database}.{CLOCKS} FINAL"
    following = "OVER (PARTITION BY shard, clock ORDER BY window ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING)"
    has_next = "ahead > 0 AND synced_ahead"
    knot = "if(knot_at_ns > 0, (knot_at_ns, knot_offset_ns, knot_offset_fraction_ns, knot_bound_ns), "
    middle = "(at_ns, offset_ns, offset_fraction_ns, bound_ns)"
    knot += f"{middle})"
    half_ns = "intDiv(toUnixTimestamp64Nano(window_end) - toUnixTimestamp64Nano(window_start), 2)"
    end = (
        f"(at_ns + {half_ns}, offset_ns, offset_fraction_ns + drift_ppb * 1e-9 * {half_ns}, "
        f"bound_ns + {_DRIFT_SIGMAS} * drift_sigma_ppb * 1e-9 * {half_ns})"
    )
    ends = (
        f"if({has_next}, [({knot}, (ahead, offset_ahead, fraction_ahead, bound_ahead))], "
        f"if(knot_at_ns > 0, [({knot}, {middle}), ({middle}, {end})], [({middle}, {end})]))"
    )
    later = "OVER (PARTITION BY shard, clock ORDER BY window, line.1.1 ROWS BETWEEN 1 FOLLOWING AND "
    later += "UNBOUNDED FOLLOWING)"
    return (
        "SELECT shard, clock, from_ns, least(end_ns, if(later_ns > 0, later_ns, end_ns)) AS to_ns, "
        "from_offset_ns, from_fraction_ns, slope, bound_ns FROM ("
        "SELECT shard, clock, line.1.1 AS from_ns, line.2.1 AS end_ns, line.1.2 AS from_offset_ns, "
        "line.1.3 AS from_fraction_ns, "
        "((line.2.2 - line.1.2) + (line.2.3 - line.1.3)) / (line.2.1 - line.1.1) AS slope, "
        "greatest(line.1.4, line.2.4) AS bound_ns, "
        f"min(line.1.1) {later} AS later_ns "
        f"FROM (SELECT shard, clock, window, state, arrayJoin({ends}) AS line FROM ("
        f"SELECT *, leadInFrame(knot_at_ns) {following} AS ahead, "
        f"leadInFrame(knot_offset_ns) {following} AS offset_ahead, "
        f"leadInFrame(knot_offset_fraction_ns) {following} AS fraction_ahead, "
        f"leadInFrame(knot_bound_ns) {following} AS bound_ahead, "
        f"leadInFrame(toUInt8(state != 'UNSYNCED')) {following} AS synced_ahead FROM {windows} "
        "WHERE window_end > fromUnixTimestamp64Nano({since_ns:Int64}, 'UTC') "
        "AND window_start < fromUnixTimestamp64Nano({until_ns:Int64}, 'UTC'))"
        " WHERE state != 'UNSYNCED') WHERE line.2.1 > line.1.1) WHERE to_ns > from_ns"
    )


_DRIFT_SIGMAS: Final = 3.3
"""A normally distributed error is within this many standard errors 99.9% of the time."""


def retimed_sql(stamps: str, database: str = DATABASE) -> str:
    """Return a query that converts timestamps of any clock to fabric time.

    `stamps` is a table's name or a query in brackets. It has the columns `clock` (as in `Nic.clock`) and
    `reading_ns` (Int64, that clock's own reading). Bind `since_ns` and `until_ns` as in `clock_lines_sql`,
    around the stamps. The result has all columns of `stamps`, and also `correction_ns` (whole ns to add
    to the reading), `fabric_ns` (ns since the Unix epoch) and `bound_ns`. These are NULL if no line covers
    the reading.
    """
    covered = "from_ns > 0 AND reading_ns < to_ns"
    correction = "from_offset_ns + toInt64(round(from_fraction_ns + slope * (reading_ns - from_ns)))"
    return (
        f"SELECT stamps.*, if({covered}, {correction}, NULL) AS correction_ns, "
        "reading_ns + correction_ns AS fabric_ns, "
        f"if({covered}, bound_ns, NULL) AS bound_ns "
        f"FROM (SELECT * FROM {stamps}) AS stamps ASOF LEFT JOIN ({clock_lines_sql(database)}) AS lines "
        "ON stamps.clock = lines.clock AND stamps.reading_ns >= lines.from_ns"
    )
