"""State of a host's actuator that concerns all its flows, as saved in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actuators.flows.fence import Fence
from actuators.flows.state import ReportedFields
from actuators.journal import StateStore
from schemas.records import FlowAction


class HostState:
    """The fence, the newest order to revert and the number of local repairs of one host."""

    def __init__(self, host: str, boot: str | None, store: StateStore) -> None:
        self.name = f"host {host}"
        """Name in the journal."""
        self.fence = Fence()
        self.reverted_ns = 0
        """Actions from before this fabric time are to be undone."""
        self._host, self._boot, self._store = host, boot, store
        self._repairs = 0

    def is_local(self, flow_id: str) -> bool:
        """Return True if a flow belongs to this host and to the present boot."""
        host, _, rest = flow_id.partition("/")
        return host == self._host and (self._boot is None or rest.partition("/")[0] == self._boot)

    def see_epoch(self, shard: str, epoch: int) -> None:
        """Note the epoch of a shard's policy owner."""
        if self.fence.advance(shard, epoch):
            self._save()

    def order_revert(self, before_ns: int) -> bool:
        """Note an order to undo actions from before `before_ns`; return False if such an order is known."""
        if before_ns <= self.reverted_ns:
            return False
        self.reverted_ns = before_ns
        self._save()
        return True

    def next_repair(self, flow_id: str, now_ns: int) -> ReportedFields:
        """Return the report fields of the next local repair, which has no decision to copy them from."""
        self._repairs += 1
        self._save()
        return {
            "decision_id": f"{self._host}/local-repair/{now_ns // 1_000_000}/{self._repairs}",
            "shard": "",
            "epoch": 0,
            "seq": self._repairs,
            "flow_id": flow_id,
            "action": FlowAction.REROUTE,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state. Raises KeyError, TypeError or ValueError if it cannot be used."""
        self.fence.epochs, self.reverted_ns = dict(state["epochs"]), int(state["reverted_ns"])
        self._repairs = int(state["repairs"])

    def _save(self) -> None:
        state = {"epochs": self.fence.epochs, "reverted_ns": self.reverted_ns, "repairs": self._repairs}
        self._store.save(self.name, state)
