"""Raises alerts from link health: dead and grey cables, NICs and hosts, grouped by cause.

One dead cable gives one alert. Cables of one switch that die together give one alert about the switch, and
cables of a host one about the host. Each flap of a cable doubles the time for which its alert stays open.
From a threshold of flaps on, the alert is LINK_FLAPPING.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from schemas.ids import end_parts, host_of
from schemas.records import AlertKind, DetectedBy, Evidence, HealthKind, LinkHealth, LinkState, Severity
from schemas.topics import LINK_HEALTH
from streams.alerts.book import DETECTED, AlertBook, OpenAlert, clock_text, evidence_ref
from streams.alerts.rules import MAX_CLEAR_NS, MAX_FLAP_DOUBLINGS, NEVER_NS
from streams.runtime.flaps import is_flapping
from streams.runtime.shared_risk import DOWN_CABLES

DEATHS: Final = {
    HealthKind.LINK: AlertKind.LINK_DOWN,
    HealthKind.NIC: AlertKind.NIC_DOWN,
    HealthKind.HOST: AlertKind.HOST_DOWN,
}
"""Maps kind of a subject to the kind of alert for its death."""
DEATH_KINDS: Final = frozenset(DEATHS.values())
OF_SHARD: Final = {
    HealthKind.PATHS: AlertKind.UNEXPLAINED_LOSS,
    HealthKind.TRACES: AlertKind.TRACING_BLIND,
    HealthKind.CLASSES: AlertKind.CLASS_REWRITTEN,
}
"""Maps kind of a subject that stands for a whole shard to the kind of its alert."""
HEALTH_KINDS: Final = frozenset(
    {AlertKind.LINK_GREY, AlertKind.LINK_FLAPPING, *OF_SHARD.values(), *DEATH_KINDS}
)


class LinkHealthAlerts:
    """Raises alerts from `LinkHealth` records.

    `cables_of` returns the number of a switch's cables, 0 if unknown. `forget_agent` is called with a host
    whose alert replaced the alert of its prober.
    """

    def __init__(
        self,
        book: AlertBook,
        cables_of: Callable[[str], int],
        forget_agent: Callable[[str], None] = lambda host: None,
    ) -> None:
        self.health: dict[str, LinkHealth] = {}
        """Maps subject to its newest record."""
        self._book = book
        self._cables_of, self._forget_agent = cables_of, forget_agent
        self._waiting: dict[str, tuple[int, LinkHealth]] = {}
        """Maps DOWN subject without an alert to the append time at which it is raised, and its record."""

    @property
    def due_ns(self) -> int:
        """Append time at which `raise_due` next has an alert to raise, ns; `NEVER_NS` if none."""
        return min((at_ns for at_ns, _ in self._waiting.values()), default=NEVER_NS)

    def recover(self, alert: OpenAlert) -> None:
        """Restore the subjects of an active alert."""
        if alert.kind not in DEATH_KINDS:
            return
        alert.members = {s for s in alert.covers() if "<>" in s or ">" not in s}
        if alert.grouped and alert.kind == AlertKind.LINK_DOWN and "<>" not in alert.subject:
            alert.members.discard(alert.subject)  # a switch is active through its cables

    def raise_due(self, to_ns: int) -> None:
        """Raise the alerts of dead subjects that have waited for long enough by `to_ns`."""
        for subject in sorted(s for s, (at_ns, _) in self._waiting.items() if at_ns <= to_ns):
            if subject in self._waiting:
                self._raise_death(subject)

    def ingest(self, subject: str, record: LinkHealth | None) -> None:
        """Take the health record of a subject; None if the subject was forgotten."""
        if record is None:
            self._forget(subject)
            return
        previous = self.health.get(subject)
        if previous is not None and record["seq"] < previous["seq"]:
            return
        self.health[subject] = record
        alert_kind = self._wanted_kind(record)
        if subject in self._waiting and alert_kind not in DEATH_KINDS:
            self._raise_death(subject)
        alert = self._alert_of(subject)
        if alert_kind is None:
            if alert is not None:
                self._end(alert, subject, record)
        elif alert is None:
            self._begin(alert_kind, subject, record)
        elif record["evaluated_ns"] >= alert.raised_ns:
            self._continue(alert, alert_kind, subject, record)

    # --------------------------------------------------------------------------------------- one subject

    def _wanted_kind(self, record: LinkHealth) -> AlertKind | None:
        """Return the kind of alert that a record calls for; None if it calls for no alert."""
        state = record["state"]
        max_flaps = self._book.thresholds["flaps_max"]
        often = record["kind"] == HealthKind.LINK and is_flapping(record["flap_ns"], max_flaps)
        if state == LinkState.FLAPPING or (often and state == LinkState.DOWN):
            return AlertKind.LINK_FLAPPING
        if state == LinkState.DOWN:
            return DEATHS.get(record["kind"])
        return OF_SHARD.get(record["kind"], AlertKind.LINK_GREY) if state == LinkState.GREY else None

    def _alert_of(self, subject: str) -> OpenAlert | None:
        """Return the alert to which a subject's health belongs; None if no alert is active for it."""
        return self._book.newest(lambda a: a.kind in HEALTH_KINDS and subject in a.covers())

    def _begin(self, kind: AlertKind, subject: str, record: LinkHealth) -> None:
        """Raise an alert, or wait for further dead subjects of the same cause."""
        book, since_ns = self._book, record["since_ns"]
        if book.was_covered(subject, since_ns):
            return
        if kind in DEATH_KINDS:
            if not book.was_cleared(f"{kind}:{subject}:{since_ns}"):
                due_ns = book.now_ns + book.thresholds.ns("alert_gather_ms")
                self._waiting.setdefault(subject, (due_ns, record))
            return
        book.raise_alert(self._new_alert(kind, subject, record, self._severity(kind, record)))

    def _new_alert(self, kind: AlertKind, subject: str, record: LinkHealth, severity: Severity) -> OpenAlert:
        return OpenAlert(
            kind=kind,
            subject=subject,
            severity=severity,
            raised_ns=record["since_ns"],
            updated_ns=record["evaluated_ns"],
            text=record["text"],
            links=_links_of(record),
            nics=_nics_of([record]),
            evidence=[_evidence(record)],
            members={subject},
            loss_rate=record["loss_rate"],
        )

    def _continue(self, alert: OpenAlert, alert_kind: AlertKind, subject: str, record: LinkHealth) -> None:
        """Process a new record of a subject whose alert is active."""
        if alert.subject == subject and alert_kind != alert.kind and not alert.grouped:
            alert.over_ns = record["since_ns"]
            alert.text = f"{alert.text}; now {alert_kind}"
            self._book.clear(alert)
            self._begin(alert_kind, subject, record)
            if subject in self._waiting:  # it has waited before
                self._raise_death(subject)
            return
        alert.hold(subject)
        if record["kind"] in OF_SHARD and alert.text != record["text"]:
            alert.add_names(links=_links_of(record), nics=_nics_of([record]))
            alert.text = record["text"]
            self._book.update(alert, record["evaluated_ns"])
        if self._is_settled(alert, subject, record):
            alert.text, alert.loss_rate = record["text"], record["loss_rate"]
            if self._severity(alert.kind, record) == Severity.CRITICAL:
                alert.severity = Severity.CRITICAL
            self._book.update(alert, self._book.now_ns + self._book.log_offset_ns)
        self._update(alert, subject, record)

    def _is_settled(self, alert: OpenAlert, subject: str, record: LinkHealth) -> bool:
        """Return whether a loss rate has just been counted over a whole window, or has doubled.

        The rate that first raises an alert is too low: its window began before the losses.
        """
        if alert.kind != AlertKind.LINK_GREY or alert.subject != subject or alert.grouped:
            return False
        rate = record["loss_rate"]
        if rate is None:
            return False
        if alert.loss_rate is not None and rate >= 2 * alert.loss_rate:
            return True
        full_ns = alert.raised_ns + self._book.thresholds.ns("grey_window_s")
        now_ns = self._book.now_ns + self._book.log_offset_ns
        return alert.updated_ns < full_ns <= now_ns

    def _update(self, alert: OpenAlert, subject: str, record: LinkHealth) -> None:
        """Publish an active alert again if its subject is worse, or on new evidence that it is dead."""
        severity = self._severity(alert.kind, record)
        is_worse = severity == Severity.CRITICAL and alert.severity != Severity.CRITICAL
        is_new_death = record["state"] == LinkState.DOWN and record["evaluated_ns"] > alert.updated_ns
        if is_worse or (is_new_death and alert.add_one_evidence(_evidence(record))):
            alert.severity = severity if is_worse else alert.severity
            if alert.subject == subject and not alert.grouped:
                alert.text = record["text"]
            self._book.update(alert, record["evaluated_ns"])

    def _end(self, alert: OpenAlert, subject: str, record: LinkHealth) -> None:
        """Remove a subject that is UP from its alert; each flap of the past hour doubles the hold-down."""
        if record["evaluated_ns"] < alert.raised_ns or subject not in alert.members:
            return
        doublings = min(max(record["flaps_hour"] - 1, 0), MAX_FLAP_DOUBLINGS)
        hold_ns = min(self._book.thresholds.ns("alert_clear_s") << doublings, MAX_CLEAR_NS)
        if alert.kind in (
            AlertKind.LINK_GREY,
            AlertKind.LINK_FLAPPING,
            *OF_SHARD.values(),
        ):  # their detection has waited already
            hold_ns = 0
        self._book.release(alert, subject, record["since_ns"], hold_ns)

    def _forget(self, subject: str) -> None:
        record = self.health.pop(subject, None)
        self._waiting.pop(subject, None)
        alert = self._alert_of(subject)
        if alert is None:
            return
        alert.members.discard(subject)
        if not alert.members:
            alert.over_ns = max(alert.over_ns, alert.updated_ns, record["evaluated_ns"] if record else 0)
            alert.text = f"{alert.text}; forgotten, it did not come back"
            alert.clear_at_ns = self._book.now_ns

    def _severity(self, kind: AlertKind, record: LinkHealth) -> Severity:
        if kind in DEATH_KINDS:
            return Severity.WARNING if record["detected_by"] == DetectedBy.ADMIN else Severity.CRITICAL
        limit = self._book.thresholds["alert_grey_critical_percent"] / 100
        is_heavy = record["max_packet_bytes"] is not None or (record["loss_rate"] or 0.0) >= limit
        return Severity.CRITICAL if kind == AlertKind.LINK_GREY and is_heavy else Severity.WARNING

    # --------------------------------------------------------------------------------------- causes

    def _raise_death(self, subject: str) -> None:
        """Raise the alert of a dead subject, with the other dead subjects of the same cause."""
        record = self._waiting.pop(subject)[1]
        if self._join_host(subject, record):
            return
        node = self._dead_switch(record)
        if node is not None:
            self._raise_switch(node, record)
            return
        kind = DEATHS[record["kind"]]
        alert = self._new_alert(kind, subject, record, self._severity(kind, record))
        self._book.raise_alert(alert)
        if alert.alert_id in self._book.open and alert.kind == AlertKind.HOST_DOWN:
            self._gather_host(subject, record)
            self._end_agent(subject, record)

    def _join_host(self, subject: str, record: LinkHealth) -> bool:
        """Add a NIC or cable of a dead host to the host's alert; return False if the host has none."""
        if record["kind"] == HealthKind.HOST:
            return False
        nodes = nodes_of(record["subject"])
        for alert in sorted(self._book.open.values(), key=lambda a: a.alert_id):
            is_active_host = alert.kind == AlertKind.HOST_DOWN and alert.clear_at_ns == NEVER_NS
            if is_active_host and alert.subject in nodes:
                if self._join(alert, subject, record):
                    self._book.update(alert, record["evaluated_ns"])
                return True
        return False

    def _join(self, alert: OpenAlert, subject: str, record: LinkHealth) -> bool:
        """Add a subject to an alert; return whether the alert changed and must be published."""
        is_new = subject not in alert.covers()
        alert.add_names(links=record["links"], nics=_nics_of([record]), grouped=[subject] if is_new else [])
        alert.hold(subject)
        return alert.add_one_evidence(_evidence(record)) or is_new

    def _gather_host(self, host: str, record: LinkHealth) -> None:
        """Group the alerts and waiting dead NICs and cables of a dead host under the host's alert."""
        for other in sorted(self._waiting):
            if other in self._waiting and host in nodes_of(self._waiting[other][1]["subject"]):
                self._raise_death(other)
        of_host = next(
            a for a in self._book.open.values() if a.kind == AlertKind.HOST_DOWN and a.subject == host
        )
        for alert in sorted(self._book.open.values(), key=lambda a: a.alert_id):
            if alert is of_host or not alert.members or not self._is_of_host(alert, host):
                continue
            alert.over_ns = max(alert.over_ns, record["since_ns"])
            alert.text = f"{alert.text}; now HOST_DOWN"
            self._book.group(of_host, alert, record["evaluated_ns"])

    def _end_agent(self, host: str, record: LinkHealth) -> None:
        """Clear the alert about a host's silent prober, because the whole host is dead."""
        alert = self._book.find(AlertKind.AGENT, host)
        if alert is not None:
            alert.over_ns = record["evaluated_ns"]
            alert.text = f"{alert.text}; now HOST_DOWN"
            self._book.clear(alert)
            self._forget_agent(host)

    def _is_of_host(self, alert: OpenAlert, host: str) -> bool:
        is_at_host = all(host in nodes_of(subject) for subject in alert.covers())
        return is_at_host and alert.subject in self.health and alert.kind not in DETECTED

    def _dead_switch(self, record: LinkHealth) -> str | None:
        """Return the switch most of whose cables died at about the time of this one, or None."""
        if record["kind"] != HealthKind.LINK:
            return None
        best: tuple[int, str] | None = None
        for node in nodes_of(record["subject"]):
            dead = self._dead_cables_at(node, record["since_ns"])
            if DOWN_CABLES.has_enough(len(dead), self._cables_of(node)):
                best = max(best or (0, ""), (len(dead), node))
        return None if best is None else best[1]

    def _dead_cables_at(self, node: str, about_ns: int) -> list[str]:
        """Return the cables of a switch that have been DOWN since about `about_ns`, sorted."""
        window_ns = DOWN_CABLES.window_ns or 0
        return sorted(
            subject
            for subject, r in self.health.items()
            if r["kind"] == HealthKind.LINK
            and r["state"] == LinkState.DOWN
            and node in nodes_of(subject)
            and abs(r["since_ns"] - about_ns) <= window_ns
        )

    def _raise_switch(self, node: str, record: LinkHealth) -> None:
        """Group a dead switch's dead cables under an active alert of one of them, else under a new alert."""
        book = self._book
        dead = self._dead_cables_at(node, record["since_ns"])
        active = [
            a for a in book.open.values() if a.kind == AlertKind.LINK_DOWN and a.covers() & {node, *dead}
        ]
        alert = min(active, key=lambda a: (a.raised_ns, a.alert_id), default=None)
        records = [self.health[cable] for cable in dead]
        if alert is None:
            book.raise_alert(
                _switch_alert(node, dead, records), lambda a: self._switch_text(node, len(dead), a.raised_ns)
            )
        else:
            covered = {s for a in book.open.values() for s in a.covers()}
            for cable in dead:
                if cable not in covered:
                    self._join(alert, cable, self.health[cable])
            alert.text = self._switch_text(node, len(dead), alert.raised_ns)
            book.update(alert, record["evaluated_ns"])
        for cable in dead:
            self._waiting.pop(cable, None)

    def _switch_text(self, node: str, dead: int, since_ns: int) -> str:
        cables = self._cables_of(node)
        count = f"{dead} of its {cables}" if cables >= dead else f"{dead} of its"
        return f"{node}: {count} cables are down since {clock_text(since_ns)}"


def _switch_alert(node: str, dead: list[str], records: list[LinkHealth]) -> OpenAlert:
    return OpenAlert(
        kind=AlertKind.LINK_DOWN,
        subject=node,
        severity=Severity.CRITICAL,
        raised_ns=min(r["since_ns"] for r in records),
        updated_ns=max(r["evaluated_ns"] for r in records),
        text="",
        links=[link for r in records for link in r["links"]],
        nics=_nics_of(records),
        grouped=list(dead),
        evidence=[_evidence(r) for r in records],
        members=set(dead),
    )


def nodes_of(subject: str) -> set[str]:
    """Return the nodes of a subject: both ends of a cable, a NIC's host, or the switch or host itself."""
    if "<>" in subject:
        return {end_parts(end).node for end in subject.split("<>")}
    return {host_of(subject)}


def _nics_of(records: Iterable[LinkHealth]) -> list[str]:
    """Return the NICs that the records name, in order."""
    nics: dict[str, None] = {}
    for record in records:
        for name in (record["subject"], *record["candidates"]):
            if "/" in name and ">" not in name:
                nics[name] = None
    return list(nics)


def _links_of(record: LinkHealth) -> list[str]:
    """Return the links of a record; of a record about a whole shard, the cables that may be at fault."""
    if record["kind"] not in OF_SHARD:
        return list(record["links"])
    return [name for name in record["candidates"] if "<>" in name]


def _evidence(record: LinkHealth) -> Evidence:
    return evidence_ref(LINK_HEALTH.name, record["subject"], record["evaluated_ns"], record["text"])
