"""Follows the topics of a running control loop in a thread, for the benches of control.

`Watch` has flows with their links, decisions with outcomes, link health, and the policy's knowledge. The
caller knows the truth, such as the links that a fault cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from typing import Final, Self

from fabrictime.bench._fabric import CannotRun
from schemas import codec
from schemas.kafka.reader import BEGINNING, TopicReader
from schemas.records import ActionReport, Decision, Flow, FlowAction, FlowLeg, FlowState, LinkHealth
from schemas.topics import ACTIONS, DECISIONS, FLOW_ROUTES, FLOWS, LINK_HEALTH, POLICY_CYCLES, Topic

TOPICS: Final[tuple[Topic, ...]] = (FLOWS, FLOW_ROUTES, LINK_HEALTH, DECISIONS, ACTIONS, POLICY_CYCLES)


class Watch:
    """A reader that follows a log from its beginning until its `with` block ends."""

    def __init__(self, bootstrap: str) -> None:
        self.flows: dict[str, Flow] = {}
        """Open flows by id, in their last reported state."""
        self.routes: dict[tuple[str, str, FlowLeg, int, int], tuple[str, ...]] = {}
        """Links by (NIC, peer, leg, port of the flow, peer port of the flow)."""
        self.health: dict[str, LinkHealth] = {}
        """The newest record of each subject, by subject."""
        self.health_records: list[LinkHealth] = []
        """All records of all subjects, in order."""
        self.decisions: dict[str, Decision] = {}
        self.actions: list[ActionReport] = []
        self.movable = 0
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._reader = TopicReader.open(bootstrap, dict.fromkeys(TOPICS, BEGINNING), fetch_wait_ms=20)
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(10)
        self._reader.close()

    def until(self, holds: Callable[[], bool], seconds: float, kind: str) -> None:
        """Wait until `holds()` is true. Raises CannotRun, with `kind` in its message, after `seconds`."""
        if not self.soon(holds, seconds):
            raise CannotRun(f"{kind}: not within {seconds:g} s")

    def soon(self, holds: Callable[[], bool], seconds: float) -> bool:
        """Wait at most `seconds` until `holds()` is true; return whether it became true."""
        end_s = time.monotonic() + seconds
        while True:
            with self._lock:
                if holds():
                    return True
            if time.monotonic() > end_s:
                return False
            time.sleep(0.01)

    def links_of(self, flow: Flow) -> tuple[str, ...]:
        """Return the links of a flow's data and, if known, of its acknowledgements."""
        key = (flow["peer"], flow["nic"], FlowLeg.ACK, flow["source_port"], flow["peer_port"])
        return (*flow["links"], *self.routes.get(key, ()))

    def route_of(self, flow: Flow, port: int) -> tuple[str, ...]:
        """Return the known links, in both directions, that a flow takes with a given source port."""
        there = (flow["nic"], flow["peer"], FlowLeg.DATA, port, flow["peer_port"])
        back = (flow["peer"], flow["nic"], FlowLeg.ACK, port, flow["peer_port"])
        return (*self.routes.get(there, ()), *self.routes.get(back, ()))

    def flows_of(self, *jobs: str) -> dict[str, Flow]:
        """Return, by id, the flows of some jobs whose links are known."""
        return {name: flow for name, flow in self.flows.items() if flow["job"] in jobs and flow["links"]}

    def applied(self, action: FlowAction, since: int, flows: Collection[str]) -> set[str]:
        """Return those of `flows` to which an actuator applied `action`, by `actions` from `since` on."""
        return {
            report["flow_id"]
            for report in self.actions[since:]
            if report["action"] == action and report["outcome"] == "APPLIED" and report["flow_id"] in flows
        }

    def _follow(self) -> None:
        handlers = {
            FLOWS.name: self._take_flows,
            FLOW_ROUTES.name: self._take_routes,
            LINK_HEALTH.name: self._take_health,
            DECISIONS.name: self._take_decision,
            ACTIONS.name: self._take_action,
            POLICY_CYCLES.name: self._take_cycles,
        }
        while not self._over.is_set():
            for message in self._reader.poll(0.05):
                if message.value is None:
                    continue
                with self._lock:
                    handlers[message.topic](message.value)

    def _take_flows(self, value: bytes) -> None:
        record = codec.decode(value, FLOWS.type)
        for flow in record["flows"]:
            if flow["state"] == FlowState.CLOSED:
                self.flows.pop(flow["flow_id"], None)
            else:
                self.flows[flow["flow_id"]] = flow
        if record["whole"]:
            here = {flow["flow_id"] for flow in record["flows"]}
            prefix = f"{record['host']}/"
            for name in [name for name in self.flows if name.startswith(prefix) and name not in here]:
                del self.flows[name]

    def _take_routes(self, value: bytes) -> None:
        record = codec.decode(value, FLOW_ROUTES.type)
        for route in record["routes"]:
            if route["complete"]:
                key = (record["nic"], record["peer"], route["leg"], route["path"], route["peer_port"])
                self.routes[key] = tuple(route["links"])

    def _take_health(self, value: bytes) -> None:
        record = codec.decode(value, LINK_HEALTH.type)
        self.health[record["subject"]] = record
        self.health_records.append(record)

    def _take_decision(self, value: bytes) -> None:
        record = codec.decode(value, DECISIONS.type)
        self.decisions[record["decision_id"]] = record

    def _take_action(self, value: bytes) -> None:
        self.actions.append(codec.decode(value, ACTIONS.type))

    def _take_cycles(self, value: bytes) -> None:
        self.movable = codec.decode(value, POLICY_CYCLES.type)["movable"]
