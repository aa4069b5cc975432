"""The simulated fleet: valid records, delays and faults as the truth says, the same for the same seed."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from producers.sim.settings import JobSettings, SimSettings
from producers.sim.simulation import EPOCH_NS, Simulation
from schemas import codec
from schemas.topics import FLOW_ROUTES, FLOWS, INVENTORY, LINKS, PATHS, PROBE_SCHEDULES, PROBES, TRUTH


def settings(**more):
    return SimSettings(**{"nics": 16, "load": 0.0, "rate_pps": 2000, **more})


def by_topic(run, seconds):
    found = defaultdict(list)
    for out in run.advance(seconds):
        found[out.topic].append(out)
    return found


def test_every_message_is_valid_and_times_do_not_run_back_within_a_tick():
    run = Simulation(
        settings(
            load=0.3,
            flow_s=0.5,
            jobs=[JobSettings(name="train", nics=8)],
            faults=(
                "blackhole leaf1>spine1 after 300ms for 200ms",
                "down h1 after 500ms",
                "incast 5 h3/eth1",
            ),
        )
    )
    found = by_topic(run, 1.2)
    assert set(found) == {PROBES, INVENTORY, PATHS, LINKS, FLOWS, FLOW_ROUTES, TRUTH}
    for outs in found.values():
        for out in outs:
            out.record()
            out.value()
    assert all(out.at_ns >= EPOCH_NS for outs in found.values() for out in outs)
    assert {out.record()["kind"] for out in found[LINKS]} == {"PROBE", "CARRIER"}
    routes = [path for out in found[LINKS] for path in out.record().get("paths", ())]
    assert all(path["delayed"] == path["late"] <= path["answered"] for path in routes), "taken back twice"


def test_same_seed_same_bytes():
    def run(seed):
        job = JobSettings(name="a", nics=6, kind="alltoall")
        given = settings(seed=seed, load=0.3, flow_s=0.2, jobs=[job], faults=("grey 20% leaf1>spine2",))
        return [(out.topic.name, out.key, out.at_ns, out.value()) for out in Simulation(given).advance(0.5)]

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_schedules_are_followed_on_the_nics_own_clock_until_its_rate_changes():
    run = Simulation(settings(clock_drift_max_ppb=200, clock_wander_ppb_per_sqrt_s=0))
    nic = run.fleet.nic_ids[3]
    found = by_topic(run, 0.1)
    announced = next(out.record() for out in found[INVENTORY] if out.key == nic)
    assert (announced["slot_ns"], announced["slot_probes"]) == run.probes.pace == (1_000_000, 1)
    peers = sorted({peer for out in found[PROBES] if out.key == nic for peer in out.columns().peers})[:3]
    clock = run.clocks[3]
    record = {
        "nic": nic,
        "shard": "sim",
        "planned_ns": 0,
        "begin_ns": run.now_ns - 7_300_000,
        "slot_ns": 1e6,
        "probes_per_slot": 1,
        "clock_at_ns": EPOCH_NS,
        "offset_ns": -float(clock["offset_ns"]),
        "drift_ppb": -float(clock["drift_ppb"]),
        "peers": [*peers, "nobody/eth1"],
        "peer": [0, 1, 2, 3],
        "path": [9321, 9322, 9320, 9320],
    }
    run.probes.follow_schedule(
        codec.decode(codec.encode(PROBE_SCHEDULES.record, record), PROBE_SCHEDULES.record)
    )
    begin_ns = run.now_ns
    probes = [out.columns() for out in by_topic(run, 0.5)[PROBES] if out.key == nic]
    sent: dict[tuple[str, int], list[float]] = defaultdict(list)
    for batch in probes:
        for at, (peer, path) in enumerate(zip(batch.peers, batch.path.tolist(), strict=True)):
            stamps = batch.sent[batch.start[at] : batch.start[at + 1] : 2]
            offset_ns = clock["offset_ns"] + clock["drift_ppb"] * 1e-9 * (stamps - EPOCH_NS)
            sent[peer, path] += [t for t in (stamps - offset_ns).tolist() if t >= begin_ns + 2e6]
    laid = list(zip(peers, [9321, 9322, 9320], strict=True))
    for slot, route in enumerate(laid):
        late = [(t - record["begin_ns"] - slot * 1e6) % 4e6 for t in sent[route]]
        in_slot = [each for each in late if -100 <= each <= 0.5e6 + 100]
        assert len(in_slot) >= 100, "each fourth of some 490 slots, less those not flushed"
    assert sum(len(times) for times in sent.values()) == pytest.approx(450, abs=50)
    assert sum(len(times) for route, times in sent.items() if route not in laid) > 80, (
        "the fourth slot is free"
    )
    with pytest.raises(ValueError, match=f"probe schedule of {nic}: 2 paths per slot, expected 1 to 1"):
        run.probes.follow_schedule(record | {"probes_per_slot": 2})
    run.probes.follow_schedule(record | {"nic": "elsewhere/eth1"})


def test_idle_delays_are_those_of_the_links_and_clocks():
    """Without traffic and noise: stamps are the path's own delay on the NICs' own clocks."""
    run = Simulation(
        settings(
            stamp_noise_ns=0,
            stamp_step_ns=1,
            clock_drift_max_ppb=200,
            clock_wander_ppb_per_sqrt_s=0,
            flush_ms=100,
        )
    )
    fleet = run.fleet
    worst = 0.0
    for out in by_topic(run, 0.3)[PROBES]:
        columns = out.columns()
        nic = fleet.nic_index[columns.nic]
        peers = [fleet.nic_index[peer] for peer in columns.peers]
        there, back = fleet.round_trips([nic] * len(peers), peers, columns.path)
        sizes = np.diff(columns.start)
        for g, peer in enumerate(peers):
            at = columns.sent[columns.start[g] : columns.start[g + 1]]
            ahead = [
                run.clocks[p]["offset_ns"] + run.clocks[p]["drift_ppb"] * 1e-9 * (at - EPOCH_NS)
                for p in (nic, peer)
            ]
            theta = ahead[1] - ahead[0]
            base = [fleet.base_delay_ns(paths, run.settings.probe_bytes)[g] for paths in (there, back)]
            part = slice(int(columns.start[g]), int(columns.start[g + 1]))
            worst = max(
                worst,
                np.abs(columns.forward[part] - theta - base[0]).max(),
                np.abs(columns.reverse[part] + theta - base[1]).max(),
            )
        assert sizes.sum() == len(columns.sent)
    assert worst < 3  # rounding, and what clocks gain in 5 ms: their reading is taken for true time


def test_a_blackhole_loses_only_packets_that_cross_it():
    run = Simulation(settings(nics=16, faults=("blackhole leaf1>spine2",)))
    (dead,) = [
        run.fleet.link_index[name]
        for name in run.fleet.link_ids
        if name.startswith("leaf1:") and ">spine2:" in name
    ]
    lost, answered = set(), set()
    for out in by_topic(run, 0.5)[LINKS]:
        record = out.record()
        for path in record["paths"]:
            at = (record["nic"], path["peer"], path["path"])
            (lost if path["lost"] else answered).add(at)
            if path["lost"]:
                assert path["answered"] == 0
                assert path["loss_streak"] > 0
                assert path["last_lost_age_ns"] >= path["timeout_ns"]
    crossing = set()
    nic, peer, port = run.probes._group
    for g in range(len(nic)):
        if any(dead in leg.of(g) for leg in run.probes.legs):
            crossing.add((run.fleet.nic_ids[nic[g]], run.fleet.nic_ids[peer[g]], int(port[g])))
    assert lost == crossing
    assert answered
    assert not answered & crossing
    event = run.faults[0]
    assert run.fleet.link_ids[event.target.links[0]] == run.fleet.link_ids[dead]


def test_losses_are_published_at_once():
    run = Simulation(settings(faults=("blackhole leaf1>spine1 after 100ms",)))
    first = next(out for out in by_topic(run, 0.3)[LINKS] if any(p["lost"] for p in out.record()["paths"]))
    fault_ns = run.faults[0].begin_ns
    assert (
        2_000_000 <= first.at_ns - fault_ns < 12_000_000
    )  # the first probe after it, and its time-out of 2 ms


def test_down_is_seen_by_the_host_itself_and_paths_are_traced_again():
    run = Simulation(
        settings(faults=("down leaf1>spine1 after 100ms", "down h2/eth1 after 200ms"), retrace_s=0.1)
    )
    found = by_topic(run, 0.6)
    carriers = [out.record() for out in found[LINKS] if out.record()["kind"] == "CARRIER"]
    assert [(record["nic"], record["carrier"]) for record in carriers] == [("h2/eth1", False)]
    newest = {out.key: out.record() for out in found[PATHS]}
    gone = run.fleet.link_ids[run.faults[0].target.links[0]]
    assert any(path["changes"] for record in newest.values() for path in record["paths"])
    assert not any(gone in path["links"] for record in newest.values() for path in record["paths"])
    run.clear(1)
    back = [
        path for out in by_topic(run, 0.3)[PATHS] for path in out.record()["paths"] if path["changes"] == 2
    ]
    assert back


def test_a_flap_repeats_as_configured():
    run = Simulation(settings(faults=("flap 3 leaf1>spine1 every 100ms",)))
    by_topic(run, 0.5)
    (fault,) = run.faults
    assert [round((up - down) / 1e6) for down, up in fault.downs] == [50, 50, 50]
    assert fault.end_ns == fault.downs[-1][1]


def test_dead_host_falls_silent_and_a_dead_nic_is_still_reported():
    run = Simulation(settings(load=0.1))
    run.fault("dead h1")
    run.fault("dead h2/eth1")
    found = by_topic(run, 1.1)
    assert not [out for out in found[PROBES] if out.key == "h1/eth1"]
    assert not [out for out in found[FLOWS] if out.key == "h1"]
    rows = [
        path for out in found[LINKS] if out.record()["nic"] == "h2/eth1" for path in out.record()["paths"]
    ]
    assert rows
    assert not sum(path["answered"] for path in rows)


@pytest.mark.parametrize(
    ("line", "kind", "link"),
    [
        ("incast 8 h1/eth1", "INCAST", "leaf1:swp1>h1:eth1"),
        ("slow-receiver 10% h1/eth1", "SLOW_RECEIVER", "leaf1:swp1>h1:eth1"),
        ("slow-sender 10% h1/eth1", "SLOW_SENDER", "h1:eth1>leaf1:swp1"),
        ("pause-storm h1/eth1", "PAUSE_STORM", "leaf1:swp1>h1:eth1"),
    ],
)
def test_contention_is_published_with_its_kind_and_end(line, kind, link):
    run = Simulation(settings(load=0.3))
    for flow in run.flows():
        run.book.close(flow)
    for source, destination in ((0, 9), (5, 0)):
        run.book.open(source, destination, 50_000, demand_bps=2e11)
    run.fault(f"{line} after 200ms for 400ms")
    truth = [out.record() for out in by_topic(run, 2)[TRUTH]]
    windows = {
        (c["link"], c["kind"], c["begin_ns"]): c["end_ns"] for record in truth for c in record["contention"]
    }
    assert {key[:2] for key in windows} >= {(link, kind)}
    if kind != "PAUSE_STORM":
        assert {key[:2] for key in windows} == {(link, kind)}
    begin, end = next((key[2], end) for key, end in windows.items() if key[:2] == (link, kind))
    assert abs(begin - EPOCH_NS - 200_000_000) <= 30_000_000
    assert abs(end - EPOCH_NS - 600_000_000) <= 60_000_000


def test_flow_reports_add_up_and_decisions_are_obeyed():
    run = Simulation(settings(load=0.2, flow_s=1000))
    found = by_topic(run, 2)
    whole = [out.record() for out in found[FLOWS] if out.record()["whole"]]
    rows = [row for record in whole for row in record["flows"] if row["interval_ns"] >= 990_000_000]
    assert rows
    assert all(
        row["rate_bps"] == pytest.approx(4e10, rel=1e-3) for row in rows
    )  # 0.2 of 400 Gbit/s in two flows
    one, other = run.flows()[:2]
    run.set_flow_rate(one.flow_id, 1e9)
    before = list(other.hops)
    run.set_flow_path(
        other.flow_id,
        next(
            port
            for port in range(50_000, 60_000)
            if run.fleet.paths(other.source, other.destination, port, 4791).of(0).tolist()
            != other.links.tolist()
        ),
    )
    by_topic(run, 1)
    rows = {row["flow_id"]: row for out in by_topic(run, 1)[FLOWS] for row in out.record()["flows"]}
    assert rows[one.flow_id]["rate_bps"] == pytest.approx(1e9, rel=1e-3)
    assert rows[one.flow_id]["rate_limit_bps"] == 10**9
    assert rows[other.flow_id]["links"] != before
    with pytest.raises(ValueError, match="no such open flow"):
        run.set_flow_rate("h1/x/qp:eth1:1:1", 1e9)


def test_a_job_waits_for_its_slowest_flow():
    """A ring on one leaf, where nothing collides: line rate; then one of its flows held to a tenth."""
    job = JobSettings(name="train", kind="allreduce", nics=4, bytes=1e8, compute_ms=1, placed="packed")
    run = Simulation(settings(jobs=[job]))
    alone = [row["time_ns"] for out in by_topic(run, 1)[TRUTH] for row in out.record()["jobs"]]
    ideal_ns = 2 * 3 / 4 * 1e8 * 8e9 / 4e11
    assert np.median(alone) == pytest.approx(ideal_ns, rel=0.1)
    run.set_flow_rate(run.flows()[0].flow_id, 4e10)
    by_topic(run, 0.1)
    limiting = [row["time_ns"] for out in by_topic(run, 1.9)[TRUTH] for row in out.record()["jobs"]][-3:]
    assert np.median(limiting) == pytest.approx(10 * ideal_ns, rel=0.1)


def test_alltoall_moves_every_byte_between_every_two():
    job = JobSettings(name="moe", kind="alltoall", nics=6, bytes=1e7, compute_ms=0)
    run = Simulation(settings(jobs=[job]))
    assert len(run.flows()) == 6 * 5
    by_topic(run, 1)
    (state,) = run.job_state()
    sums, _ = run.kernel.flow_sums()
    each = sums[[flow.number for flow in run.flows()], 0] / (1e7 / 5)
    assert state["iterations"] > 10
    assert (np.floor(each + 1e-6) - state["iterations"] <= 1).all()
    assert (each >= state["iterations"] - 1e-6).all()


def test_an_alltoall_within_rails_stays_within_them_and_apart_jobs_share_no_nic():
    jobs = [
        JobSettings(
            name=name, kind="rail-alltoall", nics=128, bytes=1e8, compute_ms=0, placed="apart", connections=2
        )
        for name in ("a", "b")
    ]
    run = Simulation(settings(nics=256, rate_pps=0, jobs=jobs), topics=())
    nics = {name: {flow.source for flow in run.flows() if flow.job == name} for name in ("a", "b")}
    assert len(nics["a"]) == len(nics["b"]) == 128
    assert not nics["a"] & nics["b"]
    rail = run.fleet.nic_rail
    assert all(rail[flow.source] == rail[flow.destination] for flow in run.flows())
    assert len(run.flows()) == 2 * 128 * 15 * 2
    for _ in range(20):
        run.tick()
    assert all(job["iterations"] > 2 for job in run.job_state())
    third = JobSettings(name="c", kind="rail-alltoall", nics=16, placed="apart")
    with pytest.raises(ValueError, match="job c: 16 NICs apart from other jobs"):
        Simulation(settings(nics=256, rate_pps=0, jobs=[*jobs, third]), topics=())


def test_flowlets_take_any_route_and_have_no_trace():
    job = JobSettings(name="moe", kind="alltoall", nics=8, bytes=1e8, compute_ms=2)
    one, other = (Simulation(settings(nics=64, jobs=[job], flowlet_us=us)) for us in (0, 64))
    for run in (one, other):
        for _ in range(30):
            run.tick()
    carried = [int((run.kernel.link_sums()[3][2 * 64 :] > 0).sum()) for run in (one, other)]
    assert carried[1] > carried[0], "more links than where each flow keeps its way"
    assert all(flow.hops for flow in one.flows())
    assert not any(flow.hops for flow in other.flows())


def test_decisions_name_flows_that_are_open():
    run = Simulation(settings(load=0.1))
    flow_id = run.flows()[0].flow_id
    for call, message in (
        (lambda: run.set_flow_path(flow_id, 0), "port 0, expected 1 to 65535"),
        (lambda: run.set_flow_rate(flow_id, 0), "0 bit/s, expected above 0"),
        (lambda: run.fault("grey 20% leaf99>spine1"), "expected a link such as leaf1>spine1"),
        (lambda: run.fault("incast 99 h1/eth1"), "incast 99: expected fewer senders"),
        (lambda: run.clear(7), "fault 7: expected one in force"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
