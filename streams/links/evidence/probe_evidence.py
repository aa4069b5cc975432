"""Probe evidence of one shard in arrays, by path, link and NIC.

`Evidence` ingests `LinkEvent` records in log order. It keeps the newest answer of each element and the loss
streak of each path. In a sliding window it counts answers, and losses that a later answer followed
('settled'). The localisers (localise/) draw conclusions from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from native.core import ClockLine
from schemas.records import LinkEvent, PathEvidence
from streams.links.evidence.evidence_time import EvidenceTime
from streams.links.evidence.path_table import NicState, PathTable, Routes
from streams.links.rules import (
    AGENT_SILENT_NS,
    CONGESTED_TIMES,
    CPU_STARVED_NS,
    DELAYED_KEPT_NS,
    HOST_ANSWER_KEPT_NS,
    LAG_JUMP_NS,
    LAG_KEPT_NS,
    LEARNING_NS,
    NEVER_NS,
    PAUSE_NS,
    QUIET_NS,
    REPORTS_AFTER_NS,
    RUN_SETTLED,
    TIME_JUMP_NS,
    WARM_UP_NS,
    WINDOW_PARTS,
)
from streams.runtime.loss_rates import NOTHING, Bools, Int64s
from streams.runtime.units import NS_PER_MS, NS_PER_S

__all__ = ["NOTHING", "Evidence"]

Float64s = NDArray[np.float64]

FIRST_BUCKET_NS: Final = 125_000_000
GAPS_SMOOTHED: Final = 4
"""Number of a prober's newest reports whose intervals make its usual interval."""
RATE_DECAY_NS: Final = 2_000_000_000
"""Time in which the weight of former requests in a path's smoothed request rate decays to 1/e."""
EXEMPTING: Final = frozenset({"RX_OVERFLOW"})
"""Trouble of an agent for which neither its losses nor those of probes to it count. Other trouble leaves the
agent's own results valid. A peer without CPU time answers no prober, on any path."""


class _PathReports(NamedTuple):
    """The reports of one event as columns, with one entry per path."""

    lost: Int64s
    answered: Int64s
    loss_streak: Int64s
    first_lost_age_ns: Int64s
    last_lost_age_ns: Int64s
    arrived_age_ns: Int64s
    answered_age_ns: Int64s
    timeout_ns: Int64s
    spurious: Int64s
    delayed: Int64s


class Evidence(PathTable):
    """Probe results by path [P] and element [E], taken from events.

    Times are evidence time, ns (evidence_time.py). An event's time is read from its NIC's clock and
    converted, so a delayed message does not make old answers seem recent.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock_models: Mapping[str, ClockLine] = {}
        """Clock model of each NIC whose clock is usable."""
        self.log_offset_ns = 0
        """Fabric time minus log append time."""
        self.time = EvidenceTime()
        self.first_event_ns = 0
        self.bucket_ns = FIRST_BUCKET_NS
        """Length of one part of the window."""
        self.time_jump_ns = 0
        """Time of the newest jump of a NIC's converted time: a pause that holds it need not be one."""
        self.any_lost = False
        """Whether the window holds a settled loss."""
        self._delayed, self._delayed_at_ns = 0.0, 0
        """Decaying count of answers that the network delayed, and the time of its last update."""
        self._bucket = -1

    # --------------------------------------------------------------------------------------- events

    def ingest(self, event: LinkEvent, append_ns: int, routes: Routes) -> int | None:
        """Ingest one event; return its time in ns of log append time, or None if it is a duplicate."""
        name = event["nic"]
        nic = self.nics.get(name)
        if nic is None:
            nic = self.nics[name] = NicState()
        if event["run"] != nic.run:
            self._restart(nic, event["run"])
            nic.counts_from_ns = append_ns + LEARNING_NS
        elif event["event"] <= nic.event:
            return None
        nic.event = event["event"]
        now_ns = self._time_of(nic, name, event["clock_ns"], append_ns)
        self.first_event_ns = self.first_event_ns or now_ns
        me = self.element(name, now_ns, nic=True)
        self.nic_event_ns[me] = now_ns
        exempt = not EXEMPTING.isdisjoint(event["trouble"])
        if exempt:
            self.exempt_ns[me] = now_ns
        if event["late_ns"] >= CPU_STARVED_NS:
            self._note_cpu_starved(me, event["late_ns"] + event["interval_ns"], now_ns)
        self._follow(now_ns, routes)
        for host in event["hosts"]:
            peer = self.index.get(host["peer"], NOTHING)
            if peer != NOTHING and host["answered_age_ns"] >= 0:
                answer_ns = now_ns - host["answered_age_ns"]
                self.host_answer_ns[peer] = max(self.host_answer_ns[peer], answer_ns)
        if event["paths"]:
            self._ingest_paths(nic, me, event, now_ns, routes, exempt)
        return now_ns

    def note_time(self, event: LinkEvent, log_ns: int) -> int:
        """Note the delay of an event that was appended at `log_ns`; return `log_ns` as evidence time."""
        at_ns = self._by_model(event["nic"], event["clock_ns"])
        if at_ns is not None:
            self.time.note(log_ns, at_ns)
        return self.time.of(log_ns)

    def _by_model(self, name: str, clock_ns: int) -> int | None:
        """Return a NIC's clock reading as evidence time, ns; None if the NIC has no clock model."""
        model = self.clock_models.get(name)
        return None if model is None else clock_ns + model.correction_ns(clock_ns) - self.log_offset_ns

    def silent_agents(self, now_ns: int) -> Bools:
        """Return a mask [E] of the NICs whose agent is silent while their host answers.

        If an agent still reports `REPORTS_AFTER_NS` after its NIC's last answer, the NIC's port is at fault,
        and the agent does not count as silent.
        """
        answer_ns = self.last_answer_ns
        alive_ns = np.maximum(answer_ns, self.cpu_starved_ns)
        is_silent: Bools = self.is_nic & (self.host_answer_ns > answer_ns)
        is_silent &= self.host_answer_ns > now_ns - HOST_ANSWER_KEPT_NS
        is_silent &= answer_ns < now_ns - AGENT_SILENT_NS
        is_silent &= self.nic_event_ns - alive_ns <= REPORTS_AFTER_NS
        return is_silent

    def _restart(self, nic: NicState, run: int) -> None:
        nic.run, nic.event = run, -1
        nic.lag = nic.lag_before = NEVER_NS
        nic.lag_from = 0
        at = np.fromiter(nic.paths.values(), np.intp, len(nic.paths))
        self.loss_streak[at] = 0
        self.unsettled[at] = 0
        self.class_unsettled[at] = 0
        self.min_timeout_ns[at] = NEVER_NS

    def _note_cpu_starved(self, me: int, covered_ns: int, now_ns: int) -> None:
        self.cpu_starved_ns[me] = now_ns
        bucket = self._roll(now_ns)
        parts = min(int(covered_ns // self.bucket_ns) + 2, WINDOW_PARTS)
        self.cpu_starved[me, [(bucket - back) % WINDOW_PARTS for back in range(parts)]] = True
        self._cpu_starved_next[me] = True

    def _time_of(self, nic: NicState, name: str, clock_ns: int, append_ns: int) -> int:
        """Convert an event's time to the log's clock, and note if the result jumps against earlier events."""
        at_ns = self._converted(nic, name, clock_ns, append_ns)
        offset_ns = at_ns - clock_ns
        if nic.offset_ns is not None and offset_ns - nic.offset_ns > TIME_JUMP_NS:
            self.time_jump_ns = max(self.time_jump_ns, at_ns)
        nic.offset_ns = offset_ns
        return at_ns

    def _converted(self, nic: NicState, name: str, clock_ns: int, append_ns: int) -> int:
        """Convert an event's time by its NIC's clock model, or else by the recent minimum lag to the log."""
        at_ns = self._by_model(name, clock_ns)
        if at_ns is not None and abs(append_ns - at_ns) < LAG_JUMP_NS:
            nic.now_ns = max(nic.now_ns, at_ns)
            return nic.now_ns
        lag = append_ns - clock_ns
        best = min(nic.lag, nic.lag_before)
        if lag - best > LAG_JUMP_NS and best != NEVER_NS:
            nic.lag = nic.lag_before = NEVER_NS
        if append_ns - nic.lag_from > LAG_KEPT_NS:
            nic.lag_before, nic.lag, nic.lag_from = nic.lag, NEVER_NS, append_ns
        nic.lag = min(nic.lag, lag)
        nic.now_ns = max(nic.now_ns, clock_ns + min(nic.lag, nic.lag_before))
        return min(nic.now_ns, append_ns)

    def _ingest_paths(
        self,
        nic: NicState,
        me: int,
        event: LinkEvent,
        now_ns: int,
        routes: Routes,
        exempt: bool,
    ) -> None:
        paths = event["paths"]
        rows = [self._path(nic, me, (report["peer"], report["path"]), now_ns, routes) for report in paths]
        at = np.array(rows, np.intp)
        reports = _columns(paths)
        newest = np.where(reports.answered_age_ns >= 0, now_ns - reports.answered_age_ns, 0)
        arrived = np.where(reports.arrived_age_ns >= 0, now_ns - reports.arrived_age_ns, newest)
        self.path_answer_ns[at] = np.maximum(self.path_answer_ns[at], arrived)
        began = np.where(self.unsettled[at] > 0, self.first_lost_ns[at], now_ns)
        first_age, last_age = reports.first_lost_age_ns, reports.last_lost_age_ns
        self.first_lost_ns[at] = np.where(first_age >= 0, now_ns - first_age, now_ns)
        self.last_lost_ns[at] = np.where(last_age >= 0, now_ns - last_age, now_ns)
        self.loss_streak[at] = reports.loss_streak
        self._note_rates(at, reports.lost + reports.answered, event["interval_ns"], now_ns)
        self.path_event_ns[at] = now_ns
        self.covered_ns[me] = now_ns
        self.report_gap_ns[me] += (event["interval_ns"] - self.report_gap_ns[me]) // GAPS_SMOOTHED
        self._note_answers(at, arrived)
        self._note_delayed(at, reports.delayed, now_ns)
        self._note_losses(at[reports.lost > reports.spurious])
        is_known = now_ns >= nic.counts_from_ns + WARM_UP_NS
        counted = ~self.incomplete[at] | is_known if now_ns >= nic.counts_from_ns else np.zeros(len(at), bool)
        classes = self._class_reports(paths)
        self._count_losses(at, reports, began, now_ns, classes, counted=counted, exempt=exempt)

    # A report holds each path with a result since the last report, so a path without one sent no probe since
    # its own last report. Over that time, not over the interval of one report, its results are its rate.
    def _note_rates(self, at: NDArray[np.intp], results: Int64s, interval_ns: int, now_ns: int) -> None:
        """Smooth paths' request rates. `results`: [len(at)] losses and answers since the last report."""
        before_ns, before_hz = self.path_event_ns[at], self.rate_hz[at]
        since_ns = np.maximum(np.where(before_ns > 0, now_ns - before_ns, interval_ns), NS_PER_MS)
        weight = np.where(before_hz > 0, -np.expm1(-since_ns / RATE_DECAY_NS), 1.0)
        self.rate_hz[at] = before_hz + weight * (results * NS_PER_S / since_ns - before_hz)

    def _note_answers(self, at: NDArray[np.intp], arrived: Int64s) -> None:
        """Note answers on all elements of their paths. `arrived`: time of each path's answer, 0 if none."""
        answers = arrived > 0
        if not answers.any():
            return
        at, arrived = at[answers], arrived[answers]
        rows = self.rows[at]
        before = self.last_answer_ns[rows[:, :2]]
        width = rows.shape[1]
        flat = rows.reshape(-1)
        np.maximum.at(self.last_answer_ns, flat, np.repeat(arrived, width))
        self.has_answered[flat] = True
        after = self.last_answer_ns[rows[:, :2]]
        revived = after - before > QUIET_NS
        if revived.any():
            self.revived_ns[rows[:, :2][revived]] = after[revived]

    def _note_delayed(self, at: NDArray[np.intp], delayed: Int64s, now_ns: int) -> None:
        if not delayed.any():
            return
        elements = self.rows[at[delayed > 0]]
        self.delayed_ns[elements] = np.maximum(self.delayed_ns[elements], now_ns)
        self._delayed = self.delayed_answers(now_ns) + int(delayed.sum())
        self._delayed_at_ns = max(self._delayed_at_ns, now_ns)

    def _note_losses(self, at: NDArray[np.intp]) -> None:
        """Note the new losses of paths on each element that they cross, and pauses that the losses end."""
        if not len(at):
            return
        rows = self.rows[at]
        elements, times = rows.reshape(-1), np.repeat(self.last_lost_ns[at], rows.shape[1])
        before = self.last_loss_ns[elements]
        resumed = (times - before > PAUSE_NS) & (before > 0)
        self.resumed_ns[elements[resumed]] = times[resumed]
        self.pause_ns[elements[resumed]] = (times - before)[resumed]
        np.maximum.at(self.last_loss_ns, elements, times)

    def _count_losses(
        self,
        at: NDArray[np.intp],
        reports: _PathReports,
        began: Int64s,
        now_ns: int,
        classes: Int64s | None,
        *,
        counted: Bools,
        exempt: bool,
    ) -> None:
        """Count losses once a later answer shows that they belong to a loss rate, not to an outage.

        `began`: [len(at)] start of each path's streak; `classes`: see `_class_reports`; `counted`: [len(at)]
        whether the results of a path count.
        """
        base = np.minimum(self.min_timeout_ns[at], reports.timeout_ns)
        self.min_timeout_ns[at] = base
        congested = reports.timeout_ns > CONGESTED_TIMES * base
        unsettled = self.unsettled[at] + reports.lost
        settled = np.maximum(unsettled - reports.loss_streak, 0)
        rows = self.possible_elements(at)
        recovered_since = self.recovered_ns[rows] > began[:, None]
        explained = (self.down[rows] | (self.suppressed_ns[rows] > 0) | recovered_since).any(axis=1)
        end_revived = self.revived_ns[rows[:, :2]].max(axis=1) > began
        nic_was_silent = (self.unsettled[at] >= RUN_SETTLED) & end_revived
        new_losses = np.maximum(reports.lost - reports.loss_streak, 0)
        settled = np.where(explained, 0, np.where(nic_was_silent, new_losses, settled))
        still = np.where(congested, 0, np.minimum(reports.loss_streak, unsettled))
        self.unsettled[at] = 0 if exempt else still
        counted = counted & ~congested
        if not exempt and counted.any():
            bucket = self._roll(now_ns)
            if classes is not None:
                self._count_classes(at, classes, np.where(counted, settled, 0), counted, bucket)
            self.lost[at, bucket] += np.where(counted, settled - reports.spurious, 0)
            self.answered[at, bucket] += np.where(counted, reports.answered, 0)
            self.any_lost = self.any_lost or bool((settled * counted).any())
        if classes is not None:
            pending = self.class_unsettled[at] + classes[0]
            share = self.unsettled[at] / np.maximum(pending.sum(axis=1), 1)
            self.class_unsettled[at] = pending * np.minimum(share, 1)[:, None]

    def _class_reports(self, paths: list[PathEvidence]) -> Int64s | None:
        """Return [3, len(paths), C] losses, answers and spurious losses by class; None without any class."""
        rows = [(at, self._class(c["dscp"]), c) for at, report in enumerate(paths) for c in report["classes"]]
        if not rows:
            return None
        class_counts: Int64s = np.zeros((3, len(paths), len(self.dscps)), np.int64)
        for at, column, counts in rows:
            if column is not None:
                class_counts[:, at, column] = counts["lost"], counts["answered"], counts["late"]
        return class_counts

    def _count_classes(
        self, at: NDArray[np.intp], classes: Int64s, settled: Int64s, counted: Bools, bucket: int
    ) -> None:
        """Divide each path's losses [len(at)] among its traffic classes, by the open losses of each class."""
        pending = self.class_unsettled[at] + classes[0]
        share = np.minimum(settled / np.maximum(pending.sum(axis=1), 1), 1)
        self.class_lost[at, :, bucket] += pending * share[:, None] - classes[2] * counted[:, None]
        self.class_answered[at, :, bucket] += classes[1] * counted[:, None]

    def delayed_answers(self, now_ns: int) -> float:
        """Return how many recent answers, at all NICs, came later than the loss time-out.

        Each answer's weight decays to 1/e in `DELAYED_KEPT_NS`.
        """
        return self._delayed * math.exp(min(0.0, (self._delayed_at_ns - now_ns) / DELAYED_KEPT_NS))

    # --------------------------------------------------------------------------------------- window

    def _roll(self, now_ns: int) -> int:
        """Advance the window to `now_ns` and clear its expired parts; return the newest part's index."""
        bucket = now_ns // self.bucket_ns
        if self._bucket < 0:
            self._bucket = bucket
        for passed in range(max(self._bucket + 1, bucket - WINDOW_PARTS + 1), bucket + 1):
            self.lost[:, passed % WINDOW_PARTS] = 0
            self.answered[:, passed % WINDOW_PARTS] = 0
            self.class_lost[:, :, passed % WINDOW_PARTS] = 0
            self.class_answered[:, :, passed % WINDOW_PARTS] = 0
            self.cpu_starved[:, passed % WINDOW_PARTS] = self._cpu_starved_next & (passed == self._bucket + 1)
        if bucket > self._bucket:
            self._cpu_starved_next[:] = False
        self._bucket = max(self._bucket, bucket)
        return int(self._bucket % WINDOW_PARTS)

    def set_window(self, window_ns: int) -> None:
        """Set the length of the window; empty it if the length changes."""
        bucket_ns = max(1, window_ns // WINDOW_PARTS)
        if bucket_ns != self.bucket_ns:
            self.bucket_ns, self._bucket = bucket_ns, -1
            self._empty_window()

    def reset_losses(self) -> None:
        """Reset the loss counts: some may belong to outages that were unknown when they were counted."""
        self._empty_window()
        self.unsettled[:] = 0
        self.class_unsettled[:] = 0

    def _empty_window(self) -> None:
        for counts in (self.lost, self.answered, self.class_lost, self.class_answered):
            counts[:] = 0

    def counts(self, now_ns: int, parts: int = WINDOW_PARTS) -> tuple[Int64s, Int64s]:
        """Return [P] losses that ended with an answer, and [P] answers, in the newest `parts` of the window.

        Leave out the parts in which the host at either end of the path was short of CPU.
        """
        used = self._used_parts(now_ns, parts)
        lost: Int64s = np.maximum((self.lost[: self.paths] * used).sum(axis=1), 0)
        answered: Int64s = (self.answered[: self.paths] * used).sum(axis=1)
        if parts == WINDOW_PARTS:
            self.any_lost = bool(lost.any())
        return lost, answered

    def class_counts(self, now_ns: int, parts: int) -> tuple[Float64s, Float64s]:
        """Return [P, C] losses and [P, C] answers by traffic class, counted in the same parts as `counts`."""
        used = self._used_parts(now_ns, parts)[:, None]
        lost: Float64s = np.maximum((self.class_lost[: self.paths] * used).sum(axis=2), 0)
        answered: Float64s = (self.class_answered[: self.paths] * used).sum(axis=2)
        return lost, answered

    def _used_parts(self, now_ns: int, parts: int) -> Bools:
        """Return a mask [P, WINDOW_PARTS] of the newest `parts` in which both hosts had enough CPU."""
        newest = self._roll(now_ns)
        short_of_cpu: Bools = self.cpu_starved[self.rows[: self.paths, :2]]
        used: Bools = ~short_of_cpu.any(axis=1) & _newest_parts(newest, parts)
        return used

    def totals_over(self, element: int, parts: int) -> tuple[int, int]:
        """Return the losses and the answers of all paths over an element, in the newest `parts`."""
        used = _newest_parts(self._bucket % WINDOW_PARTS, parts)
        paths = self.paths_over(element)
        return int(self.lost[paths][:, used].sum()), int(self.answered[paths][:, used].sum())

    def unsettled_paths(self, now_ns: int, parts: int = WINDOW_PARTS) -> NDArray[np.intp]:
        """Return the paths whose loss streak began in the newest `parts` and may be part of a loss rate."""
        short = self.short_streaks(now_ns - self.bucket_ns * parts)
        ends = self.rows[: self.paths, :2]
        short &= self.cpu_starved_ns[ends].max(axis=1) < now_ns - self.bucket_ns * WINDOW_PARTS
        return np.flatnonzero(short)


def _columns(paths: list[PathEvidence]) -> _PathReports:
    """Return the path reports of an event as columns, one entry per path."""
    table = [
        (
            report["lost"],
            report["answered"],
            report["loss_streak"],
            report["first_lost_age_ns"],
            report["last_lost_age_ns"],
            report["arrived_age_ns"],
            report["answered_age_ns"],
            report["timeout_ns"],
            report["late"],
            report["delayed"],
        )
        for report in paths
    ]
    return _PathReports(*np.array(table, np.int64).T)


def _newest_parts(newest: int, parts: int) -> Bools:
    """Return a mask [WINDOW_PARTS] of the last `parts` parts of the window up to part `newest`."""
    is_newest: Bools = (newest - np.arange(WINDOW_PARTS)) % WINDOW_PARTS < parts
    return is_newest
