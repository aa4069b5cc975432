"""The simulated fleet as a service: settings as people write them, pace, control socket, a real log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from pydantic import ValidationError

from producers.sim.control import NoFleet, ask, socket_path
from producers.sim.service import PaceAnnouncer, RealTimePacer, WorkerProgress
from producers.sim.settings import SimSettings
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.topics import FLOWS, INVENTORY, LINKS, PATHS, PROBES, TOPICS, TRUTH

_RUN = """
import json, logging, sys
from pathlib import Path
logging.basicConfig(level=logging.INFO)
from producers.sim.service import main
from producers.sim.settings import SimSettings
sys.exit(main(SimSettings(**json.loads(sys.argv[1])), Path(sys.argv[2])))
"""


@pytest.mark.parametrize(
    "given",
    [
        {"nics": 8, "jobs": [{"name": "a", "nics": 16}]},
        {"nics": 64, "jobs": [{"name": "a", "nics": 2}, {"name": "a", "nics": 2}]},
        {"nics": 128, "jobs": [{"name": "a", "nics": 100, "kind": "alltoall"}]},
        {"faults": ["explode h1"]},
        {"step_us": 30},
    ],
)
def test_settings_that_do_not_fit_are_refused(given):
    with pytest.raises(ValidationError):
        SimSettings(**given)


def test_workers_that_are_behind_are_waited_for_and_gone_ones_are_not() -> None:
    progress = WorkerProgress(start_s=100.0)
    progress.solved(90.0, 101.0)
    assert not progress.late(120.0, 120.0), "nobody has solved a window of this fleet"
    progress.solved(104.0, 107.0)
    assert not progress.late(108.0, 108.0)
    assert progress.late(110.0, 110.0)
    progress.solved(106.0, 111.0)
    assert not progress.late(110.0, 111.0), "nothing was sent meanwhile"
    progress.solved(105.0, 112.0)
    assert progress.solved_s == 106.0, "read again"
    assert progress.late(112.0, 140.0)
    assert not progress.late(112.0, 142.0), "nothing of theirs for half a minute"


def test_time_that_was_waited_is_given_up() -> None:
    pace = RealTimePacer(0.0, 0.01)
    pace.on_pause(3.01)
    assert (pace.wait_s(3.01), pace.ticks) == (0.0, 0)
    assert pace.lost_s == pytest.approx(3.0)
    pace.done(3.02)
    assert pace.wait_s(3.02) == pytest.approx(0.0)
    assert pace.factor(3.02) < 0.01


def test_the_pacer_waits_reports_its_lag_and_skips_time():
    pace = RealTimePacer(0.0, 0.01)
    assert pace.wait_s(0.0) == pytest.approx(0.01)
    now_s = 0.0
    for _ in range(1000):  # as quick as real time
        now_s += pace.wait_s(now_s)
        pace.done(now_s)
    assert pace.factor(now_s) == pytest.approx(1.0, abs=0.02)
    assert pace.lost_s == 0
    for _ in range(1000):  # each tick takes twice its time
        now_s += 0.02
        pace.done(now_s)
    assert pace.factor(now_s) == pytest.approx(0.5, abs=0.02)
    assert pace.lost_s > 8
    assert pace.wait_s(now_s) == 0


def test_a_changed_pace_is_announced_and_a_steady_one_is_not() -> None:
    announcer = PaceAnnouncer(0.0)
    assert not announcer.is_due(0.3, 2.0), "not measured yet"
    assert not any(announcer.is_due(0.97, float(now_s)) for now_s in range(5, 60))
    assert announcer.is_due(0.94, 60.0), "the simulation became slow"
    assert not announcer.is_due(0.5, 62.0), "announced a moment ago"
    assert announcer.is_due(0.5, 65.0)
    assert not announcer.is_due(0.53, 80.0)
    assert announcer.is_due(0.96, 90.0)


def test_announcements_carry_the_pace_and_one_nic_announces_a_new_one() -> None:
    run = Simulation(SimSettings(nics=4, load=0, announce_s=30), topics=(INVENTORY,))
    assert {out.record()["simulation_pace"] for out in run.tick()} == {1.0}
    run.pace = 0.6
    assert run.tick() == []
    run.announce_pace()
    [announced] = run.tick()
    assert (announced.key, announced.record()["simulation_pace"]) == (run.fleet.nic_ids[0], 0.6)
    assert run.tick() == []


class Topics:
    """What topics hold, by name, decoded as any stranger would."""

    def __init__(self, bootstrap, names):
        self.consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "test",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self.found = {name: [] for name in names}
        self.keys = {name: set() for name in names}
        known = self.consumer.list_topics(timeout=10).topics
        self.consumer.assign([TopicPartition(name, p, 0) for name in names for p in known[name].partitions])

    def until(self, topic, done, timeout_s=40):
        end = time.monotonic() + timeout_s
        while not done(self.found[topic.name]):
            assert time.monotonic() < end, f"{topic.name}: not in {timeout_s} s"
            for message in self.consumer.consume(500, timeout=0.05):
                if message.error() is None:
                    name = message.topic()
                    self.keys[name].add(message.key().decode())
                    self.found[name].append(codec.decode(message.value(), TOPICS[name].record))


def test_the_service_publishes_like_agents_and_accepts_faults(log, tmp_path):
    path = socket_path(tmp_path)
    settings = {
        "kafka": {"bootstrap": log.bootstrap},
        "nics": 8,
        "load": 0.1,
        "rate_pps": 500,
        "jobs": [{"name": "train", "nics": 4}],
    }
    root = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", _RUN, json.dumps(settings), str(path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
        stderr=subprocess.DEVNULL,
    )
    topics = Topics(log.bootstrap, [t.name for t in (PROBES, INVENTORY, PATHS, LINKS, FLOWS, TRUTH)])
    try:
        topics.until(INVENTORY, lambda found: len({r["nic"] for r in found}) == 8)
        topics.until(PROBES, lambda found: sum(len(s["sent"]) for r in found for s in r["samples"]) > 200)
        topics.until(PATHS, lambda found: len({(r["nic"], r["peer"]) for r in found}) == 56)
        topics.until(FLOWS, lambda found: any(row["job"] == "train" for r in found for row in r["flows"]))
        assert topics.keys[INVENTORY.name] == topics.keys[PROBES.name] == {f"h{n}/eth1" for n in range(1, 9)}
        assert topics.keys[PATHS.name] == {f"{r['nic']}>{r['peer']}" for r in topics.found[PATHS.name]}
        assert path.stat().st_mode & 0o777 == 0o600
        fault = ask(path, "fault", line="blackhole h1/eth1")
        topics.until(
            LINKS,
            lambda found: any(
                p["peer"] == "h1/eth1" and p["loss_streak"] > 3 for r in found for p in r["paths"]
            ),
        )
        topics.until(
            TRUTH, lambda found: any(f["fault"] == fault["fault"] for r in found for f in r["faults"])
        )
        assert topics.keys[LINKS.name] == topics.keys[TRUTH.name] == {"sim"}
        state = ask(path, "status")
        assert [row["line"] for row in state["faults"]] == ["blackhole h1/eth1"]
        assert ask(path, "clear")[0]["end_ns"] >= fault["begin_ns"]
        with pytest.raises(NoFleet, match="target 'h99'"):
            ask(path, "fault", line="down h99")
        with pytest.raises(NoFleet, match="expected a command of status, fault, clear"):
            ask(path, "format")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        topics.until(INVENTORY, lambda found: sum(r["probe_port"] == 0 for r in found) == 8)
        assert not path.exists()
    finally:
        topics.consumer.close()
        if process.poll() is None:
            process.kill()
            process.wait()
    with pytest.raises(NoFleet, match="no simulated fleet at"):
        ask(path, "status")
