"""Decisions, their outcomes, suppressed actions and the mode in force.

The state is filled from Decision, ActionReport, PolicyCycles and ActuatorConfig records and from undecoded
FlowReports messages. All collections are bounded. The owner of the state provides the lock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fabrictime.state.flow_history import RAW_NS, Decode, Effect, FlowHistory
from schemas import records
from schemas.limits import EVERYONE, Limits
from schemas.reasons import Reason
from schemas.records import (
    ActionOutcome,
    ActionReport,
    ActMode,
    ActuatorConfig,
    Decision,
    FlowAction,
    PolicyCycles,
)
from schemas.topics import ACTIONS, CONFIG, DECISIONS, POLICY_CYCLES

MAX_DECISIONS: Final = 4_000
"""Number of decisions that are kept. As many decisions' reports, and as many effects, are kept."""
MINUTE_NS: Final = 60_000_000_000
CYCLES_BACK_S: Final = 65.0
"""How far back readers begin with policy cycles, s: the moves of a minute count against the flows of that
minute. Records come four times a second, and the suppressed actions every 10 s."""
WATCH_NS: Final = 12_000_000_000
"""How long a host's flows are watched after an action on one of them, ns."""
MAX_SUPPRESSED: Final = 4_096
MOVES: Final = frozenset({FlowAction.REROUTE, FlowAction.RESTORE})


class SuppressedAction(NamedTuple):
    """An action that the policy wanted but did not take, and the fabric time from which it was suppressed.

    `cause` is the limit that suppressed the action; `kind` and `reason` are why the policy wanted it.
    """

    flow_id: str
    action: str
    cause: str
    kind: str
    reason: Reason
    since_ns: int


class Mode(NamedTuple):
    """Whether decisions are carried out, and the author and time of this setting; no author for the
    default.
    """

    act: bool
    by: str = ""
    since_ns: int = 0


@dataclass(slots=True)
class ShardPolicy:
    """A shard's policy as of its newest cycle. `suppressed` is None until a record has suppressed actions."""

    epoch: int = -1
    next_cycle: int = 0
    at_ns: int = 0
    flows: int = 0
    recent_flows: dict[int, int] = field(default_factory=dict)
    """Time of policy cycle (ns) to number of flows, for the last minute. Only maxima remain.
    """
    movable: int = 0
    suppressed: list[SuppressedAction] | None = None


@dataclass(slots=True)
class _KeyConfig:
    """The config record of a key, and the author and time of its last mode change."""

    record: ActuatorConfig
    mode_by: str = ""
    mode_ns: int = 0


class ActionState:
    """The newest decisions, reports, suppressed actions and configs. Callers add records in partition
    order.
    """

    def __init__(self, decode_flows: Decode, raw_ns: int = RAW_NS) -> None:
        self.flow_history = FlowHistory(decode_flows, raw_ns)
        self.decisions: dict[str, Decision] = {}
        self.reports: dict[str, dict[ActionOutcome, ActionReport]] = {}
        """Decision id to outcome to report."""
        self.shards: dict[str, ShardPolicy] = {}
        self.effects: dict[str, Effect] = {}
        """Decision id to final effect."""
        self._configs: dict[str, _KeyConfig] = {}

    def take(self, topic: str, key: str, record: Any) -> None:
        """Apply one record of the topic's type. A record of None is the tombstone of `key`."""
        if topic == CONFIG.name:
            self._take_config(key, record)
        elif record is None:
            return
        elif topic == DECISIONS.name:
            self.decisions.setdefault(record["decision_id"], record)
            while len(self.decisions) > MAX_DECISIONS:
                del self.decisions[next(iter(self.decisions))]
            self.flow_history.watch(record["host"], record["at_ns"] + WATCH_NS)
        elif topic == ACTIONS.name:
            self.reports.setdefault(self._report_key(record), {}).setdefault(record["outcome"], record)
            while len(self.reports) > MAX_DECISIONS:
                del self.reports[next(iter(self.reports))]
            self.flow_history.watch(record["host"], record["at_ns"] + WATCH_NS)
        elif topic == POLICY_CYCLES.name:
            self._take_cycles(record)

    def _report_key(self, report: ActionReport) -> str:
        """Return a report's key. It is unique although a restarted host reuses numbers of local repairs."""
        name = report["decision_id"]
        previous = self.reports.get(name, {}).get(ActionOutcome.LOCAL_REPAIR)
        if (
            report["outcome"] == ActionOutcome.LOCAL_REPAIR
            and previous is not None
            and previous["at_ns"] != report["at_ns"]
        ):
            return f"{name} {report['at_ns']}"
        return name

    def _take_config(self, key: str, record: ActuatorConfig | None) -> None:
        before = self._configs.pop(key, None)
        if record is None:
            return
        if before is not None and before.record["mode"] == record["mode"]:
            self._configs[key] = _KeyConfig(record, before.mode_by, before.mode_ns)
        else:
            self._configs[key] = _KeyConfig(record, record["by"], record["at_ns"])

    def _take_cycles(self, record: PolicyCycles) -> None:
        shard = self.shards.setdefault(record["shard"], ShardPolicy())
        position = (record["epoch"], record["first_cycle"])
        if position < (shard.epoch, shard.next_cycle):
            return  # written by a former owner, or read a second time
        if record["epoch"] != shard.epoch:
            shard.suppressed = None
        shard.epoch, shard.next_cycle = record["epoch"], record["first_cycle"] + len(record["cycles"])
        shard.at_ns, shard.flows, shard.movable = record["at_ns"], record["flows"], record["movable"]
        shard.recent_flows = {
            at_ns: flows
            for at_ns, flows in shard.recent_flows.items()
            if at_ns > shard.at_ns - MINUTE_NS and flows > shard.flows
        }
        shard.recent_flows[shard.at_ns] = shard.flows
        for cycle in record["cycles"]:
            if cycle["suppressed"] is not None:
                shard.suppressed = _suppressed(cycle["suppressed"], shard.suppressed or [], cycle["now_ns"])

    def keep_effect(self, decision_id: str, effect: Effect) -> None:
        """Store a decision's final effect, which is kept longer than the samples that it is computed from."""
        self.effects[decision_id] = effect
        while len(self.effects) > MAX_DECISIONS:
            del self.effects[next(iter(self.effects))]

    @property
    def configs(self) -> dict[str, ActuatorConfig]:
        """The records of `fabric.config` in force, by key."""
        return {key: config.record for key, config in self._configs.items()}

    def limits(self, host: str) -> Limits:
        """Return the limits in force at a host."""
        return Limits.of(self.configs, host)

    def mode(self, host: str = EVERYONE) -> Mode:
        """Return the mode in force at a host."""
        mode = Mode(False)
        for key in dict.fromkeys((EVERYONE, host)):
            config = self._configs.get(key)
            if config is not None and config.record["mode"] != ActMode.UNKNOWN:
                mode = Mode(config.record["mode"] == ActMode.ACT, config.mode_by, config.mode_ns)
        return mode

    def exceptions(self) -> list[str]:
        """Return the hosts with a mode of their own that differs from the mode of `EVERYONE`, the default."""
        act = self.mode().act
        return sorted(key for key in self._configs if key != EVERYONE and self.mode(key).act != act)

    def suppressed(self) -> list[SuppressedAction]:
        """Return the suppressed actions of all shards, the oldest first."""
        suppressed_actions = [
            suppressed_action
            for shard in self.shards.values()
            for suppressed_action in shard.suppressed or ()
        ]
        return sorted(
            suppressed_actions,
            key=lambda suppressed_action: (
                suppressed_action.since_ns,
                *suppressed_action[:4],
                str(suppressed_action.reason),
            ),
        )


def _suppressed(
    listed: list[records.SuppressedAction], before: list[SuppressedAction], now_ns: int
) -> list[SuppressedAction]:
    since = {suppressed_action[:5]: suppressed_action.since_ns for suppressed_action in before}
    suppressed_actions = []
    for record in listed[:MAX_SUPPRESSED]:
        reason = Reason.from_record(record["reason"])
        key = (record["flow_id"], record["action"], record["cause"], record["reason"]["kind"], reason)
        suppressed_actions.append(SuppressedAction(*key, since.get(key, now_ns)))
    return suppressed_actions
