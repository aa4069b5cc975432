"""Queues of the last minute."""

from __future__ import annotations

from typing import Any

import pytest

from fabrictime.state import queue_history
from fabrictime.state.fabric_state import FabricState
from fabrictime.web.tabs.fabric import frames as fabric_frames
from tests.fabrictime.fill import fill, number_of

S = 1_000_000_000


def test_only_the_last_minute_of_a_queue_is_kept(state: FabricState, fabric: Any) -> None:
    link, idle = fabric.up("leaf1", 1), fabric.up("leaf1", 2)
    start = fabric.now_ns // S * S
    for second in range(100):
        depth = {link: {"depth_mean_bytes": 1_000.0 * second, "depth_max_bytes": 2_000.0 * second}}
        if second < 50:
            depth[idle] = {"utilisation": None, "utilisation_bound": None}
        fill(state, ("fabric.queues", "fabric", fabric.queues(depth, start + second * S)))
    number = number_of(state, link)
    series = state.queues.series(number)
    assert 60 <= len(series.at_ns) <= 66
    assert series.at_ns[-1] == start + 99 * S + S // 2
    assert (series.mean_bytes[-1], series.max_bytes[-1]) == (99_000.0, 198_000.0)
    newest = state.queues.newest(number)
    assert newest is not None
    assert newest.delay_ns(newest.mean_bytes) == pytest.approx(792_000)
    assert state.queues.newest(number_of(state, idle)) is None, "the last window is 50 s old"
    fill(state, ("fabric.queues", "fabric", fabric.queues({link: {"depth_mean_bytes": 7.0}}, start)))
    assert state.queues.newest(number) == newest, "an old window, read a second time"
    frame = fabric_frames.minute_frame(state, number)
    assert frame["to"] - frame["from"] == 60_000
    assert frame["directions"][0]["load"][-1] == 5.0


def test_points_of_queues_are_bounded(state: FabricState, fabric: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(queue_history, "MAX_POINTS", 500)
    depth = {link: {} for link in fabric.links()}
    for second in range(60):
        fill(state, ("fabric.queues", "fabric", fabric.queues(depth, (1_000 + second) * S)))
    assert 9 <= len(state.queues.series(number_of(state, fabric.up("leaf1", 1))).at_ns) <= 11


def test_the_shard_with_the_longest_slots_counts_until_its_records_are_old(
    state: FabricState, fabric: Any
) -> None:
    link, at = fabric.up("leaf1", 1), 1_000 * S
    assert state.queues.fold == 1

    def block(shard: str, fold: int, start_ns: int) -> None:
        made = fabric.queues({link: {}}, start_ns) | {
            "shard": shard, "fold": fold, "slot_ns": fold * 1_000_000, "slots": 10,
        }  # fmt: skip
        fill(state, ("fabric.queues", shard, made))

    block("a", 4, at)
    block("b", 1, at)
    assert state.queues.fold == 4
    fill(state, ("fabric.queues", "a", fabric.queues({link: {}}, at)))
    assert state.queues.fold == 4, "whole seconds have no slots to combine"
    block("b", 2, at + 10 * S)
    assert state.queues.fold == 2, "the other shard has not been measured for 10 s"
    block("b", 8, at + 9 * S)
    assert state.queues.fold == 2, "an older block, read a second time"
    block("b", 1, at + 11 * S)
    assert state.queues.fold == 1
