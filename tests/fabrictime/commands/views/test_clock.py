"""`clock`: the table of a fleet, worst first, and the output for scripts."""

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from rich.console import Console

from fabrictime.commands.views import clock_table
from fabrictime.commands.views.clock_table import Wanted
from fabrictime.state.clocks import Fleet
from schemas import codec

ROOT = Path(__file__).resolve().parents[4]
S = 1_000_000_000
NOW = time.time_ns() // S * S
WINDOW = NOW // S


def state(name, **fields):
    return {
        "clock": name,
        "at_ns": NOW,
        "offset_ns": -1_234_567,
        "drift_ppb": 4_321.0,
        "bound_ns": 18.0,
        "state": "SYNCED",
        "pairs": 20,
        "residual_ns": 6.5,
        "drift_sigma_ppb": 0.4,
        "event": "NONE",
        "event_ns": 0.0,
        "knot_at_ns": 0,
        "knot_offset_ns": 0,
        "knot_bound_ns": 0.0,
        **fields,
    }


def offsets(clocks, window=WINDOW, **fields):
    return {
        "shard": "s0",
        "window": window,
        "part": 0,
        "parts": 1,
        "domain": "s0/0",
        "window_start_ns": (window - 1) * S,
        "window_end_ns": window * S,
        "log_offset_ns": 0,
        "solved_ns": window * S,
        "clocks": clocks,
        "reference": "ensemble",
        "suspects": [],
        **fields,
    }


def announced(nic, name):
    host, device = nic.split("/")
    return {
        "nic": nic,
        "host": host,
        "device": device,
        "shard": "s0",
        "rail": None,
        "rack": None,
        "addresses": ["10.0.0.1"],
        "probe_port": 9319,
        "clock": name,
        "stamp": "HARDWARE",
        "speed_bps": None,
        "mtu_bytes": None,
        "run": 1,
        "since_ns": 1,
        "announced_ns": NOW,
        "capabilities": [],
    }


SUSPECT = {"prober": "h1/eth0", "peer": "h2/eth1", "asymmetry_ns": -412.0, "sigma_ns": 3.5, "weight": 0.04}


def drawn(picture, wanted=None, width=200):
    console = Console(file=io.StringIO(), width=width)
    console.print(clock_table.draw(picture, wanted or Wanted()), highlight=False)
    return console.file.getvalue()


@pytest.fixture
def fleet():
    """Four clocks: one fine, one with a wide bound, one held, one lost; two windows."""
    made = Fleet()
    for number, name in enumerate(("h1/ptp0", "h2/ptp0", "h3/ptp0", "h10/ptp0")):
        for rail in range(2):
            nic = f"h{(1, 2, 3, 10)[number]}/eth{rail}"
            made.add_nic(nic, announced(nic, name), NOW)
    stepped = state("h2/ptp0", event="STEP", event_ns=1_500.0)
    made.add(offsets([state("h1/ptp0"), stepped], WINDOW - 3), NOW - 3 * S)
    made.add(
        offsets(
            [
                state("h1/ptp0"),
                state("h2/ptp0", bound_ns=90.0),
                state("h3/ptp0", state="HOLDOVER", bound_ns=700.0, pairs=0),
                state("h10/ptp0", state="UNSYNCED", bound_ns=1e9, event="FALSETICKER", event_ns=250.0),
            ],
            suspects=[SUSPECT],
        ),
        NOW,
    )
    return made


def test_the_worst_are_first_and_each_shows_its_last_event(fleet):
    found = fleet.picture(now_ns=NOW + 2 * S)
    assert [line.clock for line in found.clocks] == ["h10/ptp0", "h3/ptp0", "h2/ptp0", "h1/ptp0"]
    assert [line.event for line in found.clocks] == ["FALSETICKER", None, "STEP", None]
    assert (found.clocks[2].event_at_ns, found.clocks[2].nics) == ((WINDOW - 4) * S, 2)
    summary = found.summary()
    assert summary["bound_worst_clock"] == "h3/ptp0"
    assert (summary["bound_median_ns"], summary["bound_worst_ns"], summary["age_s"]) == (90.0, 700.0, 2.0)
    text = drawn(found)
    for fragment in (
        "4 clocks: 2 SYNCED, 1 HOLDOVER, 1 UNSYNCED",
        "error bound 90.0 ns in the median, worst 700 ns at h3/ptp0",
        "fabric time follows the ensemble of all clocks; 1 domain",
        "1 suspect pair; newest window 2.0 s ago",
        "STEP +1.50 us",
        "FALSETICKER 250 ns rms",
        "-1.23 ms",
        "+4.3210",
        "h1/eth0 > h2/eth1",
        "-412 ns",
        "4%",
    ):
        assert fragment in text, fragment
    in_holdover = next(row for row in text.splitlines() if row.startswith("h3/ptp0")).split()
    assert in_holdover[-3:] == ["0", "-", "-"], "no pair, so no residual"


def test_a_window_that_lacks_a_part_waits_for_it(fleet):
    fleet.add(offsets([state("h1/ptp0", bound_ns=5.0)], WINDOW + 1, parts=2), NOW + S)
    assert [line.window for line in fleet.picture().shards] == [WINDOW]
    fleet.add(offsets([state("h2/ptp0")], WINDOW + 1, part=1, parts=2, domain="s0/1"), NOW + S)
    found = fleet.picture()
    assert (found.shards[0].window, found.shards[0].domains) == (WINDOW + 1, ("s0/0", "s0/1"))
    assert "2 domains whose clocks cannot be compared" in drawn(found)


def test_a_nic_that_announces_itself_and_is_in_no_window_is_missed(fleet):
    fleet.add_nic("h7/eth0", announced("h7/eth0", "h7/ptp0"), NOW)
    found = fleet.picture(now_ns=NOW)
    assert (found.clocks[0].clock, found.clocks[0].state) == ("h7/ptp0", "ABSENT")
    assert "clock h7/ptp0: ABSENT, expected SYNCED" in found.wrong(None)
    later = fleet.picture(now_ns=NOW + 100 * S)
    assert "ABSENT" not in {line.state for line in later.clocks}, "it went away long ago"
    fleet.add_nic("h7/eth0", None, NOW)
    assert "h7/ptp0" not in {line.clock for line in fleet.picture(now_ns=NOW).clocks}


def test_clocks_and_hosts_are_chosen_by_name_or_pattern(fleet):
    assert [c.clock for c in fleet.picture(["h1/ptp0"]).clocks] == ["h1/ptp0"]
    assert [c.clock for c in fleet.picture(["h1*"]).clocks] == ["h10/ptp0", "h1/ptp0"]
    assert [c.clock for c in fleet.picture(hosts=["h3"]).clocks] == ["h3/ptp0"]
    assert len(fleet.picture(hosts=["h1"]).suspects) == 1
    assert fleet.picture(hosts=["h3"]).suspects == []
    nobody = fleet.picture(["nobody"])
    assert nobody.wrong(None) == ["no clock that is asked for is in a window, expected at least one"]
    assert "no clock matches the given names" in drawn(nobody)


def test_a_check_passes_only_where_all_are_synced_now_and_within_the_bound(fleet):
    at_once = fleet.picture(["h1/ptp0", "h2/ptp0"], now_ns=NOW)
    assert at_once.wrong(None) == []
    assert at_once.wrong(0.09) == []
    assert at_once.wrong(0.05) == ["clock h2/ptp0: bound 90.0 ns, expected at most 50.0 ns"]
    assert fleet.picture(["h3/ptp0"], now_ns=NOW).wrong(None) == ["clock h3/ptp0: HOLDOVER, expected SYNCED"]
    late = fleet.picture(["h1/ptp0"], now_ns=NOW + 60 * S)
    assert late.wrong(None) == ["shard s0: its newest window is 60 s old, expected at most 10 s"]


def test_an_empty_log_and_a_single_clock_are_explained():
    assert "no window of clocks in fabric.clock.offsets yet" in drawn(Fleet().picture())
    one = Fleet()
    one.add(offsets([state("h1/system", state="UNSYNCED", bound_ns=1e9, pairs=0)]), NOW)
    text = drawn(one.picture(now_ns=NOW))
    assert "1 clock: 1 UNSYNCED" in text
    assert "h1/system" in text


@pytest.mark.slow("solves 10,000 clocks")
def test_ten_thousand_clocks_are_a_summary_and_the_worst():
    fleet = Fleet()
    names = [f"h{number}/ptp0" for number in range(10_000)]
    for part in range(3):
        clocks = [
            state(name, bound_ns=10.0 + number) for number, name in enumerate(names) if number % 3 == part
        ]
        fleet.add(offsets(clocks, part=part, parts=3), NOW)
    found = fleet.picture(now_ns=NOW)
    lines = drawn(found).splitlines()
    assert lines[0].strip() == "10,000 clocks: 10,000 SYNCED"
    assert lines[6].startswith("h9999/ptp0")
    assert lines[-1].strip() == "and 9,980 more clocks, no worse than these; --all lists them"
    assert len(drawn(found, Wanted(worst=3)).splitlines()) == len(lines) - 17
    assert len(drawn(found, Wanted(everything=True)).splitlines()) > 10_000
    assert len(json.loads(clock_table.as_json(found))["clocks"]) == 10_000


# ---------------------------------------------------------------------------------------------- on a real log


def produce(log, topic, record, key, value):
    producer = Producer({"bootstrap.servers": log, "partitioner": "murmur2_random"})
    producer.produce(topic, codec.encode(record, value), key=key.encode())
    assert producer.flush(10) == 0


def command(log, *arguments):
    return [sys.executable, "-m", "fabrictime", "clock", *arguments, "--log", log]


def run(log, *arguments):
    return subprocess.run(
        command(log, *arguments),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_a_script_gets_json_and_exit_codes(log):
    empty = run(log)
    assert (empty.returncode, empty.stderr) == (0, "")
    assert "no window of clocks" in empty.stdout
    assert run(log, "--check").returncode == 1

    for name in ("h1", "h2"):
        produce(log, "fabric.inventory", "Nic", f"{name}/eth0", announced(f"{name}/eth0", f"{name}/ptp0"))
    for window in range(WINDOW - 3, WINDOW + 1):
        event = "STEP" if window == WINDOW - 2 else "NONE"
        clocks = [state("h1/ptp0"), state("h2/ptp0", bound_ns=40.0, event=event, event_ns=-2e6)]
        produce(
            log, "fabric.clock.offsets", "ClockOffsets", "s0/0", offsets(clocks, window, suspects=[SUSPECT])
        )
    done = run(log, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(row["clock"], row["event"], row["event_ns"]) for row in found["clocks"]] == [
        ("h2/ptp0", "STEP", -2e6),
        ("h1/ptp0", None, None),
    ]
    assert (found["summary"]["synced"], found["suspects"][0]["asymmetry_ns"]) == (2, -412.0)
    quiet = json.loads(run(log, "--json", "--since", "1ms").stdout)
    assert quiet["clocks"] == found["clocks"], "the last windows, however long ago"
    produce(
        log, "fabric.clock.offsets", "ClockOffsets", "s0/0", offsets(clocks, WINDOW + 1, suspects=[SUSPECT])
    )
    assert run(log, "--check", "--bound-us", "0.05").returncode == 0
    failed = run(log, "--check", "--bound-us", "0.03")
    assert failed.returncode == 1
    assert failed.stderr == "fabrictime: clock h2/ptp0: bound 40.0 ns, expected at most 30.0 ns\n"
    only = run(log, "h1*")
    assert "h1/ptp0" in only.stdout
    assert "h2/ptp0" not in only.stdout.replace("h1/eth0 > h2", "")


async def test_watching_prints_each_new_window_and_ends_calmly(log):
    watcher = await asyncio.create_subprocess_exec(
        *command(log, "--watch", "--json"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    await asyncio.wait_for(watcher.stdout.readline(), 30)
    for window in (WINDOW + 10, WINDOW + 11):
        produce(log, "fabric.clock.offsets", "ClockOffsets", "s0/0", offsets([state("h5/ptp0")], window))
        line = json.loads(await asyncio.wait_for(watcher.stdout.readline(), 30))
        assert (line["shards"][0]["window"], [c["clock"] for c in line["clocks"]][-1]) == (window, "h5/ptp0")
    watcher.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(watcher.wait(), 30) == 0
    assert await watcher.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "fabrictime: log 127.0.0.1:1: "),
        (("--bound-us", "3"), "fabrictime: --bound-us: expected with --check"),
        (("--check", "--watch"), "fabrictime: --check: expected without --watch"),
    ],
)
def test_an_impossible_request_is_one_line(arguments, line):
    done = run("127.0.0.1:1", *arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
