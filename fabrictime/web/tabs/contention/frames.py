"""Contention windows as bars over time.

In: ContentionWindow records. Out: those of a span, the standing and heavier ones first, and a frame for the
browser's chart. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from fabrictime.state.fabric_state import Record, stands
from fabrictime.state.labels import arrow

LANES: Final = 24
BARS: Final = 1_500

KINDS: Final = {
    "COLLISION": "collision in the fabric",
    "INCAST": "incast",
    "SLOW_SENDER": "slow sender",
    "SLOW_RECEIVER": "slow receiver",
    "PAUSE_STORM": "pause storm",
    "UNKNOWN": "kind not told",
}


def span_of(window: Record, now_ns: int) -> tuple[int, int]:
    """Return when a window opened, and when it closed: now where it stands, else when it was last told."""
    end = now_ns if stands(window, now_ns) else window["closed_ns"] or window["updated_ns"]
    return window["opened_ns"], max(end, window["opened_ns"])


def within(windows: Iterable[Record], now_ns: int, span_ns: int) -> list[Record]:
    """Return the windows that meet the last `span_ns`: standing ones first, then the newest."""
    found = [each for each in windows if span_of(each, now_ns)[1] >= now_ns - span_ns]
    return sorted(found, key=lambda each: (not stands(each, now_ns), -int(each["opened_ns"])))


def bars(windows: Sequence[Record], now_ns: int, span_ns: int, chosen: str | None) -> dict[str, Any]:
    """Return the chart's frame: a lane a link, the heaviest first; times in ms.

    A bar: lane, from, to, kind, severity in byte seconds, window, whether it stands, deepest in bytes.
    """
    weight: dict[str, float] = {}
    for each in windows:
        weight[each["link"]] = weight.get(each["link"], 0.0) + each["over_byte_s"]
        if stands(each, now_ns) or each["window_id"] == chosen:
            weight[each["link"]] += 1e18  # standing ones are always drawn
    lanes = sorted(weight, key=lambda link: (-weight[link], link))[:LANES]
    place = {link: k for k, link in enumerate(lanes)}
    drawn: list[list[Any]] = []
    for each in windows:
        if each["link"] in place and len(drawn) < BARS:
            begin, end = span_of(each, now_ns)
            drawn.append(
                [
                    place[each["link"]],
                    max(begin, now_ns - span_ns) // 1_000_000,
                    end // 1_000_000,
                    each["kind"],
                    each["over_byte_s"],
                    each["window_id"],
                    int(stands(each, now_ns)),
                    each["depth_peak_bytes"],
                ]
            )
    return {
        "from": (now_ns - span_ns) // 1_000_000,
        "to": now_ns // 1_000_000,
        "links": len(weight),
        "lanes": [arrow(link) for link in lanes],
        "bars": drawn,
        "chosen": chosen or "",
    }


def clock_text(ns: int) -> str:
    """Return a time of day, with the date where it is another day's."""
    return f"{datetime.fromtimestamp(ns / 1e9, tz=UTC):%H:%M:%S}"
