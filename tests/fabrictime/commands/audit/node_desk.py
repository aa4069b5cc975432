"""A log with audit runs of four hosts, and the command line in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

from actuators.settings import ActuatorSettings, NodeSettings
from fabrictime.audit.node_log import read_repairs
from fabrictime.commands.config.live_config import PLAIN
from schemas.kafka.publisher import Publisher
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.kafka.settings import KafkaSettings
from schemas.topics import ACTIONS, AUDIT, CONFIG
from tests.actuators.audit_results import run_of

ROOT = Path(__file__).resolve().parents[4]
NAMES = ("n1", "n2", "n3", "n4")


class Desk:
    """What a test publishes and reads; runs are numbered, because the log is shared."""

    runs = 0

    def __init__(self, address, folder):
        self.cluster = KafkaSettings(bootstrap=address)
        self.folder = folder
        self.publisher = Publisher(self.cluster)
        self.settings = self.with_nodes(scheduler="slurm", max_out_share=0.5)

    def with_nodes(self, **nodes):
        rules = {"network_wait_s": 0, "breaker_drains": 1000, "max_per_hour": 1000, **nodes}
        journal = self.folder / "run" / "journal.jsonl"
        return ActuatorSettings(kafka=self.cluster, journal_file=journal, nodes=NodeSettings(**rules))

    def run(self, **failed):
        """Publish a complete run of all hosts; `failed`: checks by host. Returns its name."""
        Desk.runs += 1
        name = f"run-{Desk.runs}"
        for host in NAMES:
            for record in run_of(host, name, failed.get(host, ())):
                self.publisher.publish(AUDIT, name, record)
        self.publisher.flush(10)
        return name

    def mode(self, mode, *allowed):
        record = {**PLAIN, "mode": mode, "allowed_actions": list(allowed), "version": 1}
        self.publisher.publish(CONFIG, "*", record)
        self.publisher.flush(10)

    def repairs(self, run):
        """Return node, state and end of each repair for a run."""
        return [
            (repair["node"], repair["state"], repair["end_reason"])
            for repair in read_repairs(self.cluster)
            if repair["run"] == run
        ]

    def reports(self, run):
        """Return action, node and outcome of each report about a run."""
        with TopicReader.open(self.cluster, {ACTIONS: BEGINNING}) as reader:
            found = [record for _, record in reader.decoded(reader.read_to_end())]
        return [
            (each["action"], each["host"], each["outcome"])
            for each in found
            if each["decision_id"].endswith(f" {run}")
        ]


def fabrictime(desk, *arguments, **env):
    config = desk.folder / "fabrictime.toml"
    config.write_text(
        f'[up]\ndata_directory = "{desk.folder}"\n'
        '[actuators.nodes]\nscheduler = "slurm"\nmax_out_share = 0.5\n'
        "network_wait_s = 0\nbreaker_drains = 1000\nmax_per_hour = 1000\n"
    )
    command = [sys.executable, "-m", "fabrictime", "audit", *arguments, "--config", str(config)]
    return subprocess.run(
        [*command, "--log", desk.cluster.bootstrap],
        cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, check=False, timeout=110,
    )  # fmt: skip
