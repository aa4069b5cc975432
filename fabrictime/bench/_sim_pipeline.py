"""Runs the simulated fleet and the pipeline's operators in one process, in simulated time, without Kafka.

Each of the fleet's messages reaches the log one hop's delay later. The hosts' actuators carry out decisions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from actuators.effectors.base import Answer
from actuators.flows.applier import Applier
from producers.sim.messages import SimMessage
from producers.sim.setup import topology_file
from producers.sim.simulation import Simulation
from schemas import codec
from schemas.records import ActionReport, ActMode, Decision
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
from streams.links.schedule.probe_schedule import plan_shard, records_of
from streams.links.stage import LinksStage
from streams.policy.stage import PolicyStage
from streams.queues.stage import QueuesStage
from streams.runtime.operator import Output, Stage
from streams.runtime.pipeline_constants import HOP_NS
from streams.runtime.settings import StreamSettings
from streams.runtime.sim_runner import SimOutput, SimRunner

FLEET_TOPICS: Final[tuple[Topic[Any], ...]] = (
    *(INVENTORY, PATHS, PROBES, LINKS, FLOWS, FLOW_ROUTES, COLLECTIVES),
)
"""The topics of a fleet's messages that stages read."""
PARTITIONS: Final = 4
"""Partitions of the embedded log."""
APPLY_NS: Final = 20_000_000
"""Time from a decision's append until an actuator has carried it out."""
CHECK_NS: Final = 1_000_000_000
"""Interval, ns, at which the pipeline checks whether probes can be planned."""


def all_stages() -> list[Stage]:
    """Return the stages whose operators this runner can run."""
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
    """A simulated fleet together with the pipeline that processes its messages.

    `acts` says whether decisions are carried out; `config` sets further fields of the actuators'
    configuration. All probes follow one plan, made once all routes and clocks are known, as probe schedules
    have no operator.
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
        """Messages that the fleet sent in the last tick."""
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
        """Processor time that the fleet has used, ns."""
        self.decisions: list[Decision] = []
        self.reports: list[ActionReport] = []
        """The action reports of the actuators."""
        self._clock, self._is_scheduled = clock, False
        self._waiting: deque[tuple[int, Decision]] = deque()
        self._appliers: dict[str, Applier] = {}
        """The actuator of each host, by host; it is made at the host's first decision."""
        self._config: dict[str, Any] = {"host": "*", "version": 0, "by": "bench"}
        mode = ActMode.ACT if acts else ActMode.OBSERVE
        self.configure(mode=mode, **(config or {}))

    def configure(self, **fields: Any) -> None:
        """Change fields of the configuration of the actuators and of the policy."""
        now_ns = self.sim.now_ns
        version = self._config["version"] + 1
        self._config |= {"version": version, "at_ns": now_ns, **fields}
        body = codec.encode(CONFIG.record, self._config)
        self._limits = {"*": codec.decode(body, CONFIG.type)}
        for applier in self._appliers.values():
            applier.take_config(self._limits)
        self.runner.publish(Output(CONFIG, "*", body=body), now_ns)

    def tick(self) -> list[SimOutput]:
        """Advance simulated time by 10 ms; return the records that the operators published in it."""
        began_ns = self._clock()
        while self._waiting and self._waiting[0][0] <= self.sim.now_ns:
            self.carry_out(self._waiting.popleft()[1])
        for applier in self._appliers.values():
            applier.tick()
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
        """Plan the probes as the pipeline does, as soon as the clock of every NIC is known."""
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

    def carry_out(self, decision: Decision) -> None:
        """Pass a decision to the actuator of its host."""
        self._applier_of(decision["host"]).take(decision)

    def _applier_of(self, host: str) -> Applier:
        """Return the actuator of a host."""
        applier = self._appliers.get(host)
        if applier is None:
            sim = self.sim

            def report(record: ActionReport, _token: object) -> None:
                self.reports.append(record)
                self.runner.publish(Output(ACTIONS, host, record), sim.now_ns + self.hop_ns)

            flows = _HostFlows(sim, host)
            applier = Applier(host, flows, report, lambda: sim.now_ns, lambda: sim.now_ns)
            applier.take_config(self._limits)
            self._appliers[host] = applier
        return applier


class _HostFlows:
    """The flows of one simulated host, as its actuator accesses them; commands take effect at once."""

    def __init__(self, sim: Simulation, host: str) -> None:
        self._sim, self._host = sim, host

    def path_of(self, key: str) -> int | None:
        try:
            return self._sim.flow_of(self._host, key).port
        except ValueError:
            return None

    def can(self, key: str) -> frozenset[str]:
        return frozenset({"MOVE", "PACE"})

    def execute(self, key: str, verb: str, value: int, answer: Callable[[Answer], None]) -> None:
        flow_id = self._sim.flow_of(self._host, key).flow_id
        if verb == "MOVE":
            self._sim.set_flow_path(flow_id, value)
        else:
            self._sim.set_flow_rate(flow_id, value or None)
        answer(Answer(value, "SIMULATED"))
