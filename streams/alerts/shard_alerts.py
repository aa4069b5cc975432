"""What people should know of one shard, each thing once: alerts raised, changed, cleared, grouped by cause.

In: `LinkHealth`, `ContentionWindow`, `ClockOffsets` and `LinkEvent` records in the order in which the log
took them, where latencies are promised `PathDelays`, and what is found out of the wiring. Out: `Alert`
records. All times and texts come from the records, and ids from what an alert is about: the same records give
the same alerts, and what was said before is not said again. State: recoverable from the alerts published so
far and the records of the past hour.

One dead cable is one alert. Cables of one switch that die together are one alert on the switch, a host's on
the host. A cable that flaps keeps one alert open for longer each time, and is LINK_FLAPPING from the
threshold on. Queues behind a dead cable belong to its alert.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from schemas.topics import CLOCK_OFFSETS, CONTENTION, DELAYS, LINK_HEALTH, LINKS
from streams.alerts.detection import SINCE, Finding
from streams.delays.latency_slo import EVERYONE, Change, LatencyRules
from streams.links.prober_health import ProberWatch
from streams.runtime.thresholds import Thresholds

__all__ = ["ShardAlerts"]

Record = dict[str, Any]

S: Final = 1_000_000_000
TOGETHER_NS: Final = 2 * S
"""Deaths at one switch within this are of one cause."""
SWITCH_LEAST: Final = 3
"""Cables of one switch that must be down for it to be the switch."""
BEHIND_NS: Final = 10 * S
"""A queue that builds up this soon after a cable's death, at a switch of that cable, is its traffic."""
EARLY_NS: Final = S
CLEAR_MOST_NS: Final = 600 * S
MAX_EVIDENCE: Final = 32
MAX_NAMES: Final = 4096
DEATHS: Final = {"LINK": "LINK_DOWN", "NIC": "NIC_DOWN", "HOST": "HOST_DOWN"}
OF_HEALTH: Final = frozenset({"LINK_GREY", "LINK_FLAPPING", *DEATHS.values()})
OF_PROBERS: Final = frozenset({"AGENT", "PROBE_STORM"})
FOUND: Final = OF_PROBERS | {"MISWIRED"}
"""Kinds that `find` takes: what they covered says nothing of the health of the same subject."""
DONE_MOST: Final = 4096
DONE_KEPT_NS: Final = 7200 * S
"""More cleared alerts than that are forgotten once they are older: nobody reads that far back again."""
NEVER: Final = 2**62
PROMISE: Final = "latency:"
"""Before the name of a latency rule it is the subject of its alert."""


@dataclass(slots=True)
class _Open:
    """One alert that stands."""

    kind: str
    subject: str
    severity: str
    raised_ns: int
    updated_ns: int
    text: str
    update: int = 0
    links: list[str] = field(default_factory=list)
    nics: list[str] = field(default_factory=list)
    jobs: list[str] = field(default_factory=list)
    grouped: list[str] = field(default_factory=list)
    evidence: list[Record] = field(default_factory=list)
    members: set[str] = field(default_factory=set)
    """Subjects that keep it up now."""
    over_ns: int = 0
    """When the last of them was over, as its record dates it."""
    clear_at_ns: int = NEVER
    """Log append time at which it is cleared; NEVER while it stands."""

    @property
    def alert_id(self) -> str:
        return f"{self.kind}:{self.subject}:{self.raised_ns}"

    def covers(self) -> set[str]:
        """Return every subject that is of its cause, also those that are over."""
        return {self.subject, *self.grouped}


class ShardAlerts:
    """The alerts of one shard. `cables_of`: how many cables a switch has, 0 where that is not known.
    `groups`: the groups of a NIC, see streams/delays/latency_slo.py; `pace`: see `links/prober_health.py`.
    `log_offset_ns` (fabric time minus log append time) may be set at any time."""

    def __init__(
        self,
        shard: str,
        thresholds: Thresholds | None = None,
        cables_of: Callable[[str], int] | None = None,
        groups: Callable[[str], frozenset[str]] | None = None,
        pace: Callable[[str], tuple[int, int] | None] | None = None,
    ) -> None:
        self.shard = shard
        self.thresholds = thresholds or Thresholds()
        self.now_ns = 0
        self.log_offset_ns = 0
        self._probers = ProberWatch(shard, pace)
        self._cables_of = cables_of or (lambda node: 0)
        self._health: dict[str, Mapping[str, Any]] = {}
        self._waiting: dict[str, tuple[int, Mapping[str, Any]]] = {}
        """Subject that is DOWN and no alert yet, to the append time at which it becomes one, and the record
        that said so."""
        self._open: dict[str, _Open] = {}
        self._done: dict[str, int] = {}
        """Id of an alert that was cleared to when."""
        self._told: dict[str, list[tuple[int, int]]] = {}
        """Subject to when cleared alerts covered it: what is read again of that time is no news."""
        self._clocks: dict[int, Record] = {}
        self._clocks_bad_ns: int | None = None
        self._promises = LatencyRules(groups or (lambda nic: frozenset({EVERYONE, nic})))
        self._out: list[tuple[str, Record]] = []

    @property
    def due_ns(self) -> int:
        """When `tick` has something to do, log append time."""
        waiting = (at_ns for at_ns, _ in self._waiting.values())
        clearing = (a.clear_at_ns for a in self._open.values())
        return min([*waiting, *clearing, self._probers.due_ns])

    # ------------------------------------------------------------------------------------ in and out

    def recover(self, alerts: Iterable[Mapping[str, Any]], heard_from_ns: int = 0) -> None:
        """Take over the alerts that were published so far (`Alert`), in any order. `heard_from_ns`: append
        time from which on `LinkEvent`s are read again."""
        newest: dict[str, Mapping[str, Any]] = {}
        for record in alerts:
            if record["shard"] == self.shard:
                known = newest.get(record["alert_id"])
                if known is None or known["update"] <= record["update"]:
                    newest[record["alert_id"]] = record
        for alert_id, r in newest.items():
            found = _Open(
                r["kind"], r["subject"], r["severity"], r["raised_ns"], r["updated_ns"], r["text"],
                r["update"], list(r["links"]), list(r["nics"]), list(r["jobs"]), list(r["grouped"]),
                [dict(e) for e in r["evidence"]],
            )  # fmt: skip
            if r["state"] == "CLEARED":
                self._note_done(found, r["cleared_ns"] or r["updated_ns"])
                continue
            self._open[alert_id] = found
            found.members = {found.subject}
            if r["kind"] in OF_PROBERS:
                stood_ns = max(r["updated_ns"] - self.log_offset_ns, heard_from_ns)
                self._probers.restore(r["kind"], found.subject, found.nics, stood_ns)
            if r["kind"] == "LATENCY":
                self._promises.restore(found.subject.removeprefix(PROMISE), found.raised_ns)
            if r["kind"] in DEATHS.values():
                found.members = {s for s in found.covers() if "<>" in s or ">" not in s}
                if found.grouped and found.kind == "LINK_DOWN" and "<>" not in found.subject:
                    found.members.discard(found.subject)  # a switch lives by its cables

    def _note_done(self, alert: _Open, cleared_ns: int) -> None:
        self._done[alert.alert_id] = cleared_ns
        for subject in alert.covers():
            self._told.setdefault(_told_as(alert.kind, subject), []).append((alert.raised_ns, cleared_ns))
        if len(self._done) > DONE_MOST:
            old_ns = cleared_ns - DONE_KEPT_NS
            self._done = {i: at_ns for i, at_ns in self._done.items() if at_ns >= old_ns}
            kept = {s: [t for t in told if t[1] >= old_ns] for s, told in self._told.items()}
            self._told = {s: told for s, told in kept.items() if told}

    def _was_told(self, subject: str, since_ns: int) -> bool:
        """Return whether an alert that was cleared covered what began then."""
        return any(
            raised_ns - TOGETHER_NS <= since_ns < cleared_ns
            for raised_ns, cleared_ns in self._told.get(subject, ())
        )

    def take(
        self, topic: str, key: str, record: Mapping[str, Any] | None, append_ns: int
    ) -> list[tuple[str, Record]]:
        """Take one record of `fabric.link-health`, `fabric.contention`, `fabric.clock.offsets`, `fabric.links` or
        `fabric.delays`; None: the key was taken back. Return (key, `Alert`) to publish.

        Promises have a time of their own, that of windows: where delays come in between changes nothing.
        """
        if record is not None and record["shard"] != self.shard:
            return self._published()
        if topic == DELAYS.name:
            self._heed([] if record is None else self._promises.take(dict(record)))
            return self._published()
        self._advance(append_ns - 1)
        self.now_ns = max(self.now_ns, append_ns)
        if topic == LINK_HEALTH.name:
            self._take_health(key, record)
        elif topic == CONTENTION.name and record is not None:
            self._take_window(record)
        elif topic == CLOCK_OFFSETS.name and record is not None:
            self._take_clocks(record)
        elif topic == LINKS.name and record is not None:
            self._probers.take(record, append_ns)
        return self._published()

    def promise(self, rules: Iterable[Mapping[str, Any]]) -> list[tuple[str, Record]]:
        """Take the latency rules in force (`ActuatorConfig.latency_rules`); return (key, `Alert`) to publish:
        a rule that is gone is broken no more. Call it once after `recover`, and whenever they change."""
        self._heed(self._promises.set_rules(rules))
        return self._published()

    def wants_delays(self, nic: str) -> bool:
        """Return whether a NIC's `PathDelays` matter to any latency rule."""
        return self._promises.wants(nic)

    @property
    def delays_s(self) -> float:
        """How far back a new owner must read `fabric.delays`, in s; 0 where it needs none."""
        return self._promises.longest_s

    def find(self, found: Finding) -> list[tuple[str, Record]]:
        """Take what was found out; return (key, `Alert`) to publish."""
        self._advance(found.at_ns - 1)
        self._found(found)
        return self._published()

    def tick(self, now_ns: int) -> list[tuple[str, Record]]:
        """Let time pass up to `now_ns` on the log's clock; return (key, `Alert`) to publish."""
        self._advance(now_ns)
        return self._published()

    def open(self) -> list[str]:
        """Return the ids of the alerts that stand."""
        return sorted(self._open)

    def _published(self) -> list[tuple[str, Record]]:
        out, self._out = self._out, []
        return out

    def _advance(self, to_ns: int) -> None:
        """Do what became due, in the order in which it did."""
        while (due_ns := self.due_ns) <= to_ns:
            self.now_ns = max(self.now_ns, due_ns)
            ripe = sorted(s for s, (at_ns, _) in self._waiting.items() if at_ns <= due_ns)
            for subject in ripe:
                if subject in self._waiting:
                    self._raise_death(subject)
            for alert_id in sorted(i for i, a in self._open.items() if a.clear_at_ns <= due_ns):
                self._clear(self._open[alert_id])
            for found in self._probers.judge(due_ns, self.thresholds):
                self._found(found)

    # ------------------------------------------------------------------------------------ link health

    def _take_health(self, subject: str, record: Mapping[str, Any] | None) -> None:
        if record is None:
            self._forgotten(subject)
            return
        known = self._health.get(subject)
        if known is not None and record["seq"] < known["seq"]:
            return
        self._health[subject] = record
        wanted = self._wanted(record)
        if subject in self._waiting and wanted not in DEATHS.values():
            self._raise_death(subject)
        held = self._holding(subject)
        if wanted is None:
            if held is not None:
                self._over(held, subject, record)
        elif held is None:
            self._want(wanted, subject, record)
        elif record["evaluated_ns"] >= held.raised_ns:
            self._again(held, wanted, subject, record)

    def _wanted(self, record: Mapping[str, Any]) -> str | None:
        """Return the kind of alert that a record calls for."""
        state = record["state"]
        often = record["kind"] == "LINK" and record["flaps_hour"] > self.thresholds["flaps_max"]
        if state == "FLAPPING" or (often and state == "DOWN"):
            return "LINK_FLAPPING"
        if state == "DOWN":
            return DEATHS.get(record["kind"])
        return "LINK_GREY" if state == "GREY" else None

    def _holding(self, subject: str) -> _Open | None:
        """Return the alert that a subject's health belongs to."""
        found = [a for a in self._open.values() if a.kind in OF_HEALTH and subject in a.covers()]
        return max(found, key=lambda a: (a.raised_ns, a.alert_id), default=None)

    def _want(self, kind: str, subject: str, record: Mapping[str, Any]) -> None:
        if self._was_told(subject, record["since_ns"]):
            return
        if kind in DEATHS.values():
            if f"{kind}:{subject}:{record['since_ns']}" not in self._done:
                gather_ns = self.thresholds.ns("alert_gather_ms")
                self._waiting.setdefault(subject, (self.now_ns + gather_ns, record))
            return
        self._raise(
            kind, subject, self._severity(kind, record), record["since_ns"], record["evaluated_ns"],
            record["text"], record["links"], _nics([record]), [self._proof(record)], {subject},
        )  # fmt: skip

    def _again(self, held: _Open, wanted: str, subject: str, record: Mapping[str, Any]) -> None:
        """Take more news of a subject whose alert stands."""
        if held.subject == subject and wanted != held.kind and not held.grouped:
            held.over_ns = record["since_ns"]
            held.text = f"{held.text}; now {wanted}"
            self._clear(held)
            self._want(wanted, subject, record)
            if subject in self._waiting:  # no second wait for who was told of already
                self._raise_death(subject)
            return
        held.members.add(subject)
        held.clear_at_ns = NEVER
        severity = self._severity(held.kind, record)
        worse = severity == "CRITICAL" and held.severity != "CRITICAL"
        fresh = record["state"] == "DOWN" and record["evaluated_ns"] > held.updated_ns
        if worse or (fresh and self._prove(held, record)):
            held.severity = severity if worse else held.severity
            if held.subject == subject and not held.grouped:
                held.text = record["text"]
            self._tell(held, record["evaluated_ns"])

    def _over(self, held: _Open, subject: str, record: Mapping[str, Any]) -> None:
        if record["evaluated_ns"] < held.raised_ns or subject not in held.members:
            return
        held.members.discard(subject)
        held.over_ns = max(held.over_ns, record["since_ns"])
        if not held.members:
            times = min(max(record["flaps_hour"] - 1, 0), 20)
            hold_ns = min(self.thresholds.ns("alert_clear_s") << times, CLEAR_MOST_NS)
            at_once = held.kind in ("LINK_GREY", "LINK_FLAPPING")  # these were waited for already
            held.clear_at_ns = self.now_ns + (0 if at_once else hold_ns)

    def _forgotten(self, subject: str) -> None:
        record = self._health.pop(subject, None)
        self._waiting.pop(subject, None)
        held = self._holding(subject)
        if held is None:
            return
        held.members.discard(subject)
        if not held.members:
            held.over_ns = max(held.over_ns, held.updated_ns, record["evaluated_ns"] if record else 0)
            held.text = f"{held.text}; forgotten, it did not come back"
            held.clear_at_ns = self.now_ns

    # ------------------------------------------------------------------------------------ causes

    def _raise_death(self, subject: str) -> None:
        """Make an alert of a death, with what died of the same cause."""
        record = self._waiting.pop(subject)[1]
        if self._join_host(subject, record):
            return
        node = self._dead_switch(record)
        if node is not None:
            self._raise_switch(node, record)
            return
        kind = DEATHS[record["kind"]]
        self._raise(
            kind, subject, "CRITICAL", record["since_ns"], record["evaluated_ns"], record["text"],
            record["links"], _nics([record]), [self._proof(record)], {subject},
        )  # fmt: skip
        if f"{kind}:{subject}:{record['since_ns']}" in self._open and kind == "HOST_DOWN":
            self._gather_host(subject, record)

    def _gather_host(self, host: str, record: Mapping[str, Any]) -> None:
        """Bring what was told or is waiting of a host's NICs and cables under its alert."""
        for other in sorted(self._waiting):
            if other in self._waiting and host in _hosts(self._waiting[other][1]):
                self._raise_death(other)
        of_host = next(a for a in self._open.values() if a.kind == "HOST_DOWN" and a.subject == host)
        for alert in sorted(self._open.values(), key=lambda a: a.alert_id):
            ours = all(host in _nodes(each) for each in alert.covers()) and alert.subject in self._health
            if alert is of_host or not alert.members or not ours or alert.kind in FOUND:
                continue
            alert.over_ns = max(alert.over_ns, record["since_ns"])
            alert.text = f"{alert.text}; now HOST_DOWN"
            self._clear(alert)
            more = [proof for proof in alert.evidence if proof not in of_host.evidence]
            of_host.evidence = [*of_host.evidence, *more][:MAX_EVIDENCE]
            of_host.grouped += [s for s in (alert.subject, *alert.grouped) if s not in of_host.grouped]
            of_host.members |= alert.members
            of_host.links += [link for link in alert.links if link not in of_host.links]
            of_host.nics += [nic for nic in alert.nics if nic not in of_host.nics]
            self._tell(of_host, max(record["evaluated_ns"], alert.updated_ns))

    def _join_host(self, subject: str, record: Mapping[str, Any]) -> bool:
        """Group a NIC or cable of a host that is down into that host's alert."""
        if record["kind"] == "HOST":
            return False
        for alert in sorted(self._open.values(), key=lambda a: a.alert_id):
            if alert.kind == "HOST_DOWN" and alert.subject in _hosts(record) and alert.clear_at_ns == NEVER:
                self._join(alert, subject, record)
                return True
        return False

    def _dead_switch(self, record: Mapping[str, Any]) -> str | None:
        """Return the switch most of whose cables died about when this one did; None: it is the cable."""
        if record["kind"] != "LINK":
            return None
        best: tuple[int, str] | None = None
        for node in _nodes(record["subject"]):
            dead = self._died_at(node, record["since_ns"])
            if len(dead) >= max(SWITCH_LEAST, self._cables_of(node) / 2):
                best = max(best or (0, ""), (len(dead), node))
        return None if best is None else best[1]

    def _died_at(self, node: str, about_ns: int) -> list[str]:
        """Return the cables of a switch that went down within `TOGETHER_NS` of a time and are down still."""
        return sorted(
            subject
            for subject, r in self._health.items()
            if r["kind"] == "LINK" and r["state"] == "DOWN" and node in _nodes(subject)
            and abs(r["since_ns"] - about_ns) <= TOGETHER_NS
        )  # fmt: skip

    def _raise_switch(self, node: str, record: Mapping[str, Any]) -> None:
        """Put all cables of a switch that died together under one alert: on the switch, or, where one of them
        was told of already, that one's."""
        dead = self._died_at(node, record["since_ns"])
        told = [a for a in self._open.values() if a.kind == "LINK_DOWN" and a.covers() & {node, *dead}]
        alert = min(told, key=lambda a: (a.raised_ns, a.alert_id), default=None)
        records = [self._health[cable] for cable in dead]
        if alert is None:
            raised_ns = min(r["since_ns"] for r in records)
            self._raise(
                "LINK_DOWN", node, "CRITICAL", raised_ns, max(r["evaluated_ns"] for r in records), "",
                [link for r in records for link in r["links"]], _nics(records),
                [self._proof(r) for r in records], set(dead), grouped=dead,
                text_of=lambda a: self._switch_text(node, len(dead), a.raised_ns),
            )  # fmt: skip
        else:
            held = {s for a in self._open.values() for s in a.covers()}
            for cable in dead:
                if cable not in held:
                    self._join(alert, cable, self._health[cable], tell=False)
            alert.text = self._switch_text(node, len(dead), alert.raised_ns)
            self._tell(alert, record["evaluated_ns"])
        for cable in dead:
            self._waiting.pop(cable, None)

    def _switch_text(self, node: str, dead: int, since_ns: int) -> str:
        cables = self._cables_of(node)
        of = f"{dead} of its {cables}" if cables >= dead else f"{dead} of its"
        return f"{node}: {of} cables are down since {_clock(since_ns)}"

    def _join(self, alert: _Open, subject: str, record: Mapping[str, Any], *, tell: bool = True) -> None:
        news = subject not in alert.covers()
        if news:
            alert.grouped.append(subject)
        alert.members.add(subject)
        alert.clear_at_ns = NEVER
        alert.links += [link for link in record["links"] if link not in alert.links]
        alert.nics += [nic for nic in _nics([record]) if nic not in alert.nics]
        if (self._prove(alert, record) or news) and tell:
            self._tell(alert, record["evaluated_ns"])

    # ------------------------------------------------------------------------------------ queues

    def _take_window(self, w: Mapping[str, Any]) -> None:
        link = w["link"]
        alert = self._queue_alert(link)
        if w["state"] == "CLOSED":
            if alert is not None and link in alert.members and w["opened_ns"] >= alert.raised_ns:
                alert.members.discard(link)
                alert.over_ns = max(alert.over_ns, w["closed_ns"] or w["updated_ns"])
                if not alert.members:
                    alert.clear_at_ns = self.now_ns + self.thresholds.ns("alert_clear_s")
            return
        if alert is not None:
            if alert.subject == link and w["updated_ns"] >= alert.updated_ns:
                alert.members.add(link)
                alert.clear_at_ns = NEVER
            return
        if self._was_told(link, w["opened_ns"]):
            return
        if w["updated_ns"] - w["opened_ns"] < self.thresholds.ns("alert_contention_s"):
            return
        behind = self._behind(w)
        if behind is not None:
            behind.grouped.append(link)
            behind.jobs += [job for job in w["jobs"] if job not in behind.jobs]
            behind.evidence = [*behind.evidence, self._queue_proof(w)][:MAX_EVIDENCE]
            self._tell(behind, w["updated_ns"])
            return
        storm = w["kind"] == "PAUSE_STORM"
        self._raise(
            "CONTENTION", link, "CRITICAL" if storm else "WARNING", w["opened_ns"], w["updated_ns"],
            w["text"], [link, *w["links"]], _flow_nics(w), [self._queue_proof(w)], {link}, jobs=w["jobs"],
        )  # fmt: skip

    def _queue_alert(self, link: str) -> _Open | None:
        """Return the alert that a link's queue belongs to."""
        found = [
            a for a in self._open.values()
            if a.kind not in FOUND and (link in a.covers() or link in a.members)
        ]  # fmt: skip
        return max(found, key=lambda a: (a.raised_ns, a.alert_id), default=None)

    def _behind(self, w: Mapping[str, Any]) -> _Open | None:
        """Return the alert whose cause a queue follows from: a cable of the same switch that died just
        before, or the NIC that holds everything back."""
        near = _ends(w["link"])
        for alert in sorted(self._open.values(), key=lambda a: (a.raised_ns, a.alert_id)):
            if alert.kind in DEATHS.values() and alert.members:
                after_ns = w["opened_ns"] - alert.raised_ns
                nodes = {node for name in alert.covers() for node in _nodes(name)}
                if -EARLY_NS <= after_ns <= BEHIND_NS and near & nodes:
                    return alert
            storms = w["kind"] == "PAUSE_STORM" and alert.kind == "CONTENTION"
            if storms and (w["link"] in alert.links or alert.subject in w["links"]):
                return alert
        return None

    # ------------------------------------------------------------------------------------ clocks

    def _take_clocks(self, record: Mapping[str, Any]) -> None:
        window = record["window"]
        if self._clocks and window < max(self._clocks):
            return
        found = self._clocks.setdefault(window, {"parts": set(), "all": 0, "bad": []})
        if record["part"] in found["parts"]:
            return
        found["parts"].add(record["part"])
        away = {h for r in self._health.values() if r["state"] == "DOWN" for h in _hosts(r)}
        counted = [c for c in record["clocks"] if c["clock"].partition("/")[0] not in away]
        found["all"] += len(counted)
        found["bad"] += [c["clock"] for c in counted if c["state"] == "UNSYNCED"]
        if len(found["parts"]) < record["parts"]:
            return
        self._clocks = {window: found}
        bad = sorted(found["bad"])
        share = 100 * len(bad) / found["all"] if found["all"] else 0.0
        alert = next((a for a in self._open.values() if a.kind == "CLOCKS"), None)
        end_ns = record["window_end_ns"]
        if not bad or share < self.thresholds["alert_clocks_percent"]:
            self._clocks_bad_ns = None
            if alert is not None and alert.clear_at_ns == NEVER and end_ns > alert.raised_ns:
                alert.over_ns = end_ns
                alert.clear_at_ns = self.now_ns + self.thresholds.ns("alert_clear_s")
            return
        if alert is not None:
            alert.clear_at_ns = NEVER
            return
        if self._clocks_bad_ns is None:
            self._clocks_bad_ns = record["window_start_ns"]
        if self._was_told(self.shard, self._clocks_bad_ns):
            return
        if end_ns - self._clocks_bad_ns < self.thresholds.ns("alert_clocks_s"):
            return
        named = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        text = (
            f"{len(bad)} of {found['all']} clocks are UNSYNCED since {_clock(self._clocks_bad_ns)}: {named}; "
            "absolute delays are not to be trusted"
        )
        proof = _proof(CLOCK_OFFSETS.name, f"{self.shard}/0", record["window_start_ns"], text)
        self._raise(
            "CLOCKS", self.shard, "WARNING", self._clocks_bad_ns, end_ns, text, [], [], [proof], {self.shard},
            grouped=bad[:MAX_NAMES],
        )  # fmt: skip

    # ------------------------------------------------------------------------------------ promises

    def _heed(self, changes: Iterable[Change]) -> None:
        """Raise and clear the alerts of promises of latency."""
        for change in changes:
            subject = f"{PROMISE}{change.name}"
            held = next(
                (a for a in self._open.values() if a.kind == "LATENCY" and a.subject == subject), None
            )
            if change.state == "CLEARED":
                if held is not None and change.at_ns >= held.raised_ns:
                    held.over_ns, held.text = change.since_ns, f"{held.text}; over: {change.text}"
                    self._clear(held)
            elif held is None and not self._was_told(subject, change.since_ns):
                proofs = [
                    _proof(DELAYS.name, nic, change.at_ns, f"{nic} to {peer}") for nic, peer in change.pairs
                ]
                self._raise(
                    "LATENCY", subject, "WARNING", change.since_ns, change.at_ns,
                    f"{change.name}: {change.text}", [], change.nics, proofs, {subject},
                )  # fmt: skip

    # ------------------------------------------------------------------------------------ findings

    def _found(self, found: Finding) -> None:
        """Raise, add to or clear the alert of a finding; what is read again of an earlier time is no news."""
        held = next(
            (a for a in self._open.values() if a.kind == found.kind and a.subject == found.subject), None
        )
        at_ns, since_ns = found.at_ns + self.log_offset_ns, found.since_ns + self.log_offset_ns
        proofs = [_proof(p.topic, p.key, p.at_ns + self.log_offset_ns, p.text) for p in found.proofs]
        if held is None:
            told = self._told.get(_told_as(found.kind, found.subject), [])
            if not found.over and not any(a - TOGETHER_NS <= at_ns < b for a, b in told):
                since_ns = max([since_ns, *(b for _, b in told if b <= at_ns)])
                self._raise(
                    found.kind, found.subject, found.severity, since_ns, at_ns,
                    found.text.replace(SINCE, _clock(since_ns)), found.links, found.nics, proofs,
                    {found.subject}, grouped=found.grouped,
                )  # fmt: skip
        elif found.over:
            if at_ns > held.updated_ns:
                held.over_ns, held.text = since_ns, f"{held.text}; over: {found.text}"
                self._clear(held)
        elif {*found.nics, *found.grouped} - {*held.nics, *held.grouped}:
            held.nics += [nic for nic in found.nics if nic not in held.nics]
            held.grouped += [each for each in found.grouped if each not in held.grouped]
            held.links += [link for link in found.links if link not in held.links]
            held.evidence = [*held.evidence, *(p for p in proofs if p not in held.evidence)][:MAX_EVIDENCE]
            if found.kind == "MISWIRED":
                held.text = found.text.replace(SINCE, _clock(held.raised_ns))
            self._tell(held, at_ns)

    # ------------------------------------------------------------------------------------ records

    def _raise(
        self,
        kind: str,
        subject: str,
        severity: str,
        raised_ns: int,
        at_ns: int,
        text: str,
        links: Iterable[str],
        nics: Iterable[str],
        evidence: list[Record],
        members: set[str],
        *,
        jobs: Iterable[str] = (),
        grouped: Iterable[str] = (),
        text_of: Callable[[_Open], str] | None = None,
    ) -> None:
        """Raise an alert, unless it was told and cleared before."""
        alert = _Open(
            kind, subject, severity, raised_ns, at_ns, text, links=list(dict.fromkeys(links)),
            nics=list(nics), jobs=list(jobs), grouped=list(grouped), evidence=evidence[:MAX_EVIDENCE],
            members=members,
        )  # fmt: skip
        if alert.alert_id in self._done or alert.alert_id in self._open:
            return
        if text_of is not None:
            alert.text = text_of(alert)
        self._open[alert.alert_id] = alert
        self._publish(alert, None)

    def _tell(self, alert: _Open, at_ns: int) -> None:
        alert.update += 1
        alert.updated_ns = max(alert.updated_ns, at_ns)
        self._publish(alert, None)

    def _clear(self, alert: _Open) -> None:
        del self._open[alert.alert_id]
        alert.update += 1
        alert.updated_ns = max(alert.updated_ns, alert.over_ns)
        cleared_ns = max(alert.over_ns, alert.raised_ns)
        self._note_done(alert, cleared_ns)
        self._publish(alert, cleared_ns)

    def _publish(self, alert: _Open, cleared_ns: int | None) -> None:
        self._out.append((alert.subject, {
            "alert_id": alert.alert_id, "subject": alert.subject, "kind": alert.kind,
            "state": "RAISED" if cleared_ns is None else "CLEARED", "severity": alert.severity,
            "shard": self.shard, "update": alert.update, "raised_ns": alert.raised_ns,
            "updated_ns": alert.updated_ns, "cleared_ns": cleared_ns, "text": alert.text[:500],
            "links": alert.links[:MAX_NAMES], "nics": alert.nics[:MAX_NAMES], "jobs": alert.jobs[:MAX_NAMES],
            "grouped": alert.grouped[:MAX_NAMES], "evidence": list(alert.evidence),
        }))  # fmt: skip

    def _severity(self, kind: str, record: Mapping[str, Any]) -> str:
        if kind in DEATHS.values():
            return "CRITICAL"
        limit = self.thresholds["alert_grey_critical_percent"] / 100
        return "CRITICAL" if kind == "LINK_GREY" and (record["loss_rate"] or 0.0) >= limit else "WARNING"

    @staticmethod
    def _proof(record: Mapping[str, Any]) -> Record:
        return _proof(LINK_HEALTH.name, record["subject"], record["evaluated_ns"], record["text"])

    @staticmethod
    def _queue_proof(w: Mapping[str, Any]) -> Record:
        return _proof(CONTENTION.name, w["link"], w["updated_ns"], w["text"])

    def _prove(self, alert: _Open, record: Mapping[str, Any]) -> bool:
        """Add a record to what an alert stands on; return whether it is new and there was room."""
        proof = self._proof(record)
        if proof in alert.evidence or len(alert.evidence) >= MAX_EVIDENCE:
            return False
        alert.evidence.append(proof)
        return True


def _proof(topic: str, key: str, at_ns: int, text: str) -> Record:
    return {"topic": topic, "key": key, "at_ns": at_ns, "text": text[:500]}


def _told_as(kind: str, subject: str) -> str:
    return f"{kind} {subject}" if kind in FOUND else subject


def _clock(at_ns: int) -> str:
    at = datetime.fromtimestamp(at_ns / 1e9, UTC)
    return f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"


def _ends(link: str) -> set[str]:
    """Return the nodes of a directed link."""
    return {end.rpartition(":")[0] for end in link.split(">")}


def _nodes(subject: str) -> set[str]:
    """Return the nodes that a subject is at: both of a cable, the host of a NIC, a switch or host itself."""
    if "<>" in subject:
        return {end.rpartition(":")[0] for end in subject.split("<>")}
    return {subject.partition("/")[0]}


def _hosts(record: Mapping[str, Any]) -> set[str]:
    """Return the hosts that a health record may be about: a cable's ends, a NIC's or host's own name."""
    return _nodes(record["subject"])


def _nics(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the NICs that records name."""
    found: dict[str, None] = {}
    for record in records:
        for name in (record["subject"], *record["candidates"]):
            if "/" in name and ">" not in name:
                found[name] = None
    return list(found)


def _flow_nics(w: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(nic for flow in w["flows"] for nic in (flow["nic"], flow["peer"])))[:MAX_NAMES]
