"""Link health of one shard: whether each link, NIC and host is UP, GREY, FLAPPING or DOWN.

`ShardHealth` ingests `LinkEvent` records in log order and returns `LinkHealth` records by subject. A host's
own carrier report takes precedence. Otherwise the localisers (localise/) find the fewest faults that explain
the dead paths, and the subject table (subjects.py) turns faults into states. An answer on a path clears every
element that the path crosses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.ids import cable_id
from schemas.records import DetectedBy, EvidenceKind, HealthKind, LinkEvent, LinkHealth, LinkState
from schemas.topology import Topology
from streams.links.evidence.path_table import Routes
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.class_health import check_dscp_changes
from streams.links.health.outages import count_outages
from streams.links.health.revival import revive_subjects
from streams.links.health.size_health import check_size_limits
from streams.links.health.subjects import Change, Subject, SubjectTable
from streams.links.health.text import count_text
from streams.links.localise.bypassed import localise_bypassed
from streams.links.localise.links import localise_links
from streams.links.localise.lossy import LossyFaults, localise_lossy
from streams.links.localise.nics import localise_nics
from streams.links.localise.rewritten import DscpChanges
from streams.links.localise.sizes import PathSizes
from streams.links.localise.switches import localise_switches
from streams.links.localise.unexplained import blind_share, find_unexplained
from streams.links.rules import (
    BLIND_AFTER_NS,
    BLIND_PATHS,
    BLIND_SHARE,
    BYPASS_GAP_NS,
    EVALUATION_GAP_NS,
    LINK_FORGET_TIMES,
    NEVER_NS,
    PATH_KEPT_NS,
    REFRESH_NS,
    SLOW_TASKS_NS,
    STALE_NS,
    SUPPRESS_NS,
    UNEXPLAINED_GAP_NS,
    WARM_UP_NS,
)
from streams.runtime.flaps import is_flapping
from streams.runtime.loss_rates import NOTHING
from streams.runtime.thresholds import Thresholds

__all__ = ["Change", "ShardHealth"]

PORT_DOWN: Final = frozenset({"PORT_ERR", "DEVICE_FATAL"})
PORT_UP: Final = frozenset({"PORT_ACTIVE"})
PORT_PROBLEMS: Final = {
    DetectedBy.CARRIER: "has no carrier",
    DetectedBy.VERBS: "reports that it is down",
    DetectedBy.ADMIN: "was taken down by its host's administrator",
}
"""Texts about a port that is down, by the report."""


class ShardHealth:
    """Detector of link health. `thresholds` and `log_offset_ns` may be set at any time.

    `source`: name of the partition that the evidence comes from. `is_member`: returns whether a NIC is in the
    inventory; a NIC that was removed on purpose is not reported as down.
    """

    def __init__(
        self,
        shard: str,
        thresholds: Thresholds | None = None,
        source: str = "",
        is_member: Callable[[str], bool] | None = None,
    ) -> None:
        self.shard = shard
        self.source = source
        self.topology = Topology()
        """The topology file; it may be set at any time."""
        self.evidence = Evidence()
        self.sizes = PathSizes()
        """The largest packet that each path passes."""
        self.dscp_changes = DscpChanges()
        """Paths on which the network changes a DSCP."""
        self._routes: Routes | None = None
        self._table = SubjectTable(shard, thresholds or Thresholds(), source, self.evidence)
        self._is_member = is_member or (lambda nic: True)
        self._replay_to = -1
        """Offset of the newest evidence that a restored state includes; up to it, only port events count."""
        self._ready_ns = 0
        """End of the warm-up."""
        self._evaluated_ns = self._lossy_ns = self._bypass_ns = self._slow_ns = self._hidden_ns = 0
        """Times of the last evaluation, and of the last run of each of its slower parts."""
        self._wait_ns = NEVER_NS
        """Time at which the present evidence may show a fault."""
        self._reviving: list[Subject] = []
        self._has_new_events = False

    @property
    def thresholds(self) -> Thresholds:
        """The live thresholds of the link-health detectors."""
        return self._table.thresholds

    @thresholds.setter
    def thresholds(self, thresholds: Thresholds) -> None:
        self._table.thresholds = thresholds

    @property
    def log_offset_ns(self) -> int:
        """Fabric time minus evidence time, ns; constant while the hosts' time is behind the log's."""
        return self._table.log_offset_ns

    @log_offset_ns.setter
    def log_offset_ns(self, offset_ns: int) -> None:
        evidence, moved_ns = self.evidence, offset_ns - self._table.log_offset_ns
        if not evidence.clock_models or evidence.time.may_follow(moved_ns):
            self._table.follow_offset(offset_ns)
            evidence.log_offset_ns = offset_ns

    @property
    def subjects(self) -> dict[str, Subject]:
        """All subjects (cables, NICs, hosts, states of the shard) by name."""
        return self._table.by_name

    @property
    def now_ns(self) -> int:
        """Evidence time of the newest event or evaluation, ns."""
        return self._table.now_ns

    # --------------------------------------------------------------------------------------- interface

    @property
    def due_ns(self) -> int:
        """Evidence time of the next evaluation if no new evidence arrives."""
        holds = (
            first_ns + self.thresholds.ns("up_delay_ms")
            for s in self._reviving
            if not s.carrier_down and not self._table.is_settled(s)
            for first_ns in s.reviving.values()
        )
        waits = [self._evaluated_ns + EVALUATION_GAP_NS] if self._has_new_events else []
        return min([self._wait_ns, self._slow_ns + SLOW_TASKS_NS, *waits, *holds])

    def recover(self, records: Iterable[LinkHealth]) -> None:
        """Restore the state from the last `LinkHealth` record of each subject of this shard."""
        table = self._table
        for record in records:
            if record["shard"] != self.shard:
                continue
            s = table.recover(record)
            self._replay_to = max(self._replay_to, s.recovered_offset)
            table.now_ns = max(table.now_ns, s.evaluated_ns)

    def ingest(self, event: LinkEvent, append_ns: int, routes: Routes, offset: int = -1) -> list[Change]:
        """Ingest one `LinkEvent`, appended to the log at `append_ns`; return the changes to publish."""
        table = self._table
        self._advance(self.evidence.time.of(append_ns) - 1)
        append_ns = self.evidence.note_time(event, append_ns)
        if append_ns < self._evaluated_ns:
            self._step_back(append_ns)
        if not self._ready_ns:
            self._ready_ns = append_ns + WARM_UP_NS
            self._slow_ns = append_ns
        table.offset = max(table.offset, offset)
        table.now_ns = max(table.now_ns, append_ns)
        self._routes = routes
        at_ns = self.evidence.ingest(event, append_ns, routes)
        if at_ns is not None:
            if event["kind"] == EvidenceKind.CARRIER and event["carrier"] is not None:
                is_taken_down = not event["carrier"] and event["port_enabled"] is False
                cause = DetectedBy.ADMIN if is_taken_down else DetectedBy.CARRIER
                self._port_changed(event["nic"], event["carrier"], at_ns, cause)
            elif event["kind"] == EvidenceKind.VERBS and event["verbs"] in PORT_DOWN | PORT_UP:
                self._port_changed(event["nic"], event["verbs"] in PORT_UP, at_ns, DetectedBy.VERBS)
            self.sizes.ingest(event, at_ns, routes)
            self.dscp_changes.ingest(event, at_ns)
            self._has_new_events = True
        if append_ns - self._evaluated_ns >= EVALUATION_GAP_NS:
            self._evaluate_at(append_ns)
        return table.take_changes()

    def _step_back(self, to_ns: int) -> None:
        """Move the last evaluation back to `to_ns`: evidence time had run ahead of the hosts."""
        self._table.now_ns = self._evaluated_ns = to_ns
        self._lossy_ns, self._bypass_ns = min(self._lossy_ns, to_ns), min(self._bypass_ns, to_ns)
        self._slow_ns, self._hidden_ns = min(self._slow_ns, to_ns), min(self._hidden_ns, to_ns)

    def evaluate(self, now_ns: int) -> list[Change]:
        """Advance the log's clock to `now_ns`; return the changes to publish."""
        self._advance(self.evidence.time.of(now_ns))
        return self._table.take_changes()

    def _advance(self, to_ns: int) -> None:
        """Evaluate at each due time up to `to_ns`, so that results do not depend on when this is called."""
        if not self._evaluated_ns:
            return
        while (due_ns := max(self.due_ns, self._evaluated_ns + EVALUATION_GAP_NS)) <= to_ns:
            self._evaluate_at(due_ns)

    # --------------------------------------------------------------------------------------- evaluation

    def _evaluate_at(self, now_ns: int) -> None:
        table, evidence = self._table, self.evidence
        table.now_ns = self._evaluated_ns = now_ns
        self._has_new_events = False
        if self._replay_to >= 0:
            if table.offset <= self._replay_to:
                self._slow_ns = now_ns  # evidence that no record covers, or the next check, comes later
                self._wait_ns = NEVER_NS
                return
            self._replay_to = -1
            evidence.reset_losses()
        suspects = evidence.suspect_paths(now_ns, STALE_NS)
        if len(suspects):
            ends = evidence.rows[suspects, :2]
            suspects = suspects[~evidence.silent_agents(now_ns)[ends].any(axis=1)]
        self._reviving = revive_subjects(table, self._is_member, suspects, now_ns)
        self._wait_ns = NEVER_NS
        if len(suspects) and now_ns >= self._ready_ns:
            self._localise_dead(suspects, now_ns)
        evidence.set_window(self.thresholds.ns("grey_window_s"))
        gap_ns = BYPASS_GAP_NS if evidence.routes_changed else evidence.bucket_ns
        if now_ns - self._bypass_ns >= gap_ns:
            self._bypass_ns, evidence.routes_changed = now_ns, False
            for fault in localise_bypassed(evidence, now_ns):
                table.apply(fault, now_ns)
        if now_ns - self._lossy_ns >= evidence.bucket_ns:
            self._lossy_ns = now_ns
            self._localise_lossy(now_ns)
        if now_ns - self._hidden_ns >= UNEXPLAINED_GAP_NS and now_ns >= self._ready_ns:
            self._hidden_ns = now_ns
            self._find_unexplained(suspects, now_ns)
        if now_ns - self._slow_ns >= SLOW_TASKS_NS:
            self._slow_ns = now_ns
            self._find_blindness(now_ns)
            if self._routes is not None:
                check_size_limits(table, self.sizes, self._routes, self.topology, now_ns)
                check_dscp_changes(table, self.dscp_changes, self._routes, now_ns)
            self._run_slow_tasks(now_ns)

    def _localise_dead(self, suspects: NDArray[np.intp], now_ns: int) -> None:
        """Find dead switches, then links, then NICs, each from the paths that are still unexplained."""
        table, evidence, thresholds = self._table, self.evidence, self.thresholds
        for fault in localise_switches(evidence, thresholds, suspects, now_ns):
            table.apply(fault, now_ns)
        left = self._unexplained(suspects, now_ns)
        if len(left):
            faults, self._wait_ns = localise_links(evidence, thresholds, left, now_ns)
            applied = [table.apply(fault, now_ns) for fault in faults]
            if any(applied):
                left = self._unexplained(left, now_ns)
        if len(left):
            for fault in localise_nics(evidence, thresholds, self._is_member, left, now_ns):
                table.apply(fault, now_ns)

    def _unexplained(self, paths: NDArray[np.intp], now_ns: int) -> NDArray[np.intp]:
        """Return the paths that cross no element known to be dead or suppressed."""
        rows = self.evidence.rows[paths]
        explained = self.evidence.down[rows] | (self.evidence.suppressed_ns[rows] > now_ns)
        return paths[~explained.any(axis=1)]

    # --------------------------------------------------------------------------------------- hidden links

    def _find_unexplained(self, suspects: NDArray[np.intp], now_ns: int) -> None:
        """Publish that no known link explains some losses, or that no such losses remain."""
        name = f"losses@{self.shard}"
        if self._routes is None or not (len(suspects) or name in self.subjects):
            return
        unexplained = find_unexplained(self.evidence, self._routes, self.topology, suspects, now_ns)
        if unexplained is not None:
            text, since_ns = unexplained.text(self._table.clock(unexplained.since_ns)), unexplained.since_ns
            self._table.report(name, HealthKind.PATHS, text, since_ns, now_ns, unexplained.candidates)
        elif not len(self._unexplained(suspects, now_ns)):
            self._table.end(name, "a known link explains all losses again, or there are none", now_ns)

    def _find_blindness(self, now_ns: int) -> None:
        """Publish that the routes of many paths are unknown, or that the routes are known again."""
        name = f"traces@{self.shard}"
        blind, paths = blind_share(self.evidence, now_ns)
        if now_ns - self.evidence.first_event_ns < BLIND_AFTER_NS or paths < BLIND_PATHS:
            return
        if blind >= BLIND_SHARE * paths:
            text = f"tracing is blind: {blind:,} of {count_text(paths, 'path')} are not known from end to end"
            self._table.report(
                name, HealthKind.TRACES, f"{text}; dead links there have no name", now_ns, now_ns
            )
        elif blind < BLIND_SHARE / 2 * paths:
            self._table.end(name, f"{paths - blind:,} of {count_text(paths, 'path')} are known again", now_ns)

    # --------------------------------------------------------------------------------------- ports

    def _port_changed(self, nic: str, up: bool, at_ns: int, detected_by: DetectedBy) -> None:
        """Apply a host's report that its NIC's port went up or down to each cable of the NIC."""
        evidence = self.evidence
        me = evidence.index[nic]
        cables: dict[str, list[int]] = {}
        for link in evidence.links_of(me):
            cables.setdefault(cable_id(evidence.names[link]), []).append(link)
        for name, links in cables.items() or [(nic, [])]:  # a bond has several, which fail together here
            self._own_cable_changed(name, (me, *links), nic, up, at_ns, detected_by)

    def _own_cable_changed(
        self, name: str, elements: Sequence[int], nic: str, up: bool, at_ns: int, detected_by: DetectedBy
    ) -> None:
        """Apply a host's report about its NIC's port to one cable. `elements`: the NIC, then its links."""
        table = self._table
        s = table.get(name, HealthKind.LINK if len(elements) > 1 else HealthKind.NIC)
        if table.is_settled(s):
            return
        if up:
            if not s.carrier_down:
                return
            s.carrier_down = False
            for element in list(s.dead):
                table.clear(s, element)
            self.evidence.suppressed_ns[list(elements)] = at_ns + SUPPRESS_NS
            table.settle(s, self.now_ns, at_ns, detected_by)
        else:
            s.carrier_down = True
            for element in elements:
                table.mark(s, element, at_ns)
            table.take_down(
                s, self.now_ns, at_ns, detected_by, (), f"the port {nic} {PORT_PROBLEMS[detected_by]}"
            )

    # --------------------------------------------------------------------------------------- partial loss

    def _localise_lossy(self, now_ns: int) -> None:
        """Find elements that lose a share of the packets; end GREY for elements that no longer do."""
        evidence = self.evidence
        greys = [s for s in self.subjects.values() if s.grey]
        if not evidence.any_lost and not greys and not len(evidence.unsettled_paths(now_ns)):
            return
        faults = localise_lossy(evidence, self.thresholds, now_ns, is_warm=now_ns >= self._ready_ns)
        for lossy in faults.grey:
            name = evidence.names[lossy.element]
            is_nic = bool(evidence.is_nic[lossy.element])
            s = self._table.get(
                name if is_nic else cable_id(name), HealthKind.NIC if is_nic else HealthKind.LINK
            )
            if not self._table.is_settled(s) and not s.dead:
                self._table.set_grey(s, lossy, now_ns)
        for s in greys:
            count_outages(self._table, s, faults, now_ns)
            self._check_grey(s, faults, now_ns)

    def _check_grey(self, s: Subject, faults: LossyFaults, now_ns: int) -> None:
        """End GREY of each element of a subject that probes show to lose less than half the threshold."""
        min_share = self.thresholds["grey_loss_percent"] / 200
        for element in list(s.grey):
            lossy = faults.by_element.get(element)
            if lossy is not None and lossy.rate >= min_share:
                s.grey_fine_ns.pop(element, None)
            elif faults.requests[self.evidence.paths_over(element)].any():
                self._end_grey(s, element, now_ns)

    def _end_grey(self, s: Subject, element: int, now_ns: int) -> None:
        """End the GREY state of an element if its loss rate has been low for `grey_clear_s`."""
        fine_ns = s.grey_fine_ns.setdefault(element, now_ns)
        is_over = now_ns - fine_ns >= self.thresholds.ns("grey_clear_s")
        if is_over and not self._table.is_settled(s):
            del s.grey[element], s.grey_fine_ns[element]
            self._table.settle(s, now_ns, fine_ns, DetectedBy.PROBES)

    # --------------------------------------------------------------------------------------- slow tasks

    def _run_slow_tasks(self, now_ns: int) -> None:
        """Drop old flaps, republish subjects that are not UP, and forget subjects that stay DOWN for long."""
        self.evidence.forget_paths(now_ns - PATH_KEPT_NS)
        for s in list(self.subjects.values()):
            if self._table.is_settled(s):
                continue
            instead = self._replacement_of(s) if s.kind == HealthKind.LINK else None
            if instead is not None:
                self._table.retire(s, f"its port is now on {cable_id(instead)}", now_ns)
            else:
                self._age(s, now_ns)

    def _age(self, s: Subject, now_ns: int) -> None:
        table, max_flaps = self._table, self.thresholds["flaps_max"]
        table.age_flaps(s, now_ns)
        if s.state == LinkState.FLAPPING and not is_flapping(s.flaps, max_flaps):
            table.settle(s, now_ns, now_ns, s.detected_by)
        elif s.state == LinkState.UP and is_flapping(s.flaps, max_flaps):
            table.settle(s, now_ns, s.since_ns, s.detected_by)
        forget_ns = self.thresholds.ns("forget_s")
        away_ns = now_ns - s.since_ns if s.state == LinkState.DOWN else 0
        if s.kind != HealthKind.LINK and away_ns > forget_ns:
            table.forget(s)
        elif away_ns > forget_ns * LINK_FORGET_TIMES and not s.carrier_down and not self._in_use(s, now_ns):
            table.retire(s, "no path has crossed it since it went down", now_ns)
        elif s.state != LinkState.UP and now_ns - s.published_ns >= REFRESH_NS:
            table.publish(s, now_ns)

    def _replacement_of(self, s: Subject) -> str | None:
        """Return the link that now uses one of a cable's ports; None if the cable was not replaced."""
        evidence = self.evidence
        if not evidence.recabled or s.carrier_down:
            return None
        near, far = s.name.split("<>")
        elements = [evidence.index.get(f"{a}>{b}", NOTHING) for a, b in ((near, far), (far, near))]
        recabled_elements = [evidence.recabled[e] for e in elements if e in evidence.recabled]
        if not recabled_elements:
            return None
        own_ns = evidence.last_answer_ns[[e for e in elements if e]].max()
        if evidence.last_answer_ns[recabled_elements].max() <= own_ns:
            return None
        return evidence.names[recabled_elements[0]]

    def _in_use(self, s: Subject, now_ns: int) -> bool:
        return bool(self.evidence.in_use(now_ns - STALE_NS)[list(s.dead)].any())
