"""The live table of `up`: times as people read them, rates and clocks, on any terminal."""

import io

import pytest
from rich.console import Console

from fabrictime.commands.up.live_table import plain, table, time_text
from fabrictime.state.live_figures import NicView, View
from tests.records import make

READY = {"name": "log", "state": "ready", "pid": 1, "restarts": 0, "last_exit": None, "fault": None}


def drawn(view, rows, height=24):
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table(view, rows, "http://127.0.0.1:8480/", height))
    return console.export_text()


@pytest.mark.parametrize(
    ("worst", "short", "long"), [("forward", ">b/e 1", "a/e > b/e"), ("reverse", "<b/e 1", "b/e > a/e")]
)
def test_live_table_gives_the_worst_paths_direction(worst, short, long):
    view = View()
    path = {"peer": "b/e", "path": 1, "bound_ns": 5.0, "forward_p99_ns": 1e3, "reverse_p99_ns": 1e3}
    view.add("fabric.delays", {"nic": "a/e", "paths": [path | {f"{worst}_p99_ns": 2e3}]}, 0)
    view.nics["a/e"] = NicView(lost=1234)
    clock = {"at_ns": 0, "offset_ns": 0, "drift_ppb": 0.0, "bound_ns": 9.0, "state": "SYNCED"}
    clocks = [clock | {"clock": "a/e"}, clock | {"clock": "former/e", "state": "HOLDOVER"}]
    times = {"window_start_ns": 10**9, "window_end_ns": 2 * 10**9}
    offsets = make("ClockOffsets", window=1, clocks=clocks, **times)
    view.add("fabric.clock.offsets", offsets, 0)
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table(view, [], None, 24))
    printed = console.export_text()
    assert f"{short} 2.00 us" in printed
    assert f"worst path {long} path 1: p99 2.00 us" in printed
    assert "1,234 lost" in printed
    assert "1/1 clocks SYNCED, worst bound 9 ns" in printed  # not those of a fleet that was here before


@pytest.mark.parametrize(
    ("ns", "text"),
    [(None, "-"), (0, "0 ns"), (812, "812 ns"), (-4310, "-4.31 us"), (3e6, "3.000 ms"), (2.5e9, "2.500 s")],
)
def test_times_as_people_read_them(ns, text):
    assert time_text(ns) == text


def test_without_records_every_figure_is_a_dash():
    assert plain(View(), [READY]) == (
        "0 NICs, 0 probes/s, 0 lost, 0 of 0 clocks SYNCED, bound -, worst -, "
        "lag 0 messages, window to offsets -"
    )
    assert "1 of 1 processes ready" in drawn(View(), [READY])


@pytest.mark.parametrize(
    ("pace", "text"),
    [
        (1.0, "simulated in real time"),
        (0.6, "the simulation is slow: simulates 0.6 s per second; use fewer NICs (sim:2)"),
    ],
)
def test_a_simulated_fleet_shows_its_pace(pace, text):
    view = View()
    assert "simulat" not in plain(view, [READY]) + drawn(view, [READY])
    nic = make("Nic", nic="h1/eth1", shard="sim", probe_port=4791, simulation_pace=pace)
    view.add("fabric.inventory", nic, 0)
    assert text in plain(view, [READY])
    assert text in " ".join(drawn(view, [READY]).split())


def test_an_agent_alone_shows_its_services_and_reads_no_fleet():
    agent = {**READY, "name": "agent h1", "status": "7 peers, 28378 samples"}
    faulty = {**READY, "name": "act", "status": "", "fault": "no NIC"}
    line = plain(None, [agent, faulty], ("no clock window yet (stream worker or its topics gone?)",))
    assert line == (
        "agent h1: 7 peers, 28378 samples; act: ready; "
        "no clock window yet (stream worker or its topics gone?); act: no NIC"
    )
    assert drawn(None, [agent]).splitlines()[:2] == [
        "agent h1: 7 peers, 28378 samples",
        "1 of 1 processes ready",
    ]


def test_missing_evidence_is_named():
    missing = ("no fresh probe results for 12 s (probers stopped?)",)
    assert plain(View(), [READY], missing).endswith(f"; {missing[0]}")
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(table(View(), [READY], None, 24, missing))
    assert missing[0] in console.export_text()


def test_a_thousand_nics_fit_the_terminal_and_the_rest_is_counted():
    view = View()
    view.nics.update({f"h{number:03}/eth0": NicView() for number in range(1000)})
    lines = drawn(view, [READY]).splitlines()
    assert len(lines) <= 24
    assert "and 986 more NICs" in lines


def test_a_process_that_is_not_ready_or_was_restarted_is_named():
    ill = {**READY, "name": "web", "state": "waiting", "restarts": 2, "last_exit": "exit code 1"}
    assert plain(View(), [READY, ill]).endswith("; web waiting")
    assert "web waiting, pid 1, restarts 2, last exit code 1" in drawn(View(), [READY, ill])


def test_the_reason_of_a_fault_is_shown():
    reason = "h1/eth3: address 10.0.0.99 is not on this host"
    ill = {**READY, "name": "prober h1/eth3", "fault": reason}
    assert plain(View(), [READY, ill]).endswith(f"; prober h1/eth3: {reason}")
    assert f"prober h1/eth3 ready, {reason}" in drawn(View(), [READY, ill])
