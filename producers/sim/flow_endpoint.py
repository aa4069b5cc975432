"""The simulated fleet's connection to the flow actuator.

It announces flows and simulated time to the actuator, and moves and paces the flows at its command. It runs
in the simulation's own thread, between two ticks, and never blocks.
"""

from __future__ import annotations

import select
from pathlib import Path
from typing import Final

from fabrictime_client.control import Command, ControlConnection
from producers.sim.simulation import Simulation
from producers.sim.workload import SimFlow
from schemas.ids import flow_parts

_VERBS: Final = ("MOVE", "PACE")
_TIME_NS: Final = 50_000_000
"""Simulated time between two reports of the time. The actuator's decisions live for a second."""


class SimFlowEndpoint:
    """Registers all flows of a simulated fleet with the actuator that listens at `path`."""

    def __init__(self, path: Path, run: Simulation) -> None:
        self._run = run
        self._epoll = select.epoll()
        self._control = ControlConnection(str(path), self._epoll)
        self._time_ns = 0
        """Simulated time in the last report."""
        run.flow_news()
        for flow in run.flows():
            self._announce(flow)

    def serve(self) -> None:
        """Report the time if due, announce changed flows and execute received commands."""
        if self._run.now_ns - self._time_ns >= _TIME_NS:
            self._time_ns = self._run.now_ns
            self._control.publish("time", f"TIME {self._time_ns}")
        for flow in self._run.flow_news():
            self._announce(flow)
        for command in self._control.commands():
            self._execute(command)

    def wait(self, max_s: float) -> None:
        """Wait for a command for at most `max_s` seconds, and execute it."""
        if self._epoll.poll(max_s):
            self.serve()

    def close(self) -> None:
        """Close the connection to the flow actuator."""
        self._control.close()
        self._epoll.close()

    def _announce(self, flow: SimFlow) -> None:
        host, _, key = flow_parts(flow.flow_id)
        if flow.opened:
            self._control.announce(key, flow.port, _VERBS, host)
        else:
            self._control.retire(key, host)

    def _execute(self, command: Command) -> None:
        try:
            flow = self._run.flow_of(command.host or "", command.key)
            if command.verb == "MOVE":
                self._run.set_flow_path(flow.flow_id, command.value)
            else:
                self._run.set_flow_rate(flow.flow_id, command.value or None)
        except ValueError as error:
            self._control.failed(command.number, str(error))
        else:
            self._control.done(command.number, command.value, "SIMULATED")
