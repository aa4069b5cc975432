"""Lease table: rates in force, and leases that are over."""

from __future__ import annotations

from actuators.flows.lease_table import LeaseTable
from actuators.flows.state import MAX_LEASE_NS, FlowState, Lease


def flow(**expires_ns: int) -> FlowState:
    found = FlowState("h1/b/sock:1")
    for rate_bps, (kind, at_ns) in enumerate(expires_ns.items(), 100):
        found.set_lease(kind, Lease(rate_bps, at_ns, 0, {}))
    return found


def is_open(key: str) -> bool:
    return key != "closed"


def test_a_flow_is_listed_while_it_holds_leases() -> None:
    table, one = LeaseTable(), flow(PACE=50, SLICE=60)
    table.update("a", one)
    assert table.rates() == {"a": 100}, "the lower of two rates"
    one.set_lease("PACE", None)
    assert table.rates() == {"a": 101}
    one.set_lease("SLICE", None)
    table.update("a", one)
    assert table.flows() == []
    table.remove("a")


def test_one_lease_per_flow_is_overdue_at_a_time() -> None:
    table = LeaseTable()
    table.update("a", flow(PACE=50, SLICE=50))
    table.update("b", flow(PACE=51))
    assert [(key, kind) for key, _, kind in table.overdue(49, is_open)] == []
    assert [(key, kind) for key, _, kind in table.overdue(50, is_open)] == [("a", "PACE")]
    assert table.due_ns(is_open) == 50


def test_a_busy_flow_and_a_flow_without_an_endpoint_keep_their_leases() -> None:
    table, busy = LeaseTable(), flow(PACE=1)
    busy.busy = True
    table.update("a", busy)
    table.update("closed", flow(PACE=1))
    assert not list(table.overdue(99, is_open))
    assert table.due_ns(is_open) is None
    busy.busy = False
    assert [key for key, _, _ in table.overdue(99, is_open)] == ["a"]


def test_a_lease_far_in_the_future_is_over_after_a_clock_step() -> None:
    lease = Lease(1, 10 * MAX_LEASE_NS, 0, {})
    assert lease.is_over(0)
    assert not lease.is_over(9 * MAX_LEASE_NS)
