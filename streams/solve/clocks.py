"""The clocks of one shard, window after window, in fabric time.

In: all `ClockFits` of one window. Out: the window's `ClockOffsets`. State: one line and its uncertainty a
clock, recoverable from the last `ClockOffsets`, so that a new owner goes on without a step.

Each clock is followed by a two-state filter (offset in ns, rate in ppb) in fabric time. The mesh tells the
clocks against each other only; where fabric time itself is (the gauge) follows from continuity: it goes on as
the clocks that were there before say in the median, and is slewed towards the median of the hosts' system
clocks. A new connected part starts at that median, and its rate at the hosts' rate, which takes a second
window to know.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.topics import MAX_ELEMENTS
from streams.solve.mesh import Mesh, Pairs, RttFloor, solve_relative

__all__ = ["HOLDOVER", "SYNCED", "UNSYNCED", "ClockTrack", "ShardClocks", "SolveParameters"]

Record = dict[str, Any]
Float64s = NDArray[np.float64]

SYNCED: Final = "SYNCED"
HOLDOVER: Final = "HOLDOVER"
UNSYNCED: Final = "UNSYNCED"

SIGMAS: Final = 3.3
"""Standard errors in a bound that holds 99.9 % of the time (normal errors)."""
GATE_SIGMAS: Final = 6.0
GATE_LEAST_NS: Final = 2_000.0
"""A clock this far and this many standard errors from where it was expected was stepped."""
UNKNOWN_BOUND_NS: Final = 1e9
WALK_NS2_PER_S: Final = 25.0
"""ns^2/s by which a clock's phase wanders besides its rate."""
FRESH_RATE_PPB: Final = 20_000.0
RECOVERED_RATE_PPB: Final = 100.0
LOG_OFFSET_STEP_NS: Final = 50_000_000
MAX_READING_NS: Final = 2**63 - 1
MS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class SolveParameters:
    """What the solve can be told, see `streams.settings.SolveSettings`."""

    wander_ppb_per_sqrt_s: float = 10.0
    asymmetry_share: float = 0.5
    holdover_s: float = 60.0
    forget_s: float = 600.0
    slew_max_ppb: float = 100.0
    slew_time_s: float = 20.0


@dataclass(slots=True)
class ClockTrack:
    """One clock: fabric time at its reading c is c + offset_ns + drift_ppb * 1e-9 * (c - at_ns)."""

    at_ns: int
    offset_ns: float
    drift_ppb: float
    p_offset: float
    """ns^2"""
    p_cross: float
    """ns * ppb"""
    p_drift: float
    """ppb^2"""
    asymmetry_ns: float
    state: str
    domain: str
    measured_ns: int
    """Fabric time of the last window that measured it."""
    pairs: int = 0
    residual_ns: float = 0.0

    def fabric_ns(self, reading_ns: int) -> float:
        """Return what to add to `reading_ns` for fabric time."""
        return self.offset_ns + self.drift_ppb * 1e-9 * (reading_ns - self.at_ns)

    def reading_at(self, fabric_ns: int) -> int:
        """Return the clock's reading at a fabric time; exact to 1e-9 of the distance carried."""
        guess = fabric_ns - round(self.offset_ns)
        return fabric_ns - round(self.fabric_ns(guess))

    def advance(self, reading_ns: int, wander: float) -> None:
        """Carry line and uncertainty to `reading_ns`; wander in ppb per square root of a second."""
        dt = (reading_ns - self.at_ns) * 1e-9
        ahead = abs(dt)
        q = wander * wander
        self.offset_ns += self.drift_ppb * dt
        self.at_ns = reading_ns
        self.p_offset += (
            2 * dt * self.p_cross + dt * dt * self.p_drift + WALK_NS2_PER_S * ahead + q * ahead**3 / 3
        )
        self.p_cross += dt * self.p_drift + q * dt * ahead / 2
        self.p_drift += q * ahead

    def measure(self, offset_ns: float, variance: float, asymmetry_ns: float) -> None:
        """Take an offset with its variance; the asymmetry that may hide in it enters by the same gain."""
        total = self.p_offset + variance
        gain, gain_drift = self.p_offset / total, self.p_cross / total
        innovation = offset_ns - self.offset_ns
        self.offset_ns += gain * innovation
        self.drift_ppb += gain_drift * innovation
        self.p_drift -= gain_drift * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_offset -= gain * self.p_offset
        self.asymmetry_ns += gain * (asymmetry_ns - self.asymmetry_ns)

    def measure_drift(self, drift_ppb: float, variance: float) -> None:
        """Take a rate with its variance."""
        total = self.p_drift + variance
        gain, gain_offset = self.p_drift / total, self.p_cross / total
        innovation = drift_ppb - self.drift_ppb
        self.drift_ppb += gain * innovation
        self.offset_ns += gain_offset * innovation
        self.p_offset -= gain_offset * self.p_cross
        self.p_cross -= gain * self.p_cross
        self.p_drift -= gain * self.p_drift

    @property
    def bound_ns(self) -> float:
        """What |error| stays below 99.9 % of the time."""
        if self.state == UNSYNCED and self.p_offset >= UNKNOWN_BOUND_NS**2:
            return UNKNOWN_BOUND_NS
        return min(UNKNOWN_BOUND_NS, SIGMAS * float(np.sqrt(max(self.p_offset, 0.0))) + self.asymmetry_ns)


@dataclass(slots=True)
class _Window:
    """A window's input, by clock."""

    names: list[str]
    nics: list[Record]
    node_of_nic: dict[str, int]
    jumped: set[int]
    flush: dict[int, Record] = field(default_factory=dict)


class ShardClocks:
    """The clock solve of one shard; `solve` once a window, in order."""

    def __init__(self, shard: str, parameters: SolveParameters | None = None) -> None:
        self.shard = shard
        self.parameters = parameters or SolveParameters()
        self.tracks: dict[str, ClockTrack] = {}
        self.log_offset_ns = 0
        self.last_window = -1
        self._floor = RttFloor()
        self._reads: dict[str, tuple[int, int, int]] = {}
        """NIC to (run, clock_ns, system_ns) of its last flush."""
        self._slew: dict[str, float] = {}
        self._integral: dict[str, float] = {}
        self._fresh: dict[str, bool] = {}

    def recover(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Go on from the newest window among `records` (`ClockOffsets`) that has all its parts."""
        mine = [r for r in records if r["shard"] == self.shard]
        if not mine:
            return
        windows: dict[int, dict[int, Mapping[str, Any]]] = {}
        for record in mine:
            windows.setdefault(record["window"], {})[record["part"]] = record
        whole = [w for w, found in windows.items() if len(found) == next(iter(found.values()))["parts"]]
        if not whole:
            return
        newest = max(whole)
        parts = [windows[newest][part] for part in sorted(windows[newest])]
        self.last_window = newest
        self.log_offset_ns = parts[0]["log_offset_ns"]
        for record in parts:
            middle_ns = (record["window_start_ns"] + record["window_end_ns"]) // 2
            for clock in record["clocks"]:
                known = clock["state"] != UNSYNCED
                sigma = clock["bound_ns"] / 2 / SIGMAS if known else UNKNOWN_BOUND_NS
                rate = RECOVERED_RATE_PPB if known else FRESH_RATE_PPB
                self.tracks[clock["clock"]] = ClockTrack(
                    clock["at_ns"], clock["offset_ns"], clock["drift_ppb"], sigma**2, 0.0, rate**2,
                    clock["bound_ns"] / 2 if known else 0.0, clock["state"], record["domain"], middle_ns,
                )  # fmt: skip

    def solve(
        self,
        window: int,
        window_ns: int,
        fits: Sequence[Mapping[str, Any]],
        clock_of: Mapping[str, str],
        solved_ns: int | None = None,
    ) -> list[Record]:
        """Return the `ClockOffsets` of a window from all its `ClockFits`.

        `clock_of` is the inventory's NIC to clock; a NIC that neither it nor the fits know is a clock of its
        own.
        """
        self.last_window = window
        start_ns = window * window_ns
        taken = self._gather(fits, clock_of)
        pairs = Pairs.of([p for record in fits for p in record["pairs"]], taken.node_of_nic)
        if taken.jumped:
            bad = np.fromiter(taken.jumped, np.int32)
            pairs = _without(pairs, bad)
        middle_log_ns = start_ns + window_ns // 2
        readings, has_reading = self._guess_readings(taken, middle_log_ns)
        floor = self._floor.of(taken.names, pairs)
        mesh = solve_relative(
            len(taken.names), pairs, floor, self.parameters.asymmetry_share, readings, has_reading
        )
        measured: set[str] = set()
        domain_before = {name: track.domain for name, track in self.tracks.items()}
        for part in np.unique(mesh.component):
            members = np.flatnonzero(mesh.component == part)
            if len(members) > 1:
                self._solve_part(taken, mesh, members, middle_log_ns + self.log_offset_ns, window_ns)
                measured.update(taken.names[i] for i in members)
        self._set_log_offset(taken)
        middle_ns = middle_log_ns + self.log_offset_ns
        self._carry_unmeasured(taken, measured, middle_ns)
        self._follow_domains(measured, domain_before)
        self._remember(taken)
        return self._records(window, window_ns, fits, solved_ns or time.time_ns())

    def _gather(self, fits: Sequence[Mapping[str, Any]], clock_of: Mapping[str, str]) -> _Window:
        nics: dict[str, Record] = {}
        for record in fits:
            for nic in record["nics"]:
                nics[nic["nic"]] = dict(nic)
        told = {name: nic["clock"] for name, nic in nics.items()}
        members = set(nics) | {p[end] for r in fits for p in r["pairs"] for end in ("prober", "peer")}
        clock = {nic: clock_of.get(nic) or told.get(nic) or nic for nic in members}
        names = sorted(set(clock.values()))
        index = {name: i for i, name in enumerate(names)}
        node_of_nic = {nic: index[clock[nic]] for nic in members}
        taken = _Window(names, [nics[name] for name in sorted(nics)], node_of_nic, set())
        for nic in taken.nics:
            node = node_of_nic[nic["nic"]]
            if nic["clock_jump_ns"]:
                taken.jumped.add(node)
            if node not in taken.flush or nic["append_ns"] > taken.flush[node]["append_ns"]:
                taken.flush[node] = nic
        return taken

    def _guess_readings(
        self, taken: _Window, middle_log_ns: int
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Guess each clock's reading at the window's middle: carried on from the last solution, else from the
        last flush and its append time."""
        readings = np.zeros(len(taken.names), np.int64)
        known = np.zeros(len(taken.names), np.bool_)
        for node in range(len(taken.names)):
            flush = taken.flush.get(node)
            if flush is not None:
                readings[node] = flush["clock_ns"] + middle_log_ns - flush["append_ns"]
                known[node] = True
        return readings, known

    def _solve_part(
        self, taken: _Window, mesh: Mesh, members: NDArray[np.int64], middle_ns: int, window_ns: int
    ) -> None:
        """Place one connected part in fabric time and take its measurements."""
        names = [taken.names[i] for i in members]
        for name, node in zip(names, members, strict=True):
            track = self.tracks.get(name)
            if track is not None and int(node) not in taken.jumped:
                track.advance(int(mesh.reading_ns[node]), self.parameters.wander_ppb_per_sqrt_s)
        going_on = [
            i for i, name in enumerate(names)
            if name in self.tracks
            and self.tracks[name].state != UNSYNCED
            and int(members[i]) not in taken.jumped
        ]  # fmt: skip
        domain = names[0]
        hosts = _by_host(taken, members)
        if going_on:
            gauge, gauge_rate = self._continued_gauge(names, members, mesh, going_on)
            slew_change = self._slew_for(domain, names, members, mesh, hosts, gauge, gauge_rate, window_ns)
            gauge_rate += slew_change
            trust = True
        else:
            slew_change = 0.0
            gauge_rate, trust = self._hosts_rate(mesh, hosts)
            gauge = _hosts_gauge(mesh, hosts, gauge_rate)
            self._slew.pop(domain, None)
            self._integral.pop(domain, None)
        for i, (name, node) in enumerate(zip(names, members, strict=True)):
            self._take(
                name, int(node), mesh, gauge, gauge_rate, slew_change, domain, middle_ns, trust,
                fresh=not going_on, expected=i in going_on,
            )  # fmt: skip

    def _continued_gauge(
        self, names: list[str], members: NDArray[np.int64], mesh: Mesh, going_on: list[int]
    ) -> tuple[float, float]:
        """Return what to add to theta and rate so that the part's clocks go on where they were, in the
        median."""
        tracks = [self.tracks[names[i]] for i in going_on]
        nodes = members[going_on]
        ahead = np.array([t.offset_ns for t in tracks]) - mesh.theta_ns[nodes]
        weight = 1.0 / (np.array([t.p_offset for t in tracks]) + mesh.sigma_ns[nodes] ** 2)
        rate = np.array([t.drift_ppb for t in tracks]) - mesh.rate_ppb[nodes]
        rate_weight = 1.0 / (np.array([t.p_drift for t in tracks]) + mesh.rate_sigma_ppb[nodes] ** 2)
        return _robust_mean(ahead, weight), _robust_mean(rate, rate_weight)

    def _hosts_rate(self, mesh: Mesh, hosts: Mapping[str, list[tuple[int, Record]]]) -> tuple[float, bool]:
        """Return the gauge's rate from the hosts' system clocks, and whether two flushes each were there to
        tell."""
        medians = []
        for flushes in hosts.values():
            rates = []
            for node, nic in flushes:
                last = self._reads.get(nic["nic"])
                if last is None or last[0] != nic["run"] or nic["clock_ns"] <= last[1]:
                    continue
                system = (nic["system_ns"] - last[2]) - (nic["clock_ns"] - last[1])
                rates.append(system / (nic["clock_ns"] - last[1]) * 1e9 - mesh.rate_ppb[node])
            if rates:
                medians.append(float(np.median(rates)))
        return (float(np.median(medians)), True) if medians else (0.0, False)

    def _slew_for(
        self,
        domain: str,
        names: list[str],
        members: NDArray[np.int64],
        mesh: Mesh,
        hosts: Mapping[str, list[tuple[int, Record]]],
        gauge: float,
        gauge_rate: float,
        window_ns: int,
    ) -> float:
        """Return the change of fabric time's rate (ppb) that slews it towards the hosts' median.

        A proportional and an integral part, limited together: what the rate was changed by before is taken
        back. A part without that memory (new here, or its owner died) has its slew in its clocks' rates
        already.
        """
        if not hosts:
            return -self._slew.pop(domain, 0.0)
        error_ns = _hosts_gauge(mesh, hosts, gauge_rate) - gauge
        tau = self.parameters.slew_time_s
        limit = self.parameters.slew_max_ppb
        seconds = window_ns * 1e-9
        integral = self._integral.get(domain, 0.0)
        if abs(error_ns / tau) < limit:  # else the slew is at its limit, and the integral would overshoot
            integral = min(max(integral + error_ns * seconds / (4 * tau * tau), -limit / 2), limit / 2)
        self._integral[domain] = integral
        slew = min(max(error_ns / tau + integral, -limit), limit)
        change = slew - self._slew.get(domain, slew)
        self._slew[domain] = slew
        return change

    def _take(
        self,
        name: str,
        node: int,
        mesh: Mesh,
        gauge: float,
        gauge_rate: float,
        slew_change: float,
        domain: str,
        middle_ns: int,
        trust: bool,
        *,
        fresh: bool,
        expected: bool,
    ) -> None:
        offset = float(mesh.theta_ns[node]) + gauge
        rate = float(mesh.rate_ppb[node]) + gauge_rate
        variance = float(mesh.sigma_ns[node]) ** 2
        rate_variance = float(mesh.rate_sigma_ppb[node]) ** 2
        asymmetry = float(mesh.asymmetry_ns[node])
        track = self.tracks.get(name)
        start_anew = track is None or fresh or not expected
        state = SYNCED if trust else UNSYNCED
        if track is not None and expected and not fresh:
            likely = GATE_SIGMAS * float(np.sqrt(track.p_offset + variance))
            gate = max(likely, track.asymmetry_ns + asymmetry, GATE_LEAST_NS)
            if abs(offset - track.offset_ns) > gate:
                start_anew, state = True, UNSYNCED
        if start_anew or track is None:
            track = self.tracks[name] = ClockTrack(
                int(mesh.reading_ns[node]), offset, rate, variance, 0.0,
                min(rate_variance, FRESH_RATE_PPB**2), asymmetry, state, domain, middle_ns,
            )  # fmt: skip
        else:
            track.drift_ppb += slew_change
            track.measure(offset, variance, asymmetry)
            track.measure_drift(rate, rate_variance)
        track.state, track.domain, track.measured_ns = state, domain, middle_ns
        track.pairs, track.residual_ns = int(mesh.pairs[node]), float(mesh.residual_ns[node])

    def _set_log_offset(self, taken: _Window) -> None:
        """Follow the log's clock in steps: only where the median over NICs is more than 50 ms off."""
        ahead = []
        for nic in taken.nics:
            track = self.tracks.get(taken.names[taken.node_of_nic[nic["nic"]]])
            if track is not None and track.state == SYNCED:
                ahead.append(nic["clock_ns"] + track.fabric_ns(nic["clock_ns"]) - nic["append_ns"])
        if ahead:
            median = float(np.median(ahead))
            if abs(median - self.log_offset_ns) > LOG_OFFSET_STEP_NS:
                self.log_offset_ns = round(median / MS) * MS

    def _carry_unmeasured(self, taken: _Window, measured: set[str], middle_ns: int) -> None:
        """Carry the other clocks on to the window's middle: holdover, then not to be used, then forgotten."""
        wander = self.parameters.wander_ppb_per_sqrt_s
        for node, name in enumerate(taken.names):
            if name in measured:
                continue
            track = self.tracks.get(name)
            flush = taken.flush.get(node)
            if flush is not None and (track is None or node in taken.jumped or track.state == UNSYNCED):
                last = UNKNOWN_BOUND_NS**2
                measured_ns = middle_ns if track is None else track.measured_ns
                self.tracks[name] = ClockTrack(
                    flush["clock_ns"], float(flush["system_ns"] - flush["clock_ns"]), 0.0, last, 0.0,
                    FRESH_RATE_PPB**2, 0.0, UNSYNCED, name if track is None else track.domain, measured_ns,
                )  # fmt: skip
        keep: dict[str, ClockTrack] = {}
        for name, track in self.tracks.items():
            if not math.isfinite(track.offset_ns + track.drift_ppb + track.p_offset):
                continue
            track.advance(track.reading_at(middle_ns), wander)
            if abs(track.at_ns) > MAX_READING_NS:
                continue  # a clock that no record can tell of
            if name not in measured:
                silent_s = (middle_ns - track.measured_ns) * 1e-9
                track.pairs, track.residual_ns = 0, 0.0
                seen = name in taken.names
                if silent_s > self.parameters.forget_s and not seen:
                    continue
                if track.state != UNSYNCED:
                    track.state = HOLDOVER if silent_s <= self.parameters.holdover_s else UNSYNCED
            keep[name] = track
        if len(keep) != len(self.tracks):
            self._floor.forget(set(keep))
        self.tracks = keep

    def _follow_domains(self, measured: set[str], before: Mapping[str, str]) -> None:
        """Let clocks in holdover stay with the clocks that they shared a domain with."""
        moved: dict[str, Counter[str]] = {}
        for name in sorted(measured):
            if name in before:
                moved.setdefault(before[name], Counter())[self.tracks[name].domain] += 1
        for name, track in self.tracks.items():
            if name not in measured and track.domain in moved:
                track.domain = moved[track.domain].most_common(1)[0][0]

    def _remember(self, taken: _Window) -> None:
        for nic in taken.nics:
            self._reads[nic["nic"]] = (nic["run"], nic["clock_ns"], nic["system_ns"])

    def _records(
        self, window: int, window_ns: int, fits: Sequence[Mapping[str, Any]], solved_ns: int
    ) -> list[Record]:
        domains: dict[str, list[str]] = {}
        for name in sorted(self.tracks):
            domains.setdefault(self.tracks[name].domain, []).append(name)
        cuts = [
            (domain, names[first : first + MAX_ELEMENTS])
            for domain, names in sorted(domains.items())
            for first in range(0, len(names), MAX_ELEMENTS)
        ] or [(self.shard, [])]
        ranges = {
            r["source"]: {
                "source": r["source"], "first_offset": r["first_offset"], "next_offset": r["next_offset"]
            }
            for r in fits
        }  # fmt: skip
        start_ns = window * window_ns + self.log_offset_ns
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
                "source_ranges": [ranges[name] for name in sorted(ranges)] if part == 0 else [],
            }
            for part, (domain, names) in enumerate(cuts)
        ]


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
    }


def _without(pairs: Pairs, nodes: NDArray[np.int32]) -> Pairs:
    keep = ~(np.isin(pairs.prober, nodes) | np.isin(pairs.peer, nodes))
    return Pairs(
        pairs.prober[keep], pairs.peer[keep], pairs.at_ns[keep], pairs.offset_ns[keep], pairs.drift_ppb[keep],
        pairs.sigma_ns[keep], pairs.drift_sigma_ppb[keep], pairs.rtt_min_ns[keep],
    )  # fmt: skip


def _by_host(taken: _Window, members: NDArray[np.int64]) -> dict[str, list[tuple[int, Record]]]:
    """Host to the (node, last flush) of its NICs in this part whose clock did not jump."""
    inside = set(members.tolist())
    hosts: dict[str, list[tuple[int, Record]]] = {}
    for nic in taken.nics:
        node = taken.node_of_nic[nic["nic"]]
        if node in inside and node not in taken.jumped:
            hosts.setdefault(nic["nic"].partition("/")[0], []).append((node, nic))
    return hosts


def _hosts_gauge(mesh: Mesh, hosts: Mapping[str, list[tuple[int, Record]]], gauge_rate: float) -> float:
    """Return the gauge (ns) at which fabric time is the median of the hosts' system clocks."""
    medians = []
    for flushes in hosts.values():
        ahead = []
        for node, nic in flushes:
            since = nic["clock_ns"] - int(mesh.reading_ns[node])
            rate = (mesh.rate_ppb[node] + gauge_rate) * 1e-9
            ahead.append(nic["system_ns"] - nic["clock_ns"] - mesh.theta_ns[node] - rate * since)
        medians.append(float(np.median(ahead)))
    return float(np.median(medians)) if medians else 0.0


def _robust_mean(values: Float64s, weight: Float64s) -> float:
    """Return the weighted mean of the values near the weighted median: one stepped clock moves nothing."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    middle = values[order[int(np.searchsorted(total, total[-1] / 2))]]
    away = np.abs(values - middle)
    spread = 1.4826 * float(np.sort(away)[(len(away) - 1) // 2])
    near = away <= max(5 * spread, 3.0 / float(np.sqrt(weight.max())))
    return float(np.average(values[near], weights=weight[near]))
