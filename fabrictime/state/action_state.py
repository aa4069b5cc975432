"""What is decided for flows, what came of it, what is held back, and the mode in force.

In: decoded Decision, ActionReport, PolicyCycles and ActuatorConfig records, FlowReports messages as they
came. Out: `ActionState`, read under the lock of who fills it. Bounded; pure: no Kafka, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fabrictime.state.flow_history import RAW_NS, Decode, Effect, FlowHistory
from schemas.limits import EVERYONE, Limits
from schemas.reasons import Reason
from schemas.topics import ACTIONS, CONFIG, DECISIONS, POLICY_CYCLES

__all__ = ["WATCHED_NS", "ActionState", "Mode", "ShardPolicy", "SuppressedAction"]

Record = Mapping[str, Any]

KEPT: Final = 4_000
"""Decisions, and reports on them, that are kept."""
WATCHED_NS: Final = 12_000_000_000
"""How long a host's flows are watched after one of them was acted on."""
MOST_HELD: Final = 4_096
MOVES: Final = frozenset({"REROUTE", "RESTORE"})


class SuppressedAction(NamedTuple):
    """An action that was wanted and not taken, and since when that is so, fabric time."""

    flow_id: str
    action: str
    cause: str
    kind: str
    reason: Reason
    since_ns: int


class Mode(NamedTuple):
    """Whether decisions are carried out, who said so and when; `by` empty: nobody, it is the default."""

    act: bool
    by: str = ""
    since_ns: int = 0


@dataclass(slots=True)
class ShardPolicy:
    """A shard's policy as of its newest round. `held` None: not told yet since we listen."""

    epoch: int = -1
    next_round: int = 0
    at_ns: int = 0
    flows: int = 0
    movable: int = 0
    held: list[SuppressedAction] | None = None


@dataclass(slots=True)
class _Said:
    """A key's config, and who last changed its mode."""

    record: Record
    mode_by: str = ""
    mode_ns: int = 0


class ActionState:
    """The newest of what is decided and done. Records come in each partition's order."""

    def __init__(self, decode_flows: Decode, raw_ns: int = RAW_NS) -> None:
        self.trail = FlowHistory(decode_flows, raw_ns)
        self.decisions: dict[str, Record] = {}
        self.reports: dict[str, dict[str, Record]] = {}
        """Decision to outcome to report."""
        self.shards: dict[str, ShardPolicy] = {}
        self.effects: dict[str, Effect] = {}
        """How flows fared around decisions, once that changes no more."""
        self._said: dict[str, _Said] = {}

    # ------------------------------------------------------------------------------------------------ taking

    def take(self, topic: str, key: str, record: Record | None) -> None:
        """Take one record; None: a tombstone of `key`."""
        if topic == CONFIG.name:
            self._take_config(key, record)
        elif record is None:
            return
        elif topic == DECISIONS.name:
            self.decisions.setdefault(record["decision_id"], record)
            while len(self.decisions) > KEPT:
                del self.decisions[next(iter(self.decisions))]
            self.trail.watch(record["host"], record["at_ns"] + WATCHED_NS)
        elif topic == ACTIONS.name:
            self.reports.setdefault(self._name(record), {}).setdefault(record["outcome"], record)
            while len(self.reports) > KEPT:
                del self.reports[next(iter(self.reports))]
            self.trail.watch(record["host"], record["at_ns"] + WATCHED_NS)
        elif topic == POLICY_CYCLES.name:
            self._take_rounds(record)

    def _name(self, report: Record) -> str:
        """Under which name a report is kept: an actuator that began anew counts its reflexes anew."""
        name = str(report["decision_id"])
        known = self.reports.get(name, {}).get("LOCAL_REPAIR")
        if report["outcome"] == "LOCAL_REPAIR" and known is not None and known["at_ns"] != report["at_ns"]:
            return f"{name} {report['at_ns']}"
        return name

    def _take_config(self, key: str, record: Record | None) -> None:
        before = self._said.pop(key, None)
        if record is None:
            return
        if before is not None and before.record["mode"] == record["mode"]:
            self._said[key] = _Said(record, before.mode_by, before.mode_ns)
        else:
            self._said[key] = _Said(record, record["by"], record["at_ns"])

    def _take_rounds(self, record: Record) -> None:
        shard = self.shards.setdefault(record["shard"], ShardPolicy())
        place = (record["epoch"], record["first_cycle"])
        if place < (shard.epoch, shard.next_round):
            return  # of an owner that is no more, or read again
        if record["epoch"] != shard.epoch:
            shard.held = None
        shard.epoch, shard.next_round = record["epoch"], record["first_cycle"] + len(record["cycles"])
        shard.at_ns, shard.flows, shard.movable = record["at_ns"], record["flows"], record["movable"]
        for each in record["cycles"]:
            if each["suppressed"] is not None:
                shard.held = _held(each["suppressed"], shard.held or [], each["now_ns"])

    def keep_effect(self, decision_id: str, effect: Effect) -> None:
        """Keep what a decision did to its flow: samples go, this stays."""
        self.effects[decision_id] = effect
        while len(self.effects) > KEPT:
            del self.effects[next(iter(self.effects))]

    # ----------------------------------------------------------------------------------------------- reading

    @property
    def configs(self) -> dict[str, Record]:
        """The records of `fabric.config` in force, by key."""
        return {key: said.record for key, said in self._said.items()}

    def limits(self, host: str) -> Limits:
        """Return the limits in force at a host."""
        return Limits.of(self.configs, host)

    def mode(self, host: str = EVERYONE) -> Mode:
        """Return the mode in force at a host, by whom and since when."""
        mode = Mode(False)
        for key in dict.fromkeys((EVERYONE, host)):
            said = self._said.get(key)
            if said is not None and said.record["mode"] != "UNKNOWN":
                mode = Mode(said.record["mode"] == "ACT", said.mode_by, said.mode_ns)
        return mode

    def apart(self) -> list[str]:
        """Return the hosts whose mode is not everyone's."""
        act = self.mode().act
        return sorted(key for key in self._said if key != EVERYONE and self.mode(key).act != act)

    def held(self) -> list[SuppressedAction]:
        """Return what is held back now, of all shards, what is so for longest first."""
        found = [each for shard in self.shards.values() for each in shard.held or ()]
        return sorted(found, key=lambda each: (each.since_ns, *each[:4], str(each.reason)))


def _held(told: list[Record], before: list[SuppressedAction], now_ns: int) -> list[SuppressedAction]:
    since = {each[:5]: each.since_ns for each in before}
    found = []
    for each in told[:MOST_HELD]:
        reason = Reason.from_record(each["reason"])
        what = (each["flow_id"], each["action"], each["cause"], each["reason"]["kind"], reason)
        found.append(SuppressedAction(*what, since.get(what, now_ns)))
    return found
