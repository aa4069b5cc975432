"""Turns the log's records about one fault into lines for users and an outcome. Does no I/O.

Times count from the fault's injection. A record's time is its log append time, when all readers can see it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from fabrictime.demo.iterations import Change
from fabrictime.demo.script import Fault, Step
from schemas.ids import cable_id
from schemas.reasons import Reason
from schemas.records import (
    ActionOutcome,
    ActionReport,
    Alert,
    AlertKind,
    AlertState,
    ContentionKind,
    ContentionState,
    ContentionWindow,
    Decision,
    FlowAction,
    LinkHealth,
    LinkState,
    ReasonKind,
)
from schemas.topics import ACTIONS, ALERTS, CONTENTION, DECISIONS, LINK_HEALTH
from schemas.units import bps_text, counted, ms_text, percent_text

EARLY_NS: Final = 50_000_000
"""A queue that began more than this before the fault's injection has another cause."""
EXPECTED: Final = {
    Fault.GREY: LinkState.GREY,
    Fault.BLACKHOLE: LinkState.DOWN,
    Fault.FLAPPING: LinkState.FLAPPING,
    Fault.COLLISION: ContentionKind.COLLISION,
    Fault.INCAST: ContentionKind.INCAST,
}
"""The verdict that names each fault correctly."""
IN_TIME_MS: Final = 3_000.0
"""A fault is detected in time if the right verdict comes within this."""
BAD: Final = (LinkState.DOWN, LinkState.GREY, LinkState.FLAPPING)
LINK_REASONS: Final = (ReasonKind.DOWN, ReasonKind.GREY)
QUEUE_REASONS: Final = (ReasonKind.COLLISION, ReasonKind.INCAST, ReasonKind.DELAY)
MOVES: Final = (FlowAction.REROUTE, FlowAction.RESTORE)
CAUSES: Final = {
    ContentionKind.COLLISION: "flows collide there",
    ContentionKind.INCAST: "several hosts send to one (incast)",
    ContentionKind.SLOW_SENDER: "the sending host is the limit",
    ContentionKind.SLOW_RECEIVER: "the receiving host is the limit",
    ContentionKind.PAUSE_STORM: "a pause storm",
    ContentionKind.UNKNOWN: "cause not known yet",
}


class Event(NamedTuple):
    """One record of the log, with its topic and append time."""

    topic: str
    record: Any
    at_ns: int


class Line(NamedTuple):
    """One line of the tour's report. `at_s`: time since the injection, None if the line has none."""

    at_s: float | None
    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a fault.

    `link` is directed, `text` its readable name; `injected`: the fault in words.
    """

    link: str
    text: str
    injected: str

    @property
    def cable(self) -> str:
        """The id of the link's cable."""
        return cable_id(self.link)


@dataclass(slots=True)
class Outcome:
    """The result of one step. Times are in ms since the injection; None if an event did not happen."""

    fault: str
    link: str
    place: str
    detected_ms: float | None = None
    verdict: str = ""
    """The link state, or the cause of the queue, that the detection stated."""
    named: str = "no"
    """Whether the verdict names the fault: `yes`, `no`, `link only` if the verdict is another one, or `1 of
    N` if the evidence does not separate N links."""
    right_ms: float | None = None
    """Time of the first verdict that named both the link and the kind of the planted fault."""
    also_named: list[str] = field(default_factory=list)
    """Other links, NICs or hosts that were reported as unhealthy meanwhile."""
    drops: int = 0
    """How often the link was reported as DOWN."""
    drops_within_hour: int = 0
    """Number of drops within the past hour when the link became FLAPPING; 0 if it did not."""
    first_drop_ms: float | None = None
    alert: str = ""
    alert_ms: float | None = None
    action_ms: float | None = None
    moved: int = 0
    """Number of flows that were moved to another path."""
    repaired: int = 0
    """Number of moved flows that their host moved by itself, before a decision arrived."""
    paced: int = 0
    """Number of flows whose rate was limited."""
    strays: int = 0
    """Number of flows that their host moved although they did not depend on the link."""
    planned_flows: int = 0
    """Number of flows that decisions named, whether or not these were carried out."""
    lasted_s: float = 0.0
    healed: bool = False
    jobs: dict[str, Change] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        """Whether the verdict names the planted fault, and no other link, NIC or host was unhealthy."""
        return self.named == "yes" and not self.also_named

    @property
    def is_in_time(self) -> bool:
        """Whether the verdict is correct and came in time; for a flapping link, its first drop counts."""
        at_ms = self.right_ms if self.first_drop_ms is None else self.first_drop_ms
        return self.is_right and at_ms is not None and at_ms <= IN_TIME_MS

    @property
    def detection_to_first_move_ms(self) -> float | None:
        """Time from detection to the first flow moved or paced, ms; 0 if a host acted before the detection.

        Flows leave a flapping link at its first drop.
        """
        detected_ms = self.detected_ms if self.first_drop_ms is None else self.first_drop_ms
        if detected_ms is None or self.action_ms is None:
            return None
        return max(0.0, self.action_ms - detected_ms)

    @property
    def worst_job(self) -> str | None:
        """The job that the fault slowed down most; None if no job was slowed down."""
        return max(self.jobs, key=lambda job: self.jobs[job].slowdown, default=None)


class Chapter:
    """The report about one step, from the fault's injection on.

    `name` returns the readable name of a link or cable. `acting`: whether decisions are carried out. `job_of`
    returns the job of a flow. `crosses` returns whether a flow depends on the link if it uses a source port
    (None: its present port). `sick` are the subjects that were not UP before.
    """

    def __init__(
        self,
        step: Step,
        place: Place,
        name: Callable[[str], str],
        job_of: Callable[[str], str | None],
        crosses: Callable[[str, int | None], bool],
        *,
        acting: bool,
        sick: frozenset[str] = frozenset(),
    ) -> None:
        self.step, self.place, self.acting = step, place, acting
        self.outcome = Outcome(step.fault.value, place.link, place.text)
        self._name, self._job_of, self._crosses, self._sick = name, job_of, crosses, sick
        self._begin_ns = 0
        self._aliases: set[str] = set()
        self._decisions: dict[str, Decision] = {}
        self._unmatched: list[tuple[ActionReport, int]] = []
        self._moved: dict[str, None] = {}
        self._paced: dict[str, None] = {}
        self._planned_flows: dict[str, None] = {}
        self._strays: dict[str, None] = {}

    @property
    def is_detected(self) -> bool:
        """Whether the fault was detected."""
        return self.outcome.detected_ms is not None

    def inject(self, at_ns: int) -> list[Line]:
        """Begin the report at the injection, ns since the Unix epoch; return its first line."""
        self._begin_ns = at_ns
        return [Line(0.0, "broken" if self.step.is_link else "loaded", self.place.injected)]

    def take(self, event: Event) -> list[Line]:
        """Process one record; return the lines that it adds to the report."""
        if not self._begin_ns or event.at_ns < self._begin_ns - EARLY_NS:
            return []
        handlers: dict[str, Callable[[Any, int], list[Line]]] = {
            LINK_HEALTH.name: self._take_health,
            CONTENTION.name: self._take_window,
            ALERTS.name: self._take_alert,
            DECISIONS.name: self._take_decision,
            ACTIONS.name: self._take_action,
        }
        handler = handlers.get(event.topic)
        return [] if handler is None else handler(event.record, event.at_ns)

    def heal(self, at_ns: int, more: str = "", missed: str = "") -> list[Line]:
        """End the fault at `at_ns`; return its summary. `more`: text to add; `missed`: why undetected."""
        lasted_s = self._since_ms(at_ns) / 1e3
        self.outcome.lasted_s = lasted_s
        lines = [Line(lasted_s, "healed" if self.step.is_link else "ended", self._healed_text(more))]
        if not self.is_detected:
            lines.insert(0, Line(lasted_s, "missed", f"not detected within {lasted_s:.1f} s{missed}"))
        return lines

    def end(self, jobs: Mapping[str, Change]) -> list[Line]:
        """Return the lines about the jobs. Afterwards the outcome is complete except for `healed`."""
        outcome = self.outcome
        outcome.jobs = dict(jobs)
        outcome.moved, outcome.paced = len(self._moved), len(self._paced)
        outcome.planned_flows, outcome.strays = len(self._planned_flows), len(self._strays)
        lines = [Line(None, job, _change_text(change)) for job, change in jobs.items()]
        lines.append(Line(None, "right" if outcome.is_right else "not right", self._comparison_text()))
        if outcome.also_named:
            named = ", ".join(map(self._name, outcome.also_named))
            lines.append(Line(None, "also", f"called unhealthy meanwhile: {named}"))
        if outcome.strays:
            flows = counted(outcome.strays, "flow")
            lines.append(Line(None, "also", f"hosts moved {flows} that did not cross this link"))
        return lines

    # ------------------------------------------------------------------------------------ detection

    def _take_health(self, record: LinkHealth, at_ns: int) -> list[Line]:
        subject, state = record["subject"], record["state"]
        if state not in BAD:
            return []
        names = (subject, *record["candidates"])
        if not self.step.is_link or self.place.cable not in names:
            if subject not in self._sick and subject not in self.outcome.also_named:
                self.outcome.also_named.append(subject)
            return []
        self._aliases.update(names)
        self._note_verdict(state, names, at_ns)
        if self.step.fault is Fault.FLAPPING:
            return self._take_flap(record, at_ns)
        return self._detect(at_ns, self._health_text(record))

    def _take_flap(self, record: LinkHealth, at_ns: int) -> list[Line]:
        outcome = self.outcome
        if record["state"] == LinkState.FLAPPING:
            outcome.drops_within_hour = outcome.drops_within_hour or record["flaps_hour"]
            return self._detect(at_ns, self._health_text(record))
        outcome.drops += 1
        if outcome.drops > 1:
            return []
        outcome.first_drop_ms = self._since_ms(at_ns)
        return [self._line(at_ns, "detected", f"{self._name(record['subject'])} is DOWN, for the first time")]

    def _take_window(self, record: ContentionWindow, at_ns: int) -> list[Line]:
        links = (record["link"], *record["candidates"])
        concerns_place = self.place.link in (*links, *record["links"])
        if self.step.is_link or not concerns_place or record["opened_ns"] < self._begin_ns - EARLY_NS:
            return []
        self._aliases.update(links)
        verdict = self.outcome.verdict
        if record["state"] != ContentionState.CLOSED or not verdict:
            self._note_verdict(record["kind"], links, at_ns)
        if self.is_detected:
            if verdict == ContentionKind.UNKNOWN and self.outcome.verdict != verdict:
                return [self._line(at_ns, "cause", f"{CAUSES[record['kind']]}, by the flows' reports")]
            return []
        text = f"a queue persists at {self._name(record['link'])}: {CAUSES[record['kind']]}"
        return self._detect(at_ns, text)

    def _take_alert(self, record: Alert, at_ns: int) -> list[Line]:
        subjects = {record["subject"], *record["grouped"]}
        place_subjects = (
            {self.place.cable} | self._aliases if self.step.is_link else {self.place.link} | self._aliases
        )
        if record["state"] != AlertState.RAISED or not subjects & place_subjects:
            return []
        if self.outcome.alert == record["kind"]:
            return []
        self.outcome.alert = record["kind"]
        lines = []
        if record["kind"] == AlertKind.LINK_FLAPPING and self.step.fault is Fault.FLAPPING:
            self._note_verdict(LinkState.FLAPPING, (record["subject"],), at_ns)
            lines = self._detect(at_ns, f"{self._name(record['subject'])} is FLAPPING: down too often")
        if self.outcome.alert_ms is None:
            self.outcome.alert_ms = self._since_ms(at_ns)
        return [*lines, self._line(at_ns, "alert", f"{record['kind']}, {record['severity']}")]

    def _detect(self, at_ns: int, text: str) -> list[Line]:
        if self.is_detected:
            return []
        self.outcome.detected_ms = self._since_ms(at_ns)
        return [self._line(at_ns, "detected", text)]

    def _note_verdict(self, verdict: str, names: tuple[str, ...], at_ns: int) -> None:
        """Store a verdict, unless the correct verdict has already been stored."""
        outcome = self.outcome
        if outcome.named == "yes":
            return
        target = self.place.cable if self.step.is_link else self.place.link
        if verdict != EXPECTED[self.step.fault]:
            named = "link only" if target in names else "no"
        elif target == names[0] and len(names) == 1:
            named, outcome.right_ms = "yes", self._since_ms(at_ns)
        else:
            named = f"1 of {len(names)}" if target in names else "nearby"
        if outcome.verdict == EXPECTED[self.step.fault] and verdict != outcome.verdict:
            return
        outcome.verdict, outcome.named = verdict, named

    def _health_text(self, record: LinkHealth) -> str:
        text = f"{self._name(record['subject'])} is {record['state']}"
        if record["state"] == LinkState.GREY and record["loss_rate"] is not None:
            low, high = record["loss_rate_low"] or 0.0, record["loss_rate_high"] or 1.0
            text += (
                f": loses {percent_text(record['loss_rate'])} of its packets "
                f"({percent_text(low)} to {percent_text(high)})"
            )
        if record["state"] == LinkState.FLAPPING:
            text += f": down {record['flaps_hour']} times within the hour"
        if record["candidates"]:
            text += f", or {', '.join(map(self._name, record['candidates']))}"
        return text

    # ------------------------------------------------------------------------------------ actions

    def _take_decision(self, record: Decision, at_ns: int) -> list[Line]:
        if record["action"] not in (FlowAction.REROUTE, FlowAction.PACE) or not self._is_reason(record):
            return []
        self._decisions[record["decision_id"]] = record
        first = not self._planned_flows
        self._planned_flows[record["flow_id"]] = None
        lines = []
        if first and not self.acting:
            kind = "move a flow off it" if record["action"] == FlowAction.REROUTE else "slow down a sender"
            lines.append(self._line(at_ns, "wanted", f"the policy would {kind}; the mode is OBSERVE"))
        waiting, self._unmatched = self._unmatched, []
        for action, action_ns in waiting:
            lines += self._take_action(action, action_ns)
        return lines

    def _take_action(self, record: ActionReport, at_ns: int) -> list[Line]:
        repair = record["outcome"] == ActionOutcome.LOCAL_REPAIR and self.step.is_link
        if repair and not self._crosses(record["flow_id"], record["from_path"]):
            self._strays[record["flow_id"]] = None
            return []
        if not repair and record["outcome"] != ActionOutcome.APPLIED:
            return []
        if not repair and record["decision_id"] not in self._decisions:
            self._unmatched.append((record, at_ns))
            return []
        done = self._paced if record["action"] == FlowAction.PACE else self._moved
        self.outcome.repaired += repair and record["flow_id"] not in done
        first = not done
        done[record["flow_id"]] = None
        if not first:
            return []
        if self.outcome.action_ms is None:
            self.outcome.action_ms = self._since_ms(at_ns)
        text = self._first_action_text(record, repair=repair)
        after_ms = self.outcome.detection_to_first_move_ms
        after = "" if not after_ms else f", {ms_text(after_ms)} after the detection"
        return [self._line(at_ns, "action", f"{text}{after}")]

    def _first_action_text(self, record: ActionReport, *, repair: bool) -> str:
        job = self._job_of(record["flow_id"])
        flow = f"a flow of {job}" if job else "a flow"
        if record["action"] == FlowAction.PACE:
            limit = f" to {bps_text(record['rate_bps'])}" if record["rate_bps"] else ""
            return f"the first sender is slowed down{limit}"
        by = ", by its own host (local repair)" if repair else ""
        return f"{flow} is the first to take another path{by}"

    def _is_reason(self, record: Decision) -> bool:
        reason = record["reason"]
        if self.step.is_link:
            return reason["kind"] in LINK_REASONS and reason["subject"] in {self.place.cable, *self._aliases}
        if reason["kind"] not in QUEUE_REASONS:
            return False
        window_id = reason["window_id"]
        link = Reason.of_window(window_id).subject if window_id else reason["subject"]
        return link in {self.place.link, *self._aliases}

    # ------------------------------------------------------------------------------------ text

    def _healed_text(self, more: str) -> str:
        done = []
        if self._moved:
            done.append(f"{counted(len(self._moved), 'flow')} moved ({self._jobs_text(self._moved)})")
        if self._paced:
            done.append(f"{counted(len(self._paced), 'flow')} slowed down")
        if self._planned_flows and not self.acting:
            done.append(f"{counted(len(self._planned_flows), 'flow')} would have been moved or slowed down")
        ended = "the link works again" if self.step.is_link else "the extra load is gone"
        return f"{ended}{more}; {', '.join(done) or 'no action was taken'}"

    def _comparison_text(self) -> str:
        """Return a text that compares the verdict with the planted fault."""
        outcome = self.outcome
        planted = f"planted: {EXPECTED[self.step.fault]} at {self.place.text}"
        if outcome.right_ms is None:
            return f"{planted}; the verdict was {outcome.verdict or 'none'} ({outcome.named})"
        after_ms = outcome.detection_to_first_move_ms
        acted = "no flow was moved or slowed down" if after_ms is None else f"acted {ms_text(after_ms)} later"
        return f"{planted}; named after {ms_text(outcome.right_ms)}, {acted}"

    def _jobs_text(self, flows: Mapping[str, None]) -> str:
        counts = Counter(self._job_of(flow) or "other" for flow in flows)
        return ", ".join(f"{job} {count}" for job, count in sorted(counts.items()))

    def _line(self, at_ns: int, label: str, text: str) -> Line:
        return Line(self._since_ms(at_ns) / 1e3, label, text)

    def _since_ms(self, at_ns: int) -> float:
        return max(0.0, (at_ns - self._begin_ns) / 1e6)


def _change_text(change: Change) -> str:
    before, during, worst, after = map(
        _duration, (change.before_ms, change.during_ms, change.worst_ms, change.after_ms)
    )
    more = "more than " if change.unfinished else ""
    return (
        f"iterations: {before} before; during the fault {during} in the median, {more}{worst} at worst; "
        f"{after} after it"
    )


def _duration(ms: float | None) -> str:
    return "none" if ms is None else ms_text(ms)
