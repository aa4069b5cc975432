"""What the live table reads: no more path delays than a share of one processor is enough for."""

from __future__ import annotations

import pytest

from fabrictime.state.live_figures import Share, View
from schemas.topics import CLOCK_OFFSETS, INVENTORY
from tests.fabrictime.evidence import clock_offsets
from tests.records import make

S = 1_000_000_000


def test_work_is_limited_to_its_share_of_the_time():
    """A thousand NICs' delays a second, 1.5 ms each: a fifth of the time goes into them, all along."""
    share, now_s, worked_s, done = Share(0.2), 0.0, 0.0, 0
    while now_s < 20:
        if share.open(now_s):
            now_s += 0.0015
            worked_s += 0.0015
            done += 1
            share.spent(now_s)
        else:
            now_s += 0.00001
    assert worked_s == pytest.approx(0.2 * 20 + 0.5, rel=0.05)
    assert done > 100


def test_a_small_fleet_is_read_whole():
    share, now_s = Share(0.2), 0.0
    for _ in range(20):
        for _ in range(64):
            assert share.open(now_s)
            now_s += 0.0015
            share.spent(now_s)
        now_s += 1 - 64 * 0.0015


@pytest.mark.parametrize(
    ("field", "by"),
    [("window", 1000), ("window_start_ns", -(2**40)), ("window_end_ns", 2**40), ("log_offset_ns", -(2**41))],
)
def test_a_window_with_times_of_another_number_changes_no_figure(field, by):
    """One mutated byte makes a window minutes old, which no pipeline was."""
    view = View()
    view.add(CLOCK_OFFSETS.name, clock_offsets(1000), 1001 * S + S // 5)
    assert view.late_ms == pytest.approx(200)
    right = clock_offsets(1001)
    view.add(CLOCK_OFFSETS.name, {**right, field: right[field] + by}, 1002 * S + S // 5)
    assert (view.late_ms, view.unreadable) == (pytest.approx(200), 1)


def test_windows_of_a_backlog_are_shown_as_late_as_they_are():
    view = View()
    for window, late_s in ((1000, 700), (1001, 699), (1002, 0.2)):
        view.add(CLOCK_OFFSETS.name, clock_offsets(window), (window + 1) * S + round(late_s * S))
        assert view.late_ms == pytest.approx(1000 * late_s)


def test_a_nic_with_a_tombstone_is_simulated_no_longer():
    view = View()
    nic = make("Nic", nic="h1/eth1", shard="sim", probe_port=4791, simulation_pace=0.5)
    view.add(INVENTORY.name, nic, 0)
    assert view.simulated.text
    view.remove_nic("h1/eth1")
    assert view.simulated.text == ""
