"""Contention windows as bars."""

from __future__ import annotations

from typing import Any

from fabrictime.state import fabric_state
from fabrictime.state.fabric_state import FabricState
from fabrictime.state.labels import arrow
from fabrictime.web.tabs.contention import frames
from tests.fabrictime.fill import fill

S = 1_000_000_000


def test_contention_is_drawn_by_link_active_and_heaviest_first(state: FabricState, fabric: Any) -> None:
    now = fabric.now_ns
    heavy, light, gone = fabric.up("leaf1", 1), fabric.up("leaf1", 2), fabric.up("leaf1", 3)
    closed = {"state": "CLOSED", "closed_ns": now - 60 * S, "opened_ns": now - 90 * S}
    for link, fields in (
        (light, {"over_byte_s": 5.0}),
        (heavy, {"over_byte_s": 9e9, **closed}),
        (gone, {**closed, "closed_ns": now - 2_000 * S, "opened_ns": now - 2_001 * S}),
    ):
        fill(state, ("fabric.contention", link, fabric.contention(link, **fields)))
    windows = frames.within(state.contention.values(), now, 900 * S)
    assert [each["link"] for each in windows] == [light, heavy]
    frame = frames.bars_frame(windows, now, 900 * S, None)
    assert frame["rows"] == [arrow(light), arrow(heavy)]
    row, begin, end, kind, *_ = frame["bars"][1]
    assert (row, kind, end - begin) == (1, "COLLISION", 30_000)
    assert [each["link"] for each in state.open_contention(now)] == [light]
    later = now + fabric_state.MAX_SILENCE_NS + S
    assert list(state.open_contention(later)) == [], "no update: its worker may have stopped"
    _, end = frames.span_of(next(iter(state.contention.values())), later)
    assert end == now
