"""Keeps the present state of the fabric from its topics: cables, paths, health, queues, contention, flows,
alerts, actions.

Decoded records arrive in each partition's order; frames and tabs read `FabricState` under its lock. All parts
are bounded: old windows, cleared alerts and closed contention go first. Pure: no Kafka, no clock; times are
fabric time, or append time where a name says so.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from fabrictime.state.action_state import ActionState
from fabrictime.state.cable_graph import CableGraph, Nic, Plan
from fabrictime.state.flow_cache import Decode, FlowCache
from fabrictime.state.flow_history import RAW_NS
from fabrictime.state.link_index import LinkIndex
from fabrictime.state.queue_history import FRESH_NS, QueueHistory
from schemas.topics import (
    ACTIONS,
    ALERTS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    PATHS,
    POLICY_CYCLES,
    QUEUES,
    TOPICS,
)

Record = Mapping[str, Any]
Part = Literal["plan", "paths", "health", "queues", "contention", "flows", "alerts", "acts", "held"]

STATES: Final = ("UNKNOWN", "UP", "GREY", "FLAPPING", "DOWN")
"""States of a link, the worse the later."""

HOUR_NS: Final = 3_600_000_000_000
TURNS_KEPT: Final = 512
SUBJECTS: Final = 65_536
CLOSED_KEPT: Final = 2_000
OLD_AT_ONCE: Final = 2
"""Contention windows looked at with each that comes, whether they are too old: more than come."""
CLEARED_KEPT: Final = 500
STANDING: Final = 5_000
MOST_NICS: Final = 262_144
UNTOLD_NS: Final = 30_000_000_000
"""A contention window without an update for this long is taken as ended with its worker."""

_PARTS: Final[dict[str, Part]] = {
    INVENTORY.name: "plan",
    PATHS.name: "paths",
    LINK_HEALTH.name: "health",
    QUEUES.name: "queues",
    CONTENTION.name: "contention",
    FLOWS.name: "flows",
    ALERTS.name: "alerts",
    DECISIONS.name: "acts",
    ACTIONS.name: "acts",
    CONFIG.name: "acts",
    POLICY_CYCLES.name: "held",
}
RECORDS: Final = {name: TOPICS[name].record for name in _PARTS}
"""Topic to the record that it carries, of all topics that the state takes."""


class Turn(NamedTuple):
    """A subject's change of state."""

    since_ns: int
    state: int


@dataclass(slots=True)
class Subject:
    """A cable, NIC or host with its last evaluation, and its known changes of the past hour."""

    record: Record
    turns: deque[Turn] = field(default_factory=lambda: deque(maxlen=TURNS_KEPT))
    numbers: tuple[int, ...] = ()


def cleared(alert: Record) -> bool:
    """Whether an alert stands no more."""
    return bool(alert["state"] == "CLEARED")


def stands(window: Record, now_ns: int) -> bool:
    """Return whether a contention window is active: not closed, and updated recently."""
    return bool(window["state"] != "CLOSED" and window["updated_ns"] > now_ns - UNTOLD_NS)


class FabricState:
    """The newest of everything. One thread takes records, others read; both hold `lock`."""

    def __init__(self, decode_flows: Decode, raw_ns: int = RAW_NS) -> None:
        self.lock = threading.RLock()
        self.cable_graph = CableGraph()
        self.link_index = LinkIndex(self.cable_graph)
        self.queues = QueueHistory(self.cable_graph)
        self.flows = FlowCache(decode_flows)
        self.acts = ActionState(decode_flows, raw_ns)
        self.nics: dict[str, Nic] = {}
        self.subjects: dict[str, Subject] = {}
        self.contention: dict[str, Record] = {}
        self.alerts: dict[str, Record] = {}
        self.link_state: dict[int, int] = {}
        self.nic_state: dict[str, int] = {}
        self.versions: dict[Part, int] = dict.fromkeys(get_args(Part), 0)
        self.append_ns: dict[str, int] = {}
        self._closed: dict[str, None] = {}
        """Contention windows that closed, in that order."""
        self._contention_ns = 0
        self._plan: tuple[tuple[int, int, int, bool], Plan] | None = None
        self._queues_pass_ns: int | None = None
        """When queues alone no longer draw the first of the cables that they draw alone."""

    # ------------------------------------------------------------------------------------------------ taking

    def take(self, topic: str, key: str, record: Record | None, append_ns: int) -> Part:
        """Take one record (None: a tombstone of `key`); return the part of the state that it changed."""
        part = _PARTS[topic]
        before = self.cable_graph.version
        if topic == INVENTORY.name:
            if not self._take_nic(key, record):
                return part
        elif topic == PATHS.name:
            if record is None:
                self.link_index.forget(*_pair(key))
            else:
                self.link_index.take(record)
        elif topic == LINK_HEALTH.name:
            self._take_health(key, record)
        elif part in ("acts", "held"):
            self.acts.take(topic, key, record)
        elif record is None:
            self._forget(topic, key)
        elif topic == QUEUES.name:
            self.queues.take(record)
        elif topic == CONTENTION.name:
            self._take_contention(record)
        elif topic == ALERTS.name:
            self._take_alert(record)
        self._changed(part, topic, append_ns)
        if self.cable_graph.version != before:
            self.versions["plan"] += 1
        return part

    def take_flows(self, host: str, value: bytes | None, append_ns: int) -> Part:
        """Take one FlowReports message undecoded."""
        if value is not None:
            self.flows.take(host, value, append_ns)
            self.acts.trail.take(host, value, append_ns)
        self._changed("flows", FLOWS.name, append_ns)
        return "flows"

    def _changed(self, part: Part, topic: str, append_ns: int) -> None:
        self.versions[part] += 1
        self.append_ns[topic] = max(self.append_ns.get(topic, 0), append_ns)

    def _take_nic(self, key: str, record: Record | None) -> bool:
        """Whether anything changed: NICs are announced again and again."""
        if record is None:
            if self.nics.pop(key, None) is None:
                return False
            self.link_index.forget_nic(key)
            self.nic_state.pop(key, None)
            return True
        nic = Nic(
            record["nic"],
            record["host"],
            record["device"],
            record["rack"],
            record["rail"],
            record["speed_bps"],
        )
        before = self.nics.get(nic.nic)
        if before == nic or (before is None and len(self.nics) >= MOST_NICS):
            return False
        self.nics[nic.nic] = nic
        return True

    def _take_health(self, key: str, record: Record | None) -> None:
        before = self.subjects.get(key if record is None else record["subject"])
        if record is None:
            if before is not None:
                self._unmark(before)
                del self.subjects[key]
                self.versions["plan"] += 1
            return
        if before is not None and record["seq"] < before.record["seq"]:
            return  # an older one, read again
        state = STATES.index(record["state"])
        subject = before if before is not None else Subject(record)
        if before is not None:
            self._unmark(before)
        if not subject.turns or subject.turns[-1].state != state:
            subject.turns.append(Turn(record["since_ns"], state))
        subject.record = record
        if record["kind"] == "LINK":
            named = [self.cable_graph.number(link) for link in (record["links"] or [record["subject"]])]
            numbers = {number for number in named if number is not None}
            if state == 1 or not record["links"]:
                numbers |= {number ^ 1 for number in numbers}
            if not all(self.link_index.crossed(number) for number in numbers):
                self.versions["plan"] += 1  # drawn for its trouble alone
            subject.numbers = tuple(numbers)
            for number in numbers:
                self.link_state[number] = state
        else:
            for nic in self.nics_of(record):
                self.nic_state[nic] = state
        self.subjects[record["subject"]] = subject
        while len(self.subjects) > SUBJECTS:
            self._unmark(self.subjects.pop(next(iter(self.subjects))))

    def _unmark(self, subject: Subject) -> None:
        for number in subject.numbers:
            self.link_state.pop(number, None)
        if subject.record["kind"] != "LINK":
            for nic in self.nics_of(subject.record):
                self.nic_state.pop(nic, None)

    def nics_of(self, record: Record) -> list[str]:
        """Return the NICs that a LinkHealth of a NIC or host is about."""
        if record["kind"] == "NIC":
            return [record["subject"]]
        return [nic.nic for nic in self.nics.values() if nic.host == record["subject"]]

    def _take_contention(self, record: Record) -> None:
        key = record["window_id"]
        before = self.contention.pop(key, None)
        kept = record if before is None or record["update"] >= before["update"] else before
        self.contention[key] = kept  # last: the entry with the oldest update comes first
        if kept["state"] == "CLOSED":
            self._closed[key] = None
        self._contention_ns = max(self._contention_ns, record["updated_ns"])
        for oldest in tuple(itertools.islice(self.contention, OLD_AT_ONCE)):
            if self.contention[oldest]["updated_ns"] < self._contention_ns - HOUR_NS:
                self._drop_contention(oldest)
        while len(self._closed) > CLOSED_KEPT:
            self._drop_contention(next(iter(self._closed)))

    def _drop_contention(self, key: str) -> None:
        del self.contention[key]
        self._closed.pop(key, None)

    def _take_alert(self, record: Record) -> None:
        before = self.alerts.pop(record["alert_id"], None)
        newer = before is None or record["update"] >= before["update"]
        self.alerts[record["alert_id"]] = record if newer or before is None else before
        done = [key for key, alert in self.alerts.items() if cleared(alert)]
        for key in done[: max(0, len(done) - CLEARED_KEPT)]:
            del self.alerts[key]
        if len(self.alerts) - len(done) > STANDING:
            del self.alerts[next(key for key, alert in self.alerts.items() if not cleared(alert))]

    def _forget(self, topic: str, key: str) -> None:
        if topic == ALERTS.name:
            for alert in [a for a, each in self.alerts.items() if each["subject"] == key]:
                del self.alerts[alert]

    # ----------------------------------------------------------------------------------------------- reading

    def plan(self) -> Plan:
        """Return the present drawing; the same object while nothing of it changed."""
        found = self.plan_if_known()
        if found is None:
            self._queues_pass_ns = None
            found = self.cable_graph.plan(self.nics.values(), self._drawn)
            self._plan = (self._plan_version(), found)
        return found

    def plan_if_known(self) -> Plan | None:
        """Return the plan where nothing of it changed since it was made, else None."""
        return self._plan[1] if self._plan is not None and self._plan[0] == self._plan_version() else None

    def _plan_version(self) -> tuple[int, int, int, bool]:
        passed = self._queues_pass_ns is not None and self.queues.newest_ns > self._queues_pass_ns
        return self.cable_graph.version, self.link_index.shape, self.versions["plan"], passed

    def _drawn(self, cable: int) -> bool:
        """A cable is drawn while a path crosses it, it has a fault, or its queues are published."""
        up, down = 2 * cable, 2 * cable + 1
        if (
            self.link_index.crossed(up)
            or self.link_index.crossed(down)
            or self.link_state.get(up, 0) > 1
            or self.link_state.get(down, 0) > 1
        ):
            return True
        told = [depth.start_ns for link in (up, down) if (depth := self.queues.newest(link)) is not None]
        if told:  # by windows alone that are not old yet: when they are, the plan is another
            pass_ns = max(told) + FRESH_NS
            self._queues_pass_ns = min(pass_ns, self._queues_pass_ns or pass_ns)
        return bool(told)

    def state(self, number: int) -> int:
        """Return a link's state: as evaluated, else UP if probes cross it in the newest windows."""
        judged = self.link_state.get(number)
        if judged is not None:
            return judged
        queue = self.queues.newest(number)
        return 1 if queue is not None and queue.samples > 0 else 0

    def subject_of(self, number: int) -> Subject | None:
        """Return the last evaluation of a link's cable."""
        return self.subjects.get(self.cable_graph.cable(number))

    def standing(self) -> list[Record]:
        """Return the alerts that stand, the newest first."""
        found = [alert for alert in self.alerts.values() if not cleared(alert)]
        return sorted(found, key=lambda alert: -int(alert["raised_ns"]))

    def counts(self) -> dict[str, int]:
        """Return how many drawn cables are in each state, by the worse direction."""
        links = self.plan().links
        found = dict.fromkeys(STATES, 0)
        for k in range(0, len(links), 2):
            found[STATES[max(self.state(links[k]), self.state(links[k + 1]))]] += 1
        return found

    def open_contention(self, now_ns: int) -> Iterable[Record]:
        """Return the contention windows that stand."""
        return [each for each in self.contention.values() if stands(each, now_ns)]


def _pair(key: str) -> tuple[str, str]:
    nic, _, peer = key.partition(">")
    return nic, peer
