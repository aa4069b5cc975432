"""Stopping all actions: the order, the confirmations, the reverted actions, and the resumption."""

from __future__ import annotations

import itertools
import signal
import threading
import time

import pytest

from fabrictime.commands.config import live_config
from fabrictime.commands.config.live_config import LiveRecords
from fabrictime.commands.config.pause import pause, resume
from producers.sim.flow_endpoint import SimFlowEndpoint
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas.limits import Limits
from schemas.topics import ACTIONS, ACTUATORS, CONFIG, DECISIONS
from tests.actuators import desk

S = 1_000_000_000
_seqs = itertools.count()


def config(host="*", mode="ACT", **fields):
    return {"host": host, "version": 1, "at_ns": 0, "by": "t", "mode": mode, **fields}


def decision(flow_id, to_path, **fields):
    return desk.decision(next(_seqs), to_path=to_path, host=flow_id.split("/")[0], flow_id=flow_id, **fields)


@pytest.fixture
def fleet(tmp_path, start_act, log):
    """A simulated fleet with its flow endpoint, its actuator, and a function that runs it until a
    condition holds.
    """
    settings = SimSettings(nics=8, load=0.1, flows_per_nic=1, flow_s=80_000, rate_pps=0)
    run = Simulation(settings, start_ns=time.time_ns(), topics=())
    hosts = run.fleet.node_ids[: run.fleet.shape.hosts]
    log.put(CONFIG.name, "*", config(allowed_actions=list(live_config.ACTIONS)))
    act = start_act(*hosts)
    owner = SimFlowEndpoint(tmp_path / "c.sock", run)

    def until(condition, timeout_s=30):
        end = time.monotonic() + timeout_s
        while not (found := condition()):
            assert time.monotonic() < end
            owner.serve()
            owner.wait(0.01)
        return found

    yield run, act, until, owner
    owner.close()


def test_the_simulated_fleet_carries_out_moves_and_paces(fleet, log, read):
    run, _, until, owner = fleet
    flow, other, *_ = run.flows()
    before = flow.port
    log.put(DECISIONS.name, flow.flow_id.split("/")[0], decision(flow.flow_id, 55_555))
    paced = decision(other.flow_id, None, action="PACE", rate_bps=10**9)
    log.put(DECISIONS.name, paced["host"], paced)
    gone = decision(flow.flow_id.rpartition(":")[0] + ":9", 55_555)
    until(lambda: flow.port == 55_555 and other.limit_bps == 10**9)
    run.book.close(flow)
    run.note_flow(flow)
    late = decision(flow.flow_id, 55_556)
    until(lambda: owner._run is run and not run._flow_news)
    for each in (gone, late):
        log.put(DECISIONS.name, each["host"], each)
    actions = read(ACTIONS.name)
    reports = actions.until(lambda found: len(found) == 4)
    found = {(each["flow_id"], each["outcome"], each["how"]) for each in reports}
    assert (flow.flow_id, "APPLIED", "SIMULATED") in found
    assert [each["from_path"] for each in reports if each["to_path"] == 55_555] == [before]
    assert {each["outcome"] for each in reports} == {"APPLIED", "NO_FLOW"}


def test_pause_stops_actions_with_revert_undoes_them_and_resume_continues(fleet, log, read):
    run, _, until, _ = fleet
    flow = run.flows()[0]
    before, host = flow.port, flow.flow_id.split("/")[0]
    log.put(DECISIONS.name, host, decision(flow.flow_id, 55_555))
    until(lambda: flow.port == 55_555)
    live = LiveRecords(log.bootstrap)
    found = pause(live, revert=False)
    assert (found.missing, found.in_force, found.actuators) == ([], 1, 1)
    assert found.hosts == run.fleet.shape.hosts
    observed = decision(flow.flow_id, 55_556, config_version=live.records["*"]["version"])
    log.put(DECISIONS.name, host, observed)
    actions = read(ACTIONS.name)
    reports = actions.until(lambda all_: any(each["decision_id"] == observed["decision_id"] for each in all_))
    assert reports[-1]["outcome"] == "OBSERVED"
    assert flow.port == 55_555

    stopped = []
    thread = threading.Thread(target=lambda: stopped.append(pause(live, revert=True)))
    thread.start()
    until(lambda: stopped)
    thread.join()
    assert (stopped[0].missing, stopped[0].in_force, flow.port) == ([], 0, before)
    assert actions.until(lambda all_: all_[-1]["outcome"] == "REVERTED")
    assert resume(live).missing == []
    assert Limits.of(LiveRecords(log.bootstrap).records, host).act
    again = decision(flow.flow_id, 55_557, config_version=live.records["*"]["version"])
    log.put(DECISIONS.name, host, again)
    until(lambda: flow.port == 55_557)


def test_an_actuator_that_does_not_answer_is_named(fleet, log, read):
    _, act, _, _ = fleet
    read(ACTUATORS.name).until(len)
    live = LiveRecords(log.bootstrap)
    assert pause(live, revert=False).missing == []
    act.process.send_signal(signal.SIGSTOP)
    found = pause(live, revert=True, wait_s=0.5)
    act.process.send_signal(signal.SIGCONT)
    assert len(found.missing) == 1


def test_up_sets_act_only_without_an_existing_config(log):
    live_config.begin_acting(log.bootstrap, on_own_fabric=True)
    records = LiveRecords(log.bootstrap).records
    limits = Limits.of(records, "h1")
    assert (limits.act, limits.max_moved_share, limits.allowed) == (True, 1.0, {"REROUTE", "RESTORE"})
    live = LiveRecords(log.bootstrap)
    live.publish(live_config.changed(live.records["*"], "*", ["mode=OBSERVE"]))
    live_config.begin_acting(log.bootstrap, on_own_fabric=True)
    assert not Limits.of(LiveRecords(log.bootstrap).records, "h1").act
