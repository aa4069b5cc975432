"""The simulated fleet and the pipeline's operators in one process, in simulated time: no Kafka.

The fleet's messages reach the log a hop after their time. Decisions change the fleet as an actuator would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from producers.sim.messages import SimMessage
from producers.sim.setup import topology_file
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.records import ActionOutcome, ActionReport, ActMode, Decision, FlowAction
from schemas.topics import (
    ACTIONS,
    COLLECTIVES,
    CONFIG,
    DECISIONS,
    FLOW_ROUTES,
    FLOWS,
    INVENTORY,
    LINKS,
    PATHS,
    PROBES,
    TRUTH,
    Topic,
)
from schemas.topology import Topology
from streams.alerts.stage import AlertsStage
from streams.clock.stage import ClockStage
from streams.contention.stage import ContentionStage
from streams.delays.stage import DelayStage
from streams.diagnosis.stage import DiagnosisStage
from streams.links.probe_schedule import plan_shard, records_of
from streams.links.stage import LinksStage
from streams.policy.stage import PolicyStage
from streams.queues.stage import QueuesStage
from streams.runtime.operator import Output, Stage
from streams.runtime.pipeline_constants import HOP_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.sim_runner import SimOutput, SimRunner

__all__ = ["APPLY_NS", "FLEET_TOPICS", "PARTITIONS", "SimPipeline", "all_stages"]

FLEET_TOPICS: Final[tuple[Topic[Any], ...]] = (
    *(INVENTORY, PATHS, PROBES, LINKS, FLOWS, FLOW_ROUTES, COLLECTIVES),
)
"""The topics of a fleet that stages read."""
PARTITIONS: Final = 4
"""Partitions of the embedded log."""
APPLY_NS: Final = 20_000_000
"""Time from a decision's append until an actuator has carried it out."""
CHECK_NS: Final = 1_000_000_000
"""ns between two checks whether probes can be planned."""


def all_stages() -> list[Stage]:
    """Return the stages whose operators the runner can run."""
    return [
        DelayStage(),
        ClockStage(),
        LinksStage(),
        QueuesStage(),
        ContentionStage(),
        AlertsStage(),
        DiagnosisStage(),
        PolicyStage(),
    ]


class SimPipeline:
    """A fleet under its pipeline. `acts`: whether decisions are carried out; `config`: further fields of the
    actuators' configuration.

    Probes follow one plan, made when all routes and clocks are known: probe schedules have no operator.
    """

    def __init__(
        self,
        sim: Simulation,
        stages: Iterable[Stage],
        *,
        partitions: int = PARTITIONS,
        acts: bool = True,
        config: Mapping[str, Any] | None = None,
        hop_ns: int = HOP_NS,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        self.sim, self.hop_ns = sim, hop_ns
        self.messages: list[SimMessage] = []
        """Messages of the fleet in the last tick."""
        self.runner = SimRunner(
            stages,
            self.sim.start_ns,
            partition_count=partitions,
            settings=StreamSettings(default_shard=sim.settings.shard),
            topology=Topology(topology_file(self.sim.fleet)),
            hop_ns=hop_ns,
            clock=clock,
        )
        self.fleet_ns = 0
        """Processor time of the fleet."""
        self.decisions: list[Decision] = []
        self._acts, self._clock, self._is_scheduled = acts, clock, False
        self._waiting: deque[tuple[int, Decision]] = deque()
        mode = ActMode.ACT if acts else ActMode.OBSERVE
        self._configure({"host": "*", "version": 1, "by": "bench", "mode": mode, **(config or {})})

    def _configure(self, config: Mapping[str, Any]) -> None:
        start_ns = self.sim.start_ns
        body = codec.encode(CONFIG.record, {"at_ns": start_ns, **config})
        self.runner.publish(Output(CONFIG, "*", body=body), start_ns)

    def tick(self) -> list[SimOutput]:
        """Let 10 ms pass; return the outputs of the operators in that time."""
        began_ns = self._clock()
        while self._waiting and self._waiting[0][0] <= self.sim.now_ns:
            self._apply(self._waiting.popleft()[1])
        self.messages = self.sim.tick()
        for message in self.messages:
            if message.topic is not TRUTH:
                output = Output(message.topic, message.key, body=message.value())
                self.runner.publish(output, message.at_ns + self.hop_ns)
        self._schedule()
        self.fleet_ns += self._clock() - began_ns
        outputs = self.runner.advance(self.sim.now_ns)
        for at_ns, output in outputs:
            if output.topic is DECISIONS:
                self.decisions.append(output.record)
                self._waiting.append((at_ns + self.hop_ns + APPLY_NS, output.record))
        return outputs

    def _schedule(self) -> None:
        """Plan the probes as the pipeline does, once every NIC's clock is known."""
        if self._is_scheduled or self.sim.now_ns % CHECK_NS:
            return
        tables, nics = self.runner.tables, sorted(self.sim.fleet.nic_ids)
        models = tables.clocks.models()
        if models.keys() >= set(nics):
            self._is_scheduled = True
            plans = plan_shard(dict.fromkeys(nics, self.sim.probes.pace), tables.routes)
            records = records_of(plans, self.sim.settings.shard, models, self.sim.now_ns)
            for record in records.values():
                self.sim.probes.follow_schedule(record)

    def _apply(self, decision: Decision) -> None:
        """Do as the fleet's owner does (producers/sim/flow_endpoint.py), and report it."""
        outcome = ActionOutcome.APPLIED if self._acts else ActionOutcome.OBSERVED
        try:
            if self._acts:
                self._carry_out(decision)
        except ValueError:
            outcome = ActionOutcome.NO_FLOW
        report: ActionReport = {
            "host": decision["host"],
            "decision_id": decision["decision_id"],
            "shard": decision["shard"],
            "epoch": decision["epoch"],
            "seq": decision["seq"],
            "flow_id": decision["flow_id"],
            "action": decision["action"],
            "from_path": decision["from_path"],
            "to_path": decision["to_path"],
            "rate_bps": decision["rate_bps"],
            "config_version": decision["config_version"],
            "at_ns": self.sim.now_ns,
            "outcome": outcome,
            "how": "SIMULATED",
            "took_ns": APPLY_NS,
            "detail": "",
        }
        self.runner.publish(Output(ACTIONS, decision["host"], report), self.sim.now_ns + self.hop_ns)

    def _carry_out(self, decision: Decision) -> None:
        """Raises ValueError if the flow has ended."""
        if decision["action"] in (FlowAction.REROUTE, FlowAction.RESTORE):
            self.sim.set_flow_path(decision["flow_id"], decision["to_path"] or 0)
        elif decision["action"] in (FlowAction.PACE, FlowAction.UNPACE):
            self.sim.set_flow_rate(decision["flow_id"], decision["rate_bps"])
