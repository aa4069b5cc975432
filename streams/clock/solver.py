"""Solves the clocks of one shard, window after window, in fabric time.

The input of a window is all its `ClockFits`; the output is its `ClockOffsets`. The state is a track per
clock, and the memory of the pairs. A new owner recovers both from the last `ClockOffsets` and the fits before
them, and continues without a step.

Each clock is tracked by a two-state filter in fabric time (`filter.py`). The mesh (`mesh.py`) gives only
relative clocks. The gauge, that is the position of fabric time itself, follows from continuity: the gauge is
the weighted mean of the clocks that were measured before. It is slewed towards the reference: the median of
the hosts' system clocks, or one chosen clock. A new connected part starts at its reference and with the
reference's rate, which takes a second window to measure. If parts become connected, the timeline of the part
with more clocks continues.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from schemas.log_time import STEP_NS
from schemas.records import ClockEvent, ClockFits, ClockOffsets, ClockState, SourceRange, SuspectPair
from schemas.topics import MAX_ELEMENTS
from streams.clock.classify import Measurement, apply, classify
from streams.clock.filter import (
    FRESH_RATE_PPB,
    HOLDOVER,
    HOLDOVER_WANDER,
    LINE_OFFSET_SHARE,
    LINE_RATE_SHARE,
    SIGMAS,
    SYNCED,
    UNKNOWN_BOUND_NS,
    UNSYNCED,
    ClockTrack,
    Wander,
    split_ns,
)
from streams.clock.log_offset import LogOffset
from streams.clock.mesh import Mesh, MeshMemory, Priors, Suspect, log_ppb, plain_ppb, solve_relative
from streams.clock.pairs import Bools, Int64s, Pairs
from streams.clock.timescale import ENSEMBLE, Timescale
from streams.clock.window import (
    Part,
    WindowInput,
    correct_readings,
    flushes_by_host,
    gather,
    guess_readings,
    usable_pairs,
)

__all__ = ["ENSEMBLE", "HOLDOVER", "SYNCED", "UNSYNCED", "ShardClocks", "SolveParameters"]

RECOVERED_RATE_PPB: Final = 100.0
"""Standard error of a recovered rate whose record gives none."""
LOG_OFFSET_STEP_NS: Final = 50_000_000
LOG_STEP_NS: Final = STEP_NS
"""Difference from which log time has stepped, so that the offset is corrected before the window is placed."""
MAX_READING_NS: Final = 2**63 - 1
MAX_SUSPECTS: Final = 256
MIN_KNOT_SIGMA_NS: Final = 0.1
FORGET_EVERY: Final = 256
"""Pairs are searched for ones to forget once in this many windows."""
DISCONTINUITIES: Final = (ClockEvent.STEP, ClockEvent.NEW, ClockEvent.MERGED, ClockEvent.FALSETICKER)


@dataclass(frozen=True, slots=True)
class SolveParameters:
    """Settings of the clock solve, described in `streams.runtime.settings.SolveSettings`."""

    wander_ppb_per_sqrt_s: float = 10.0
    asymmetry_share: float = 0.5
    holdover_s: float = 60.0
    forget_s: float = 600.0
    slew_max_ppb: float = 100.0
    slew_time_s: float = 20.0
    reference: str = ENSEMBLE


@dataclass(frozen=True, slots=True)
class _Before:
    """A clock's line (offset and rate) and state at the end of the previous window."""

    at_ns: int
    base_ns: int
    offset_ns: float
    drift_ppb: float
    sigma_ns: float
    domain: str
    state: str

    @classmethod
    def of(cls, track: ClockTrack) -> _Before:
        """Return a copy of a track's present offset, rate and state."""
        return cls(
            track.at_ns,
            track.base_ns,
            track.offset_ns,
            track.drift_ppb,
            track.sigma_ns,
            track.domain,
            track.state,
        )


class ShardClocks:
    """Solves the clocks of one shard; call `solve` once per window, in order."""

    def __init__(self, shard: str, parameters: SolveParameters | None = None) -> None:
        self.shard = shard
        self.parameters = parameters or SolveParameters()
        self.tracks: dict[str, ClockTrack] = {}
        self._log_offset = LogOffset()
        self.last_window = -1
        self.wander = Wander(self.parameters.wander_ppb_per_sqrt_s)
        self._mesh = MeshMemory()
        self._timescale = Timescale(self.parameters)
        self._suspects: list[tuple[str, Suspect]] = []
        """Pairs whose paths look asymmetric, each with the clock of its prober."""

    @property
    def log_offset_ns(self) -> int:
        """Fabric time minus the log's append time, ns."""
        return self._log_offset.offset_ns

    def recover(self, records: Iterable[ClockOffsets]) -> None:
        """Continue from the last complete window among `records`, which are in the log's order.

        The number of this window need not be the largest, because log time may have stepped back.
        """
        windows: dict[int, dict[int, ClockOffsets]] = {}
        order: list[int] = []
        for record in records:
            if record["shard"] == self.shard:
                windows.setdefault(record["window"], {})[record["part"]] = record
                if record["part"] == 0:
                    order.append(record["window"])
        complete = [
            window
            for window in order
            if len(windows[window]) == next(iter(windows[window].values()))["parts"]
        ]
        if not complete:
            return
        self.last_window = complete[-1]
        newest = windows[self.last_window]
        self._log_offset = LogOffset(newest[min(newest)]["log_offset_ns"])
        for part in sorted(newest):
            record = newest[part]
            middle_ns = (record["window_start_ns"] + record["window_end_ns"]) // 2
            for clock in record["clocks"]:
                self.tracks[clock["clock"]] = _recovered_track(clock, record["domain"], middle_ns)

    def learn_floors(
        self, window: int, window_ns: int, fits: Sequence[ClockFits], clock_of: Mapping[str, str]
    ) -> None:
        """Learn the pairs' floors and asymmetries from a window that was solved before.

        Call after `recover`, oldest window first. The tracks do not change.
        """
        inputs = gather(fits, clock_of)
        readings, has_reading = guess_readings(inputs, window * window_ns + window_ns // 2)
        self._solve_mesh(window, fits, inputs, readings, has_reading)

    def solve(
        self,
        window: int,
        window_ns: int,
        fits: Sequence[ClockFits],
        clock_of: Mapping[str, str],
        solved_ns: int = 0,
        stamp_error_ns: Mapping[str, int] | None = None,
    ) -> list[ClockOffsets]:
        """Return the `ClockOffsets` of a window from all its `ClockFits`.

        `clock_of`: clock of each NIC in the inventory. A NIC without a clock in `clock_of` or the fits has a
        clock of its own. `stamp_error_ns`: announced timestamp error, ns, by clock.
        """
        self.last_window = window
        start_ns = window * window_ns
        middle_log_ns = start_ns + window_ns // 2
        inputs = gather(fits, clock_of)
        readings, has_reading = guess_readings(inputs, middle_log_ns)
        self._follow_log(inputs, LOG_STEP_NS)
        before = {name: _Before.of(track) for name, track in self.tracks.items()}
        expected = self._expected_readings(inputs, middle_log_ns + self.log_offset_ns)
        mesh = self._solve_mesh(window, fits, inputs, readings, has_reading, expected)
        if window % FORGET_EVERY == 0:
            self._mesh.pairs.forget(window)
        for track in self.tracks.values():
            track.event, track.event_ns = ClockEvent.NONE, 0.0
        measured = self._place_parts(inputs, mesh, middle_log_ns + self.log_offset_ns, window_ns * 1e-9)
        self._suspects = [(inputs.names[s.node], s) for s in mesh.suspects[:MAX_SUSPECTS]]
        self._follow_log(inputs, LOG_OFFSET_STEP_NS)
        self._carry_unmeasured(inputs, measured, middle_log_ns + self.log_offset_ns)
        self._follow_domains(measured, {name: old.domain for name, old in before.items()})
        for name, track in self.tracks.items():
            track.stamp_error_ns = (stamp_error_ns or {}).get(name, 0)
        self._set_knots(before, start_ns + self.log_offset_ns)
        self._timescale.keep_flushes(inputs)
        return self._records(window, window_ns, fits, solved_ns)

    def _solve_mesh(
        self,
        window: int,
        fits: Sequence[ClockFits],
        inputs: WindowInput,
        readings: Int64s,
        has_reading: Bools,
        expected: Mapping[int, int] | None = None,
    ) -> Mesh:
        pairs = Pairs.of([pair for record in fits for pair in record["pairs"]], inputs.node_of_nic)
        correct_readings(readings, has_reading, pairs, expected or {})
        return solve_relative(
            len(inputs.names),
            usable_pairs(pairs, inputs, readings, has_reading),
            self._mesh,
            window,
            self.parameters.asymmetry_share,
            readings,
            has_reading,
            self._priors(inputs, readings),
        )

    def _expected_readings(self, inputs: WindowInput, middle_ns: int) -> dict[int, int]:
        """Return, by node, the reading at the window's middle that a synchronised clock's track predicts."""
        return {
            node: track.reading_at(middle_ns)
            for node, name in enumerate(inputs.names)
            if (track := self.tracks.get(name)) is not None and track.state == SYNCED
        }

    def _priors(self, inputs: WindowInput, readings: Int64s) -> Priors:
        rate, sigma = np.zeros(len(inputs.names)), np.full(len(inputs.names), np.inf)
        for node, name in enumerate(inputs.names):
            track = self.tracks.get(name)
            if track is not None and track.state != UNSYNCED and node not in inputs.jumped:
                ahead_s = abs(int(readings[node]) - track.at_ns) * 1e-9 if readings[node] else 1.0
                q = (self.wander.ppb_per_sqrt_s * track.wander) ** 2
                rate[node], sigma[node] = log_ppb(track.drift_ppb), math.sqrt(track.p_drift + q * ahead_s)
        return Priors(rate, sigma)

    def _place_parts(self, inputs: WindowInput, mesh: Mesh, middle_ns: int, window_s: float) -> set[str]:
        """Convert each connected part to fabric time and update its tracks; return the measured clocks."""
        measured: set[str] = set()
        self._timescale.slewed_ppb = {}
        innovations: list[tuple[ClockTrack, float, float]] = []
        for component in np.unique(mesh.component):
            members = np.flatnonzero(mesh.component == component)
            if len(members) < 2:
                continue
            part = self._part(inputs, mesh, members, middle_ns, window_s)
            self._timescale.set_gauge(self.tracks, inputs, mesh, part)
            for i, name in enumerate(part.names):
                measurement = self._measurement(inputs, mesh, part, i)
                previous_track = self.tracks.get(name)
                track, innovation = apply(previous_track, measurement, classify(previous_track, measurement))
                self.tracks[name] = track
                if innovation is not None:
                    innovations.append((track, *innovation))
            if not part.continuing and part.trusted:
                hosts = flushes_by_host(inputs, part.members)
                self._timescale.follow_reference(self.tracks, part, hosts)
            measured.update(part.names)
        self.wander.learn(innovations)
        return measured

    def _part(
        self,
        inputs: WindowInput,
        mesh: Mesh,
        members: NDArray[np.intp],
        middle_ns: int,
        window_s: float,
    ) -> Part:
        """Advance the tracks of a part to the window, and choose which timeline continues in the part."""
        names = [inputs.names[i] for i in members]
        tracked_indices = []
        for i, (name, node) in enumerate(zip(names, members.tolist(), strict=True)):
            track = self.tracks.get(name)
            if track is None or node in inputs.jumped:
                continue
            track.advance(int(mesh.reading_ns[node]), self.wander.ppb_per_sqrt_s)
            if track.state != UNSYNCED:
                tracked_indices.append(i)
        votes = Counter(self.tracks[names[i]].domain for i in tracked_indices)
        leading = min(votes, key=lambda domain: (-votes[domain], domain)) if votes else ""
        continuing = {i for i in tracked_indices if self.tracks[names[i]].domain == leading}
        return Part(names, members, middle_ns, window_s, names[0], leading, continuing)

    def _measurement(self, inputs: WindowInput, mesh: Mesh, part: Part, i: int) -> Measurement:
        """Return this window's offset, rate and errors of the part's `i`-th clock, in fabric time."""
        node = int(part.members[i])
        track = self.tracks.get(part.names[i])
        wander = (self.wander.ppb_per_sqrt_s * (1.0 if track is None else track.wander)) ** 2
        rate_sigma_ppb = float(mesh.rate_sigma_ppb[node])
        return Measurement(
            reading_ns=int(mesh.reading_ns[node]),
            base_ns=int(mesh.theta_ns[node]) + part.gauge_base_ns,
            offset_ns=float(mesh.theta_rest_ns[node]) + part.gauge_ns,
            rate_ppb=float(plain_ppb(mesh.rate_log_ppb[node] + part.gauge_rate)),
            variance=float(mesh.sigma_ns[node]) ** 2 + LINE_OFFSET_SHARE * wander * part.window_s**3,
            rate_variance=rate_sigma_ppb**2 + LINE_RATE_SHARE * wander * part.window_s,
            asymmetry_ns=float(mesh.asymmetry_ns[node]),
            queue_ns=float(mesh.queue_ns[node]),
            limit_ns=float(mesh.limit_ns[node]),
            noise_ns=float(mesh.noise_ns[node]),
            pairs=int(mesh.pairs[node]),
            residual_ns=float(mesh.residual_ns[node]),
            stepped=bool(mesh.stepped[node]),
            contradiction_ns=float(mesh.contradiction_ns[node]),
            jumped=node in inputs.jumped,
            continues=i in part.continuing,
            trusted=part.trusted,
            domain=part.domain,
            middle_ns=part.middle_ns,
            window_s=part.window_s,
            slew_change_ppb=part.slew_change_ppb,
        )

    def _follow_log(self, inputs: WindowInput, step_ns: int) -> None:
        """Update fabric time minus log time from the synchronised clocks that did not jump."""
        synced = {name for name, track in self.tracks.items() if track.state == SYNCED}
        offsets = [
            self.tracks[name].fabric_ns(nic["clock_ns"]) - nic["append_ns"]
            for node, nics in inputs.nics_of_node.items()
            if (name := inputs.names[node]) in synced and node not in inputs.jumped
            for nic in nics
        ]
        self._log_offset.follow(self.last_window, offsets, len(synced), step_ns)

    def _carry_unmeasured(self, inputs: WindowInput, measured: set[str], middle_ns: int) -> None:
        """Advance all tracks to the window's middle; put unmeasured clocks in holdover, or forget them."""
        self._start_unmeasured(inputs, measured, middle_ns)
        reporting_names = set(inputs.names)
        live_tracks: dict[str, ClockTrack] = {}
        for name, track in self.tracks.items():
            if not math.isfinite(track.offset_ns + track.drift_ppb + track.p_offset):
                continue
            wander = 1.0 if name in measured else HOLDOVER_WANDER
            track.advance(track.reading_at(middle_ns), self.wander.ppb_per_sqrt_s * wander)
            track.rebase()
            if name not in measured:
                track.drift_ppb += self._timescale.slewed_ppb.get(track.domain, 0.0)
            if abs(track.at_ns) > MAX_READING_NS:
                continue  # does not fit into a record
            if name not in measured and not self._hold_over(track, middle_ns, name in reporting_names):
                continue
            live_tracks[name] = track
        self.tracks = live_tracks

    def _start_unmeasured(self, inputs: WindowInput, measured: set[str], middle_ns: int) -> None:
        """Start a track from the host's system clock for each unmeasured clock without a usable track."""
        for node, name in enumerate(inputs.names):
            track, flush = self.tracks.get(name), inputs.flush.get(node)
            jumped = node in inputs.jumped
            if name in measured or flush is None:
                continue
            if track is None or jumped or track.state == UNSYNCED:
                self.tracks[name] = ClockTrack(
                    flush["clock_ns"],
                    0.0,
                    0.0,
                    UNKNOWN_BOUND_NS**2,
                    0.0,
                    FRESH_RATE_PPB**2,
                    UNSYNCED,
                    name if track is None else track.domain,
                    middle_ns if track is None else track.measured_ns,
                    event=ClockEvent.STEP if jumped else ClockEvent.NONE,
                    base_ns=flush["system_ns"] - flush["clock_ns"],
                )

    def _hold_over(self, track: ClockTrack, middle_ns: int, is_reporting: bool) -> bool:
        """Set an unmeasured clock to HOLDOVER, later to UNSYNCED; return whether to keep its track."""
        silent_s = (middle_ns - track.measured_ns) * 1e-9
        track.pairs, track.residual_ns, track.innovation = 0, 0.0, 0.0
        if silent_s > self.parameters.forget_s and not is_reporting:
            return False
        if track.state != UNSYNCED:
            track.begin_holdover()
            track.state = HOLDOVER if silent_s <= self.parameters.holdover_s else UNSYNCED
        return True

    def _follow_domains(self, measured: set[str], before: Mapping[str, str]) -> None:
        """Move unmeasured clocks to the domain to which most measured clocks of their domain have moved."""
        moved: dict[str, Counter[str]] = {}
        for name in sorted(measured):
            if name in before:
                moved.setdefault(before[name], Counter())[self.tracks[name].domain] += 1
        for name, track in self.tracks.items():
            if name not in measured and track.domain in moved:
                track.domain = moved[track.domain].most_common(1)[0][0]

    def _set_knots(self, before: Mapping[str, _Before], start_ns: int) -> None:
        """Set each clock's knot, where the lines of two windows meet, at the start of this window.

        The knot is a weighted mean of the previous window's line, extrapolated forward, and this window's
        line, extrapolated back. Weights are inverse to variances, as in a smoother of lag 1.
        """
        for name, track in self.tracks.items():
            track.knot_at_ns, track.knot_offset_ns, track.knot_bound_ns = 0, 0.0, 0.0
            old = before.get(name)
            if old is None or track.event in DISCONTINUITIES or UNSYNCED in (old.state, track.state):
                continue
            reading_ns = track.reading_at(start_ns)
            ahead_ns = (old.base_ns - track.base_ns) + old.offset_ns
            ahead_ns += old.drift_ppb * 1e-9 * (reading_ns - old.at_ns)
            back_ns = track.offset_at(reading_ns)
            old_variance = max(old.sigma_ns, MIN_KNOT_SIGMA_NS) ** 2
            weight = old_variance / (old_variance + max(track.sigma_ns, MIN_KNOT_SIGMA_NS) ** 2)
            track.knot_at_ns, track.knot_offset_ns = reading_ns, ahead_ns + weight * (back_ns - ahead_ns)
            bound_ns = track.bound_ns + (1 - weight) * abs(back_ns - ahead_ns)
            track.knot_bound_ns = min(bound_ns, UNKNOWN_BOUND_NS)

    def _records(
        self, window: int, window_ns: int, fits: Sequence[ClockFits], solved_ns: int
    ) -> list[ClockOffsets]:
        ranges = _source_ranges(fits)
        suspects: dict[str, list[Suspect]] = {}
        for clock, suspect in self._suspects:
            suspects.setdefault(clock, []).append(suspect)
        start_ns = window * window_ns + self.log_offset_ns
        cuts = self._cut_parts()
        return [
            {
                "shard": self.shard,
                "window": window,
                "part": part,
                "parts": len(cuts),
                "domain": domain,
                "window_start_ns": start_ns,
                "window_end_ns": start_ns + window_ns,
                "log_offset_ns": self.log_offset_ns,
                "solved_ns": solved_ns,
                "clocks": [_clock_state(name, self.tracks[name]) for name in names],
                "source_ranges": ranges if part == 0 else [],
                "reference": self.parameters.reference,
                "suspects": [_suspect(suspect) for name in names for suspect in suspects.get(name, ())],
            }
            for part, (domain, names) in enumerate(cuts)
        ]

    def _cut_parts(self) -> list[tuple[str, list[str]]]:
        """Return (domain, clocks) of each record to publish; a record has at most `MAX_ELEMENTS` clocks."""
        domains: dict[str, list[str]] = {}
        for name in sorted(self.tracks):
            domains.setdefault(self.tracks[name].domain, []).append(name)
        cuts = [
            (domain, names[first : first + MAX_ELEMENTS])
            for domain, names in sorted(domains.items())
            for first in range(0, len(names), MAX_ELEMENTS)
        ]
        return cuts or [(self.shard, [])]


def _recovered_track(clock: ClockState, domain: str, middle_ns: int) -> ClockTrack:
    """Return a track for a published clock; split its squared bound equally into noise and asymmetry."""
    is_usable = clock["state"] != UNSYNCED
    half_ns = clock["bound_ns"] / SIGMAS / math.sqrt(2)
    rate_sigma_ppb = clock.get("drift_sigma_ppb", 0.0) or RECOVERED_RATE_PPB
    return ClockTrack(
        clock["at_ns"],
        clock.get("offset_fraction_ns", 0.0),
        clock["drift_ppb"],
        half_ns**2 if is_usable else UNKNOWN_BOUND_NS**2,
        0.0,
        rate_sigma_ppb**2 if is_usable else FRESH_RATE_PPB**2,
        clock["state"],
        domain,
        middle_ns,
        asymmetry_ns=half_ns if is_usable else math.inf,
        base_ns=clock["offset_ns"],
    )


def _source_ranges(fits: Sequence[ClockFits]) -> list[SourceRange]:
    ranges: dict[str, SourceRange] = {
        record["source"]: {
            "source": record["source"],
            "first_offset": record["first_offset"],
            "next_offset": record["next_offset"],
        }
        for record in fits
    }
    return [ranges[source] for source in sorted(ranges)]


def _clock_state(name: str, track: ClockTrack) -> ClockState:
    offset_ns, fraction_ns = split_ns(track.base_ns, track.offset_ns)
    knot_ns, knot_fraction_ns = 0, 0.0
    if track.knot_at_ns:
        knot_ns, knot_fraction_ns = split_ns(track.base_ns, track.knot_offset_ns)
    return {
        "clock": name,
        "at_ns": track.at_ns,
        "offset_ns": offset_ns,
        "drift_ppb": track.drift_ppb,
        "bound_ns": track.bound_ns,
        "state": track.state,
        "pairs": track.pairs,
        "residual_ns": track.residual_ns,
        "drift_sigma_ppb": track.drift_sigma_ppb,
        "event": track.event,
        "event_ns": track.event_ns,
        "knot_at_ns": track.knot_at_ns,
        "knot_offset_ns": knot_ns,
        "knot_bound_ns": track.knot_bound_ns,
        "offset_fraction_ns": fraction_ns,
        "knot_offset_fraction_ns": knot_fraction_ns,
    }


def _suspect(suspect: Suspect) -> SuspectPair:
    return {
        "prober": suspect.prober,
        "peer": suspect.peer,
        "asymmetry_ns": suspect.asymmetry_ns,
        "sigma_ns": suspect.sigma_ns,
        "weight": suspect.weight,
    }
