"""Keeps records about the network by link, NIC pair, flow and host, in bounded memory.

The view accepts records in any order. It answers questions about an interval: links with a fault, queues on a
link, delays of a pair, flows between two NICs, limits of a flow, failed checks of a host.
"""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from typing import Final, NamedTuple, Protocol, TypeVar

from schemas.ids import cable_id, host_of
from schemas.records import (
    ActionOutcome,
    ActionReport,
    Alert,
    AlertState,
    AuditResult,
    AuditStatus,
    ClockOffsets,
    ClockSync,
    ContentionWindow,
    Decision,
    Flow,
    FlowAction,
    FlowReports,
    FlowRoutes,
    FlowState,
    Leg,
    LinkHealth,
    LinkQueues,
    LinkState,
    Nic,
    PathDelays,
    PathMaps,
)
from streams.diagnosis.network.delay_windows import DelayWindows, PairDelay
from streams.diagnosis.rules import KEEP_NS, MAX_RECORDS
from streams.runtime.units import NS_PER_S

Links = tuple[str, ...]
T = TypeVar("T")
R = TypeVar("R")
OPEN_NS: Final = 2**62
"""The end of an episode that has not ended."""
EPISODES_KEPT: Final = 64
"""Largest number of episodes kept per subject."""
RESENT_KEPT_NS: Final = 15 * NS_PER_S


class Routes(Protocol):
    """Routes of flows and probes: a worker passes its global tables, other callers `RecordedRoutes`."""

    def of_flow(self, nic: str, peer: str, path: int, peer_port: int) -> Links:
        """Return the links of a flow, in order; empty if unknown."""

    def of_pair(self, nic: str, peer: str) -> frozenset[Links]:
        """Return the known routes from one NIC to another."""

    def of_probe(self, nic: str, peer: str, path: int) -> tuple[Links, Links]:
        """Return the links of a probe's requests and of its answers; each is empty if not all are known."""


class RecordedRoutes:
    """Routes from `FlowRoutes` and `PathMaps` records."""

    def __init__(self) -> None:
        self._flows: dict[tuple[str, str], dict[tuple[int, int], Links]] = {}
        self._paths: dict[tuple[str, str], dict[int, Links]] = {}
        self._answers: dict[tuple[str, str], dict[int, Links]] = {}
        self._known: dict[Links, Links] = {}
        self.version = 0
        """Grows when routes change; a repeated record does not change it."""

    def take_flow_routes(self, record: FlowRoutes) -> None:
        """Add the routes of a pair's flows."""
        flow_routes = {
            (route["path"], route["peer_port"]): self._one(route["links"])
            for route in record["routes"]
            if route["leg"] == "DATA" and route["complete"]
        }
        self._replace(self._flows, (record["nic"], record["peer"]), flow_routes)

    def take_paths(self, record: PathMaps) -> None:
        """Add the routes of a pair's probes."""
        for leg, routes in ((Leg.REQUEST, self._paths), (Leg.ANSWER, self._answers)):
            new = {
                path_map["path"]: self._one(path_map["links"])
                for path_map in record["paths"]
                if path_map["leg"] == leg and path_map["complete"]
            }
            self._replace(routes, (record["nic"], record["peer"]), new)

    def _replace(self, routes: dict[T, R], pair: T, new: R) -> None:
        self.version += routes.get(pair) != new
        routes[pair] = new

    def _one(self, links: list[str]) -> Links:
        route = tuple(links)
        return self._known.setdefault(route, route)

    def of_flow(self, nic: str, peer: str, path: int, peer_port: int) -> Links:
        """Return the links of a flow as traced, else the links of a probe with the same source port."""
        traced = self._flows.get((nic, peer), {}).get((path, peer_port))
        return traced or self._paths.get((nic, peer), {}).get(path, ())

    def of_pair(self, nic: str, peer: str) -> frozenset[Links]:
        """Return the known routes from one NIC to another."""
        pair = (nic, peer)
        return frozenset({*self._flows.get(pair, {}).values(), *self._paths.get(pair, {}).values()})

    def of_probe(self, nic: str, peer: str, path: int) -> tuple[Links, Links]:
        """Return the links of a probe's requests and of its answers; each is empty if not all are known."""
        requests, answers = self._paths.get((nic, peer), {}), self._answers.get((peer, nic), {})
        return requests.get(path, ()), answers.get(path, ())


class Episode(NamedTuple):
    """A health state of a link, NIC or host, and the time for which it lasted."""

    record: LinkHealth
    begin_ns: int
    end_ns: int
    """End of the state; `OPEN_NS` if it has not ended."""


class Pace(NamedTuple):
    """A rate limit that this system put on a flow."""

    flow_id: str
    rate_bps: float
    begin_ns: int
    end_ns: int
    decision: Decision | None


class Resent:
    """Packets that flows sent again, by NIC pair; the count decays to 1/e in `RESENT_KEPT_NS`."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], tuple[int, float]] = {}
        """Maps pair to the time of its newest packet, and the count then."""

    def take(self, flow: Flow, at_ns: int) -> None:
        """Add the packets that a flow's report counts as sent again."""
        if flow["retransmits"] and flow["peer"]:
            pair = flow["nic"], flow["peer"]
            newest_ns = max(at_ns, self._counts.get(pair, (at_ns, 0.0))[0])
            count = flow["retransmits"] * math.exp((at_ns - newest_ns) / RESENT_KEPT_NS)
            self._counts[pair] = newest_ns, self.of(pair, newest_ns) + count

    def of(self, pair: tuple[str, str], at_ns: int) -> float:
        """Return the decayed count of packets that a pair sent again, as of `at_ns`."""
        resent_ns, count = self._counts.get(pair, (at_ns, 0.0))
        return count * math.exp(min(0.0, (resent_ns - at_ns) / RESENT_KEPT_NS))

    def forget(self, oldest_ns: int) -> None:
        """Drop the pairs that have sent no packet again since `oldest_ns`."""
        self._counts = {pair: count for pair, count in self._counts.items() if count[0] >= oldest_ns}


class NetworkView:
    """Records about the network. Call a `take_` method for each record, and `forget` regularly.

    `nics` takes a NIC's name and returns whether its delays are kept; None keeps the delays of all NICs.
    """

    def __init__(
        self,
        routes: Routes | None = None,
        keep_ns: int = KEEP_NS,
        nics: Callable[[str], bool] | None = None,
    ) -> None:
        self.recorded = RecordedRoutes()
        self.routes: Routes = self.recorded if routes is None else routes
        self.keep_ns = keep_ns
        self.inventory: dict[str, Nic] = {}
        self._health: dict[str, dict[int, LinkHealth]] = {}
        self._by_cable: dict[str, set[str]] = defaultdict(set)
        self._windows: OrderedDict[str, ContentionWindow] = OrderedDict()
        self._on_link: dict[str, set[str]] = defaultdict(set)
        self.probed = DelayWindows(nics)
        self._flows: dict[str, dict[str, tuple[int, Flow]]] = defaultdict(dict)
        self.resent = Resent()
        self._decisions: OrderedDict[str, Decision] = OrderedDict()
        self._actions: OrderedDict[tuple[str, str], ActionReport] = OrderedDict()
        self._alerts: OrderedDict[str, Alert] = OrderedDict()
        self._audit: OrderedDict[tuple[str, str], AuditResult] = OrderedDict()
        self._clocks: dict[str, tuple[int, ClockSync, float]] = {}
        self._rates: OrderedDict[str, int] = OrderedDict()

    # ------------------------------------------------------------------------------------------ records

    def take_nic(self, record: Nic) -> None:
        """Add a NIC's inventory record."""
        self.inventory[record["nic"]] = record

    def take_health(self, record: LinkHealth) -> None:
        """Add a record of a health state of a link, NIC or host."""
        states = self._health.setdefault(record["subject"], {})
        states[record["seq"]] = record
        while len(states) > EPISODES_KEPT:
            del states[min(states)]
        for link in record["links"]:
            self._by_cable[_cable(link)].add(record["subject"])
        self._by_cable[record["subject"]].add(record["subject"])

    def take_contention(self, record: ContentionWindow) -> None:
        """Add a record of a contention window; only the newest record of each window counts."""
        previous = self._windows.get(record["window_id"])
        if previous is None or record["update"] >= previous["update"]:
            if previous is not None:
                self._unlink_window(previous)  # an update may name other links
            self._windows[record["window_id"]] = record
            for link in {record["link"], *record["links"]}:
                self._on_link[link].add(record["window_id"])
        while len(self._windows) > MAX_RECORDS:
            self._forget_window(next(iter(self._windows)))

    def take_delays(self, record: PathDelays) -> None:
        """Add a window of probe delays of a NIC."""
        self.probed.take(record)

    def take_flows(self, record: FlowReports) -> None:
        """Add a host's report of its flows; a full report replaces all earlier ones."""
        flows, at_ns = self._flows[record["host"]], record["system_ns"]
        if record["whole"]:
            _drop_unlisted(flows, {row["flow_id"] for row in record["flows"]}, at_ns)
        for flow in record["flows"]:
            self.resent.take(flow, at_ns)
            seen_ns, former = flows.get(flow["flow_id"], (at_ns, None))
            if seen_ns > at_ns:
                continue
            if former is not None and former["links"] and not flow["links"]:
                flow = {**flow, "links": former["links"]}
            if flow["state"] == FlowState.CLOSED:
                flows.pop(flow["flow_id"], None)
            else:
                flows[flow["flow_id"]] = (at_ns, flow)
        while len(flows) > MAX_RECORDS:
            del flows[next(iter(flows))]

    def take_routes(self, record: FlowRoutes) -> None:
        """Add the routes of a pair's flows."""
        self.recorded.take_flow_routes(record)

    def take_paths(self, record: PathMaps) -> None:
        """Add the routes of a pair's probes."""
        self.recorded.take_paths(record)

    def take_decision(self, record: Decision) -> None:
        """Add a decision about a flow."""
        _keep(self._decisions, record["decision_id"], record)

    def take_action(self, record: ActionReport) -> None:
        """Add the report of an action on a flow."""
        _keep(self._actions, (record["decision_id"], record["flow_id"]), record)

    def take_alert(self, record: Alert) -> None:
        """Add an alert; only the newest record of each alert counts."""
        previous = self._alerts.get(record["alert_id"])
        if previous is None or record["update"] >= previous["update"]:
            _keep(self._alerts, record["alert_id"], record)

    def take_audit(self, record: AuditResult) -> None:
        """Add the result of a host's check; only the newest result of each check counts."""
        key = (record["host"], record["check"])
        previous = self._audit.get(key)
        if previous is None or record["checked_ns"] >= previous["checked_ns"]:
            _keep(self._audit, key, record)

    def take_clocks(self, record: ClockOffsets) -> None:
        """Add the states of clocks; only the newest window of each clock counts."""
        for clock in record["clocks"]:
            previous = self._clocks.get(clock["clock"])
            if previous is None or record["window"] >= previous[0]:
                self._clocks[clock["clock"]] = (record["window"], clock["state"], clock["bound_ns"])

    def take_queues(self, record: LinkQueues) -> None:
        """Add the rates of the links whose queues are known."""
        for link in record["links"]:
            if self._rates.get(link["link"]) != link["rate_bps"]:
                _keep(self._rates, link["link"], link["rate_bps"])

    def forget(self, now_ns: int) -> None:
        """Drop the records that ended before the time span that the view keeps."""
        oldest_ns = now_ns - self.keep_ns
        self.probed.forget(oldest_ns)
        for name, window in list(self._windows.items()):
            if window["closed_ns"] is not None and window["closed_ns"] < oldest_ns:
                self._forget_window(name)
        for host, flows in list(self._flows.items()):
            for name in [n for n, (at_ns, _) in flows.items() if at_ns < oldest_ns]:
                del flows[name]
            if not flows:
                del self._flows[host]
        self.resent.forget(oldest_ns)
        self._forget_health(oldest_ns)
        _drop(self._decisions, lambda decision: max(decision["expires_at_ns"], decision["at_ns"]) < oldest_ns)
        _drop(self._alerts, lambda alert: alert["cleared_ns"] is not None and alert["cleared_ns"] < oldest_ns)

    def _forget_health(self, oldest_ns: int) -> None:
        """Drop health states that ended before `oldest_ns`, except a subject's newest state if not UP."""
        for subject, states in list(self._health.items()):
            ordered = sorted(states)
            for seq, following in itertools.pairwise(ordered):
                if states[following]["since_ns"] < oldest_ns:
                    del states[seq]
            newest = states[ordered[-1]]
            if newest["state"] == LinkState.UP and newest["since_ns"] < oldest_ns:
                del self._health[subject]
                for name in {subject, *map(_cable, newest["links"])}:
                    self._by_cable[name].discard(subject)
                    if not self._by_cable[name]:
                        del self._by_cable[name]

    def _forget_window(self, name: str) -> None:
        self._unlink_window(self._windows.pop(name))

    def _unlink_window(self, window: ContentionWindow) -> None:
        for link in {window["link"], *window["links"]}:
            self._on_link[link].discard(window["window_id"])
            if not self._on_link[link]:
                del self._on_link[link]

    # ---------------------------------------------------------------------------------------- questions

    def episodes(self, subjects: Iterable[str], begin_ns: int, end_ns: int) -> list[Episode]:
        """Return the states other than UP of cables, NICs and hosts that overlap an interval.

        `subjects`: directed links, cables, NICs and hosts.
        """
        names = {name for subject in subjects for name in self._by_cable.get(_cable(subject), ())}
        return [
            episode
            for name in sorted(names)
            for episode in self._episodes_of(name)
            if episode.begin_ns < end_ns and episode.end_ns > begin_ns
        ]

    def _episodes_of(self, subject: str) -> Iterator[Episode]:
        ordered = [record for _, record in sorted(self._health.get(subject, {}).items())]
        ends = [following["since_ns"] for following in ordered[1:]] + [OPEN_NS]
        for record, end_ns in zip(ordered, ends, strict=True):
            if record["state"] not in (LinkState.UP, LinkState.UNKNOWN) and record["since_ns"] < end_ns:
                yield Episode(record, record["since_ns"], end_ns)

    def leading_to(self, subject: str, at_ns: int, gap_ns: int) -> list[Episode]:
        """Return a subject's episodes before `at_ns`, as long as pauses between them are at most `gap_ns`.

        The newest comes first.
        """
        episodes: list[Episode] = []
        for episode in sorted(self._episodes_of(subject), key=lambda episode: -episode.begin_ns):
            if episode.begin_ns > at_ns:
                continue
            if episode.end_ns + gap_ns < at_ns:
                break
            episodes.append(episode)
            at_ns = episode.begin_ns
        return episodes

    def contention(self, links: Iterable[str], begin_ns: int, end_ns: int) -> list[ContentionWindow]:
        """Return the contention windows on the given links that overlap an interval, sorted by window."""
        names = {name for link in links for name in self._on_link.get(link, ())}
        return [
            window for name in sorted(names) if _overlaps(window := self._windows[name], begin_ns, end_ns)
        ]

    def contention_of(self, job: str, begin_ns: int, end_ns: int) -> list[ContentionWindow]:
        """Return the contention windows that name a job and overlap an interval."""
        return [
            window
            for name, window in sorted(self._windows.items())
            if _overlaps(window, begin_ns, end_ns) and job in window["jobs"]
        ]

    def delays(self, nic: str, peer: str, begin_ns: int, end_ns: int) -> list[PairDelay]:
        """Return the delays of probes from one NIC to another in windows that overlap an interval."""
        return self.probed.between(nic, peer, begin_ns, end_ns)

    def flows(self, nics: Collection[str], job: str) -> list[Flow]:
        """Return the open flows of a job, and flows without a job's name between the given NICs."""
        return [
            flow
            for host in sorted({host_of(nic) for nic in nics} & self._flows.keys())
            for _, (_, flow) in sorted(self._flows[host].items())
            if flow["job"] == job or (flow["job"] is None and flow["nic"] in nics and flow["peer"] in nics)
        ]

    def links_of(self, flow: Flow) -> Links:
        """Return the links of a flow as traced with its own ports, else those of its known route."""
        if flow["links"]:
            return tuple(flow["links"])
        return self.routes.of_flow(flow["nic"], flow["peer"], flow["source_port"], flow["peer_port"])

    def flows_across(self, links: Collection[str]) -> dict[str, list[Flow]]:
        """Return, by link, the open flows of all jobs that cross the link, sorted by host and id."""
        across: dict[str, list[Flow]] = {link: [] for link in links}
        for host in sorted(self._flows):
            for _, (_, flow) in sorted(self._flows[host].items()):
                for link in across.keys() & self.links_of(flow):
                    across[link].append(flow)
        return across

    def paces(self, begin_ns: int, end_ns: int) -> dict[str, Pace]:
        """Return, by flow, the lowest rate limit of this system that was in force in an interval."""
        paces: dict[str, Pace] = {}
        refused = {
            decision for (decision, _), action in self._actions.items() if action["outcome"] not in _IN_FORCE
        }
        for record in sorted(self._decisions.values(), key=lambda d: (d["at_ns"], d["decision_id"])):
            limits = record["action"] in (FlowAction.PACE, FlowAction.SLICE)
            if record["action"] == FlowAction.UNPACE and record["at_ns"] <= begin_ns:
                paces.pop(record["flow_id"], None)
            if not limits or record["rate_bps"] is None or record["decision_id"] in refused:
                continue
            if record["at_ns"] < end_ns and record["expires_at_ns"] > begin_ns:
                pace = Pace(
                    record["flow_id"], record["rate_bps"], record["at_ns"], record["expires_at_ns"], record
                )
                earlier = paces.setdefault(record["flow_id"], pace)
                if pace.rate_bps < earlier.rate_bps:
                    paces[record["flow_id"]] = pace._replace(begin_ns=earlier.begin_ns)
        return paces

    def decisions(self, begin_ns: int, end_ns: int) -> list[Decision]:
        """Return the decisions made in an interval, sorted by time."""
        decisions = [
            decision for decision in self._decisions.values() if begin_ns <= decision["at_ns"] < end_ns
        ]
        return sorted(decisions, key=lambda decision: (decision["at_ns"], decision["decision_id"]))

    def host_of_address(self, address: str) -> str | None:
        """Return the host that has an address, by the inventory; None if unknown."""
        if not address:
            return None
        return next(
            (nic["host"] for _, nic in sorted(self.inventory.items()) if address in nic["addresses"]), None
        )

    def audit_results(self, host: str) -> list[AuditResult]:
        """Return the newest result of each check of a host, sorted by id."""
        return [result for (name, _), result in sorted(self._audit.items()) if name == host]

    def failed_checks(self, host: str) -> list[AuditResult]:
        """Return the checks of a host whose newest result is a failure, sorted by id."""
        return [result for result in self.audit_results(host) if result["status"] == AuditStatus.FAILED]

    def alerts(self, begin_ns: int, end_ns: int) -> list[Alert]:
        """Return the alerts raised before an interval's end and not cleared before its begin."""
        return [
            alert
            for _, alert in sorted(self._alerts.items())
            if alert["raised_ns"] < end_ns
            and (alert["state"] == AlertState.RAISED or (alert["cleared_ns"] or 0) > begin_ns)
        ]

    def clock_of(self, nic: str) -> ClockSync | None:
        """Return the synchronization state of a NIC's clock; None if unknown."""
        nic_record = self.inventory.get(nic)
        state = self._clocks.get(nic_record["clock"]) if nic_record is not None else None
        return None if state is None else state[1]

    def link_rate_bps(self, link: str) -> float:
        """Return the rate of a link, bit/s; 0 if unknown."""
        return float(self._rates.get(link, 0))


_IN_FORCE: Final = (ActionOutcome.APPLIED, ActionOutcome.DUPLICATE)


@lru_cache(maxsize=65_536)
def _cable(link: str) -> str:
    return cable_id(link) if link.count(">") == 1 and "<" not in link else link


def _overlaps(window: ContentionWindow, begin_ns: int, end_ns: int) -> bool:
    closed_ns = window["closed_ns"]
    return window["opened_ns"] < end_ns and (closed_ns is None or closed_ns > begin_ns)


def _keep(records: OrderedDict[T, R], key: T, record: R) -> None:
    records[key] = record
    records.move_to_end(key)
    if len(records) > MAX_RECORDS:
        records.popitem(last=False)


def _drop_unlisted(flows: dict[str, tuple[int, Flow]], names: set[str], at_ns: int) -> None:
    """Drop the flows that a full report at `at_ns` does not contain."""
    for name in [name for name, (seen_ns, _) in flows.items() if name not in names and seen_ns <= at_ns]:
        del flows[name]


def _drop(records: OrderedDict[T, R], is_old: Callable[[R], bool]) -> None:
    for key in [key for key, record in records.items() if is_old(record)]:
        del records[key]
