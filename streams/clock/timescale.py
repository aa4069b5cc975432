"""Converts the relative clocks of a connected part of the mesh to fabric time.

`Timescale` sets a part's gauge: it continues the timeline of the part's known clocks, slewed towards the
reference, or starts a new timeline at the reference. The reference is the median of hosts' system clocks, or
one clock.
"""

from __future__ import annotations

from typing import Final, Protocol

import numpy as np

from schemas.records import NicWindow
from streams.clock.filter import ClockTrack
from streams.clock.gauge import (
    FlushesByHost,
    Slew,
    SlewParameters,
    gauge_base_ns,
    hosts_gauge_ns,
    median,
    middle_of,
    robust_mean,
)
from streams.clock.mesh import Mesh, log_ppb, plain_ppb
from streams.clock.window import Part, WindowInput, flushes_by_host

Tracks = dict[str, ClockTrack]

ENSEMBLE: Final = "ensemble"
STEP_ABOVE_NS: Final = 1e9
STEP_AFTER_S: Final = 300.0
"""Fabric time is stepped to its reference after it was off by more than `STEP_ABOVE_NS` for this long."""


class TimescaleParameters(SlewParameters, Protocol):
    """Settings of a timescale: the reference clock and the limits of slewing."""

    @property
    def reference(self) -> str:
        """Name of the reference clock, or `ENSEMBLE` for the median of the hosts' system clocks."""


class Timescale:
    """Determines fabric time in each connected part, window by window."""

    def __init__(self, parameters: TimescaleParameters) -> None:
        self._parameters = parameters
        self._last_flush: dict[str, tuple[int, int, int]] = {}
        """(run, clock_ns, system_ns) of each NIC's last flush."""
        self._slew: dict[str, Slew] = {}
        self._far_s: dict[str, float] = {}
        """Time for which the fabric time of each domain has been far from its reference, s."""
        self.slewed_ppb: dict[str, float] = {}
        """Change of fabric time's rate in this window, ppb, by domain of the previous window."""

    def keep_flushes(self, inputs: WindowInput) -> None:
        """Store each NIC's last flush; the next window computes the host clocks' rates from the flushes."""
        for nic in inputs.nics:
            self._last_flush[nic["nic"]] = (nic["run"], nic["clock_ns"], nic["system_ns"])

    def set_gauge(self, tracks: Tracks, inputs: WindowInput, mesh: Mesh, part: Part) -> None:
        """Set the part's gauge, added to relative offsets (ns) and rates (ppb) to get fabric time."""
        hosts = flushes_by_host(inputs, part.members)
        reference = self._reference_node(part)
        if part.continuing:
            error_ns = self._continue_gauge(tracks, mesh, part, hosts, reference)
            if not self._is_lost(part, error_ns):
                return
            part.continuing = set()
            part.slew_change_ppb = 0.0
        if reference is not None:
            part.gauge_base_ns = -int(mesh.theta_ns[reference])
            part.gauge_ns = -float(mesh.theta_rest_ns[reference])
            part.gauge_rate = -float(mesh.rate_log_ppb[reference])
            part.trusted = any(tracks[name].provisional for name in part.names if name in tracks)
        else:
            part.gauge_rate, part.trusted = self._hosts_rate(mesh, hosts)
            part.gauge_base_ns = gauge_base_ns(mesh, hosts, part.members.tolist())
            part.gauge_ns = hosts_gauge_ns(mesh, hosts, part.gauge_rate, part.gauge_base_ns)
        self._slew.pop(part.domain, None)
        if part.trusted:
            self._join_provisional(tracks, inputs, mesh, part)

    def _continue_gauge(
        self, tracks_by_name: Tracks, mesh: Mesh, part: Part, hosts: FlushesByHost, reference: int | None
    ) -> float | None:
        """Continue the timeline of the part's known clocks, slewed towards the reference.

        Return the reference minus fabric time, ns, or None if there is no reference now.
        """
        continuing = sorted(part.continuing)
        tracks = [tracks_by_name[part.names[i]] for i in continuing]
        nodes = part.members[continuing]
        gauges_ns = [
            t.base_ns - theta for t, theta in zip(tracks, mesh.theta_ns[nodes].tolist(), strict=True)
        ]
        part.gauge_base_ns = base_ns = middle_of(gauges_ns)
        rest = np.array([t.offset_ns for t in tracks]) - mesh.theta_rest_ns[nodes]
        ahead = np.array([float(gauge_ns - base_ns) for gauge_ns in gauges_ns]) + rest
        weight = 1.0 / (np.array([t.p_offset for t in tracks]) + mesh.sigma_ns[nodes] ** 2)
        rate = log_ppb([t.drift_ppb for t in tracks]) - mesh.rate_log_ppb[nodes]
        rate_weight = 1.0 / (np.array([t.p_drift for t in tracks]) + mesh.rate_sigma_ppb[nodes] ** 2)
        part.gauge_ns, part.gauge_rate = robust_mean(ahead, weight), robust_mean(rate, rate_weight)
        slew = self._slew.pop(part.leading, None) or Slew()
        self._slew[part.domain] = slew
        error_ns = None
        if reference is not None:
            error_ns = -(
                int(mesh.theta_ns[reference]) + base_ns + float(mesh.theta_rest_ns[reference]) + part.gauge_ns
            )
        elif self._parameters.reference == ENSEMBLE and hosts:
            error_ns = hosts_gauge_ns(mesh, hosts, part.gauge_rate, base_ns) - part.gauge_ns
        part.slew_change_ppb = slew.step(error_ns, part.window_s, self._parameters)
        part.gauge_rate += part.slew_change_ppb
        self.slewed_ppb[part.leading] = part.slew_change_ppb
        return error_ns

    def _is_lost(self, part: Part, error_ns: float | None) -> bool:
        """Return whether fabric time has been far from its reference for too long to be corrected by slewing.

        All hosts may have started with a wrong clock that was set later. NTP steps its clock after the same
        time: the stepout threshold of RFC 5905.
        """
        far_s = self._far_s.pop(part.leading, 0.0) + part.window_s
        if error_ns is None or abs(error_ns) <= STEP_ABOVE_NS:
            return False
        if far_s >= STEP_AFTER_S:
            return True
        self._far_s[part.domain] = far_s
        return False

    def _join_provisional(self, tracks: Tracks, inputs: WindowInput, mesh: Mesh, part: Part) -> None:
        """Move the provisional tracks of the previous window, which had no gauge, to this window's gauge.

        Their offsets relative to each other are kept.
        """
        provisional = [
            (tracks[name], node)
            for name, node in zip(part.names, part.members.tolist(), strict=True)
            if name in tracks and tracks[name].provisional and node not in inputs.jumped
        ]
        if not provisional:
            return
        nodes = [node for _, node in provisional]
        variance = np.array([t.p_offset for t, _ in provisional]) + mesh.sigma_ns[nodes] ** 2
        rate_variance = np.array([t.p_drift for t, _ in provisional]) + mesh.rate_sigma_ppb[nodes] ** 2
        rates = plain_ppb(mesh.rate_log_ppb[nodes] + part.gauge_rate)
        rate_shift = robust_mean(rates - np.array([t.drift_ppb for t, _ in provisional]), 1 / rate_variance)
        moves_ns = [
            int(mesh.theta_ns[node]) + part.gauge_base_ns - track.base_ns for track, node in provisional
        ]
        base_ns = middle_of(moves_ns)
        rest = mesh.theta_rest_ns[nodes] + part.gauge_ns - np.array([t.offset_ns for t, _ in provisional])
        shift = robust_mean(np.array([float(move_ns - base_ns) for move_ns in moves_ns]) + rest, 1 / variance)
        for track, _ in provisional:
            track.drift_ppb += rate_shift
            track.base_ns += base_ns
            track.offset_ns += shift

    def follow_reference(self, tracks: Tracks, part: Part, hosts: FlushesByHost) -> None:
        """Set the rate of a new part's fabric time to that of its reference.

        By now, the clocks' relative rates come from two windows, which is more accurate than from one.
        """
        ahead = []
        if self._reference_node(part) is not None:
            ahead, hosts = [-tracks[self._parameters.reference].drift_ppb], {}
        for flushes in hosts.values():
            rates = [
                rate - tracks[part.names[int(np.searchsorted(part.members, node))]].drift_ppb
                for node, nic in flushes
                if (rate := self._host_rate(nic)) is not None
            ]
            if rates:
                ahead.append(float(np.median(rates)))
        if ahead:
            rate_shift = float(np.median(ahead))
            for name in part.names:
                tracks[name].drift_ppb += rate_shift

    def _host_rate(self, nic: NicWindow) -> float | None:
        """Return the rate of the host's system clock against the NIC's clock since the last flush, ppb.

        Return None if the last flush is unknown or of another run.
        """
        last = self._last_flush.get(nic["nic"])
        if last is None or last[0] != nic["run"] or nic["clock_ns"] <= last[1]:
            return None
        system = (nic["system_ns"] - last[2]) - (nic["clock_ns"] - last[1])
        return float(system / (nic["clock_ns"] - last[1]) * 1e9)

    def _reference_node(self, part: Part) -> int | None:
        """Return the node of the configured reference clock; None if it is not in this part."""
        if self._parameters.reference in part.names:
            return int(part.members[part.names.index(self._parameters.reference)])
        return None

    def _hosts_rate(self, mesh: Mesh, hosts: FlushesByHost) -> tuple[float, bool]:
        """Return fabric time's rate by the hosts' system clocks, ppb, and whether any NIC measured it."""
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
