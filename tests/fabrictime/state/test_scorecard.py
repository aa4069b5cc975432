"""The verdict on made-up runs: passes, failures, and offsets compared with the truth."""

import time

import pytest

from fabrictime.commands.up.live_table import plain, table, time_text, totals
from fabrictime.state.live_figures import ClockView, View
from fabrictime.state.scorecard import errors_ns, evaluate, lines, true_ns
from native.core.probe import TestClock

HISTORY = {"rows_last_10_s": 5, "ok": True}


def fits(window, **nics):
    return {
        "source": "fabric.probes/0",
        "window": window,
        "part": 0,
        "rejected": 0,
        "lag_messages": 2,
        "window_start_ns": window * 10**9,
        "window_end_ns": (window + 1) * 10**9,
        "nics": [
            {"nic": nic, "samples": samples, "lost": lost, "lost_batches": 0, "restarts": 0}
            for nic, (samples, lost) in nics.items()
        ],
    }


def offsets(window, **states):
    return {
        "shard": "fabric",
        "part": 0,
        "window": window,
        "log_offset_ns": 0,
        "window_start_ns": window * 10**9,
        "window_end_ns": (window + 1) * 10**9,
        "clocks": [
            {
                "clock": clock,
                "state": state,
                "at_ns": 10**18,
                "offset_ns": 0,
                "drift_ppb": 0.0,
                "bound_ns": 50.0,
            }
            for clock, state in states.items()
        ],
    }


@pytest.fixture
def view():
    made = View()
    made.add("fabric.clock.fits", fits(1, a=(90, 10), b=(100, 0)), 0)
    made.add("fabric.clock.offsets", offsets(1, a="SYNCED", b="SYNCED"), 2_200_000_000)
    return made


def verdict(view, nics=("a", "b"), **changes):
    given = {"readings": None, "history": HISTORY, "web": None, "faults": {}, **changes}
    return evaluate(view, nics, time.monotonic(), **given)


def test_a_good_run_passes(view):
    card = verdict(view)
    assert card["passed"]
    assert (card["probes"]["samples"], card["probes"]["lost"], card["probes"]["loss_share"]) == (
        190,
        10,
        0.05,
    )
    assert card["clocks"]["worst_bound_ns"] == 50
    assert not [line for line in lines(card) if line.startswith("FAIL")]


def test_a_record_that_comes_twice_counts_once(view):
    view.add("fabric.clock.fits", fits(1, a=(90, 10), b=(100, 0)), 0)
    assert verdict(view)["probes"]["samples"] == 190


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"nics": ("a", "b", "c")}, "probes"),
        ({"history": {"rows_last_10_s": 0, "ok": False, "error": "HTTP 500"}}, "history"),
    ],
)
def test_a_missing_figure_fails(view, changes, part):
    card = verdict(view, **changes)
    assert not card["passed"]
    assert not card[part]["ok"]
    assert [line for line in lines(card) if line.startswith(f"FAIL  {part}")]


@pytest.mark.parametrize("state", ["HOLDOVER", "UNSYNCED"])
def test_a_clock_that_is_not_synced_fails(view, state):
    view.add("fabric.clock.offsets", offsets(2, b=state), 0)
    card = verdict(view)
    assert not card["passed"]
    assert card["clocks"]["synced"] == 1


def test_nothing_at_all_does_not_pass():
    assert not verdict(View(), nics=())["passed"]


def test_a_silent_prober_fails(view):
    late = evaluate(
        view, ["a", "b"], time.monotonic() + 60, readings=None, history=HISTORY, web=None, faults={}
    )
    assert not late["passed"]


def test_time_of_a_reading_is_found_again():
    clock = TestClock(offset_ns=-3_000_000, drift_ppb=900_000.0, epoch_ns=10**18)
    moment = 10**18 + 3600 * 10**9
    assert true_ns(clock.reading, clock.reading(moment)) == pytest.approx(moment, abs=2)


def test_errors_leave_out_the_common_shift_of_all_clocks():
    """Fabric time a millisecond ahead of the machine's clock is no clock's error."""
    truth = {
        name: TestClock(offset_ns=off, epoch_ns=10**18) for name, off in (("a", 500), ("b", -70), ("c", 9))
    }
    published = {
        name: ClockView(clock.reading(10**18), -clock.offset_at(10**18) + 1e6 + wrong, 0, 50, "SYNCED", 1, 0)
        for (name, clock), wrong in zip(truth.items(), (0, 0, 33), strict=True)
    }
    found = errors_ns(published, {name: clock.reading for name, clock in truth.items()})
    assert found == {"a": 0, "b": 0, "c": 33}


def test_live_table_draws_empty_and_full(view):
    from rich.console import Console

    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    rows = [
        {
            "name": "log",
            "pid": 1,
            "state": "ready",
            "restarts": 1,
            "last_exit": "killed by SIGKILL",
            "fault": None,
        }
    ]
    with console.file:
        console.print(table(View(), [], None, 24))
        console.print(table(view, rows, "http://x/", 24))
    drawn = console.export_text()
    assert "SYNCED" in drawn
    assert "log ready, pid 1, restarts 1, last killed by SIGKILL" in drawn
    assert "http://x/" in drawn
    assert "2 of 2 clocks SYNCED" in plain(view, rows)
    assert totals(view).late_ms == pytest.approx(200)


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "-"), (812.4, "812 ns"), (4310, "4.31 us"), (-3e6, "-3.000 ms"), (2.5e9, "2.500 s")],
)
def test_times_are_short_to_read(ns, text):
    assert time_text(ns) == text


def test_a_service_that_does_not_work_fails_the_run_and_is_named(view):
    fault = "h1/eth3: address 10.0.0.99 is not on this host"
    card = verdict(view, faults={"prober h1/eth3": fault})
    assert not card["passed"]
    assert f"FAIL  service  prober h1/eth3: {fault}" in lines(card)
