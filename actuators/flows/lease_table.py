"""The flows of one host that hold leases, and the order in which the leases end."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from actuators.flows.state import FlowState
from schemas.records import FlowAction

IsOpen = Callable[[str], bool]


class LeaseTable:
    """Flows with leases, by key. While a flow is busy or not open, its leases do not end."""

    def __init__(self) -> None:
        self._flows: dict[str, FlowState] = {}

    def update(self, key: str, flow: FlowState) -> None:
        """Add the flow if it holds leases, else remove it."""
        if flow.leases:
            self._flows[key] = flow
        else:
            self.remove(key)

    def remove(self, key: str) -> None:
        """Remove a flow from the table, if it is present."""
        self._flows.pop(key, None)

    def flows(self) -> list[tuple[str, FlowState]]:
        """Return a copy of all entries, as (flow key, flow)."""
        return list(self._flows.items())

    def rates(self) -> dict[str, int]:
        """Return the rate limits in force, bit/s, by flow key."""
        return {key: rate for key, flow in self._flows.items() if (rate := flow.rate_bps) is not None}

    def overdue(self, now_ns: int, is_open: IsOpen) -> Iterator[tuple[str, FlowState, FlowAction]]:
        """Yield flow key, flow and kind of the leases that have expired, at most one per flow.

        An endpoint that hung up may return with its rate limit still in force, so its leases stay.
        """
        for key, flow in self.flows():
            if flow.busy or not is_open(key):
                continue
            kind = next((kind for kind, lease in flow.leases.items() if lease.is_over(now_ns)), None)
            if kind is not None:
                yield key, flow, kind

    def due_ns(self, is_open: IsOpen) -> int | None:
        """Return the fabric time at which the next lease ends, ns; None if there is no lease."""
        return min(
            (
                lease.expires_at_ns
                for key, flow in self._flows.items()
                if not flow.busy and is_open(key)
                for lease in flow.leases.values()
            ),
            default=None,
        )
