"""Detects contention in one shard: persistent queues at links, their causes, and the traffic behind them.

`ContentionDetector` ingests `LinkQueues` records, window after window, with the shard's live flows. It
returns `ContentionWindow` records. All information comes from hosts: depths are inferred, rates are reported
by the senders. Ids and times come from the data, so a replay gives the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from schemas.records import ContentionState, ContentionWindow, LinkQueues
from streams.contention.classify import LinkView, add_scores, view_of
from streams.contention.record import make_record, signature
from streams.contention.rules import (
    LOOKBACK_NS,
    NIC_HEADROOM,
    REFRESH_NS,
    SUMMARY_NS,
    UPDATE_NS,
    ContentionRules,
)
from streams.contention.unreported import FabricMemory
from streams.contention.window import (
    LinkReport,
    LinkWindow,
    integrate_slots,
    merge_aliased,
    place_of,
    restored_window,
    sent_bps,
    time_weight,
)
from streams.contention.window_order import WindowOrder
from streams.runtime.flow_table import LiveFlows


class ContentionDetector:
    """Detects contention in one shard: pass each of its `LinkQueues` records to `ingest`, in order.

    The caller advances `flows`. `is_nic` and `hosts` query the inventory: whether a NIC exists, and the
    number of hosts. `rate_of` returns the rate of a link in bit/s, 0 if unknown.
    """

    def __init__(
        self,
        shard: str,
        flows: LiveFlows,
        is_nic: Callable[[str], bool],
        hosts: Callable[[], int],
        rate_of: Callable[[str], int],
    ) -> None:
        self.shard = shard
        self.flows = flows
        self.repeated = 0
        """Number of records of windows that had been evaluated before."""
        self._is_nic, self._hosts, self._rate_of = is_nic, hosts, rate_of
        self._links: dict[str, LinkWindow] = {}
        self._past: dict[str, ContentionWindow] = {}
        """Maps link to its last published record, until the link has state."""
        self._parts: dict[int, LinkQueues] = {}
        """Parts received so far of a window that is not complete."""
        self._memory = FabricMemory()
        self._order = WindowOrder()

    @property
    def _end_ns(self) -> int:
        return self._order.end_ns

    @property
    def needed_from_ns(self) -> int:
        """Start, ns, of the oldest slots that a new owner must read in addition to the published records."""
        oldest_ns = self._end_ns
        for link in self._links.values():
            if link.window is not None:
                oldest_ns = min(oldest_ns, link.window.published_ns)
            for level in (link.over, link.quiet):
                if level.ns:
                    oldest_ns = min(oldest_ns, level.since_ns)
        if self._parts:
            oldest_ns = min(oldest_ns, self._parts_start_ns)
        return max(oldest_ns, self._end_ns - LOOKBACK_NS)

    @property
    def open_windows(self) -> int:
        """Number of contention windows that are open now."""
        return sum(link.window is not None for link in self._links.values())

    @property
    def _parts_start_ns(self) -> int:
        return next(iter(self._parts.values()))["window_start_ns"]

    def recover(self, records: Iterable[ContentionWindow]) -> None:
        """Restore open windows from published records, in any order; ignore records of other shards."""
        for record in records:
            if record["shard"] == self.shard:
                before = self._past.get(record["link"])
                if before is None or _age_key(record) > _age_key(before):
                    self._past[record["link"]] = record
        for name, record in list(self._past.items()):
            if record["state"] != ContentionState.CLOSED:
                self._link(name)

    def ingest(self, record: LinkQueues, rules: ContentionRules) -> list[ContentionWindow]:
        """Process one record, a part of a window of queues; return the contention records to publish.

        A window is evaluated once it is complete, or once a later one begins. The first window after a gap,
        or after a step back of fabric time, only determines where the next window must begin.
        """
        start_ns = record["window_start_ns"]
        end_ns = start_ns + record["slot_ns"] * record["slots"]
        if record["slot_ns"] >= SUMMARY_NS:
            self._ingest_summary(record)
            return []
        records: list[ContentionWindow] = []
        is_before_parts = bool(self._parts) and self._end_ns <= start_ns < self._parts_start_ns
        if is_before_parts or not self._order.accepts(start_ns, end_ns):
            self.repeated += 1
            return []
        if self._parts and self._parts_start_ns != start_ns:
            records += self._evaluate(list(self._parts.values()), rules)
        self._parts[record["part"]] = record
        if len(self._parts) == record["parts"]:
            records += self._evaluate(list(self._parts.values()), rules)
        return records

    def _ingest_summary(self, record: LinkQueues) -> None:
        """Add the links and utilisation from a record that summarises other records; ignore its depths."""
        self._memory.renew(record["window_start_ns"])
        for summary in record["links"]:
            if not self._memory.knows(summary["link"]):
                self._memory.add_link(summary["link"], place_of(summary["link"], self._is_nic))
            link = self._links.get(summary["link"])
            if link is not None and link.window is not None and summary["utilisation"] is not None:
                link.window.utilisation = summary["utilisation"]

    # --------------------------------------------------------------------------------------- evaluation

    def _evaluate(self, parts: list[LinkQueues], rules: ContentionRules) -> list[ContentionWindow]:
        first = parts[0]
        self._parts = {}
        start_ns, slot_ns = first["window_start_ns"], first["slot_ns"]
        length_ns = slot_ns * first["slots"]
        if length_ns <= 0:
            return []
        records: list[ContentionWindow] = []
        if not self._order.follows(start_ns):
            records = self._close_all()
        self._order.end_window(start_ns + length_ns)
        limited = self._limited_links()
        reports = {
            report.link: report
            for part in parts
            for report in merge_aliased(part["links"], self._links, limited, rules)
        }
        changed: list[tuple[LinkWindow, ContentionState]] = []
        for name in sorted(limited | set(reports) | set(self._links)):
            link, report = self._link(name), reports.get(name)
            self._set_rate(link, report)
            is_limited = name in limited
            weight = 1.0 if is_limited else self._time_weight(link)
            states = integrate_slots(
                link,
                report,
                start_ns,
                slot_ns,
                first["slots"],
                rules,
                limited=is_limited,
                weight=weight,
            )
            if link.ce_share >= rules.ce_share:
                self._memory.add_marks(link.dscp, link.depth_bytes, self._end_ns)
            changed += [(link, state) for state in states]
        records += self._due_records(changed, length_ns)
        for name in [name for name, link in self._links.items() if link.idle]:
            del self._links[name]
        return records

    def _close_all(self) -> list[ContentionWindow]:
        """Close all contention windows after a gap in the data; return their last records."""
        changed = []
        for name in sorted(self._links):
            link = self._links[name]
            if link.window is not None:
                link.queued_until_ns = self._end_ns
                changed.append((link, ContentionState.CLOSED))
        records = self._due_records(changed, 0, lost=True)
        self._links.clear()
        return records

    def _limited_links(self) -> set[str]:
        """Return the sender's own link of each flow that the sender limits, and the receiver's link of each
        flow that the receiver limits.
        """
        limited = set()
        for flow, links in self.flows.limited_flows():
            for link in links:
                place = place_of(link, self._is_nic)
                by_sender = flow.sender_limited and place.sender == flow.nic
                by_receiver = flow.receiver_limited and place.receiver == flow.peer
                if not by_sender and not by_receiver:
                    continue
                rate_bps = self._rate_of(link)
                if not rate_bps or sent_bps(self.flows.flows_on(link)) < NIC_HEADROOM * rate_bps:
                    limited.add(link)
        return limited

    def _link(self, name: str) -> LinkWindow:
        """Return the state of the link `name`, restored from its published record if it is not in memory."""
        link = self._links.get(name)
        if link is None:
            link = self._links[name] = LinkWindow(name, place_of(name, self._is_nic))
            past = self._past.get(name)
            if past is not None:
                link.done_ns = past["updated_ns"]
                link.rate_bps, link.dscp = past["rate_bps"], past["dscp"]
                if past["state"] != ContentionState.CLOSED:
                    link.window = restored_window(past)
                    del self._past[name]
        return link

    def _set_rate(self, link: LinkWindow, report: LinkReport | None) -> None:
        if report is not None:
            link.rate_bps, link.candidates, link.dscp = report.rate_bps, report.candidates, report.dscp
            link.same_position = all(
                place_of(candidate, self._is_nic).is_like(link.place) for candidate in report.candidates
            )
        elif not link.rate_bps:
            link.rate_bps = self._rate_of(link.name)

    def _time_weight(self, link: LinkWindow) -> float:
        flows = self.flows.flows_on(link.name)
        return time_weight(link, flows, all_hosts_report=len(self.flows.hosts()) >= self._hosts())

    # --------------------------------------------------------------------------------------- records

    def _due_records(
        self, changed: list[tuple[LinkWindow, ContentionState]], length_ns: int, *, lost: bool = False
    ) -> list[ContentionWindow]:
        """Classify the queues that persist; return the records that are due now."""
        views = {
            name: view_of(link, self.flows.flows_on(link.name), length_ns, self._end_ns)
            for name, link in self._links.items()
            if link.window is not None or link.over.ns
        }
        coverage = min(1.0, len(self.flows.hosts()) / max(1, self._hosts()))
        for view in views.values():
            if view.link.window is not None and view.link.queued > 0:
                add_scores(view, views, length_ns, self._end_ns, coverage, self._memory)
        records = [self._record(views[link.name], views, state, lost=lost) for link, state in changed]
        names = {link.name for link, _ in changed}
        for name in sorted(views):
            if name not in names and self._is_due(views[name]):
                records.append(self._record(views[name], views, ContentionState.UPDATED))
        return records

    def _is_due(self, view: LinkView) -> bool:
        window = view.link.window
        if window is None:
            return False
        waited_ns = self._end_ns - window.published_ns
        if waited_ns >= REFRESH_NS:
            return True
        return waited_ns >= UPDATE_NS and signature(window, view) != window.published

    def _record(
        self, view: LinkView, views: dict[str, LinkView], state: ContentionState, *, lost: bool = False
    ) -> ContentionWindow:
        """Return a record of a link's contention window; remove the window if `state` is CLOSED."""
        record = make_record(self.shard, view, views, state, self._end_ns, lost=lost)
        if record["state"] == ContentionState.CLOSED:
            link = view.link
            link.window = None
            link.over.clear()
            link.quiet.clear()
        return record


def _age_key(record: ContentionWindow) -> tuple[int, int]:
    return record["opened_ns"], record["update"]
