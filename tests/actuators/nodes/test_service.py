"""The drain service as a process, with a real log and a real Slurm: kills lose no drain and repeat none."""

import random
import time

import pytest

from fabrictime.audit.node_log import read_repairs
from fabrictime.bench._pipeline import Service
from fabrictime.commands.config.live_config import PLAIN
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import ActMode, FlowAction
from schemas.topics import ACTIONS, AUDIT, CONFIG
from tests.actuators.audit_results import run_of
from tests.actuators.slurm_cluster import slurm_of
from tests.waiting import wait_until

NODES = tuple(f"n{number}" for number in range(1, 9))
ACT = {**PLAIN, "mode": ActMode.ACT, "allowed_actions": [FlowAction.DRAIN, FlowAction.RESUME], "version": 1}


@pytest.fixture(scope="module")
def slurm():
    with slurm_of(*NODES) as found:
        yield found


class Fleet:
    """A log with audits, the service as a process, and what both hold."""

    def __init__(self, log, slurm, folder):
        self.log, self.slurm, self.folder = log, slurm, folder
        rules = {"scheduler": "slurm", "max_out_share": 0.5, "network_wait_s": 0, "check_s": 1}
        self.settings = {
            "kafka": {"bootstrap": log.bootstrap},
            "journal_file": str(folder / "run" / "journal.jsonl"),
            "nodes": {**rules, "breaker_drains": 100, "max_per_hour": 100},
        }
        log.put(CONFIG.name, "*", ACT)

    def start(self):
        return Service("actuators.nodes", self.settings, self.folder)

    def put(self, host, run, failed=()):
        for record in run_of(host, run, failed):
            self.log.put(AUDIT.name, run, record)

    def drained(self):
        return {name for name, state in self.slurm.states().items() if "DRAIN" in state}

    def applied(self):
        with TopicReader.open(self.log.bootstrap, {ACTIONS: BEGINNING}) as reader:
            reports = [record for _, record in reader.decoded(reader.read_to_end())]
        return sorted(each["decision_id"] for each in reports if each["outcome"] == "APPLIED")

    def repairs(self):
        return {repair["repair_id"]: repair["state"] for repair in read_repairs(self.log.bootstrap)}


@pytest.fixture
def fleet(log, slurm, tmp_path, monkeypatch):
    for name in ("PATH", "SLURM_CONF"):
        monkeypatch.setenv(name, slurm.env[name])
    yield Fleet(log, slurm, tmp_path)
    slurm.restore()


def test_a_verdict_is_a_drain_at_once_and_a_clean_run_ends_it(fleet):
    service = fleet.start()
    try:
        service.wait_ready()
        fleet.put("n1", "r1", ["node.ecc"])
        wait_until(lambda: fleet.repairs() == {"drain n1 r1": "OPEN"}, name="the repair")
        assert fleet.drained() == {"n1"}
        fleet.put("n1", "r2")
        wait_until(lambda: fleet.repairs() == {"drain n1 r1": "ENDED"}, name="the end")
        assert fleet.drained() == set()
        assert fleet.applied() == ["drain n1 r1", "resume n1 r2"]
    finally:
        assert service.stop() == 0


def test_the_service_only_reports_without_the_mode(fleet):
    fleet.log.put(CONFIG.name, "*", PLAIN)
    fleet.settings["nodes"]["network_wait_s"] = 3600
    service = fleet.start()
    try:
        service.wait_ready()
        fleet.put("n1", "r1", ["node.ecc"])
        wait_until(lambda: "OBSERVED drain n1" in service.tail(), name="the outcome")
        fleet.put("n2", "r2", ["backend.carrier"])
        wait_until(lambda: "waiting drain n2: backend.carrier: waits until" in service.tail(), name="a wait")
        assert (fleet.drained(), fleet.repairs(), fleet.applied()) == (set(), {}, [])
    finally:
        assert service.stop() == 0


def test_kills_at_drawn_moments_lose_no_drain_and_repeat_none(fleet):
    """The process is killed with SIGKILL while verdicts arrive; its successors do what is left, once."""
    draw, before = random.Random(42), {node: fleet.slurm.updates(node) for node in NODES}
    for number, host in enumerate(NODES[:4]):
        service = fleet.start()
        service.wait_ready()
        fleet.put(host, f"r{number}", ["node.ecc"])
        time.sleep(draw.uniform(0, 0.2))  # the moment of the kill, no wait for an effect
        service.process.kill()
        service.stop()
    expected = {f"drain {host} r{number}": "OPEN" for number, host in enumerate(NODES[:4])}
    service = fleet.start()
    try:
        service.wait_ready()
        wait_until(lambda: fleet.repairs() == expected, name="all repairs")
        wait_until(lambda: fleet.applied() == sorted(expected), name="all reports")
        assert fleet.drained() == set(NODES[:4])
        assert [fleet.slurm.updates(node) - before[node] for node in NODES] == [1] * 4 + [0] * 4
    finally:
        assert service.stop() == 0


def test_a_log_that_is_down_for_a_while_delays_a_drain_and_loses_none(fleet):
    service = fleet.start()
    try:
        service.wait_ready()
        fleet.log.down()
        fleet.log.up()
        fleet.put("n5", "r1", ["node.ecc"])
        wait_until(lambda: fleet.repairs() == {"drain n5 r1": "OPEN"}, name="the repair")
    finally:
        assert service.stop() == 0


def test_a_second_process_does_not_start_beside_the_first(fleet):
    first = fleet.start()
    try:
        first.wait_ready()
        second = fleet.start()
        with pytest.raises(RuntimeError, match="another process acts on nodes"):
            second.wait_ready()
        assert second.stop() == 2
    finally:
        assert first.stop() == 0
