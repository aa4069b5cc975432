"""The newest state of the fabric: cables, health, queues, contention, flows, jobs, alerts and actions.

The command line and the web page fill the state from the topics. All collections are bounded: old windows,
cleared alerts and closed contention windows are removed first. Times are fabric time; `append_ns` is the
log's time.
"""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from actuators.notify.notes import NoteIndex
from fabrictime.state.action_state import ActionState
from fabrictime.state.cable_graph import CableGraph, Nic, Plan
from fabrictime.state.flow_cache import Decode, FlowCache
from fabrictime.state.flow_history import RAW_NS
from fabrictime.state.job_state import JobState
from fabrictime.state.link_index import LinkIndex
from fabrictime.state.queue_history import FRESH_NS, QueueHistory
from schemas import records
from schemas.records import (
    Alert,
    AlertState,
    ContentionState,
    ContentionWindow,
    HealthKind,
    LinkHealth,
    LinkState,
)
from schemas.simulation_pace import SimulatedTime
from schemas.topics import (
    ACTIONS,
    ALERT_NOTES,
    ALERTS,
    CONFIG,
    CONTENTION,
    DECISIONS,
    DIAGNOSES,
    FLOWS,
    INVENTORY,
    LINK_HEALTH,
    PATHS,
    POLICY_CYCLES,
    QUEUES,
)

Part = Literal[
    "plan", "paths", "health", "queues", "contention", "flows", "jobs", "alerts", "actions", "suppressed"
]

STATES: Final = tuple(LinkState)
"""Link states by increasing severity."""
UP: Final = STATES.index(LinkState.UP)

HOUR_NS: Final = 3_600_000_000_000
MAX_CHANGES: Final = 512
"""Largest number of state changes that are kept per subject: more than an hour of flapping."""
MAX_SUBJECTS: Final = 65_536
MAX_CLOSED: Final = 2_000
EXPIRY_CHECKS: Final = 2
"""Number of kept contention windows whose age is checked for each new one, so that more can expire than
arrive.
"""
MAX_CLEARED: Final = 500
MAX_ACTIVE: Final = 5_000
MAX_NICS: Final = 262_144
MAX_SILENCE_NS: Final = 30_000_000_000
"""A contention window without an update for this long counts as over, because its worker has stopped; ns."""

_PARTS: Final[dict[str, Part]] = {
    INVENTORY.name: "plan",
    PATHS.name: "paths",
    LINK_HEALTH.name: "health",
    QUEUES.name: "queues",
    CONTENTION.name: "contention",
    FLOWS.name: "flows",
    DIAGNOSES.name: "jobs",
    ALERTS.name: "alerts",
    ALERT_NOTES.name: "alerts",
    DECISIONS.name: "actions",
    ACTIONS.name: "actions",
    CONFIG.name: "actions",
    POLICY_CYCLES.name: "suppressed",
}


class StateChange(NamedTuple):
    """A change of the health state of a cable, NIC or host."""

    since_ns: int
    state: int


@dataclass(slots=True)
class Subject:
    """A cable, NIC or host: its newest LinkHealth record and its changes within the past hour."""

    record: LinkHealth
    changes: deque[StateChange] = field(default_factory=lambda: deque(maxlen=MAX_CHANGES))
    numbers: tuple[int, ...] = ()


def is_cleared(alert: Alert) -> bool:
    """Return whether an alert is cleared."""
    return alert["state"] == AlertState.CLEARED


def is_active(window: ContentionWindow, now_ns: int) -> bool:
    """Return whether a contention window is open and was updated recently."""
    return window["state"] != ContentionState.CLOSED and window["updated_ns"] > now_ns - MAX_SILENCE_NS


class FabricState:
    """The newest record of every subject. One thread writes, other threads read; all of them hold `lock`."""

    def __init__(
        self, decode_flows: Decode, raw_ns: int = RAW_NS, routes_of: FabricState | None = None
    ) -> None:
        """Create an empty state. With `routes_of`, use the cables and routes of that other state."""
        self.lock = threading.RLock()
        self.cable_graph: CableGraph = CableGraph() if routes_of is None else routes_of.cable_graph
        self.link_index: LinkIndex = (
            LinkIndex(self.cable_graph) if routes_of is None else routes_of.link_index
        )
        self.queues = QueueHistory(self.cable_graph)
        self.flows = FlowCache(decode_flows)
        self.jobs = JobState()
        self.actions = ActionState(decode_flows, raw_ns)
        self.nics: dict[str, Nic] = {}
        self.simulated = SimulatedTime()
        self.subjects: dict[str, Subject] = {}
        self.contention: dict[str, ContentionWindow] = {}
        self.alerts: dict[str, Alert] = {}
        self.notes = NoteIndex()
        self.link_state: dict[int, int] = {}
        self.nic_state: dict[str, int] = {}
        self.versions: dict[Part, int] = dict.fromkeys(get_args(Part), 0)
        self._received: tuple[int, float] | None = None
        """(append time of the newest message, monotonic time of its receipt)."""
        self._closed: dict[str, None] = {}
        """Ids of closed contention windows, in the order of their closing."""
        self._contention_ns = 0
        self._plan: tuple[tuple[int, int, int, bool], Plan] | None = None
        self._queues_expire_ns: int | None = None
        """Time at which the plan must change for a cable drawn only for its queues; None if there is none."""

    # ----------------------------------------------------------------------------------------------- writing

    def take(self, topic: str, key: str, record: Any, append_ns: int, routes: bytes = b"") -> Part:
        """Apply one record of the topic's type (None: the tombstone of `key`). Return the changed part.

        `routes` is the digest of a PathMaps record's routes, by which `take_repeated_routes` recognises the
        routes.
        """
        part = _PARTS[topic]
        before = self.cable_graph.version
        if topic == INVENTORY.name:
            self.simulated.take(key, record, append_ns)
            if not self._take_nic(key, record):
                return part
        elif topic == PATHS.name:
            if record is None:
                self.link_index.forget(*_pair(key))
            else:
                self.link_index.take(record, routes)
        elif topic == LINK_HEALTH.name:
            self._take_health(key, record)
        elif topic == ALERT_NOTES.name:
            self.notes.take(key, record)
        elif part in ("actions", "suppressed"):
            self.actions.take(topic, key, record)
        elif record is None:
            self._forget(topic, key)
        elif topic == QUEUES.name:
            self.queues.take(record)
        elif topic == CONTENTION.name:
            self._take_contention(record)
        elif topic == ALERTS.name:
            self._take_alert(record)
        self._mark_changed(part, append_ns)
        if self.cable_graph.version != before:
            self.versions["plan"] += 1
        return part

    def take_repeated_routes(self, key: str, routes: bytes, append_ns: int) -> bool:
        """Return whether a pair's routes have this digest. If so, update only the newest record's time."""
        if not self.link_index.has(*_pair(key), routes):
            return False
        self._received = append_ns, time.monotonic()
        return True

    def take_flows(self, host: str, value: bytes | None, append_ns: int) -> Part:
        """Add one encoded FlowReports message of a host. Return the changed part."""
        if value is not None:
            self.flows.take(host, value, append_ns)
            self.actions.flow_history.take(host, value, append_ns)
        self._mark_changed("flows", append_ns)
        return "flows"

    def take_diagnosis(self, head: Mapping[str, Any], value: bytes, append_ns: int) -> Part:
        """Add one encoded Diagnosis message with its decoded head. Return the changed part."""
        self.jobs.take(head, value)
        self._mark_changed("jobs", append_ns)
        return "jobs"

    def freeze(self) -> None:
        """Stop the ageing of the newest message, for the state of a past moment."""
        if self._received is not None:
            self._received = self._received[0], math.inf

    def _mark_changed(self, part: Part, append_ns: int) -> None:
        self.versions[part] += 1
        self._received = append_ns, time.monotonic()

    def _take_nic(self, key: str, record: records.Nic | None) -> bool:
        """Add a NIC's announcement. Return whether it changed the state: NICs repeat their announcements."""
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
        if before == nic or (before is None and len(self.nics) >= MAX_NICS):
            return False
        self.nics[nic.nic] = nic
        self.notes.take_rack(nic.host, nic.rack)
        return True

    def _take_health(self, key: str, record: LinkHealth | None) -> None:
        before = self.subjects.get(key if record is None else record["subject"])
        if record is None:
            if before is not None:
                self._clear_states(before)
                del self.subjects[key]
                self.versions["plan"] += 1
            return
        if before is not None and record["seq"] < before.record["seq"]:
            return  # an older record, read a second time
        subject = before if before is not None else Subject(record)
        if before is not None:
            self._clear_states(before)
        state = STATES.index(record["state"])
        if not subject.changes or subject.changes[-1].state != state:
            subject.changes.append(StateChange(record["since_ns"], state))
        subject.record = record
        self._set_states(subject, state)
        self.subjects[record["subject"]] = subject
        while len(self.subjects) > MAX_SUBJECTS:
            self._clear_states(self.subjects.pop(next(iter(self.subjects))))

    def _set_states(self, subject: Subject, state: int) -> None:
        record = subject.record
        if record["kind"] != HealthKind.LINK:
            for nic in self.nics_of(record):
                self.nic_state[nic] = state
            return
        named = [self.cable_graph.number(link) for link in (record["links"] or [record["subject"]])]
        numbers = {number for number in named if number is not None}
        if state == UP or not record["links"]:
            numbers |= {number ^ 1 for number in numbers}
        if not all(self.link_index.pair_count(number) for number in numbers):
            self.versions["plan"] += 1  # the cable is drawn for its state alone
        subject.numbers = tuple(numbers)
        for number in numbers:
            self.link_state[number] = state

    def _clear_states(self, subject: Subject) -> None:
        for number in subject.numbers:
            self.link_state.pop(number, None)
        if subject.record["kind"] != HealthKind.LINK:
            for nic in self.nics_of(subject.record):
                self.nic_state.pop(nic, None)

    def nics_of(self, record: LinkHealth) -> list[str]:
        """Return the NICs to which a LinkHealth record about a NIC or host refers."""
        if record["kind"] == HealthKind.NIC:
            return [record["subject"]]
        return [nic.nic for nic in self.nics.values() if nic.host == record["subject"]]

    def _take_contention(self, record: ContentionWindow) -> None:
        key = record["window_id"]
        before = self.contention.pop(key, None)
        newest = record if before is None or record["update"] >= before["update"] else before
        self.contention[key] = newest  # re-inserted, so that the dict is ordered by the last update
        if newest["state"] == ContentionState.CLOSED:
            self._closed[key] = None
        self._contention_ns = max(self._contention_ns, record["updated_ns"])
        for oldest in tuple(itertools.islice(self.contention, EXPIRY_CHECKS)):
            if self.contention[oldest]["updated_ns"] < self._contention_ns - HOUR_NS:
                self._drop_contention(oldest)
        while len(self._closed) > MAX_CLOSED:
            self._drop_contention(next(iter(self._closed)))

    def _drop_contention(self, key: str) -> None:
        del self.contention[key]
        self._closed.pop(key, None)

    def _take_alert(self, record: Alert) -> None:
        before = self.alerts.pop(record["alert_id"], None)
        newer = before is None or record["update"] >= before["update"]
        self.alerts[record["alert_id"]] = record if newer or before is None else before
        cleared = [key for key, alert in self.alerts.items() if is_cleared(alert)]
        for key in cleared[: max(0, len(cleared) - MAX_CLEARED)]:
            del self.alerts[key]
        if len(self.alerts) - len(cleared) > MAX_ACTIVE:
            del self.alerts[next(key for key, alert in self.alerts.items() if not is_cleared(alert))]

    def _forget(self, topic: str, key: str) -> None:
        if topic == ALERTS.name:
            self.alerts.pop(key, None)

    # ----------------------------------------------------------------------------------------------- reading

    def age_s(self, now_ns: int) -> float | None:
        """Return the age of the newest message, s; None without one.

        The monotonic time since its receipt is a lower limit, so that a wrong, early log time hides no age.
        """
        if self._received is None:
            return None
        append_ns, received_s = self._received
        return max((now_ns - append_ns) / 1e9, time.monotonic() - received_s)

    def plan(self) -> Plan:
        """Return the drawn topology, as the same object until the topology changes."""
        plan = self.current_plan()
        if plan is None:
            self._queues_expire_ns = None
            plan = self.cable_graph.plan(self.nics.values(), self._is_drawn)
            self._plan = (self._plan_version(), plan)
        return plan

    def current_plan(self) -> Plan | None:
        """Return the last plan if the topology has not changed since then, else None."""
        return self._plan[1] if self._plan is not None and self._plan[0] == self._plan_version() else None

    def _plan_version(self) -> tuple[int, int, int, bool]:
        expired = self._queues_expire_ns is not None and self.queues.newest_ns > self._queues_expire_ns
        return self.cable_graph.version, self.link_index.shape, self.versions["plan"], expired

    def _is_drawn(self, cable: int) -> bool:
        """Return whether a cable is drawn: on a path, in a state worse than UP, or with inferred queues."""
        both = (2 * cable, 2 * cable + 1)
        if any(self.link_state.get(link, 0) > UP for link in both):
            return True
        if any(self.link_index.pair_count(link) for link in both):
            return not self.link_index.is_doubted(both[0])
        starts_ns = [depth.start_ns for link in both if (depth := self.queues.newest(link)) is not None]
        if starts_ns:  # drawn for fresh windows alone: once these are old, the plan changes
            expire_ns = max(starts_ns) + FRESH_NS
            self._queues_expire_ns = min(expire_ns, self._queues_expire_ns or expire_ns)
        return bool(starts_ns)

    def state(self, number: int) -> int:
        """Return a link's state from its health record. A link without a record is UP if a fresh window has
        probes of this link.
        """
        link_state = self.link_state.get(number)
        if link_state is not None:
            return link_state
        queue = self.queues.newest(number)
        return UP if queue is not None and queue.samples > 0 else 0

    def subject_of(self, number: int) -> Subject | None:
        """Return the health of a link's cable; None without a health record."""
        return self.subjects.get(self.cable_graph.cable(number))

    def active_alerts(self) -> list[Alert]:
        """Return the alerts that are not cleared, the newest first."""
        alerts = [alert for alert in self.alerts.values() if not is_cleared(alert)]
        return sorted(alerts, key=lambda alert: -alert["raised_ns"])

    def cable_counts(self) -> dict[LinkState, int]:
        """Return the number of drawn cables by state. A cable has the worse state of its two directions."""
        links = self.plan().links
        count_by_state = dict.fromkeys(STATES, 0)
        for k in range(0, len(links), 2):
            count_by_state[STATES[max(self.state(links[k]), self.state(links[k + 1]))]] += 1
        return count_by_state

    def open_contention(self, now_ns: int) -> Iterable[ContentionWindow]:
        """Yield the contention windows that are open and were updated recently."""
        return [window for window in self.contention.values() if is_active(window, now_ns)]


def _pair(key: str) -> tuple[str, str]:
    nic, _, peer = key.partition(">")
    return nic, peer
