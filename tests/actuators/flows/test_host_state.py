"""State of a host: saved with each change, and the same after a restart."""

from __future__ import annotations

from typing import Any

import pytest

from actuators.flows.host_state import HostState


class Store:
    """A journal in a dict."""

    def __init__(self) -> None:
        self.saved: dict[str, Any] = {}

    def save(self, name: str, state: Any) -> bool:
        self.saved[name] = state
        return True


@pytest.mark.parametrize(
    ("flow_id", "local"),
    [("h1/b/sock:1", True), ("h1/old/sock:1", False), ("h2/b/sock:1", False), ("h1", False), ("", False)],
)
def test_only_flows_of_this_host_and_boot_are_local(flow_id: str, local: bool) -> None:
    assert HostState("h1", "b", Store()).is_local(flow_id) is local


def test_without_a_boot_any_flow_of_the_host_is_local() -> None:
    assert HostState("h1", None, Store()).is_local("h1/old/sock:1")


def test_an_order_to_revert_counts_once() -> None:
    store = Store()
    state = HostState("h1", "b", store)
    assert state.order_revert(5)
    assert not state.order_revert(5)
    assert not state.order_revert(4)
    assert store.saved["host h1"]["reverted_ns"] == 5


def test_after_a_restart_the_state_and_the_numbers_of_repairs_continue() -> None:
    store = Store()
    state = HostState("h1", "b", store)
    state.see_epoch("s0", 7)
    state.order_revert(5)
    first = state.next_repair("h1/b/sock:1", 1_000_000)
    again = HostState("h1", "b", Store())
    again.restore(store.saved["host h1"])
    assert (again.fence.epochs, again.reverted_ns) == ({"s0": 7}, 5)
    second = again.next_repair("h1/b/sock:1", 1_000_000)
    assert (first["seq"], second["seq"]) == (1, 2)
    assert first["decision_id"] != second["decision_id"]


@pytest.mark.parametrize("state", [{}, {"epochs": 1, "reverted_ns": 0, "repairs": 0}])
def test_a_saved_state_that_cannot_be_used_is_an_error(state: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        HostState("h1", "b", Store()).restore(state)
