"""Frames of the chart of contention windows as bars over time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from fabrictime.state.fabric_state import is_active
from fabrictime.state.labels import arrow
from schemas.records import ContentionWindow

MAX_ROWS: Final = 24
"""Largest number of links in the chart."""
MAX_BARS: Final = 1_500
ACTIVE_WEIGHT: Final = 1e18
"""Added to the weight of a link with an active or chosen window, so that it comes before all others."""

KINDS: Final = {
    "COLLISION": "collision in the fabric",
    "INCAST": "incast",
    "SLOW_SENDER": "slow sender",
    "SLOW_RECEIVER": "slow receiver",
    "PAUSE_STORM": "pause storm",
    "UNKNOWN": "kind unknown",
}

EVIDENCE: Final = {
    "DELAY": "waiting probes",
    "CE": "marked probes (CE)",
    "BOTH": "waiting and marked probes",
    "FLOWS": "flows that an end limits",
}
"""Text for each kind of evidence of a window."""


def span_of(window: ContentionWindow, now_ns: int) -> tuple[int, int]:
    """Return the start and the end of a window, ns. The end is now for an active window, else its closing
    time or last update.
    """
    end = now_ns if is_active(window, now_ns) else window["closed_ns"] or window["updated_ns"]
    return window["opened_ns"], max(end, window["opened_ns"])


def within(windows: Iterable[ContentionWindow], now_ns: int, span_ns: int) -> list[ContentionWindow]:
    """Return the windows that overlap the last `span_ns`, active ones first, then the newest."""
    overlapping = [window for window in windows if span_of(window, now_ns)[1] >= now_ns - span_ns]
    return sorted(overlapping, key=lambda window: (not is_active(window, now_ns), -int(window["opened_ns"])))


def bars_frame(
    windows: Sequence[ContentionWindow], now_ns: int, span_ns: int, chosen_id: str | None
) -> dict[str, Any]:
    """Return the chart's frame with one row per link, the link with the heaviest windows first. Times are in
    ms.

    A bar is [row, from, to, kind, severity in byte seconds, window id, active, largest depth in bytes].
    """
    weight: dict[str, float] = {}
    for window in windows:
        weight[window["link"]] = weight.get(window["link"], 0.0) + window["over_byte_s"]
        if is_active(window, now_ns) or window["window_id"] == chosen_id:
            weight[window["link"]] += ACTIVE_WEIGHT
    rows = sorted(weight, key=lambda link: (-weight[link], link))[:MAX_ROWS]
    index = {link: k for k, link in enumerate(rows)}
    begin_ns = now_ns - span_ns
    bars = []
    for window in [window for window in windows if window["link"] in index][:MAX_BARS]:
        opened_ns, end_ns = span_of(window, now_ns)
        bars.append(
            [
                index[window["link"]],
                max(opened_ns, begin_ns) // 1_000_000,
                end_ns // 1_000_000,
                window["kind"],
                window["over_byte_s"],
                window["window_id"],
                int(is_active(window, now_ns)),
                window["depth_peak_bytes"],
            ]
        )
    return {
        "from": begin_ns // 1_000_000,
        "to": now_ns // 1_000_000,
        "links": len(weight),
        "rows": [arrow(link) for link in rows],
        "bars": bars,
        "chosen": chosen_id or "",
    }
