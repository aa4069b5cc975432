"""A fabric whose messages form a log: the inputs of policy, and actuators that apply its decisions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from schemas import codec
from schemas.ids import cable_id
from schemas.kafka.message import Message
from schemas.topics import (
    ACTIONS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FALLBACKS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    POLICY_CYCLES,
    Topic,
)
from streams.policy.inputs import PolicyInputs
from streams.policy.replay import recording_of_cycles
from streams.policy.stage import PolicyStage
from streams.runtime.fabric_tables import FabricTables
from streams.runtime.log_runner import StepRunner
from streams.runtime.operator import Output
from streams.runtime.settings import StreamSettings
from tests.records import make, make_part
from tests.streams.policy.records import action, health, window

MS = 1_000_000
S = 1_000 * MS
T = 1_800_000_000 * S
EPOCH = T // MS
SPINES = 4
TABLES = FabricTables()
HOSTS = 8
RATE = 10**9
PARTITIONS = [
    (t.name, n)
    for t in (CONFIG, INVENTORY, FLOW_ROUTES, LINK_HEALTH, CONTENTION, FLOWS, ACTIONS)
    for n in (0, 1)
]


def nic(host: int) -> str:
    return f"h{host}/eth1"


def leaf(host: int) -> str:
    return f"leaf{1 + host % 2}"


def links_of(source: int, peer: int, spine: int) -> list[str]:
    up, down = leaf(source), leaf(peer)
    first, last = f"h{source}:eth1>{up}:p{source}", f"{down}:p{peer}>h{peer}:eth1"
    if up == down:
        return [first, last]
    return [first, f"{up}:u{spine}>spine{spine}:{up}", f"spine{spine}:{down}>{down}:u{spine}", last]


class Log:
    """A log with two partitions per topic, and a fabric of 8 hosts, 2 leaves and 4 spines.

    Port p of a flow selects spine p % 4 for data and spine (p // 4) % 4 for answers. The actuators apply all
    decisions.
    """

    def __init__(self) -> None:
        self.now_ns = T
        self.messages: list[Message] = []
        self.ends: dict[tuple[str, int], int] = defaultdict(int)
        self.read = 0
        self.rate_bps = self.mean_bps = 4e8
        self.ports: dict[str, int] = {}
        self.ends_of: dict[str, tuple[int, int]] = {}
        self.numbers: dict[str, int] = defaultdict(int)
        self.decisions: list[tuple[dict[str, Any], int]] = []
        self.cycle_records: list[dict[str, Any]] = []
        self.fallbacks: list[dict[str, Any]] = []
        self.put(
            CONFIG,
            "*",
            {"host": "*", "version": 1, "at_ns": 0, "by": "t", "mode": "ACT", "max_moved_share": 1.0},
        )
        for host in range(HOSTS):
            self.put(INVENTORY, nic(host), make("Nic", nic=nic(host), shard="s0", speed_bps=RATE))

    def put(self, topic: Topic, key: str, record: dict[str, Any] | None) -> None:
        place = (topic.name, len(key) % 2)
        value = None if record is None else codec.encode(topic.record, record)
        self.messages.append(Message(self.now_ns, *place, self.ends[place], key, value))
        self.ends[place] += 1

    def open(self, source: int, peer: int, port: int) -> str:
        name = f"h{source}/b/sock:{len(self.ports)}"
        self.ports[name], self.ends_of[name] = port, (source, peer)
        for a, b in ((source, peer), (peer, source)):
            self.put(
                FLOW_ROUTES,
                f"{nic(a)}>{nic(b)}",
                {
                    "nic": nic(a),
                    "peer": nic(b),
                    "shard": "s0",
                    "traced_ns": self.now_ns,
                    "routes": [
                        {
                            "leg": leg,
                            "path": p,
                            "peer_port": 5000,
                            "complete": True,
                            "since_ns": 0,
                            "links": links_of(a, b, spine),
                        }
                        for p in range(6000, 6016)
                        for leg, spine in (("DATA", p % 4), ("ACK", p // 4 % 4))
                    ],
                },
            )
        return name

    def report(self) -> None:
        for host in range(HOSTS):
            mine = {name: port for name, port in self.ports.items() if self.ends_of[name][0] == host}
            self.numbers["report"] += 1
            self.put(
                FLOWS,
                f"h{host}",
                {
                    "host": f"h{host}",
                    "boot": "b",
                    "report": self.numbers["report"],
                    "shard": "s0",
                    "system_ns": self.now_ns,
                    "whole": True,
                    "flows": [
                        make_part(
                            "FlowReports",
                            "Flow",
                            flow_id=name,
                            state="OPEN",
                            nic=nic(host),
                            peer=nic(self.ends_of[name][1]),
                            source_port=port,
                            peer_port=5000,
                            protocol="TCP",
                            links=links_of(*self.ends_of[name], port % 4),
                            bytes_total=max(0, int((self.now_ns - T) / 8e9 * self.mean_bps)),
                            interval_ns=S,
                            rate_bps=self.rate_bps,
                            rtt_ns=10_000,
                            can=["MOVE", "PACE"],
                        )
                        for name, port in mine.items()
                    ],
                },
            )

    def health(self, link: str, state: str) -> None:
        self.numbers[cable_id(link)] += 1
        record = health(link, state, self.numbers[cable_id(link)], self.now_ns, shard="s0")
        self.put(LINK_HEALTH, record["subject"], record)

    def window(self, link: str, state: str, opened_ns: int, update: int) -> None:
        record = window(link, state, "COLLISION", update, opened_ns, self.now_ns, shard="s0")
        self.put(CONTENTION, link, record)

    def offer_to(self, inputs: PolicyInputs) -> None:
        inputs.take(self.messages[self.read :], TABLES)
        self.read = len(self.messages)

    def run_cycles(
        self, inputs: PolicyInputs, seconds: float = 0.1, outcome: str = "APPLIED"
    ) -> list[dict[str, Any]]:
        """Run a cycle, and a full one after an urgent one; apply the decisions and report them."""
        self.now_ns += round(seconds * S)
        self.offer_to(inputs)
        found: list[dict[str, Any]] = []
        while True:
            inputs.apply()
            for name in sorted(inputs.shards):
                made = inputs.run_cycle(name, self.now_ns + 7, self.now_ns)
                self.cycle_records += records_to(POLICY_CYCLES, made)
                self.fallbacks += records_to(FALLBACKS, made)
                found += records_to(DECISIONS, made)
            if not inputs.needs_urgent_cycle:
                break
        for decision in found:
            self.decisions.append((decision, self.now_ns))
            name = decision["flow_id"]
            before = self.ports[name]
            if outcome == "APPLIED":
                assert decision["to_path"] not in self.taken(name), "two sockets cannot have one port"
                self.ports[name] = decision["to_path"]
            report = action(decision, self.now_ns, before, self.ports[name], outcome)
            self.put(ACTIONS, decision["host"], report)
        return found

    def taken(self, name: str) -> set[int]:
        ends = self.ends_of[name]
        return {port for other, port in self.ports.items() if other != name and self.ends_of[other] == ends}

    def over(self, link: str) -> set[str]:
        return {
            name
            for name, port in self.ports.items()
            if link in links_of(*self.ends_of[name], port % 4)
            or link in links_of(*reversed(self.ends_of[name]), port // 4 % 4)
        }


def replayed(log: Log, epoch: int) -> list[dict[str, Any]]:
    records = [record for record in log.cycle_records if record["epoch"] == epoch]
    runner = StepRunner(PolicyStage("s0"), recording_of_cycles(records), StreamSettings(), 1)
    for message in [*log.messages, *decided(log)]:
        runner.offer(message)
    return records_to(DECISIONS, [output for _, output in runner.run()])


def records_to(topic: Topic, outputs: Iterable[Output]) -> list[Any]:
    """Return the records of one topic."""
    return [output.record for output in outputs if output.topic is topic]


def decided(log: Log) -> list[Message]:
    """Return the decisions as messages."""
    return [
        Message(append_ns, DECISIONS.name, 0, offset, record["host"], codec.encode(DECISIONS.record, record))
        for offset, (record, append_ns) in enumerate(log.decisions)
    ]


def of_epoch(log: Log, epoch: int) -> list[dict[str, Any]]:
    return [decision for decision, _ in log.decisions if decision["epoch"] == epoch]


def run_faults(log: Log, inputs: PolicyInputs) -> None:
    """Run a fault in each direction, recovery and a new config, until all flows have returned."""
    for source in range(HOSTS):
        for step in (1, 3):
            log.open(source, (source + step) % HOSTS, 6000 + (source + step) % 16)
    for _ in range(3):
        log.report()
        log.run_cycles(inputs, 1.0)
    log.health("leaf1:u2>spine2:leaf1", "DOWN")
    log.run_cycles(inputs, 0.004)
    log.report()
    log.run_cycles(inputs)
    log.health("spine1:leaf2>leaf2:u1", "DOWN")
    log.run_cycles(inputs, 0.004)
    log.put(
        CONFIG,
        "*",
        {
            "host": "*",
            "version": 2,
            "at_ns": 0,
            "by": "t",
            "mode": "OBSERVE",
            "max_moved_share": 1.0,
            "protected_jobs": ["x"],
        },
    )
    log.health("leaf1:u2>spine2:leaf1", "UP")
    log.health("spine1:leaf2>leaf2:u1", "UP")
    for _ in range(60):
        log.report()
        log.run_cycles(inputs, 0.5)


def repair_locally(log: Log, flow: str, from_path: int, to_path: int) -> None:
    """Move a flow by local repair, and report it."""
    log.ports[flow] = to_path
    repair = {"host": "h0", "decision_id": "h0/reflex/1", "shard": "", "epoch": 0, "seq": 0}
    decision = {**repair, "flow_id": flow, "action": "REROUTE", "config_version": 1}
    log.put(ACTIONS, "h0", action(decision, log.now_ns, from_path, to_path, "LOCAL_REPAIR"))
