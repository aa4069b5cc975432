"""The newest flow reports of every host, decoded on demand.

A thousand NICs report tens of thousands of flows per second, but few readers need them. Messages therefore
stay encoded until a caller reads the flows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final

from schemas.log_time import STEP_NS
from schemas.records import Flow, FlowReports, FlowState

KEPT_NS: Final = 5_000_000_000
"""How long messages are kept, ns: a host reports all each second, so older reports describe closed flows."""
MAX_BYTES: Final = 128 * 1024 * 1024
MAX_HOSTS: Final = 65_536

Decode = Callable[[bytes], FlowReports]
MAX_JOB_HOSTS: Final = 64


class ReportedFlow(Flow):
    """An open flow and the host that reports it."""

    host: str


class FlowCache:
    """Encoded FlowReports messages by host. `decode` returns a message's record or raises ValueError."""

    def __init__(self, decode: Decode) -> None:
        self.version = 0
        self.unreadable = 0
        self.newest_ns = 0
        self._decode = decode
        self._messages: dict[str, deque[tuple[int, bytes]]] = {}
        self._bytes = 0
        self._flows: tuple[int, dict[str, ReportedFlow]] = (-1, {})

    def take(self, host: str, value: bytes, append_ns: int) -> None:
        """Add one encoded FlowReports message of a host."""
        earlier = self._messages.get(host)
        if earlier and append_ns < earlier[-1][0] - STEP_NS:
            self._step_back(append_ns)
        messages = self._messages.pop(host, None) or deque()
        self._messages[host] = messages  # re-inserted, so that the dict is ordered by the last report
        messages.append((append_ns, value))
        self._bytes += len(value)
        self.newest_ns = max(self.newest_ns, append_ns)
        while len(messages) > 1 and messages[0][0] < self.newest_ns - KEPT_NS:
            self._bytes -= len(messages.popleft()[1])
        while len(self._messages) > MAX_HOSTS or (self._bytes > MAX_BYTES and len(self._messages) > 1):
            self._drop(next(iter(self._messages)))
        self.version += 1

    def _step_back(self, append_ns: int) -> None:
        """Limit the times of all messages to `append_ns`, because log time stepped back to this time."""
        self.newest_ns = append_ns
        for host, messages in self._messages.items():
            self._messages[host] = deque((min(at_ns, append_ns), value) for at_ns, value in messages)

    def flows(self) -> dict[str, ReportedFlow]:
        """Return the open flows by id, each with its reporting host."""
        if self._flows[0] != self.version:
            flows: dict[str, ReportedFlow] = {}
            oldest_ns = self.newest_ns - KEPT_NS
            for host in [host for host, messages in self._messages.items() if messages[-1][0] < oldest_ns]:
                self._drop(host)
            for host, messages in self._messages.items():
                flows.update(self._flows_of(host, messages))
            self._flows = (self.version, flows)
        return self._flows[1]

    def jobs_of(self, flow_ids: Collection[str]) -> set[str]:
        """Return the jobs of these open flows. The reports of at most `MAX_JOB_HOSTS` hosts are decoded."""
        hosts = {flow_id.partition("/")[0] for flow_id in flow_ids} & self._messages.keys()
        flows = (self._flows_of(host, self._messages[host]) for host in sorted(hosts)[:MAX_JOB_HOSTS])
        return {
            flow["job"]
            for of_host in flows
            for flow in of_host.values()
            if flow["job"] and flow["flow_id"] in flow_ids
        }

    def _flows_of(self, host: str, messages: deque[tuple[int, bytes]]) -> dict[str, ReportedFlow]:
        """Return the open flows of a host: its newest complete report with the later changes applied."""
        reports: list[FlowReports] = []
        for _, value in reversed(messages):
            try:
                report = self._decode(value)
            except ValueError:
                self.unreadable += 1
                continue
            reports.append(report)
            if report["whole"]:
                break
        flows: dict[str, ReportedFlow] = {}
        for report in reversed(reports):
            for flow in report["flows"]:
                if flow["state"] == FlowState.CLOSED:
                    flows.pop(flow["flow_id"], None)
                else:
                    flows[flow["flow_id"]] = {**flow, "host": host}
        return flows

    def _drop(self, host: str) -> None:
        self._bytes -= sum(len(value) for _, value in self._messages.pop(host))


def flows_on(flows: Mapping[str, Flow], links: Collection[str]) -> list[Flow]:
    """Return the flows that cross at least one of the links, by descending rate."""
    link_set = set(links)
    crossing_flows = [flow for flow in flows.values() if not link_set.isdisjoint(flow["links"])]
    return sorted(crossing_flows, key=lambda flow: -flow["rate_bps"])
