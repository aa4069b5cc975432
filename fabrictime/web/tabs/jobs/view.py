"""The Jobs tab: all jobs with their verdicts, and one job from iterations down to queue pairs and links."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from nicegui import ui

from fabrictime.state.alert_now import is_slow
from fabrictime.state.fabric_state import Part
from fabrictime.state.incidents import names_text
from fabrictime.state.job_state import Interval
from fabrictime.web.chart import LiveChart
from fabrictime.web.elements import card, empty, link_button, part, table, text, toggle, utc_time
from fabrictime.web.query_poller import Snapshot
from fabrictime.web.tabs.base import AppContext, Choice
from fabrictime.web.tabs.jobs import flow_frames, frames
from fabrictime.web.tabs.jobs.export_lines import export_lines
from fabrictime.web.tabs.jobs.nic_panel import NicPanel
from fabrictime.web.tabs.jobs.queries import JobQueries, NicProfile
from fabrictime.web.tabs.jobs.rank_panel import VIEWS as RANK_VIEWS
from fabrictime.web.tabs.jobs.rank_panel import RankPanel
from fabrictime.web.tabs.jobs.traffic_panel import VIEWS as FLOW_VIEWS
from fabrictime.web.tabs.jobs.traffic_panel import TrafficPanel
from fabrictime.web.tabs.jobs.verdict_panel import VerdictPanel
from fabrictime.web.tabs.live_tab import LiveTab
from fabrictime.web.widgets import Cell, Row, Section
from schemas.records import Diagnosis, JobFlow
from schemas.units import count_text, counted

KPIS: Final = (
    ("jobs", "jobs running"),
    ("network", "slow: network"),
    ("host", "slow: other"),
    ("healthy", "healthy"),
    ("ranks", "ranks"),
    ("age", "newest record"),
)
SPANS: Final = {300: "5 min", 900: "15 min", 3600: "1 h", 86_400: "1 d", 604_800: "7 d"}
MAX_LIVE_SPAN_S: Final = 3600
"""Longest span whose intervals come from memory, s; those of a longer span come from the history."""
PAST_PERIOD_S: Final = 15.0
DIAGNOSIS_PERIOD_S: Final = 1.0
FLOWS_PERIOD_S: Final = 2.0
NIC_PERIOD_S: Final = 4.0
REDRAWS_PER_SPAN: Final = 150
"""Largest number of redraws while the chart moves by one span and no interval ends."""
NO_JOB: Final = (
    "No job yet. Load a profiler into a job by these lines in its script on each host: NCCL and RCCL load it "
    "by NCCL_PROFILER_PLUGIN, MPI by LD_PRELOAD. docs/workload.md has the steps."
)


@dataclass(frozen=True, slots=True)
class JobsChoice(Choice):
    """The user's choices on the tab, from its address. Invalid values become the defaults."""

    job: str | None = None
    interval: str | None = None
    rank: int | None = None
    flow: str | None = None
    nic: str | None = None
    span: int = 900
    ranks: str = "bars"
    sort: str = ""
    flows: str = "list"
    metric: flow_frames.Metric = "rate"

    @staticmethod
    def parse(query: dict[str, str]) -> JobsChoice:
        """Return the user's choices from the query parameters of an address."""
        names: dict[str, Any] = {key: query.get(key) or None for key in ("job", "interval", "flow", "nic")}
        choice = JobsChoice(**names)
        options: dict[str, Any] = {"ranks": RANK_VIEWS, "sort": frames.SORTS, "flows": FLOW_VIEWS}
        options["metric"] = flow_frames.METRICS
        valid: dict[str, Any] = {key: query[key] for key, of in options.items() if query.get(key, "") in of}
        numbers: dict[str, Any] = {
            key: int(query[key]) for key in ("rank", "span") if query.get(key, "").isdecimal()
        }
        if numbers.get("span") not in SPANS:
            numbers.pop("span", None)
        return replace(choice, **valid, **numbers)


class JobsTab(LiveTab[JobsChoice]):
    """Shows all jobs, and the chosen job in detail."""

    address = "/jobs"

    def __init__(self, context: AppContext, choice: JobsChoice) -> None:
        super().__init__(context, choice)
        self._record: Diagnosis | None = None
        self._live_flows: list[JobFlow] = []
        self._past_jobs: list[dict[str, Any]] = []
        self._past: list[Interval] = []
        self._drawn: tuple[int, Any] = 0, None
        self.verdict = VerdictPanel(self._choose)
        self.ranks = RankPanel(self._choose)
        self.traffic = TrafficPanel(self._choose)
        self.nic = NicPanel(self._choose)

    # ------------------------------------------------------------------------------------------------ layout

    def build(self) -> None:
        """Create the tab's elements in the current NiceGUI client."""
        with ui.element("div").classes("ft-page"):
            self._build_header(KPIS)
            with ui.element("div").classes("ft-jobs"):
                self._build_list()
                self.job_part = part("job")
                with self.job_part.classes("ft-job-grid"):
                    self.verdict.build()
                    self._build_iterations()
                    self.ranks.build(self.choice.ranks, self.choice.sort)
                    self.traffic.build(self.choice.flows, self.choice.metric)
                    self.traffic.build_links()
                self.nic_part = part("nic-part")
                with self.nic_part:
                    self.nic.build()
        ui.timer(0.5, self._show_banner)
        ui.timer(1.0, self._show)

    def _build_list(self) -> None:
        columns = [
            ("job", "job", "left"),
            ("verdict", "verdict", "left"),
            ("since", "since (UTC)", "left"),
            ("iteration", "iteration", "right"),
            ("trend", "last 10 min", "left"),
            ("bandwidth", "bus bandwidth", "right"),
            ("ranks", "ranks", "right"),
            ("hosts", "hosts", "right"),
        ]
        against = {name: _against_cell(name) for name in ("since", "iteration", "bandwidth")}
        cells = {"job": _job_cell, "verdict": _verdict_cell, "trend": _trend_cell, **against}
        with card("ft-job-list"):
            with ui.element("div").classes("ft-head"):
                text("Jobs", "ft-title")
            self.jobs_empty = empty("", "jobs-empty")
            lines = export_lines(self.context.settings.state_file)
            with Section().classes("ft-export").props("data-testid=export") as self.export:
                code = ui.code("\n".join(lines), language="bash")
                code.markdown.props("tabindex=0")  # it scrolls, also by the keyboard
                code.copy_button.props('aria-label="copy the lines" color=ft-accent')
            self.jobs = table(columns, "jobs", self._on_job, cells)

    def _build_iterations(self) -> None:
        with card("ft-job-iterations"):
            with ui.element("div").classes("ft-head"):
                text("Iterations", "ft-title")
                toggle(SPANS, self.choice.span, lambda span: self._choose(span=span), "span")
            with ui.element("div").classes("ft-sub"):
                self.interval_note = text("", "ft-note", test="interval-note")
                with ui.element("div").classes("ft-controls"):
                    link_button("earlier", "earlier", lambda: self._step(-1))
                    link_button("later", "later", lambda: self._step(1))
                    self.to_now = link_button("now", "now", lambda: self._choose(interval=None))
            self.iterations_empty = empty("", "iterations-empty")
            self.iterations = LiveChart("iterations", on_pick=lambda key: self._choose(interval=key))
            self.iterations.classes("ft-fill").props("data-testid=iterations")

    # ----------------------------------------------------------------------------------------------- choices

    def _on_job(self, row: Row) -> None:
        past = row["past"] and self.choice.span <= MAX_LIVE_SPAN_S
        self._choose(job=row["id"], **({"span": 604_800, "interval": row["key"]} if past else {}))

    def _choose(self, **changes: Any) -> None:
        before = self.choice
        if changes.get("job", before.job) != before.job:
            changes = {"interval": None, "rank": None, "flow": None, "nic": None, **changes}
        choice = replace(before, **changes)
        if "rank" in changes and "nic" not in changes:
            choice = self._with_rank(choice)
        elif changes.get("flow") is not None:
            choice = replace(choice, nic=changes["flow"].partition(">")[0])
        self._set_choice(choice)
        self._drawn = 0, None
        self._follow(before)
        self._show()

    def _with_rank(self, choice: JobsChoice) -> JobsChoice:
        """Return the choices with the NIC of the chosen rank, and with the slowest flow of that NIC."""
        splits = self._record["time_splits"] if self._record is not None else []
        nic = next((split["nic"] for split in splits if split["rank"] == choice.rank and split["nic"]), None)
        rows = flow_frames.flow_rows(self._flows(), nic) if nic is not None else []
        return replace(choice, nic=nic, flow=rows[0]["id"] if rows else None)

    def _step(self, by: int) -> None:
        """Open the interval that is `by` intervals after the shown interval."""
        keys = [interval.key for interval in self._intervals()]
        if keys:
            at = keys.index(self.choice.interval) if self.choice.interval in keys else len(keys) - 1
            self._choose(interval=keys[max(0, min(len(keys) - 1, at + by))])

    def _intervals(self) -> list[Interval]:
        """Return the intervals that the chart of iterations shows."""
        span_s = self.choice.span
        if span_s > MAX_LIVE_SPAN_S:
            return self._past
        with self.state.lock:
            job = self.state.jobs.jobs.get(self.choice.job or "")
            intervals = [] if job is None else list(job.intervals)
        return frames.within(intervals, self.live.now_ns(), span_s * 1_000_000_000)

    # --------------------------------------------------------------------------------------------- following

    def start_live(self) -> None:
        """Subscribe to the live state. Called again when the browser reconnects."""
        super().start_live()
        if self.context.live is None:
            self.job_part.set_visibility(False)
            self.nic_part.set_visibility(False)
            return
        self._follow(None)
        self.iterations.resume()
        self.ranks.resume()
        self.traffic.matrix.resume()
        self._show()

    def on_live(self, parts: frozenset[Part]) -> None:
        """Redraw the elements that depend on the changed parts of the state."""
        if "jobs" in parts:
            self._show()
        elif parts & {"health", "contention"}:
            self._show_links()

    def _follow(self, before: JobsChoice | None) -> None:
        """Subscribe to the queries that the present choices need and the choices `before` did not need."""
        jobs, choice = self.context.jobs, self.choice
        if jobs is None:
            return
        if before is None or (before.job, before.interval) != (choice.job, choice.interval):
            self._follow_job(jobs)
        if before is None or (before.job, before.span) != (choice.job, choice.span):
            self._follow_past(jobs)
        if before is None or (before.job, before.interval, before.nic) != (
            choice.job,
            choice.interval,
            choice.nic,
        ):
            self._follow_nic(jobs)

    def _follow_job(self, jobs: JobQueries) -> None:
        """Subscribe to the diagnosis of the shown interval, and also to the present flows if this interval is
        the newest.
        """
        job, key = self.choice.job, self.choice.interval
        self._record, self._live_flows = None, []
        self.unfollow("diagnosis")
        self.unfollow("flows")
        if job is None:
            return
        self.follow("diagnosis", jobs.diagnosis, (job, key), self._on_diagnosis, DIAGNOSIS_PERIOD_S)
        if key is None:
            self.follow("flows", jobs.flows, (job,), self._on_flows, FLOWS_PERIOD_S)

    def _follow_past(self, jobs: JobQueries) -> None:
        """Subscribe to the jobs in the history, and to the intervals of a long span."""
        job, span_s = self.choice.job, self.choice.span
        self._past = []
        self.follow("past jobs", jobs.past_jobs, (), self._on_past_jobs, PAST_PERIOD_S)
        self.unfollow("past")
        if job is not None and span_s > MAX_LIVE_SPAN_S:
            arguments = (job, span_s * 1_000_000_000)
            self.follow("past", jobs.past_intervals, arguments, self._on_past, PAST_PERIOD_S)

    def _follow_nic(self, jobs: JobQueries) -> None:
        """Subscribe to the queue pairs of the chosen NIC."""
        job, key, nic = self.choice.job, self.choice.interval, self.choice.nic
        self.unfollow("nic")
        if nic is None:
            return
        self.nic.show_profile(None, "", key is not None)
        matching = [interval for interval in self._intervals() if interval.key == key]
        span = (matching[0].begin_ns, matching[0].end_ns) if matching else None
        self.follow("nic", jobs.nic_profile, (nic, job, span), self._on_profile, NIC_PERIOD_S)

    def _on_diagnosis(self, snapshot: Snapshot[Diagnosis | None]) -> None:
        if snapshot.value is not self._record:
            self._record = snapshot.value
            self._show()

    def _on_past_jobs(self, snapshot: Snapshot[list[dict[str, Any]]]) -> None:
        if snapshot.value is not None and snapshot.value != self._past_jobs:
            self._past_jobs = snapshot.value
            self._show()

    def _on_past(self, snapshot: Snapshot[list[Interval]]) -> None:
        if snapshot.value is not None and snapshot.value != self._past:
            self._past, self._drawn = snapshot.value, (0, None)
            self._show()

    def _on_flows(self, snapshot: Snapshot[list[JobFlow]]) -> None:
        if snapshot.value is not None and snapshot.value != self._live_flows:
            self._live_flows = snapshot.value
            self._show_traffic()

    def _on_profile(self, snapshot: Snapshot[NicProfile]) -> None:
        error = "" if snapshot.error is None else str(snapshot.error)
        self.nic.show_profile(snapshot.value, error, self.choice.interval is not None)

    # ----------------------------------------------------------------------------------------------- filling

    def _show(self) -> None:
        if self.context.live is None:
            return
        choice, now_ns = self.choice, self.live.now_ns()
        with self.state.lock:
            jobs = self.state.jobs.jobs
            rows = frames.job_rows(jobs, now_ns)
            job = jobs.get(choice.job or "")
            head = None if job is None else dict(job.head)
            names = set(jobs)
        rows += [
            frames.past_row(past_job, now_ns) for past_job in self._past_jobs if past_job["job"] not in names
        ]
        self.jobs.put([{**row, "chosen": row["id"] == choice.job} for row in rows])
        self.jobs_empty.set_text(NO_JOB)
        self.jobs_empty.set_visibility(not rows)
        self.export.set_visibility(not rows)
        self.job_part.set_visibility(choice.job is not None)
        self.nic_part.set_visibility(choice.job is not None or choice.nic is not None)
        if choice.job is not None:
            shown_head = self._record if choice.interval is not None or self._record is not None else head
            self.verdict.show(choice.job, shown_head, now_ns)
            self._show_iterations(self._intervals(), now_ns)
            self.ranks.show(self._record, choice.ranks, choice.sort, choice.rank)
            self._show_traffic()
        with self.state.lock:
            nic = self.state.nics.get(choice.nic or "")
        self.nic.show(choice.nic, nic, choice.job)

    def _show_iterations(self, intervals: list[Interval], now_ns: int) -> None:
        choice, span_ns = self.choice, self.choice.span * 1_000_000_000
        self.iterations_empty.set_text(f"No diagnosis in the last {SPANS[choice.span]}.")
        self.iterations_empty.set_visibility(not intervals)
        self.to_now.set_visibility(choice.interval is not None)
        if choice.interval is None:
            note = "a click on an iteration opens its interval; now: the newest"
            past = "; of each step, the worst interval"
            self.interval_note.set_text(note + past * (choice.span > MAX_LIVE_SPAN_S))
        elif self._record is not None:
            begin, end = (utc_time(self._record[name]) for name in ("begin_ns", "end_ns"))
            self.interval_note.set_text(f"all parts below show {begin} to {end} UTC")
        last = (intervals[-1].key if intervals else None, choice.span, choice.interval)
        if last != self._drawn[1] or now_ns - self._drawn[0] > span_ns // REDRAWS_PER_SPAN:
            self._drawn = now_ns, last
            frame = frames.iterations_frame(intervals, now_ns, span_ns, choice.interval)
            self.iterations.show(lambda _is_full: frame)

    def _flows(self) -> list[JobFlow]:
        recorded = self._record["flows"] if self._record is not None else []
        return flow_frames.merged(recorded, self._live_flows)

    def _show_traffic(self) -> None:
        choice, flows = self.choice, self._flows()
        if choice.job is None:
            return
        self.traffic.show(choice.job, flows, choice.flows, choice.metric, choice.nic, choice.flow)
        self._show_links(flows)

    def _show_links(self, flows: list[JobFlow] | None = None) -> None:
        choice, now_ns = self.choice, self.live.now_ns()
        if choice.job is None:
            return
        flows = self._flows() if flows is None else flows
        named = self._record["links"] if self._record is not None else []
        chosen_flows = [
            flow for flow in flows if flow_frames.pair_id(flow["nic"], flow["peer"]) == choice.flow
        ]
        with self.state.lock:
            self.traffic.show_flow(chosen_flows[0] if chosen_flows else None, self.state, now_ns)
            rows = flow_frames.link_rows(self.state, flows, named, now_ns)
        self.traffic.show_links(rows, choice.job)

    def _show_kpis(self) -> None:
        now_ns = self.live.now_ns()
        with self.state.lock:
            running = [job.head for job in self.state.jobs.jobs.values() if job.is_running(now_ns)]
            job_count = len(self.state.jobs.jobs)
        self._kpi("jobs", count_text(len(running)), f"{counted(job_count, 'job')} within the past hour")
        by_kind: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in frames.KINDS}
        for head in running:
            kind = frames.kind_of(head["verdict"], head["blames_network"])
            by_kind[kind if kind == "unknown" or is_slow(head) else "healthy"].append(head)
        for kind in ("network", "host", "healthy"):
            heads = by_kind[kind]
            note = names_text([head["job"] for head in heads]) if kind != "healthy" else ""
            self._kpi(kind, count_text(len(heads)) if running else "—", note)
        ranks_seen = sum(head["ranks_seen"] for head in running)
        note = f"of {counted(len(running), 'job')}" if running else ""  # jobs may share hosts
        self._kpi("ranks", count_text(ranks_seen) if running else "—", note)


def _job_cell(row: Row) -> Cell:
    classes = "ft-subject ft-go" if row["chosen"] else "ft-subject"
    return [(classes, row["job"], ""), ("ft-detail", row["tenant"], "")]


def _against_cell(name: str) -> Callable[[Row], Cell]:
    """Return a function that makes the table cell of a figure, with the expected figure below it."""

    def cell(row: Row) -> Cell:
        value, _, expected = row[name].partition(", ")
        return [("", value, ""), ("ft-detail", expected, "")]

    return cell


def _verdict_cell(row: Row) -> Cell:
    return [(f"ft-verdict ft-kind-{row['kind']}", row["verdict"], ""), ("ft-detail", row["text"], "")]


def _trend_cell(row: Row) -> Cell:
    return [(f"ft-spark ft-kind-{row['kind']}", "", "iteration times of the last ten minutes", row["trend"])]
