"""The clocks of one shard, window after window, in fabric time.

In: all `ClockFits` of one window. Out: the window's `ClockOffsets`. State: one line and its uncertainty a
clock, and what is known of each pair; recoverable from the last `ClockOffsets` and the fits before it, so
that a new owner goes on without a step.

Each clock is followed by a two-state filter in fabric time (track.py). The mesh (mesh.py) tells the clocks
against each other only; where fabric time itself is (the gauge) follows from continuity: it goes on as the
clocks that were there before say, by their weights, and is slewed towards its reference, which is the median
of the hosts' system clocks or one clock chosen. A new connected part starts at its reference, and its rate at
the reference's, which takes a second window to know. Where parts meet, the one with more clocks goes on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from schemas.topics import MAX_ELEMENTS
from streams.clock.filter import (
    FRESH_RATE_PPB,
    HELD_DOUBT,
    HOLDOVER,
    LINE_OFFSET_SHARE,
    LINE_RATE_SHARE,
    SIGMAS,
    SYNCED,
    UNKNOWN_BOUND_NS,
    UNSYNCED,
    ClockTrack,
    Wander,
)
from streams.clock.mesh import Mesh, MeshMemory, Priors, Suspect, log_ppb, plain_ppb, solve_relative
from streams.clock.pairs import Bools, Float64s, Int64s, Pairs

__all__ = ["ENSEMBLE", "HOLDOVER", "SYNCED", "UNSYNCED", "ShardClocks", "SolveParameters"]

Record = dict[str, Any]

ENSEMBLE: Final = "ensemble"
GATE_SIGMAS: Final = 6.0
GATE_LEAST_NS: Final = 25.0
"""A clock this far and this many standard errors from where it was expected was stepped."""
RECOVERED_RATE_PPB: Final = 100.0
LOG_OFFSET_STEP_NS: Final = 50_000_000
MAX_READING_NS: Final = 2**63 - 1
MAX_SUSPECTS: Final = 256
DOUBT_WIDTHS: Final = 3.0
DOUBT_WINDOWS: Final = 3
"""A clock that is off by less than so many widths of its stamps' noise is waited for so many windows before
it is said to have stepped; its bound covers both meanwhile."""
RATE_LIMIT_PPB: Final = 450_000.0
"""A clock faster or slower than this is not to be used: two of them are further apart than pairs may be."""
BEND_SHARE: Final = 1 / 24
"""A rate that changes by r over a window of length T bends the phase, and the window's best line is off by
r * T / 24 at its middle."""
UNREST_KEPT: Final = 0.7
"""What is left a window later of the doubt that a change of rate leaves behind: it may go on changing."""
RATE_LEARN: Final = 0.05
RATE_MOST_PPB: Final = 10_000.0
FORGET_EVERY: Final = 256
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
    reference: str = ENSEMBLE


@dataclass(slots=True)
class _Window:
    """A window's input, by clock."""

    names: list[str]
    nics: list[Record]
    node_of_nic: dict[str, int]
    jumped: set[int]
    flush: dict[int, Record] = field(default_factory=dict)
    nics_of_node: dict[int, list[Record]] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """One connected part of a window's mesh, on its way into fabric time."""

    names: list[str]
    members: NDArray[np.intp]
    middle_ns: int
    window_s: float
    domain: str
    leading: str
    """Domain whose timeline goes on."""
    going_on: set[int]
    """Positions in `names` whose clocks carry the timeline on."""
    gauge: float = 0.0
    gauge_rate: float = 0.0
    """Logarithmic, as `Mesh.rate_log_ppb`."""
    slew_change: float = 0.0
    trust: bool = True


class ShardClocks:
    """The clock solve of one shard; `solve` once a window, in order."""

    def __init__(self, shard: str, parameters: SolveParameters | None = None) -> None:
        self.shard = shard
        self.parameters = parameters or SolveParameters()
        self.tracks: dict[str, ClockTrack] = {}
        self.log_offset_ns = 0
        self.last_window = -1
        self.wander = Wander(self.parameters.wander_ppb_per_sqrt_s)
        self._mesh = MeshMemory()
        self._reads: dict[str, tuple[int, int, int]] = {}
        """NIC to (run, clock_ns, system_ns) of its last flush."""
        self._slew: dict[str, _Slew] = {}
        self._slewed: dict[str, float] = {}
        """Domain before this window to the change of fabric time's rate in it, ppb."""
        self._suspects: list[tuple[str, Suspect]] = []
        """(clock of the prober, pair)"""

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
                half = clock["bound_ns"] / SIGMAS / math.sqrt(2)
                rate = clock.get("drift_sigma_ppb", 0.0) or RECOVERED_RATE_PPB
                self.tracks[clock["clock"]] = ClockTrack(
                    clock["at_ns"], clock["offset_ns"], clock["drift_ppb"],
                    half**2 if known else UNKNOWN_BOUND_NS**2, 0.0,
                    rate**2 if known else FRESH_RATE_PPB**2, clock["state"], record["domain"], middle_ns,
                    asymmetry_ns=half if known else math.inf,
                )  # fmt: skip

    def remember(
        self, window: int, window_ns: int, fits: Sequence[Mapping[str, Any]], clock_of: Mapping[str, str]
    ) -> None:
        """Learn the pairs' floors and asymmetries from a window of fits that was solved before: oldest first,
        after `recover`. Nothing is solved for clocks or published by it."""
        taken = self._gather(fits, clock_of)
        pairs = _usable(Pairs.of([p for r in fits for p in r["pairs"]], taken.node_of_nic), taken)
        readings, has_reading = self._guess_readings(taken, window * window_ns + window_ns // 2)
        solve_relative(
            len(taken.names), pairs, self._mesh, window, self.parameters.asymmetry_share, readings,
            has_reading, self._priors(taken, readings),
        )  # fmt: skip

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

        `clock_of` is the inventory's NIC to clock; a NIC that neither it nor the fits know is a clock of its
        own. `stamp_error_ns`: by how much stamps of a clock may be off, of those that say so.
        """
        self.last_window = window
        start_ns = window * window_ns
        taken = self._gather(fits, clock_of)
        pairs = _usable(Pairs.of([p for record in fits for p in record["pairs"]], taken.node_of_nic), taken)
        middle_log_ns = start_ns + window_ns // 2
        readings, has_reading = self._guess_readings(taken, middle_log_ns)
        before = {name: (track.at_ns, track.offset_ns, track.drift_ppb, track.sigma_ns, track.domain,
                         track.state) for name, track in self.tracks.items()}  # fmt: skip
        mesh = solve_relative(
            len(taken.names), pairs, self._mesh, window, self.parameters.asymmetry_share, readings,
            has_reading, self._priors(taken, readings),
        )  # fmt: skip
        if window % FORGET_EVERY == 0:
            self._mesh.pairs.forget(window)
        for track in self.tracks.values():
            track.event, track.event_ns = "NONE", 0.0
        measured: set[str] = set()
        self._slewed = {}
        innovations: list[tuple[ClockTrack, float, float]] = []
        for component in np.unique(mesh.component):
            members = np.flatnonzero(mesh.component == component)
            if len(members) > 1:
                part = self._part(taken, mesh, members, middle_log_ns + self.log_offset_ns, window_ns * 1e-9)
                self._place(taken, mesh, part)
                for i in range(len(part.names)):
                    innovation = self._take(taken, mesh, part, i)
                    if innovation is not None:
                        innovations.append((self.tracks[part.names[i]], *innovation))
                if not part.going_on and part.trust:
                    self._follow_reference(part, _by_host(taken, part.members))
                measured.update(part.names)
        self.wander.learn(innovations)
        self._suspects = [(taken.names[s.node], s) for s in mesh.suspects[:MAX_SUSPECTS]]
        self._set_log_offset(taken)
        middle_ns = middle_log_ns + self.log_offset_ns
        self._carry_unmeasured(taken, measured, middle_ns)
        self._follow_domains(measured, {name: old[4] for name, old in before.items()})
        for name, track in self.tracks.items():
            track.stamp_error_ns = (stamp_error_ns or {}).get(name, 0)
        self._tie_knots(before, start_ns + self.log_offset_ns)
        for nic in taken.nics:
            self._reads[nic["nic"]] = (nic["run"], nic["clock_ns"], nic["system_ns"])
        return self._records(window, window_ns, fits, solved_ns)

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
            taken.nics_of_node.setdefault(node, []).append(nic)
            if nic["clock_jump_ns"]:
                taken.jumped.add(node)
            if node not in taken.flush or nic["append_ns"] > taken.flush[node]["append_ns"]:
                taken.flush[node] = nic
        return taken

    def _guess_readings(self, taken: _Window, middle_log_ns: int) -> tuple[Int64s, Bools]:
        """Guess each clock's reading at the window's middle from its last flush and that one's append
        time."""
        readings = np.zeros(len(taken.names), np.int64)
        known = np.zeros(len(taken.names), np.bool_)
        for node, flush in taken.flush.items():
            readings[node] = flush["clock_ns"] + middle_log_ns - flush["append_ns"]
            known[node] = True
        return readings, known

    def _priors(self, taken: _Window, readings: Int64s) -> Priors:
        rate, sigma = np.zeros(len(taken.names)), np.full(len(taken.names), np.inf)
        for node, name in enumerate(taken.names):
            track = self.tracks.get(name)
            if track is not None and track.state != UNSYNCED and node not in taken.jumped:
                ahead_s = abs(int(readings[node]) - track.at_ns) * 1e-9 if readings[node] else 1.0
                q = (self.wander.ppb_per_sqrt_s * track.wander) ** 2
                rate[node], sigma[node] = log_ppb(track.drift_ppb), math.sqrt(track.p_drift + q * ahead_s)
        return Priors(rate, sigma)

    def _part(
        self, taken: _Window, mesh: Mesh, members: NDArray[np.intp], middle_ns: int, window_s: float
    ) -> _Part:
        """Carry the part's clocks to the window and tell whose timeline goes on."""
        names = [taken.names[i] for i in members]
        for name, node in zip(names, members.tolist(), strict=True):
            track = self.tracks.get(name)
            if track is not None and node not in taken.jumped:
                track.advance(int(mesh.reading_ns[node]), self.wander.ppb_per_sqrt_s)
        known = [
            i for i, name in enumerate(names)
            if name in self.tracks
            and self.tracks[name].state != UNSYNCED
            and int(members[i]) not in taken.jumped
        ]  # fmt: skip
        votes = Counter(self.tracks[names[i]].domain for i in known)
        leading = min(votes, key=lambda domain: (-votes[domain], domain)) if votes else ""
        going_on = {i for i in known if self.tracks[names[i]].domain == leading}
        return _Part(names, members, middle_ns, window_s, names[0], leading, going_on)

    def _place(self, taken: _Window, mesh: Mesh, part: _Part) -> None:
        """Find the part's gauge: what to add to theta and rate for fabric time."""
        hosts = _by_host(taken, part.members)
        reference = self._reference_node(part)
        if part.going_on:
            going_on = sorted(part.going_on)
            tracks = [self.tracks[part.names[i]] for i in going_on]
            nodes = part.members[going_on]
            ahead = np.array([t.offset_ns for t in tracks]) - mesh.theta_ns[nodes]
            weight = 1.0 / (np.array([t.p_offset for t in tracks]) + mesh.sigma_ns[nodes] ** 2)
            rate = log_ppb([t.drift_ppb for t in tracks]) - mesh.rate_log_ppb[nodes]
            rate_weight = 1.0 / (np.array([t.p_drift for t in tracks]) + mesh.rate_sigma_ppb[nodes] ** 2)
            part.gauge, part.gauge_rate = _robust_mean(ahead, weight), _robust_mean(rate, rate_weight)
            slew = self._slew.pop(part.leading, None) or _Slew()
            self._slew[part.domain] = slew
            error_ns = None
            if reference is not None:
                error_ns = -(float(mesh.theta_ns[reference]) + part.gauge)
            elif self.parameters.reference == ENSEMBLE and hosts:
                error_ns = _hosts_gauge(mesh, hosts, part.gauge_rate) - part.gauge
            part.slew_change = slew.step(error_ns, part.window_s, self.parameters)
            part.gauge_rate += part.slew_change
            self._slewed[part.leading] = part.slew_change
            return
        if reference is not None:
            part.gauge, part.gauge_rate = (
                -float(mesh.theta_ns[reference]),
                -float(mesh.rate_log_ppb[reference]),
            )
            part.trust = any(self.tracks[name].provisional for name in part.names if name in self.tracks)
        else:
            part.gauge_rate, part.trust = self._hosts_rate(mesh, hosts)
            part.gauge = _hosts_gauge(mesh, hosts, part.gauge_rate)
        self._slew.pop(part.domain, None)
        if part.trust:
            self._join_provisional(taken, mesh, part)

    def _join_provisional(self, taken: _Window, mesh: Mesh, part: _Part) -> None:
        """Move the lines of the window before, which had no gauge of their own yet, onto this window's: what
        they say of the clocks against each other is kept."""
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
        turn = _robust_mean(rates - np.array([t.drift_ppb for t, _ in found]), 1 / rate_variance)
        ahead = mesh.theta_ns[nodes] + part.gauge - np.array([t.offset_ns for t, _ in found])
        shift = _robust_mean(ahead, 1 / variance)
        for track, _ in found:
            track.drift_ppb += turn
            track.offset_ns += shift

    def _follow_reference(self, part: _Part, hosts: Mapping[str, list[tuple[int, Record]]]) -> None:
        """Set the rate of a new part's time by its reference, once its clocks' rates are known against each
        other from two windows: steadier than rates that one window of few samples shows."""
        ahead = []
        if self._reference_node(part) is not None:
            ahead, hosts = [-self.tracks[self.parameters.reference].drift_ppb], {}
        for flushes in hosts.values():
            told = [
                rate - self.tracks[part.names[int(np.searchsorted(part.members, node))]].drift_ppb
                for node, nic in flushes
                if (rate := self._host_rate(nic)) is not None
            ]
            if told:
                ahead.append(float(np.median(told)))
        if ahead:
            turn = float(np.median(ahead))
            for name in part.names:
                self.tracks[name].drift_ppb += turn

    def _host_rate(self, nic: Record) -> float | None:
        """Return the rate of the host's system clock against the NIC's (ppb) since the flush before; None
        without one."""
        last = self._reads.get(nic["nic"])
        if last is None or last[0] != nic["run"] or nic["clock_ns"] <= last[1]:
            return None
        system = (nic["system_ns"] - last[2]) - (nic["clock_ns"] - last[1])
        return float(system / (nic["clock_ns"] - last[1]) * 1e9)

    def _reference_node(self, part: _Part) -> int | None:
        """Return the node of the clock that fabric time follows, where it is chosen and in this part."""
        if self.parameters.reference in part.names:
            return int(part.members[part.names.index(self.parameters.reference)])
        return None

    def _hosts_rate(self, mesh: Mesh, hosts: Mapping[str, list[tuple[int, Record]]]) -> tuple[float, bool]:
        """Return the gauge's rate from the hosts' system clocks, and whether two flushes each were there to
        tell."""
        medians = []
        for flushes in hosts.values():
            rates = []
            for node, nic in flushes:
                rate = self._host_rate(nic)
                if rate is not None:
                    rates.append(float(log_ppb(rate) - mesh.rate_log_ppb[node]))
            if rates:
                medians.append(_median(rates))
        return (float(np.median(medians)), True) if medians else (0.0, False)

    def _take(self, taken: _Window, mesh: Mesh, part: _Part, i: int) -> tuple[float, float] | None:
        """Take the window's word on one clock. Returns its innovation in standard errors, and the filter's
        share in those, where it went on as expected."""
        name, node = part.names[i], int(part.members[i])
        offset = float(mesh.theta_ns[node]) + part.gauge
        rate = float(plain_ppb(mesh.rate_log_ppb[node] + part.gauge_rate))
        track = self.tracks.get(name)
        wander = (self.wander.ppb_per_sqrt_s * (1.0 if track is None else track.wander)) ** 2
        variance = float(mesh.sigma_ns[node]) ** 2 + LINE_OFFSET_SHARE * wander * part.window_s**3
        rate_variance = float(mesh.rate_sigma_ppb[node]) ** 2 + LINE_RATE_SHARE * wander * part.window_s
        hidden = (float(mesh.asymmetry_ns[node]), float(mesh.queue_ns[node]), float(mesh.limit_ns[node]))
        event, event_ns, state, innovation = "NONE", 0.0, SYNCED if part.trust else UNSYNCED, None
        lying = float(mesh.contradiction_ns[node])
        start_anew = track is None
        joins = track is not None and track.provisional and part.trust and node not in taken.jumped
        if joins:
            pass
        elif track is None or (track.state == UNSYNCED and node not in taken.jumped):
            event, start_anew = "NEW", True
            if mesh.stepped[node] and track is not None:
                event, state = "STEP", UNSYNCED
        elif node in taken.jumped:
            start_anew, event, state = True, "STEP", UNSYNCED
        elif i not in part.going_on:
            start_anew = True
            event, event_ns = "MERGED", offset - track.offset_ns
        else:
            track.drift_ppb += part.slew_change
            turn, turn_spread = rate - track.drift_ppb, math.sqrt(track.p_drift + rate_variance)
            track.unrest_ppb *= UNREST_KEPT
            bend = max(abs(turn) - 2 * turn_spread, 0.0)
            variance += (bend * part.window_s * BEND_SHARE) ** 2
            off, spread = offset - track.offset_ns, math.sqrt(track.p_offset + variance)
            barrier = max(GATE_SIGMAS * spread, 2 * (hidden[1] + track.queue_ns), GATE_LEAST_NS)
            if mesh.stepped[node]:  # the window's error is the step's size: hold against what was known
                barrier = min(barrier, max(GATE_SIGMAS * track.sigma_ns, 2 * track.queue_ns, GATE_LEAST_NS))
            turned = abs(turn) > GATE_SIGMAS * turn_spread
            doubtful = DOUBT_WIDTHS * float(mesh.noise_ns[node])
            if barrier < abs(off) <= doubtful and track.doubts < DOUBT_WINDOWS:
                # its stamps' own noise may do that to all of its pairs for a while: wait and see
                track.doubts += 1
                track.queue_ns = max(track.queue_ns, abs(off))
                track.innovation = 0.0
                track.event, track.event_ns = "NONE", 0.0
                track.state, track.domain, track.measured_ns = state, part.domain, part.middle_ns
                track.pairs, track.residual_ns = int(mesh.pairs[node]), float(mesh.residual_ns[node])
                return None
            if turned and abs(off) <= barrier and abs(turn) * part.window_s <= doubtful:
                turned = False
                rate_variance += turn**2
                track.p_drift += turn**2 / 4
            if abs(off) > barrier or turned:
                start_anew = True
                since_s = max((part.middle_ns - track.measured_ns) * 1e-9, 1e-3)
                if abs(off) <= barrier + 1.5 * abs(turn) * since_s and (turned or abs(off) <= 1.5 * barrier):
                    event, event_ns = "RATE_CHANGE", turn
                else:
                    event, event_ns, state = "STEP", -off, UNSYNCED
            else:
                innovation = (off / spread, track.p_offset / (track.p_offset + variance))
        if start_anew or track is None:
            own = 1.0 if track is None else track.wander
            track = self.tracks[name] = ClockTrack(
                int(mesh.reading_ns[node]), offset, rate, variance, 0.0,
                min(rate_variance, FRESH_RATE_PPB**2), state, part.domain, part.middle_ns, wander=own,
            )  # fmt: skip
            if not part.trust:  # fabric time's own rate is not known yet
                track.provisional = True
            if event == "RATE_CHANGE":
                track.unrest_ppb = abs(event_ns)
            track.limits(*hidden, 1.0)
        else:
            track.measure_drift(rate, rate_variance)
            gain = track.p_offset / (track.p_offset + variance)
            track.measure(offset, variance)
            track.limits(*hidden, max(gain, 0.02))
        track.doubts = 0
        track.provisional = track.provisional and not part.trust
        if lying:
            event, event_ns, state, innovation = "FALSETICKER", lying, UNSYNCED, None
            track.p_offset = UNKNOWN_BOUND_NS**2
        if abs(track.drift_ppb) > RATE_LIMIT_PPB:
            state, innovation = UNSYNCED, None
        track.state, track.domain, track.measured_ns = state, part.domain, part.middle_ns
        track.event, track.event_ns = event, event_ns
        track.pairs, track.residual_ns = int(mesh.pairs[node]), float(mesh.residual_ns[node])
        return innovation

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
                    FRESH_RATE_PPB**2, UNSYNCED, name if track is None else track.domain, measured_ns,
                    event="STEP" if node in taken.jumped else "NONE",
                )  # fmt: skip
        keep: dict[str, ClockTrack] = {}
        seen = set(taken.names)
        for name, track in self.tracks.items():
            if not math.isfinite(track.offset_ns + track.drift_ppb + track.p_offset):
                continue
            doubt = 1.0 if name in measured else HELD_DOUBT
            track.advance(track.reading_at(middle_ns), self.wander.ppb_per_sqrt_s * doubt)
            if name not in measured:
                track.drift_ppb += self._slewed.get(track.domain, 0.0)
            if abs(track.at_ns) > MAX_READING_NS:
                continue  # a clock that no record can tell of
            if name not in measured:
                silent_s = (middle_ns - track.measured_ns) * 1e-9
                track.pairs, track.residual_ns, track.innovation = 0, 0.0, 0.0
                if silent_s > self.parameters.forget_s and name not in seen:
                    continue
                if track.state != UNSYNCED:
                    track.let_go()
                    track.state = HOLDOVER if silent_s <= self.parameters.holdover_s else UNSYNCED
            keep[name] = track
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

    def _tie_knots(
        self, before: Mapping[str, tuple[int, float, float, float, str, str]], start_ns: int
    ) -> None:
        """Set each clock's knot at the window's start, seen from the windows on both sides of it.

        The line of the window before, carried on, and this window's, carried back, each weighted by the other
        one's variance there: what a smoother would say that looks one window ahead.
        """
        for name, track in self.tracks.items():
            track.knot_at_ns, track.knot_offset_ns, track.knot_bound_ns = 0, 0.0, 0.0
            old = before.get(name)
            if (
                old is None
                or track.event in ("STEP", "NEW", "MERGED", "FALSETICKER")
                or UNSYNCED in (old[5], track.state)
            ):
                continue
            at_ns, offset_ns, drift_ppb, sigma_ns = old[:4]
            reading = track.reading_at(start_ns)
            ahead = offset_ns + drift_ppb * 1e-9 * (reading - at_ns)
            back = track.fabric_ns(reading)
            a, b = max(sigma_ns, 0.1) ** 2, max(track.sigma_ns, 0.1) ** 2
            weight = a / (a + b)
            track.knot_at_ns, track.knot_offset_ns = reading, ahead + weight * (back - ahead)
            track.knot_bound_ns = min(track.bound_ns + (1 - weight) * abs(back - ahead), UNKNOWN_BOUND_NS)

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
        suspects: dict[str, list[Suspect]] = {}
        for clock, suspect in self._suspects:
            suspects.setdefault(clock, []).append(suspect)
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
                "reference": self.parameters.reference,
                "suspects": [_suspect(each) for name in names for each in suspects.get(name, ())],
            }
            for part, (domain, names) in enumerate(cuts)
        ]


@dataclass(slots=True)
class _Slew:
    """Steers fabric time to its reference: a part for the error, limited, and one that learns the rate that
    the two differ by."""

    proportional: float = 0.0
    rate: float = 0.0
    before_ns: float | None = None
    apart: list[float] = field(default_factory=list)
    """ppb by which the reference ran away, in the last three windows."""
    seen: int = 0

    def step(self, error_ns: float | None, seconds: float, parameters: SolveParameters) -> float:
        """Return the change of fabric time's rate (ppb): what was added before is taken back. `error_ns` is
        the reference minus fabric time; None: there is none now."""
        was = self.proportional + self.rate
        if error_ns is None:
            self.proportional, self.before_ns, self.apart = 0.0, None, []
            return self.proportional + self.rate - was
        limit, tau = parameters.slew_max_ppb, parameters.slew_time_s
        if self.before_ns is not None:
            # the error moves by what the reference does against us and by what we were told to do about it
            self.apart = [*self.apart[-2:], (error_ns - self.before_ns) / seconds + self.proportional]
            self.seen += 1
            if len(self.apart) == 3:  # of three, the middle one: a reference that is set is no rate
                self.rate += max(RATE_LEARN, 1 / self.seen) * sorted(self.apart)[1]
                self.rate = min(max(self.rate, -RATE_MOST_PPB), RATE_MOST_PPB)
        self.before_ns = error_ns
        self.proportional = min(max(error_ns / tau, -limit), limit)
        return self.proportional + self.rate - was


def _usable(pairs: Pairs, taken: _Window) -> Pairs:
    """Return the pairs without those of clocks that jumped in the window."""
    if not taken.jumped:
        return pairs
    bad = np.fromiter(taken.jumped, np.int32)
    return pairs.where(~(np.isin(pairs.prober, bad) | np.isin(pairs.peer, bad)))


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


def _by_host(taken: _Window, members: NDArray[np.intp]) -> dict[str, list[tuple[int, Record]]]:
    """Host to the (node, last flush) of its NICs in this part whose clock did not jump."""
    hosts: dict[str, list[tuple[int, Record]]] = {}
    for node in members.tolist():
        if node not in taken.jumped:
            for nic in taken.nics_of_node.get(node, ()):
                hosts.setdefault(nic["nic"].partition("/")[0], []).append((node, nic))
    return hosts


def _hosts_gauge(mesh: Mesh, hosts: Mapping[str, list[tuple[int, Record]]], gauge_rate: float) -> float:
    """Return the gauge (ns) at which fabric time is the median of the hosts' system clocks."""
    medians = []
    for flushes in hosts.values():
        ahead = []
        for node, nic in flushes:
            since = nic["clock_ns"] - int(mesh.reading_ns[node])
            rate = math.expm1((mesh.rate_log_ppb[node] + gauge_rate) * 1e-9)
            ahead.append(nic["system_ns"] - nic["clock_ns"] - mesh.theta_ns[node] - rate * since)
        medians.append(_median(ahead))
    return float(np.median(medians)) if medians else 0.0


def _median(values: list[float]) -> float:
    return float(np.median(values)) if len(values) > 2 else sum(values) / len(values)


def _robust_mean(values: Float64s, weight: Float64s) -> float:
    """Return the weighted mean of the values near the weighted median: one stepped clock moves nothing."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weight[order])
    middle = values[order[int(np.searchsorted(total, total[-1] / 2))]]
    away = np.abs(values - middle)
    spread = 1.4826 * float(np.sort(away)[(len(away) - 1) // 2])
    near = away <= max(5 * spread, 3.0 / float(np.sqrt(weight.max())))
    return float(np.average(values[near], weights=weight[near]))
