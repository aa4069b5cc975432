"""Publishes the flow reports of the simulated hosts: changes at once, all flows each second."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from producers.sim.workload import SimFlow
from schemas.topics import FLOWS, MAX_ELEMENTS

if TYPE_CHECKING:
    from producers.sim.simulation import Simulation

_SECOND_NS: Final = 1_000_000_000
_FLOW_TICKS: Final = 10
"""Ticks between two readings of a host's flows: 100 ms."""


class SimFlowReporter:
    """Reports the flows of one simulation."""

    def __init__(self, sim: Simulation, tick_ns: int) -> None:
        self._sim, self._tick_ns = sim, tick_ns
        self._last_reading: tuple[NDArray[np.float64], float] = (np.zeros((0, 7)), 0.0)

    def publish(self) -> None:
        """Publish changed flows at once, and all flows of each host once a second, spread over the ticks."""
        changed, self._sim.changed_flows = self._sim.changed_flows, defaultdict(dict)
        if FLOWS.name not in self._sim.topic_names:
            return
        hosts, per_second = self._sim.fleet.shape.hosts, _SECOND_NS // self._tick_ns
        due = (
            range((self._sim.ticks - 1) % per_second, hosts, per_second) if self._sim.ticks > 1 else range(0)
        )
        is_reading = self._sim.ticks % _FLOW_TICKS == 0
        if not changed and not due and not is_reading:
            return
        sums, _ = self._sim.kernel.flow_sums()
        now_ns, system_ns = self._sim.kernel.now_ns, self._sim.system_ns()
        if is_reading:
            self._find_changed_flows(sums, now_ns, system_ns, changed)

        for host, flows in changed.items():
            self._report(host, list(flows.values()), False, now_ns, system_ns, sums)
        for host in due:
            self._report(host, list(self._sim.book.of_host[host].values()), True, now_ns, system_ns, sums)

    def _find_changed_flows(
        self,
        sums: NDArray[np.float64],
        now_ns: float,
        system_ns: int,
        changed: dict[int, dict[str, SimFlow]],
    ) -> None:
        """Find the flows that changed since their last report, as a host's reporter does ten times a second.

        The interval before the change gets a report of its own, so that no average mixes both rates.
        """
        before, then_ns = self._last_reading
        self._last_reading = (sums.copy(), now_ns)
        earlier: dict[int, list[SimFlow]] = defaultdict(list)
        for flow in self._sim.book.moved(before, sums, max(now_ns - then_ns, 1.0)):
            host = int(self._sim.fleet.nic_host[flow.source])
            changed[host][flow.flow_id] = flow
            if flow.reported_ns < then_ns:
                earlier[host].append(flow)
        for host, flows in earlier.items():
            self._report(host, flows, False, then_ns, system_ns, before)

    def _report(
        self,
        host: int,
        flows: Sequence[SimFlow],
        is_complete: bool,
        now_ns: float,
        system_ns: int,
        sums: NDArray[np.float64],
    ) -> None:
        """Publish the report of a host's flows, unless the host is dead."""
        sim = self._sim
        if sim.states.dead.get(host * sim.fleet.shape.nics_per_host):
            return
        for begin in range(0, max(1, len(flows)), MAX_ELEMENTS):
            report = sim.book.report(
                host,
                flows[begin : begin + MAX_ELEMENTS],
                is_complete=is_complete and len(flows) <= MAX_ELEMENTS,
                now_ns=now_ns,
                system_ns=system_ns,
                shard=sim.settings.shard,
                wait_ns=sim.truth.wait_ns,
                sums=sums,
            )
            sim.publish(FLOWS, sim.fleet.node_ids[host], system_ns, report)
