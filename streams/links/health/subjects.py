"""Life cycle of link-health subjects: UP, GREY, FLAPPING, DOWN, and the records to publish.

A subject is a cable, a NIC, a host, or a problem of the whole shard. The table applies faults and revivals,
changes states, counts flaps, and makes `LinkHealth` records. A subject is restored from its last record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from schemas.ids import cable_id
from schemas.records import ClassLoss, DetectedBy, HealthKind, LinkHealth, LinkState
from streams.links.evidence.probe_evidence import Evidence
from streams.links.health.text import clock_text, count_text, loss_text, subject_text
from streams.links.localise.fault import Fault
from streams.links.localise.sizes import SizeLimit
from streams.links.rules import FLAP_WINDOW_NS, MAX_FLAPS, MAX_TEXT, PAUSE_NS, STALE_NS
from streams.runtime.flaps import is_flapping
from streams.runtime.loss_rates import NOTHING, ClassRate, Lossy
from streams.runtime.thresholds import Thresholds
from streams.runtime.units import NS_PER_S

Change = tuple[str, LinkHealth | None]
"""Subject and its `LinkHealth`; None if the subject is forgotten."""


@dataclass(slots=True)
class Subject:
    """One cable, NIC, host or shard-wide problem. Times are evidence time, ns; flaps are fabric time, ns."""

    name: str
    kind: HealthKind
    state: LinkState = LinkState.UP
    before: str = LinkState.UP
    seq: int = 0
    since_ns: int = 0
    evaluated_ns: int = 0
    """Time of the last change of state."""
    dead: dict[int, int] = field(default_factory=dict)
    """Start of the outage of each dead element."""
    reviving: dict[int, int] = field(default_factory=dict)
    """Time of the first answer over each dead element since it died."""
    carrier_down: bool = False
    grey: dict[int, Lossy] = field(default_factory=dict)
    grey_fine_ns: dict[int, int] = field(default_factory=dict)
    """Time since which each lossy element has lost little."""
    size_limits: dict[str, SizeLimit] = field(default_factory=dict)
    """Size limit of each directed link of the subject that drops large packets."""
    shard_packet_bytes: int | None = None
    """The largest packet that passes, for a state of the shard; None if there is no such limit."""
    max_packet_bytes: int | None = None
    """The limit as last published."""
    candidates: tuple[str, ...] = ()
    detected_by: DetectedBy = DetectedBy.PROBES
    flaps: deque[int] = field(default_factory=deque)
    flaps_total: int = 0
    counted_ns: int = 0
    """Time of the newest flap that losses alone showed."""
    links: tuple[str, ...] = ()
    counts: tuple[int, int, int] = (0, 0, 0)
    """Numbers of dead paths, living paths and probers, as last counted."""
    text: str = ""
    published_ns: int = 0
    published_loss: Lossy | None = None
    recovered_offset: int = -1
    """Offset of the newest evidence that its restored state includes."""

    @property
    def size_limit_bytes(self) -> int | None:
        """The size of the largest packet that passes now; None if packets of all sizes pass."""
        limits = self.size_limits.values() if self.state in (LinkState.GREY, LinkState.FLAPPING) else ()
        return min((limit.passed_bytes for limit in limits), default=self.shard_packet_bytes)

    def add_flap(self, at_ns: int) -> None:
        """Note a flap: the subject went down at `at_ns`, fabric time."""
        self.flaps.append(at_ns)
        self.flaps_total += 1
        while len(self.flaps) > MAX_FLAPS:
            self.flaps.popleft()


class SubjectTable:
    """The subjects of one shard. `source`: name of the partition that the evidence comes from."""

    def __init__(self, shard: str, thresholds: Thresholds, source: str, evidence: Evidence) -> None:
        self.shard = shard
        self.thresholds = thresholds
        self.source = source
        self.evidence = evidence
        self.log_offset_ns = 0
        """Fabric time minus the time of the evidence."""
        self.offset = -1
        """Offset of the newest event."""
        self.now_ns = 0
        self.by_name: dict[str, Subject] = {}
        self._subject_of: dict[int, str] = {}
        """Subject of each dead element."""
        self._out: list[Change] = []

    def follow_offset(self, offset_ns: int) -> None:
        """Set fabric time minus evidence time, ns. Present states keep the fabric time of their start."""
        moved_ns, self.log_offset_ns = offset_ns - self.log_offset_ns, offset_ns
        if moved_ns:
            for s in self.by_name.values():
                s.since_ns -= moved_ns
                s.evaluated_ns -= moved_ns

    def take_changes(self) -> list[Change]:
        """Return the changes that wait to be published, and clear the list."""
        out, self._out = self._out, []
        return out

    def get(self, name: str, kind: HealthKind) -> Subject:
        """Return the subject of a name and kind; create the subject if it is new."""
        subject = self.by_name.get(name)
        if subject is None:
            subject = self.by_name[name] = Subject(name, kind)
        return subject

    def is_settled(self, s: Subject) -> bool:
        """Return whether a subject's state was restored from a record that includes the present evidence."""
        return self.offset <= s.recovered_offset and s.recovered_offset >= 0

    # --------------------------------------------------------------------------------------- recovery

    def recover(self, record: LinkHealth) -> Subject:
        """Restore a subject from its last record (`LinkHealth`)."""
        s = Subject(
            record["subject"],
            record["kind"],
            record["state"],
            record["before"],
            record["seq"],
            record["since_ns"] - self.log_offset_ns,
            record["evaluated_ns"] - self.log_offset_ns,
        )
        s.candidates, s.detected_by = tuple(record["candidates"]), record["detected_by"]
        s.flaps, s.flaps_total = deque(record["flap_ns"]), record["flaps_total"]
        s.links, s.text = tuple(record["links"]), record["text"]
        s.counts = record["paths_dead"], record["paths_living"], record["probers"]
        s.published_ns = s.evaluated_ns
        if record["evidence_source"] == self.source:
            s.recovered_offset = record["evidence_offset"]
        self.by_name[s.name] = s
        if s.state == LinkState.DOWN:
            s.carrier_down = s.detected_by in (DetectedBy.CARRIER, DetectedBy.VERBS, DetectedBy.ADMIN)
            self._mark_recovered(s)
        elif s.state in (LinkState.GREY, LinkState.FLAPPING):
            self._recover_grey(s, record)
        return s

    def _recover_grey(self, s: Subject, record: LinkHealth) -> None:
        rate, low, high = record["loss_rate"], record["loss_rate_low"], record["loss_rate_high"]
        s.max_packet_bytes = record["max_packet_bytes"]
        s.shard_packet_bytes = s.max_packet_bytes if s.kind == HealthKind.PATHS else None
        for link in s.links:
            element = self.evidence.element(link, s.since_ns)
            if rate is not None:
                classes = _recovered_classes(record)
                s.grey[element] = Lossy(0, (), rate, low or 0.0, high or 1.0, 0, 0, 0, classes)
            if s.max_packet_bytes is not None:
                s.size_limits[link] = SizeLimit(link, (), s.max_packet_bytes, since_ns=s.since_ns)

    def _mark_recovered(self, s: Subject) -> None:
        element = self.evidence.element
        if s.kind == HealthKind.NIC:
            self.mark(s, element(s.name, s.since_ns, nic=True), s.since_ns)
        for link in s.links:
            self.mark(s, element(link, s.since_ns), s.since_ns)
        for other in s.candidates:
            if "/" in other and ">" not in other and s.kind == HealthKind.LINK:
                self.mark(s, element(other, s.since_ns, nic=True), s.since_ns)

    # --------------------------------------------------------------------------------------- elements

    def mark(self, s: Subject, element: int, begin_ns: int) -> None:
        """Mark an element as dead since `begin_ns`, as part of a subject's outage."""
        owner = self.by_name.get(self._subject_of.get(element, ""))
        if owner is not None and owner is not s:
            owner.dead.pop(element, None)
            owner.reviving.pop(element, None)
        s.dead[element] = begin_ns
        s.grey.pop(element, None)
        s.grey_fine_ns.pop(element, None)
        self._subject_of[element] = s.name
        self.evidence.down[element] = True

    def clear(self, s: Subject, element: int) -> None:
        """Mark an element of a subject as alive."""
        s.dead.pop(element, None)
        s.reviving.pop(element, None)
        if self._subject_of.get(element) == s.name:
            del self._subject_of[element]
            self.evidence.down[element] = False
            self.evidence.recovered_ns[element] = self.now_ns

    # --------------------------------------------------------------------------------------- states

    def apply(self, fault: Fault, now_ns: int) -> bool:
        """Make the subject of a fault DOWN; return whether the fault was applied."""
        s = self.get(fault.subject, fault.kind)
        if self.is_settled(s) or (fault.yields_to_carrier and s.carrier_down):
            return False
        for element in fault.elements:
            self.mark(s, element, fault.begin_ns)
        self.take_down(s, now_ns, fault.begin_ns, fault.detected_by, fault.candidates, fault.cause)
        return True

    def take_down(
        self,
        s: Subject,
        now_ns: int,
        begin_ns: int,
        detected_by: DetectedBy,
        candidates: tuple[str, ...],
        cause: str,
    ) -> None:
        """Make a subject DOWN since `begin_ns`, or refresh its record if it is DOWN already."""
        if s.state == LinkState.DOWN:
            if detected_by != DetectedBy.PROBES and s.detected_by == DetectedBy.PROBES:
                s.detected_by = detected_by
                self.publish(s, now_ns)
            elif set(self._dead_links(s)) != set(s.links):
                self.publish(s, now_ns)
            return
        s.detected_by, s.candidates = detected_by, candidates
        if begin_ns - s.counted_ns > PAUSE_NS:  # not the outage that its losses have just shown
            s.add_flap(begin_ns + self.log_offset_ns)
        self.age_flaps(s, now_ns)
        self._change(s, LinkState.DOWN, begin_ns, now_ns)
        s.text = f"{self._name_text(s)} is down since {self.clock(begin_ns)}: {cause}"
        if is_flapping(s.flaps, self.thresholds["flaps_max"]):
            s.text += f"; it flapped {len(s.flaps)} times within the past hour"
        self.publish(s, now_ns)

    def settle(self, s: Subject, now_ns: int, since_ns: int, detected_by: DetectedBy) -> None:
        """Set a subject's state by its losses, size limits and flaps, and publish it; dead ones stay DOWN."""
        if s.dead or s.carrier_down:
            self.publish(s, now_ns)
            return
        self.age_flaps(s, now_ns)
        lossy = bool(s.grey or s.size_limits)
        state = LinkState.GREY if lossy else LinkState.UP
        if is_flapping(s.flaps, self.thresholds["flaps_max"]):
            state = LinkState.FLAPPING
        if state == s.state:
            if state != LinkState.UP:  # it loses packets, or drops large ones, in addition or no longer
                self.publish(s, now_ns)
            return
        if not lossy:
            s.candidates = ()
        before, before_ns = s.state, s.since_ns
        s.detected_by = detected_by
        self._change(s, state, since_ns, now_ns)
        if state != LinkState.GREY:  # the text of a GREY subject has its loss rate, see `publish`
            s.text = f"{self._name_text(s)} {self._settled_text(s, before, since_ns - before_ns)}"
        self.publish(s, now_ns)

    def _settled_text(self, s: Subject, before: LinkState, lasted_ns: int) -> str:
        if s.state == LinkState.FLAPPING:
            return _flapping_text(s, None)
        since = self.clock(s.since_ns)
        if before == LinkState.DOWN:
            return f"is up again since {since}, after {lasted_ns / NS_PER_S:.2f} s"
        if before == LinkState.GREY and s.max_packet_bytes is not None:
            return f"passes packets of all sizes again since {since}"
        if before == LinkState.GREY:
            return f"loses no packets any more since {since}"
        return f"flapped {count_text(len(s.flaps), 'time')} within the past hour, no more than it may"

    def set_grey(self, s: Subject, lossy: Lossy, now_ns: int) -> None:
        """Note the loss rate of one element of a subject."""
        evidence, element = self.evidence, lossy.element
        previous = s.grey.get(element)
        s.grey[element] = lossy
        s.grey_fine_ns.pop(element, None)
        if previous is None:
            names = {e: evidence.names[e] for e in lossy.aliased}
            others = {name if evidence.is_nic[e] else cable_id(name) for e, name in names.items()}
            s.candidates = tuple(sorted(others - {s.name}))
            first_lost = evidence.first_lost_ns[evidence.paths_over(element)]
            begin_ns = int(first_lost.max(initial=now_ns - NS_PER_S))
            self.settle(s, now_ns, min(begin_ns, now_ns), DetectedBy.PROBES)
        elif s.published_loss is not None and _is_news(lossy, s.published_loss):
            self.publish(s, now_ns)

    def set_size_limit(self, s: Subject, limit: SizeLimit, now_ns: int) -> None:
        """Note that a directed link of a subject drops large packets."""
        previous_limit = s.size_limits.get(limit.link)
        s.size_limits[limit.link] = limit
        self.evidence.element(limit.link, now_ns)
        if previous_limit is None:
            s.candidates = tuple(sorted({cable_id(link) for link in limit.aliased} - {s.name}))
        if s.state != LinkState.GREY:
            self.settle(s, now_ns, limit.since_ns, DetectedBy.PROBES)
        elif previous_limit is None or previous_limit.passed_bytes != limit.passed_bytes:
            self.publish(s, now_ns)

    def report(
        self,
        name: str,
        kind: HealthKind,
        text: str,
        since_ns: int,
        now_ns: int,
        candidates: tuple[str, ...] = (),
        packet_bytes: int | None = None,
    ) -> None:
        """Publish a problem of the whole shard as a GREY subject, if it is new or its candidates changed.

        `packet_bytes`: the largest packet that passes, if larger ones are dropped.
        """
        s = self.get(name, kind)
        previous = s.candidates, s.shard_packet_bytes
        if self.is_settled(s) or (s.state == LinkState.GREY and previous == (candidates, packet_bytes)):
            return
        if s.state != LinkState.GREY:
            self._change(s, LinkState.GREY, since_ns, now_ns)
        s.evaluated_ns, s.candidates, s.text = now_ns, candidates, text
        s.shard_packet_bytes = packet_bytes
        self.publish(s, now_ns)

    def end(self, name: str, text: str, now_ns: int) -> None:
        """Publish that a problem of the whole shard is over."""
        s = self.by_name.get(name)
        if s is None or s.state != LinkState.GREY or self.is_settled(s):
            return
        self._change(s, LinkState.UP, now_ns, now_ns)
        s.candidates, s.shard_packet_bytes, s.text = (), None, text
        self.publish(s, now_ns)

    def clock(self, at_ns: int) -> str:
        """Format an evidence time as the time of day in fabric time."""
        return clock_text(at_ns + self.log_offset_ns)

    def _change(self, s: Subject, state: LinkState, since_ns: int, now_ns: int) -> None:
        s.before, s.state = s.state, state
        s.seq += 1
        s.since_ns, s.evaluated_ns = since_ns, now_ns

    def age_flaps(self, s: Subject, now_ns: int) -> None:
        """Drop the flaps that are older than the flap window."""
        oldest_ns = now_ns + self.log_offset_ns - FLAP_WINDOW_NS
        while s.flaps and s.flaps[0] < oldest_ns:
            s.flaps.popleft()

    def retire(self, s: Subject, cause: str, now_ns: int) -> None:
        """Publish that a cable no longer exists, and forget the cable."""
        for element in list(s.dead):
            self.clear(s, element)
        s.grey.clear()
        s.size_limits.clear()
        if s.state != LinkState.UP:
            self._change(s, LinkState.UP, now_ns, now_ns)
            s.text = f"{self._name_text(s)} no longer exists: {cause}"
            self.publish(s, now_ns)
        self.forget(s)

    def forget(self, s: Subject) -> None:
        """Forget a subject. Its elements stay marked as dead, so further losses raise no new subject."""
        del self.by_name[s.name]
        self._out.append((s.name, None))

    # --------------------------------------------------------------------------------------- records

    def publish(self, s: Subject, now_ns: int) -> None:
        """Add a record of a subject's present state to the changes."""
        loss = None
        if s.dead:
            s.links = tuple(self._dead_links(s))
            _count(self.evidence, s, s.dead, now_ns)
        elif s.grey or s.size_limits:
            loss = max(s.grey.values(), key=lambda lossy: lossy.rate, default=None)
            s.links = tuple(self._grey_links(s))
            s.published_loss = loss
            _count(self.evidence, s, s.grey or [self.evidence.index[link] for link in s.links], now_ns)
            if all(limit.probed_bytes for limit in s.size_limits.values()):
                s.text = f"{self._name_text(s)} {_grey_text(s, loss, self.clock(s.since_ns))}"
                if len(s.flaps) > 1:
                    s.text += f"; it went down {len(s.flaps)} times within the past hour"
        elif s.links:
            _count(self.evidence, s, [self.evidence.index[link] for link in s.links], now_ns)
        self.age_flaps(s, now_ns)
        if s.state == LinkState.FLAPPING:
            s.text = f"{self._name_text(s)} {_flapping_text(s, loss)}"
        s.max_packet_bytes = s.size_limit_bytes
        s.published_ns = now_ns
        self._out.append((s.name, self._record(s, loss)))

    def _record(self, s: Subject, loss: Lossy | None) -> LinkHealth:
        return {
            "subject": s.name,
            "kind": s.kind,
            "shard": self.shard,
            "seq": s.seq,
            "state": s.state,
            "before": s.before,
            "links": list(s.links),
            "candidates": list(s.candidates),
            "since_ns": s.since_ns + self.log_offset_ns,
            "evaluated_ns": s.evaluated_ns + self.log_offset_ns,
            "loss_rate": None if loss is None else loss.rate,
            "loss_rate_low": None if loss is None else loss.low,
            "loss_rate_high": None if loss is None else loss.high,
            "classes": [] if loss is None else [_class_row(class_rate) for class_rate in loss.classes],
            "max_packet_bytes": s.max_packet_bytes,
            "flaps_hour": len(s.flaps),
            "flaps_total": s.flaps_total,
            "flap_ns": list(s.flaps),
            "detected_by": s.detected_by,
            "paths_dead": s.counts[0],
            "paths_living": s.counts[1],
            "probers": s.counts[2],
            "evidence_source": self.source,
            "evidence_offset": self.offset,
            "text": s.text[:MAX_TEXT],
        }

    def _dead_links(self, s: Subject) -> list[str]:
        names = self.evidence.names
        return sorted(names[e] for e in s.dead if not self.evidence.is_nic[e])

    def _grey_links(self, s: Subject) -> list[str]:
        """Return a cable's links that are lossy, may cause the same losses, or have a size limit."""
        evidence = self.evidence
        elements = {e for lossy in s.grey.values() for e in (lossy.element, *lossy.aliased)} | s.grey.keys()
        names = {evidence.names[e] for e in elements if not evidence.is_nic[e] and e != NOTHING}
        return sorted(name for name in names | s.size_limits.keys() if cable_id(name) == s.name)

    def _name_text(self, s: Subject) -> str:
        return subject_text(self.evidence, s.name, s.kind, self._dead_links(s) or self._grey_links(s))


def _count(evidence: Evidence, s: Subject, elements: Iterable[int], now_ns: int) -> None:
    """Count the dead paths, the living paths and the probers over a subject's elements."""
    n = evidence.paths
    here = np.isin(evidence.rows[:n], list(elements)).any(axis=1)
    here &= evidence.path_event_ns[:n] > now_ns - STALE_NS
    dead = here & (evidence.loss_streak[:n] > 0)
    if here.any():
        probers = len(np.unique(evidence.rows[:n, 0][here]))
        s.counts = int(dead.sum()), int((here & ~dead).sum()), probers


def _is_news(lossy: Lossy, published: Lossy) -> bool:
    """Return whether a loss rate, or its set of lossy traffic classes, differs from the published one."""
    if lossy.lossy_dscps != published.lossy_dscps:
        return True
    return not published.low <= lossy.rate <= published.high


def _class_row(rate: ClassRate) -> ClassLoss:
    return {
        "dscp": rate.dscp,
        "loss_rate": rate.rate,
        "loss_rate_low": rate.low,
        "loss_rate_high": rate.high,
        "is_lossy": rate.is_lossy,
    }


def _recovered_classes(record: LinkHealth) -> tuple[ClassRate, ...]:
    return tuple(
        ClassRate(c["dscp"], c["loss_rate"], c["loss_rate_low"], c["loss_rate_high"], c["is_lossy"])
        for c in record["classes"]
    )


def _flapping_text(s: Subject, loss: Lossy | None) -> str:
    text = f"flapped {len(s.flaps)} times within the past hour"
    return text if loss is None else f"{text}, and loses {loss.rate:.1%} of its packets"


def _grey_text(s: Subject, loss: Lossy | None, since: str) -> str:
    texts = list(dict.fromkeys(limit.text for limit in s.size_limits.values()))
    if loss is not None:
        texts.insert(0, loss_text(loss, since))
    else:
        texts[-1] += f", since {since}"
    return "; ".join(texts)
