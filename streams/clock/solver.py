"""Solves the clocks of one shard, window after window, in fabric time.

The input of a window is all its `ClockFits`, the output its `ClockOffsets`. The state is a track per clock
and the memory of the pairs; both can be recovered from the last `ClockOffsets` and the fits before them, so
that a new owner continues without a step.

Each clock is tracked by a two-state filter in fabric time (`filter.py`). The mesh (`mesh.py`) gives only
relative clocks. The gauge, that is the position of fabric time itself, follows from continuity: it is the
weighted mean of the clocks that were measured before. It is slewed towards the reference: the median of the
hosts' system clocks, or one chosen clock. A new connected part starts at its reference, and its rate at the
reference's rate, which takes a second window to measure. If parts meet, the one with more clocks continues.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.records import ClockEvent
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
)
from streams.clock.gauge import FlushesByHost, Slew, hosts_gauge_ns, median, robust_mean
from streams.clock.mesh import Mesh, MeshMemory, Priors, Suspect, log_ppb, plain_ppb, solve_relative
from streams.clock.pairs import Bools, Int64s, Pairs

__all__ = ["ENSEMBLE", "HOLDOVER", "SYNCED", "UNSYNCED", "ShardClocks", "SolveParameters"]

Record = dict[str, Any]

ENSEMBLE: Final = "ensemble"
RECOVERED_RATE_PPB: Final = 100.0
"""Standard error of a recovered rate whose record gives none."""
LOG_OFFSET_STEP_NS: Final = 50_000_000
MAX_READING_NS: Final = 2**63 - 1
MAX_SUSPECTS: Final = 256
MIN_KNOT_SIGMA_NS: Final = 0.1
FORGET_EVERY: Final = 256
"""Windows between two searches for pairs to forget."""
NS_PER_MS: Final = 1_000_000
DISCONTINUITIES: Final = (ClockEvent.STEP, ClockEvent.NEW, ClockEvent.MERGED, ClockEvent.FALSETICKER)


@dataclass(frozen=True, slots=True)
class SolveParameters:
    """Settings of the solve, see `streams.settings.SolveSettings`."""

    wander_ppb_per_sqrt_s: float = 10.0
    asymmetry_share: float = 0.5
    holdover_s: float = 60.0
    forget_s: float = 600.0
    slew_max_ppb: float = 100.0
    slew_time_s: float = 20.0
    reference: str = ENSEMBLE


@dataclass(slots=True)
class _Window:
    """A window's input by clock."""

    names: list[str]
    nics: list[Record]
    node_of_nic: dict[str, int]
    jumped: set[int]
    """Nodes of clocks that reported a jump."""
    flush: dict[int, Record] = field(default_factory=dict)
    """Node to the last flush of its NICs."""
    nics_of_node: dict[int, list[Record]] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """One connected part of a window's mesh, while it is placed in fabric time."""

    names: list[str]
    members: NDArray[np.intp]
    middle_ns: int
    window_s: float
    domain: str
    leading: str
    """The domain whose timeline continues."""
    continuing: set[int]
    """Positions in `names` of the clocks that carry the timeline on."""
    gauge_ns: float = 0.0
    gauge_rate: float = 0.0
    """Logarithmic, as `Mesh.rate_log_ppb`."""
    slew_change_ppb: float = 0.0
    trusted: bool = True
    """Fabric time's own rate is known."""


@dataclass(frozen=True, slots=True)
class _Before:
    """A clock's track at the end of the previous window."""

    at_ns: int
    offset_ns: float
    drift_ppb: float
    sigma_ns: float
    domain: str
    state: str


class ShardClocks:
    """The clock solve of one shard; call `solve` once per window, in order."""

    def __init__(self, shard: str, parameters: SolveParameters | None = None) -> None:
        self.shard = shard
        self.parameters = parameters or SolveParameters()
        self.tracks: dict[str, ClockTrack] = {}
        self.log_offset_ns = 0
        """Fabric time minus the log's clock."""
        self.last_window = -1
        self.wander = Wander(self.parameters.wander_ppb_per_sqrt_s)
        self._mesh = MeshMemory()
        self._last_flush: dict[str, tuple[int, int, int]] = {}
        """NIC to (run, clock_ns, system_ns) of its last flush."""
        self._slew: dict[str, Slew] = {}
        self._slewed: dict[str, float] = {}
        """Domain of the previous window to the change of fabric time's rate in this one, ppb."""
        self._suspects: list[tuple[str, Suspect]] = []
        """(clock of the prober, pair)"""

    def recover(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Continue from the newest complete window among `records` (`ClockOffsets`)."""
        windows: dict[int, dict[int, Mapping[str, Any]]] = {}
        for record in records:
            if record["shard"] == self.shard:
                windows.setdefault(record["window"], {})[record["part"]] = record
        complete = [
            window for window, parts in windows.items() if len(parts) == next(iter(parts.values()))["parts"]
        ]
        if not complete:
            return
        self.last_window = max(complete)
        newest = windows[self.last_window]
        self.log_offset_ns = newest[min(newest)]["log_offset_ns"]
        for part in sorted(newest):
            record = newest[part]
            middle_ns = (record["window_start_ns"] + record["window_end_ns"]) // 2
            for clock in record["clocks"]:
                self.tracks[clock["clock"]] = _recovered_track(clock, record["domain"], middle_ns)

    def learn_floors(
        self, window: int, window_ns: int, fits: Sequence[Mapping[str, Any]], clock_of: Mapping[str, str]
    ) -> None:
        """Learn the pairs' floors and asymmetries from a window that was solved before.

        Call after `recover`, oldest window first. The tracks do not change.
        """
        taken = _gather(fits, clock_of)
        readings, has_reading = _guess_readings(taken, window * window_ns + window_ns // 2)
        self._solve_mesh(window, fits, taken, readings, has_reading)

    def solve(
        self,
        window: int,
        window_ns: int,
        fits: Sequence[Mapping[str, Any]],
        clock_of: Mapping[str, str],
        solved_ns: int = 0,
        stamp_error_ns: Mapping[str, int] | None = None,
    ) -> list[Record]:
        """Return the `ClockOffsets` of a window from all its `ClockFits`.

        `clock_of` maps NIC to clock, from the inventory; a NIC that neither it nor the fits know has a clock
        of its own. `stamp_error_ns` maps clock to its timestamp error, for clocks that announce one.
        """
        self.last_window = window
        start_ns = window * window_ns
        middle_log_ns = start_ns + window_ns // 2
        taken = _gather(fits, clock_of)
        readings, has_reading = _guess_readings(taken, middle_log_ns)
        before = {
            name: _Before(
                track.at_ns, track.offset_ns, track.drift_ppb, track.sigma_ns, track.domain, track.state
            )
            for name, track in self.tracks.items()
        }
        mesh = self._solve_mesh(window, fits, taken, readings, has_reading)
        if window % FORGET_EVERY == 0:
            self._mesh.pairs.forget(window)
        for track in self.tracks.values():
            track.event, track.event_ns = ClockEvent.NONE, 0.0
        measured = self._place_parts(taken, mesh, middle_log_ns + self.log_offset_ns, window_ns * 1e-9)
        self._suspects = [(taken.names[s.node], s) for s in mesh.suspects[:MAX_SUSPECTS]]
        self._set_log_offset(taken)
        self._carry_unmeasured(taken, measured, middle_log_ns + self.log_offset_ns)
        self._follow_domains(measured, {name: old.domain for name, old in before.items()})
        for name, track in self.tracks.items():
            track.stamp_error_ns = (stamp_error_ns or {}).get(name, 0)
        self._set_knots(before, start_ns + self.log_offset_ns)
        for nic in taken.nics:
            self._last_flush[nic["nic"]] = (nic["run"], nic["clock_ns"], nic["system_ns"])
        return self._records(window, window_ns, fits, solved_ns)

    def _solve_mesh(
        self,
        window: int,
        fits: Sequence[Mapping[str, Any]],
        taken: _Window,
        readings: Int64s,
        has_reading: Bools,
    ) -> Mesh:
        pairs = Pairs.of([pair for record in fits for pair in record["pairs"]], taken.node_of_nic)
        return solve_relative(
            len(taken.names),
            _usable(pairs, taken),
            self._mesh,
            window,
            self.parameters.asymmetry_share,
            readings,
            has_reading,
            self._priors(taken, readings),
        )

    def _priors(self, taken: _Window, readings: Int64s) -> Priors:
        rate, sigma = np.zeros(len(taken.names)), np.full(len(taken.names), np.inf)
        for node, name in enumerate(taken.names):
            track = self.tracks.get(name)
            if track is not None and track.state != UNSYNCED and node not in taken.jumped:
                ahead_s = abs(int(readings[node]) - track.at_ns) * 1e-9 if readings[node] else 1.0
                q = (self.wander.ppb_per_sqrt_s * track.wander) ** 2
                rate[node], sigma[node] = log_ppb(track.drift_ppb), math.sqrt(track.p_drift + q * ahead_s)
        return Priors(rate, sigma)

    def _place_parts(self, taken: _Window, mesh: Mesh, middle_ns: int, window_s: float) -> set[str]:
        """Place each connected part in fabric time and update its tracks; return the measured clocks."""
        measured: set[str] = set()
        self._slewed = {}
        innovations: list[tuple[ClockTrack, float, float]] = []
        for component in np.unique(mesh.component):
            members = np.flatnonzero(mesh.component == component)
            if len(members) < 2:
                continue
            part = self._part(taken, mesh, members, middle_ns, window_s)
            self._set_gauge(taken, mesh, part)
            for i, name in enumerate(part.names):
                seen = self._measurement(taken, mesh, part, i)
                known = self.tracks.get(name)
                track, innovation = apply(known, seen, classify(known, seen))
                self.tracks[name] = track
                if innovation is not None:
                    innovations.append((track, *innovation))
            if not part.continuing and part.trusted:
                self._follow_reference(part, _by_host(taken, part.members))
            measured.update(part.names)
        self.wander.learn(innovations)
        return measured

    def _part(
        self, taken: _Window, mesh: Mesh, members: NDArray[np.intp], middle_ns: int, window_s: float
    ) -> _Part:
        """Advance the part's tracks to the window and choose the timeline that continues."""
        names = [taken.names[i] for i in members]
        for name, node in zip(names, members.tolist(), strict=True):
            track = self.tracks.get(name)
            if track is not None and node not in taken.jumped:
                track.advance(int(mesh.reading_ns[node]), self.wander.ppb_per_sqrt_s)
        known = [
            i
            for i, name in enumerate(names)
            if name in self.tracks
            and self.tracks[name].state != UNSYNCED
            and int(members[i]) not in taken.jumped
        ]
        votes = Counter(self.tracks[names[i]].domain for i in known)
        leading = min(votes, key=lambda domain: (-votes[domain], domain)) if votes else ""
        continuing = {i for i in known if self.tracks[names[i]].domain == leading}
        return _Part(names, members, middle_ns, window_s, names[0], leading, continuing)

    def _set_gauge(self, taken: _Window, mesh: Mesh, part: _Part) -> None:
        """Set the part's gauge: what to add to theta and rate for fabric time."""
        hosts = _by_host(taken, part.members)
        reference = self._reference_node(part)
        if part.continuing:
            self._continue_gauge(mesh, part, hosts, reference)
            return
        if reference is not None:
            part.gauge_ns = -float(mesh.theta_ns[reference])
            part.gauge_rate = -float(mesh.rate_log_ppb[reference])
            part.trusted = any(self.tracks[name].provisional for name in part.names if name in self.tracks)
        else:
            part.gauge_rate, part.trusted = self._hosts_rate(mesh, hosts)
            part.gauge_ns = hosts_gauge_ns(mesh, hosts, part.gauge_rate)
        self._slew.pop(part.domain, None)
        if part.trusted:
            self._join_provisional(taken, mesh, part)

    def _continue_gauge(self, mesh: Mesh, part: _Part, hosts: FlushesByHost, reference: int | None) -> None:
        """Continue the timeline of the part's known clocks, slewed towards the reference."""
        continuing = sorted(part.continuing)
        tracks = [self.tracks[part.names[i]] for i in continuing]
        nodes = part.members[continuing]
        ahead = np.array([t.offset_ns for t in tracks]) - mesh.theta_ns[nodes]
        weight = 1.0 / (np.array([t.p_offset for t in tracks]) + mesh.sigma_ns[nodes] ** 2)
        rate = log_ppb([t.drift_ppb for t in tracks]) - mesh.rate_log_ppb[nodes]
        rate_weight = 1.0 / (np.array([t.p_drift for t in tracks]) + mesh.rate_sigma_ppb[nodes] ** 2)
        part.gauge_ns, part.gauge_rate = robust_mean(ahead, weight), robust_mean(rate, rate_weight)
        slew = self._slew.pop(part.leading, None) or Slew()
        self._slew[part.domain] = slew
        error_ns = None
        if reference is not None:
            error_ns = -(float(mesh.theta_ns[reference]) + part.gauge_ns)
        elif self.parameters.reference == ENSEMBLE and hosts:
            error_ns = hosts_gauge_ns(mesh, hosts, part.gauge_rate) - part.gauge_ns
        part.slew_change_ppb = slew.step(error_ns, part.window_s, self.parameters)
        part.gauge_rate += part.slew_change_ppb
        self._slewed[part.leading] = part.slew_change_ppb

    def _join_provisional(self, taken: _Window, mesh: Mesh, part: _Part) -> None:
        """Move the provisional tracks of the previous window, which had no gauge, to this window's gauge.

        What they show of the clocks relative to each other is kept.
        """
        found = [
            (self.tracks[name], node)
            for name, node in zip(part.names, part.members.tolist(), strict=True)
            if name in self.tracks and self.tracks[name].provisional and node not in taken.jumped
        ]
        if not found:
            return
        nodes = [node for _, node in found]
        variance = np.array([t.p_offset for t, _ in found]) + mesh.sigma_ns[nodes] ** 2
        rate_variance = np.array([t.p_drift for t, _ in found]) + mesh.rate_sigma_ppb[nodes] ** 2
        rates = plain_ppb(mesh.rate_log_ppb[nodes] + part.gauge_rate)
        rate_shift = robust_mean(rates - np.array([t.drift_ppb for t, _ in found]), 1 / rate_variance)
        ahead = mesh.theta_ns[nodes] + part.gauge_ns - np.array([t.offset_ns for t, _ in found])
        shift = robust_mean(ahead, 1 / variance)
        for track, _ in found:
            track.drift_ppb += rate_shift
            track.offset_ns += shift

    def _follow_reference(self, part: _Part, hosts: FlushesByHost) -> None:
        """Set the rate of a new part's time by its reference.

        The clocks' relative rates come from two windows by now, which is steadier than one window's.
        """
        ahead = []
        if self._reference_node(part) is not None:
            ahead, hosts = [-self.tracks[self.parameters.reference].drift_ppb], {}
        for flushes in hosts.values():
            rates = [
                rate - self.tracks[part.names[int(np.searchsorted(part.members, node))]].drift_ppb
                for node, nic in flushes
                if (rate := self._host_rate(nic)) is not None
            ]
            if rates:
                ahead.append(float(np.median(rates)))
        if ahead:
            rate_shift = float(np.median(ahead))
            for name in part.names:
                self.tracks[name].drift_ppb += rate_shift

    def _host_rate(self, nic: Record) -> float | None:
        """Return the rate of the host's system clock against the NIC's since the last flush, ppb.

        None without a last flush.
        """
        last = self._last_flush.get(nic["nic"])
        if last is None or last[0] != nic["run"] or nic["clock_ns"] <= last[1]:
            return None
        system = (nic["system_ns"] - last[2]) - (nic["clock_ns"] - last[1])
        return float(system / (nic["clock_ns"] - last[1]) * 1e9)

    def _reference_node(self, part: _Part) -> int | None:
        """Return the node of the chosen reference clock if it is in this part."""
        if self.parameters.reference in part.names:
            return int(part.members[part.names.index(self.parameters.reference)])
        return None

    def _hosts_rate(self, mesh: Mesh, hosts: FlushesByHost) -> tuple[float, bool]:
        """Return the gauge's rate by the hosts' system clocks, and whether two flushes were there to show
        it."""
        medians = []
        for flushes in hosts.values():
            rates = []
            for node, nic in flushes:
                rate = self._host_rate(nic)
                if rate is not None:
                    rates.append(float(log_ppb(rate) - mesh.rate_log_ppb[node]))
            if rates:
                medians.append(median(rates))
        return (float(np.median(medians)), True) if medians else (0.0, False)

    def _measurement(self, taken: _Window, mesh: Mesh, part: _Part, i: int) -> Measurement:
        """Return what the window shows of clock `i` of a part, in fabric time."""
        node = int(part.members[i])
        track = self.tracks.get(part.names[i])
        wander = (self.wander.ppb_per_sqrt_s * (1.0 if track is None else track.wander)) ** 2
        rate_sigma_ppb = float(mesh.rate_sigma_ppb[node])
        return Measurement(
            reading_ns=int(mesh.reading_ns[node]),
            offset_ns=float(mesh.theta_ns[node]) + part.gauge_ns,
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
            jumped=node in taken.jumped,
            continues=i in part.continuing,
            trusted=part.trusted,
            domain=part.domain,
            middle_ns=part.middle_ns,
            window_s=part.window_s,
            slew_change_ppb=part.slew_change_ppb,
        )

    def _set_log_offset(self, taken: _Window) -> None:
        """Follow the log's clock in steps: only if the median over NICs is more than 50 ms off."""
        ahead = []
        for nic in taken.nics:
            track = self.tracks.get(taken.names[taken.node_of_nic[nic["nic"]]])
            if track is not None and track.state == SYNCED:
                ahead.append(nic["clock_ns"] + track.fabric_ns(nic["clock_ns"]) - nic["append_ns"])
        if ahead:
            middle = float(np.median(ahead))
            if abs(middle - self.log_offset_ns) > LOG_OFFSET_STEP_NS:
                self.log_offset_ns = round(middle / NS_PER_MS) * NS_PER_MS

    def _carry_unmeasured(self, taken: _Window, measured: set[str], middle_ns: int) -> None:
        """Advance all clocks to the window's middle; put unmeasured ones in holdover, then forget them."""
        self._start_unmeasured(taken, measured, middle_ns)
        seen = set(taken.names)
        kept: dict[str, ClockTrack] = {}
        for name, track in self.tracks.items():
            if not math.isfinite(track.offset_ns + track.drift_ppb + track.p_offset):
                continue
            wander = 1.0 if name in measured else HOLDOVER_WANDER
            track.advance(track.reading_at(middle_ns), self.wander.ppb_per_sqrt_s * wander)
            if name not in measured:
                track.drift_ppb += self._slewed.get(track.domain, 0.0)
            if abs(track.at_ns) > MAX_READING_NS:
                continue  # does not fit into a record
            if name not in measured and not self._hold_over(track, middle_ns, name in seen):
                continue
            kept[name] = track
        self.tracks = kept

    def _start_unmeasured(self, taken: _Window, measured: set[str], middle_ns: int) -> None:
        """Start a track from the host's system clock for each unmeasured clock without a usable one."""
        for node, name in enumerate(taken.names):
            track, flush = self.tracks.get(name), taken.flush.get(node)
            jumped = node in taken.jumped
            if name in measured or flush is None:
                continue
            if track is None or jumped or track.state == UNSYNCED:
                self.tracks[name] = ClockTrack(
                    flush["clock_ns"],
                    float(flush["system_ns"] - flush["clock_ns"]),
                    0.0,
                    UNKNOWN_BOUND_NS**2,
                    0.0,
                    FRESH_RATE_PPB**2,
                    UNSYNCED,
                    name if track is None else track.domain,
                    middle_ns if track is None else track.measured_ns,
                    event=ClockEvent.STEP if jumped else ClockEvent.NONE,
                )

    def _hold_over(self, track: ClockTrack, middle_ns: int, seen: bool) -> bool:
        """Set the state of an unmeasured clock; return whether to keep its track."""
        silent_s = (middle_ns - track.measured_ns) * 1e-9
        track.pairs, track.residual_ns, track.innovation = 0, 0.0, 0.0
        if silent_s > self.parameters.forget_s and not seen:
            return False
        if track.state != UNSYNCED:
            track.begin_holdover()
            track.state = HOLDOVER if silent_s <= self.parameters.holdover_s else UNSYNCED
        return True

    def _follow_domains(self, measured: set[str], before: Mapping[str, str]) -> None:
        """Move clocks in holdover to the new domain of the clocks that they shared a domain with."""
        moved: dict[str, Counter[str]] = {}
        for name in sorted(measured):
            if name in before:
                moved.setdefault(before[name], Counter())[self.tracks[name].domain] += 1
        for name, track in self.tracks.items():
            if name not in measured and track.domain in moved:
                track.domain = moved[track.domain].most_common(1)[0][0]

    def _set_knots(self, before: Mapping[str, _Before], start_ns: int) -> None:
        """Set each clock's knot at the window's start, from the windows on both sides of it.

        The knot is the mean of the previous window's line, carried forward, and this window's, carried back,
        each weighted by the other's variance there: the result of a smoother that looks one window ahead.
        """
        for name, track in self.tracks.items():
            track.knot_at_ns, track.knot_offset_ns, track.knot_bound_ns = 0, 0.0, 0.0
            old = before.get(name)
            if old is None or track.event in DISCONTINUITIES or UNSYNCED in (old.state, track.state):
                continue
            reading_ns = track.reading_at(start_ns)
            ahead_ns = old.offset_ns + old.drift_ppb * 1e-9 * (reading_ns - old.at_ns)
            back_ns = track.fabric_ns(reading_ns)
            old_variance = max(old.sigma_ns, MIN_KNOT_SIGMA_NS) ** 2
            weight = old_variance / (old_variance + max(track.sigma_ns, MIN_KNOT_SIGMA_NS) ** 2)
            track.knot_at_ns, track.knot_offset_ns = reading_ns, ahead_ns + weight * (back_ns - ahead_ns)
            bound_ns = track.bound_ns + (1 - weight) * abs(back_ns - ahead_ns)
            track.knot_bound_ns = min(bound_ns, UNKNOWN_BOUND_NS)

    def _records(
        self, window: int, window_ns: int, fits: Sequence[Mapping[str, Any]], solved_ns: int
    ) -> list[Record]:
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
                "suspects": [_suspect(each) for name in names for each in suspects.get(name, ())],
            }
            for part, (domain, names) in enumerate(cuts)
        ]

    def _cut_parts(self) -> list[tuple[str, list[str]]]:
        """Return (domain, clocks) of each record: at most `MAX_ELEMENTS` clocks of one domain."""
        domains: dict[str, list[str]] = {}
        for name in sorted(self.tracks):
            domains.setdefault(self.tracks[name].domain, []).append(name)
        cuts = [
            (domain, names[first : first + MAX_ELEMENTS])
            for domain, names in sorted(domains.items())
            for first in range(0, len(names), MAX_ELEMENTS)
        ]
        return cuts or [(self.shard, [])]


def _recovered_track(clock: Mapping[str, Any], domain: str, middle_ns: int) -> ClockTrack:
    """Return the track of a published clock: half of its bound's square as noise, half as asymmetry."""
    known = clock["state"] != UNSYNCED
    half_ns = clock["bound_ns"] / SIGMAS / math.sqrt(2)
    rate_sigma_ppb = clock.get("drift_sigma_ppb", 0.0) or RECOVERED_RATE_PPB
    return ClockTrack(
        clock["at_ns"],
        clock["offset_ns"],
        clock["drift_ppb"],
        half_ns**2 if known else UNKNOWN_BOUND_NS**2,
        0.0,
        rate_sigma_ppb**2 if known else FRESH_RATE_PPB**2,
        clock["state"],
        domain,
        middle_ns,
        asymmetry_ns=half_ns if known else math.inf,
    )


def _gather(fits: Sequence[Mapping[str, Any]], clock_of: Mapping[str, str]) -> _Window:
    """Sort a window's fits by clock."""
    nics: dict[str, Record] = {nic["nic"]: dict(nic) for record in fits for nic in record["nics"]}
    announced = {name: nic["clock"] for name, nic in nics.items()}
    ends = {pair[end] for record in fits for pair in record["pairs"] for end in ("prober", "peer")}
    members = set(nics) | ends
    clock = {nic: clock_of.get(nic) or announced.get(nic) or nic for nic in members}
    names = sorted(set(clock.values()))
    index = {name: i for i, name in enumerate(names)}
    node_of_nic = {nic: index[clock[nic]] for nic in members}
    taken = _Window(names, [nics[name] for name in sorted(nics)], node_of_nic, set())
    for nic in taken.nics:
        node = node_of_nic[nic["nic"]]
        taken.nics_of_node.setdefault(node, []).append(nic)
        if nic["clock_jump_ns"]:
            taken.jumped.add(node)
        if node not in taken.flush or nic["append_ns"] > taken.flush[node]["append_ns"]:
            taken.flush[node] = nic
    return taken


def _guess_readings(taken: _Window, middle_log_ns: int) -> tuple[Int64s, Bools]:
    """Guess each clock's reading at the window's middle from its last flush and that flush's append time."""
    readings = np.zeros(len(taken.names), np.int64)
    known = np.zeros(len(taken.names), np.bool_)
    for node, flush in taken.flush.items():
        readings[node] = flush["clock_ns"] + middle_log_ns - flush["append_ns"]
        known[node] = True
    return readings, known


def _usable(pairs: Pairs, taken: _Window) -> Pairs:
    """Return the pairs without those of clocks that jumped in the window."""
    if not taken.jumped:
        return pairs
    bad = np.fromiter(taken.jumped, np.int32)
    return pairs.where(~(np.isin(pairs.prober, bad) | np.isin(pairs.peer, bad)))


def _by_host(taken: _Window, members: NDArray[np.intp]) -> dict[str, list[tuple[int, Record]]]:
    """Return host to the (node, last flush) of its NICs in this part whose clock did not jump."""
    hosts: dict[str, list[tuple[int, Record]]] = {}
    for node in members.tolist():
        if node not in taken.jumped:
            for nic in taken.nics_of_node.get(node, ()):
                hosts.setdefault(nic["nic"].partition("/")[0], []).append((node, nic))
    return hosts


def _source_ranges(fits: Sequence[Mapping[str, Any]]) -> list[Record]:
    ranges = {
        record["source"]: {name: record[name] for name in ("source", "first_offset", "next_offset")}
        for record in fits
    }
    return [ranges[source] for source in sorted(ranges)]


def _clock_state(name: str, track: ClockTrack) -> Record:
    return {
        "clock": name,
        "at_ns": track.at_ns,
        "offset_ns": track.offset_ns,
        "drift_ppb": track.drift_ppb,
        "bound_ns": track.bound_ns,
        "state": track.state,
        "pairs": track.pairs,
        "residual_ns": track.residual_ns,
        "drift_sigma_ppb": track.drift_sigma_ppb,
        "event": track.event,
        "event_ns": track.event_ns,
        "knot_at_ns": track.knot_at_ns,
        "knot_offset_ns": track.knot_offset_ns,
        "knot_bound_ns": track.knot_bound_ns,
    }


def _suspect(suspect: Suspect) -> Record:
    return {
        "prober": suspect.prober,
        "peer": suspect.peer,
        "asymmetry_ns": suspect.asymmetry_ns,
        "sigma_ns": suspect.sigma_ns,
        "weight": suspect.weight,
    }
