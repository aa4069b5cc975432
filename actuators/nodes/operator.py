"""The drain operator: keeps audits, limits, inventory, alerts and repairs, and plans node actions. Pure.

Its state follows from the log alone, and the scheduler shows the drains in force. So after a process was
killed, its successor plans the missing actions, and `reconcile` reports unreported actions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from actuators.nodes.caps import NS_PER_S, Breaker, NodeRules, Opening
from actuators.nodes.fitness import AuditHistory
from actuators.nodes.places import NetworkFindings, Places
from actuators.nodes.policy import Fleet, NodeState, NodeStep, decision_id, drain_of, is_ours, plan
from actuators.notify.notes import hosts_of
from schemas.limits import EVERYONE, Limits
from schemas.records import (
    ActionOutcome,
    ActuatorConfig,
    AuditResult,
    AuditSeverity,
    AuditStatus,
    FlowAction,
    Repair,
    RepairState,
)
from schemas.topics import ACTIONS, ALERTS, AUDIT, CONFIG, INVENTORY, REPAIRS

MAX_REPORTED: Final = 100_000
"""Number of reported outcomes that are kept, to report none twice."""
MARGIN_NS: Final = 3600 * NS_PER_S
"""Results are kept this much longer than they count, so that all results of a run are kept if its last is."""
MAX_TEXT: Final = 500
NOT_DRAINED: Final = "the scheduler did not drain the node"
LIVE: Final = (RepairState.DRAINING, RepairState.OPEN, RepairState.RESUMING)


@dataclass(frozen=True, slots=True)
class OperatorSettings:
    """Rules of the operator. `by`: author of the records. `scheduler`: its name in records; empty: all."""

    rules_of: Callable[[str], NodeRules]
    host_by_node: Mapping[str, str] = field(default_factory=dict)
    max_age_ns: int = 7200 * NS_PER_S
    breaker: Breaker = field(default_factory=Breaker)
    by: str = ""
    scheduler: str = ""


class DrainOperator:
    """Plans drains and resumes of nodes from audit verdicts, and keeps the repair records."""

    def __init__(self, settings: OperatorSettings) -> None:
        self.settings = settings
        self.audits, self.places = AuditHistory(), Places()
        self.repairs: dict[str, Repair] = {}
        self.urgent_hosts: set[str] = set()
        """The hosts that failed since the last plan."""
        self.is_changed = False
        """True if the configuration has changed since the last plan."""
        self._network = NetworkFindings(self.audits, self.places, lambda alert: hosts_of(alert, self.places))
        self._configs: dict[str, ActuatorConfig] = {}
        self._reported: dict[tuple[str, str], None] = {}
        self._take_record: Mapping[str, Callable[[Any], None]] = {
            ACTIONS.name: lambda report: self.note_report(report["decision_id"], report["outcome"]),
            ALERTS.name: self._network.take_alert,
            INVENTORY.name: self.places.take,
            REPAIRS.name: self.take_repair,
        }

    # --------------------------------------------------------------------------------------- records

    def take(self, topic: str, key: str, record: Any, append_ns: int) -> None:
        """Process a message of any topic; `record` is None for a tombstone."""
        if topic == CONFIG.name:
            self.take_config(key, record)
        elif record is None:
            return
        elif topic == AUDIT.name:
            self._take_audit(record, append_ns)
        else:
            self._take_record[topic](record)

    def take_config(self, key: str, record: ActuatorConfig | None) -> None:
        """Set or remove the `fabric.config` record of a key."""
        self.is_changed = True
        if record is None:
            self._configs.pop(key, None)
        else:
            self._configs[key] = record

    def _take_audit(self, record: AuditResult, append_ns: int) -> None:
        self.audits.take(record, append_ns)
        is_error = record["severity"] == AuditSeverity.ERROR and record["status"] == AuditStatus.FAILED
        known_runs = {one["run"] for one in self.live_repairs() if one["cause_host"] == record["host"]}
        if is_error and record["run"] not in known_runs:
            self.urgent_hosts.add(record["host"])

    def take_repair(self, repair: Repair) -> None:
        """Keep a record of `fabric.repairs`, read from the log or made by this process."""
        known_repair = self.repairs.get(repair["repair_id"])
        if known_repair is None or known_repair["updated_ns"] <= repair["updated_ns"]:
            self.repairs[repair["repair_id"]] = repair

    def note_report(self, decision: str, outcome: ActionOutcome) -> None:
        """Note that the log has a report of this decision and outcome."""
        self._reported[decision, outcome] = None
        if len(self._reported) > MAX_REPORTED:
            del self._reported[next(iter(self._reported))]

    def is_reported(self, decision: str, outcome: ActionOutcome) -> bool:
        """Return whether the log has a report of this decision and outcome."""
        return (decision, outcome) in self._reported

    def limits_of(self, host: str) -> Limits:
        """Return the limits that `fabric.config` sets for a host."""
        return Limits.of(self._configs, host)

    def live_repairs(self) -> Iterator[Repair]:
        """Yield the repairs of this scheduler's nodes that have not ended."""
        scheduler = self.settings.scheduler
        return (
            repair
            for repair in self.repairs.values()
            if repair["state"] in LIVE and scheduler in ("", repair["scheduler"])
        )

    # --------------------------------------------------------------------------------------- breaker

    @property
    def breaker(self) -> Breaker:
        """The circuit breaker, with the time of its last reset."""
        breaker = self.settings.breaker
        return Breaker(breaker.max_drains, breaker.window_ns, self.limits_of(EVERYONE).drains_reset_ns)

    def opened_ns(self) -> int | None:
        """Return the time at which the circuit breaker opened, ns; None if it is closed."""
        return self.breaker.opened_ns(opening.at_ns for opening in self._openings())

    def _openings(self) -> list[Opening]:
        """Return the drains that were carried out; several nodes of one unit count as one drain."""
        first: dict[tuple[str, str], Repair] = {}
        live = set()
        for repair in self.repairs.values():
            cause = repair["cause_host"], repair["run"]
            if repair["state"] == RepairState.DRAINING or repair["end_reason"] == NOT_DRAINED:
                continue
            if repair["state"] in LIVE:
                live.add(cause)
            if cause not in first or repair["opened_ns"] < first[cause]["opened_ns"]:
                first[cause] = repair
        return [
            Opening(repair["opened_ns"], repair["group"], frozenset(repair["rails"]), cause in live)
            for cause, repair in first.items()
        ]

    # --------------------------------------------------------------------------------------- plans

    def is_idle(self) -> bool:
        """Return whether no host fails and no repair is open, so that the scheduler need not be queried."""
        return not any(self.audits.failing.values()) and not any(self.live_repairs())

    def plan(self, nodes: Iterable[NodeState], now_ns: int) -> list[NodeStep]:
        """Return the steps for nodes that failed, and for nodes that this system drained."""
        self.is_changed = False
        self.urgent_hosts.clear()
        settings, states = self.settings, list(nodes)
        since_ns = now_ns - settings.max_age_ns
        self.audits.forget(since_ns - MARGIN_NS)
        hosts = set().union(*self.audits.failing.values())
        for node in states:
            if node.is_out and is_ours(node.reason):
                drain = drain_of(node.reason)
                hosts |= {settings.host_by_node.get(node.name, node.name), drain[2] if drain else ""}
        fitness = {host: self.audits.fitness(host, since_ns) for host in hosts & set(self.audits.hosts)}
        fleet = Fleet(
            settings.rules_of,
            settings.host_by_node,
            self.places,
            self._openings(),
            self.breaker,
            lambda host, outcome: self._network.obstacle(host, outcome, since_ns),
            now_ns,
        )
        return plan(states, fitness, fleet)

    def new_repair(self, step: NodeStep, now_ns: int) -> Repair:
        """Return the record of a drain that is about to begin, or that a former process began."""
        begun = self.repairs.get(step.decision_id)
        if begun is not None and begun["state"] == RepairState.DRAINING:
            return {**begun, "updated_ns": now_ns}
        return {
            "repair_id": step.decision_id,
            "state": RepairState.DRAINING,
            "node": step.node,
            "host": step.host,
            "cause_host": step.cause_host or step.host,
            "scheduler": self.settings.scheduler,
            "group": step.rules.group,
            "rack": step.rack,
            "rails": sorted(step.rails),
            "run": step.run,
            "checks": [failure.check for failure in step.failures],
            "reason": step.text,
            "evidence": [
                {
                    "check": failure.check,
                    "run": failure.run,
                    "at_ns": failure.at_ns,
                    "text": failure.text,
                    "remedy": failure.remedy,
                }
                for failure in step.failures
            ],
            "jobs": [],
            "by": self.settings.by,
            "opened_ns": now_ns,
            "updated_ns": now_ns,
            "ended_ns": None,
            "ended_by": "",
            "end_run": "",
            "end_reason": "",
        }

    def repair_of(self, node: str) -> Repair | None:
        """Return the open repair of a node; None if there is none."""
        return next((repair for repair in self.live_repairs() if repair["node"] == node), None)

    # --------------------------------------------------------------------------------------- reconcile

    def reconcile(self, nodes: Iterable[NodeState], now_ns: int) -> Iterator[Repair]:
        """Yield a corrected record of each repair that differs from its node's state in the scheduler.

        The cause is a process that died between action and report, or an action of another client.
        """
        states = {node.name: node for node in nodes}
        for repair in list(self.live_repairs()):
            if (changed := self._changed(repair, states.get(repair["node"]), now_ns)) is not None:
                yield {**changed, "updated_ns": now_ns}
        drained = {repair["node"] for repair in self.live_repairs()}
        for node in states.values():
            if node.is_out and node.name not in drained and (drain := drain_of(node.reason)) is not None:
                yield self._adopted(node, *drain, now_ns)

    def _changed(self, repair: Repair, node: NodeState | None, now_ns: int) -> Repair | None:
        drain = None if node is None or not node.is_out else drain_of(node.reason)
        is_drained = (
            drain is not None
            and decision_id(FlowAction.DRAIN, repair["node"], drain[0]) == repair["repair_id"]
        )
        if is_drained:
            return {**repair, "state": RepairState.OPEN} if repair["state"] == RepairState.DRAINING else None
        ended: Repair = {**repair, "state": RepairState.ENDED, "ended_ns": now_ns}
        if repair["state"] == RepairState.RESUMING:
            return ended
        if repair["state"] == RepairState.DRAINING:
            is_failing = any(repair["cause_host"] in hosts for hosts in self.audits.failing.values())
            is_over = node is None or node.is_out or not is_failing
            return {**ended, "end_reason": NOT_DRAINED} if is_over else None
        if node is None:
            return {**ended, "end_reason": "the scheduler has no such node any more"}
        text = (
            f"taken over: {node.reason or node.state}"
            if node.is_out
            else "returned to service by someone else"
        )
        return {**ended, "end_reason": text[:MAX_TEXT]}

    def _adopted(
        self, node: NodeState, run: str, checks: tuple[str, ...], cause_host: str, now_ns: int
    ) -> Repair:
        """Return a repair record for a drain by this system that the log does not contain."""
        host = self.settings.host_by_node.get(node.name, node.name)
        rules = self.settings.rules_of(node.name)
        step = NodeStep(
            *(node.name, host, FlowAction.DRAIN, run, node.reason),
            cause_host=cause_host,
            rules=rules,
            rack=self.places.rack_of(host),
        )
        return {**self.new_repair(step, now_ns), "state": RepairState.OPEN, "checks": list(checks)}
