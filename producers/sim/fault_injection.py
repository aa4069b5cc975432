"""Injects faults into the simulated fleet and clears them, and sets the state of links and NICs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from producers.sim.fault_grammar import FaultSpec, parse_fault
from producers.sim.faults import Target, link_states, resolve
from producers.sim.workload import SimFlow
from schemas.records import TrueFault

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation


@dataclass(slots=True)
class SimFault:
    """An injected fault. Times are fabric time, ns since the Unix epoch."""

    number: int
    spec: FaultSpec
    target: Target
    begin_ns: int
    end_ns: int | None = None
    """Time at which it ended; None while it is in force or waits for `begin_ns`."""
    on: bool = False
    """True while it takes effect; it alternates for a flap."""
    flows: list[SimFlow] = field(default_factory=list)
    downs: list[tuple[int, int]] = field(default_factory=list)
    """Outages of a flap: (time of going down, time of coming back; 0 if it has not)."""

    def is_named(self, text: str) -> bool:
        """Return whether a text is the fault's number or line. Raises ValueError if it is neither."""
        if text.isdecimal():
            return text == str(self.number)
        return str(self.spec) == str(parse_fault(text))

    def record(self, link_ids: Sequence[str]) -> TrueFault:
        """Return the fault as a record. `link_ids` holds the link names by index."""
        return {
            "fault": self.number,
            "line": str(self.spec),
            "links": [link_ids[link] for link in self.target.links],
            "begin_ns": self.begin_ns,
            "end_ns": self.end_ns,
        }


class FaultInjector:
    """Injects and clears the faults of one simulation."""

    def __init__(self, sim: Simulation) -> None:
        self._sim = sim
        self.faults: list[SimFault] = []

    def fault(self, line: str | FaultSpec) -> SimFault:
        """Inject a fault now, or after the delay in its line; return it. Raises ValueError for a bad line."""
        spec = parse_fault(line) if isinstance(line, str) else line
        target = resolve(spec, self._sim.fleet, self._sim.jobs.nics())
        begin = self._sim.kernel.now_ns + spec.after_s * 1e9
        fault = SimFault(len(self.faults) + 1, spec, target, self._sim.start_ns + round(begin))
        self.faults.append(fault)
        if spec.after_s:
            self._sim.schedule_ns(begin, lambda: self._begin(fault))
        else:
            self._begin(fault)
        return fault

    def clear(self, which: int | str | None = None) -> list[SimFault]:
        """Clear the faults with a number or line, or all if None; return them. Raises ValueError if none."""
        standing = [fault for fault in self.faults if fault.end_ns is None]
        cleared = standing if which is None else [fault for fault in standing if fault.is_named(str(which))]
        if not cleared and which is not None:
            here = ", ".join(str(fault.number) for fault in standing) or "none is"
            raise ValueError(f"fault {which!r}: expected one in force ({here})")
        for fault in cleared:
            self._end(fault)
        return cleared

    def _begin(self, fault: SimFault) -> None:
        if fault.end_ns is not None:
            return
        spec = fault.spec
        fault.begin_ns = self._sim.system_ns()
        if spec.kind == "incast":
            self._incast(fault)
        else:
            fault.on = True
            if spec.kind == "flap":
                fault.downs.append((self._sim.system_ns(), 0))
                self._sim.at(spec.every_s / 2, lambda: self._flap_up(fault))
            self.apply()
        if spec.for_s is not None:
            self._sim.at(spec.for_s, lambda: self._end(fault))

    def _end(self, fault: SimFault) -> None:
        if fault.end_ns is not None:
            return
        fault.end_ns = self._sim.system_ns()
        for flow in fault.flows:
            if flow.opened:
                self._sim.book.close(flow)
                self._sim.note_flow(flow)
        if fault.on:
            fault.on = False
            if fault.downs and fault.downs[-1][1] == 0:
                fault.downs[-1] = (fault.downs[-1][0], self._sim.system_ns())
            self.apply()

    def _flap_up(self, fault: SimFault) -> None:
        if fault.end_ns is not None or not fault.on:
            return
        fault.on = False
        fault.downs[-1] = (fault.downs[-1][0], self._sim.system_ns())
        if len(fault.downs) >= fault.spec.times:
            fault.end_ns = self._sim.system_ns()
        else:
            self._sim.at(fault.spec.every_s / 2, lambda: self._flap_down(fault))
        self.apply()

    def _flap_down(self, fault: SimFault) -> None:
        if fault.end_ns is not None:
            return
        fault.on = True
        fault.downs.append((self._sim.system_ns(), 0))
        self._sim.at(fault.spec.every_s / 2, lambda: self._flap_up(fault))
        self.apply()

    def _incast(self, fault: SimFault) -> None:
        receiver = fault.target.nics[0]
        own = self._sim.fleet.nic_host == self._sim.fleet.nic_host[receiver]
        others = np.flatnonzero(
            ~own if (~own).sum() >= fault.spec.times else np.arange(self._sim.fleet.nics) != receiver
        )
        rng = np.random.Generator(np.random.SFC64([self._sim.settings.seed, fault.number, fault.spec.seed]))
        for source in rng.choice(others, fault.spec.times, replace=False).tolist():
            flow = self._sim.book.open(
                source, receiver, int(rng.integers(49_152, 65_536)), living=self._sim.living()
            )
            fault.flows.append(flow)
            self._sim.note_flow(flow)

    def _set_link(self, link: int) -> None:
        s = self._sim.states
        self._sim.kernel.set_link(
            link,
            up=bool(s.up[link]),
            loss=float(s.loss[link]),
            share=float(s.share[link]),
        )

    def apply(self) -> None:
        """Apply the faults in force to jobs, links and NICs. Packets avoid visibly dead links."""
        in_force = [(fault.spec, fault.target) for fault in self.faults if fault.on]
        self._sim.jobs.apply(in_force)
        before = self._sim.states
        now = self._sim.states = link_states(self._sim.fleet, in_force)
        differs = (before.up != now.up) | (before.loss != now.loss) | (before.share != now.share)
        for link in np.flatnonzero(differs).tolist():
            self._set_link(link)
        for nic in before.dead.keys() | now.dead.keys():
            if before.dead.get(nic) != now.dead.get(nic):
                self._sim.kernel.set_nic(nic, dead=nic in now.dead, silent=now.dead.get(nic, False))
        moved = np.flatnonzero(before.carrier != now.carrier)
        if not len(moved):
            return
        for nic in (moved[(moved < 2 * self._sim.fleet.nics) & (moved % 2 == 0)] // 2).tolist():
            self._sim.publish_carrier(nic, bool(now.carrier[2 * nic]))
        self._sim.probes.reroute()
        self._sim.at(self._sim.settings.retrace_s, self._sim.retrace)
        for flow in self._sim.book.lead_all(self._sim.flows(), self._sim.living()):
            self._sim.note_flow(flow)
