"""The simulated fleet: valid records, delays and faults as the truth says, the same for the same seed."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from producers.sim.settings import JobSettings
from producers.sim.simulation import EPOCH_NS, EVERYTHING, Simulation
from schemas import codec
from schemas.topics import INVENTORY, LINKS, PROBE_SCHEDULES, PROBES
from tests.producers.sim.small_simulation import by_topic, settings


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
    assert set(found) == {*EVERYTHING}
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


def test_losses_are_published_at_once():
    run = Simulation(settings(faults=("blackhole leaf1>spine1 after 100ms",)))
    first = next(out for out in by_topic(run, 0.3)[LINKS] if any(p["lost"] for p in out.record()["paths"]))
    fault_ns = run.faults[0].begin_ns
    assert (
        2_000_000 <= first.at_ns - fault_ns < 12_000_000
    )  # the first probe after it, and its time-out of 2 ms


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
