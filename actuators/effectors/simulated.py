"""Moves the flows of a simulated fleet, which its `SimRun` or whatever speaks for it knows.

In: flows by id, entropy values. Out: the flow goes on from another source port, as a queue pair would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["SimulatedEffector"]


class SimulatedFlow(Protocol):
    """What is asked of a flow."""

    @property
    def flow_id(self) -> str:
        """Its id in flow reports."""

    @property
    def port(self) -> int:
        """Its source port."""


class SimulatedFleet(Protocol):
    """What is asked of the fleet."""

    def flows(self) -> Sequence[SimulatedFlow]:
        """Return the open flows."""

    def set_flow_path(self, flow_id: str, port: int) -> None:
        """Let a flow go on from another source port. Raises ValueError."""


class SimulatedEffector:
    """The flows of one host of a simulated fleet."""

    def __init__(self, host: str, fleet: SimulatedFleet) -> None:
        self._prefix, self._fleet = f"{host}/", fleet

    def path_of(self, flow_id: str) -> int | None:
        """Return a flow's entropy value, None where this host has no such open flow."""
        if not flow_id.startswith(self._prefix):
            return None
        return next((flow.port for flow in self._fleet.flows() if flow.flow_id == flow_id), None)

    def move(self, flow_id: str, path: int) -> None:
        """Let a flow go on by another path. Raises ValueError."""
        self._fleet.set_flow_path(flow_id, path)
