"""Flow table: flows of hosts, invalid records and silent hosts."""

from __future__ import annotations

from typing import Any

import pytest

from schemas import codec
from streams.runtime.flow_table import FlowTable
from streams.runtime.route_table import RouteTable

S = 1_000_000_000
T0 = 1_800_000_000_000_000_000
NICS = {f"h{n}/eth1" for n in range(1, 9)}
LAST = "leaf2:swp1>h5:eth1"


def flow(name: int, source: int, to: int, rate: float, **more: Any) -> dict[str, Any]:
    return {
        "flow_id": f"h{source}/boot/sock:{name}", "state": "OPEN", "nic": f"h{source}/eth1",
        "peer": f"h{to}/eth1", "source_address": "", "peer_address": "", "source_port": 1, "peer_port": 2,
        "protocol": "UDP", "bytes_total": 0, "interval_ns": 0, "bytes": 0, "rate_bps": rate * 1e6,
        "links": [LAST], **more,
    }  # fmt: skip


def report(*flows: dict[str, Any], **more: Any) -> bytes:
    """Return the encoded report of h1."""
    record = {"host": "h1", "boot": "boot", "report": 1, "shard": "fabric", "system_ns": 1, "whole": True}
    return codec.encode("FlowReports", {**record, "flows": list(flows), **more})


@pytest.fixture
def table() -> FlowTable:
    return FlowTable(RouteTable(), NICS.__contains__)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"flow_id": "h2/boot/sock:1"}, "reported by h1, which is not its host"),
        ({"nic": "h2/eth1"}, "sent by h2/eth1, expected a NIC of h1"),
        ({"peer": "nobody/eth0"}, "not in the inventory"),
        ({"links": ["leaf1"]}, "links 'leaf1'"),
    ],
)  # fmt: skip
def test_an_impossible_flow_is_left_out_and_logged(table, change, reason, caplog):
    live = table.of("fabric")
    table.take(b"h1", report(flow(7, 1, 5, 50)), None, T0)
    bad = flow(1, 1, 5, 900) | change
    value = report(bad, flow(2, 1, 5, 900), flow(2, 1, 5, 1), report=2, system_ns=-1, whole=False)
    table.take(b"h1", value, None, T0)
    live.advance(T0)
    assert [each.flow.flow_id[-1] for each in live.flows_on(LAST)] == ["2", "7"]
    assert table.refused == 2, "that one, and the id that came twice"
    assert reason in caplog.text


@pytest.mark.parametrize("change", [{"rate_bps": -5.0}, {"rate_bps": 1e300}, {"busy_share": 1.5}])
def test_a_flow_outside_the_limits_of_the_schema_does_not_cost_the_others(table, change):
    live = table.of("fabric")
    table.take(b"h1", report(flow(1, 1, 5, 900) | change, flow(2, 1, 5, 900)), None, T0)
    live.advance(T0)
    assert [each.flow.flow_id[-1] for each in live.flows_on(LAST)] == ["2"]


def test_a_report_under_another_key_or_of_no_host_is_refused(table):
    with pytest.raises(codec.BadRecord, match="key 'h2', expected 'h1'"):
        table.take(b"h2", report())
    with pytest.raises(codec.BadRecord, match=r"FlowReports\.host"):
        table.take(b"", report(host=""))


def test_flows_show_as_of_a_moment_and_those_of_silent_hosts_go(table):
    live = table.of("fabric")
    table.take(b"h1", report(flow(1, 1, 5, 50)), None, T0)
    live.advance(T0)
    table.take(b"h1", report(report=3), None, T0 + S)
    live.advance(T0 + S - 1)
    assert len(live.flows_on(LAST)) == 1, "not before its time"
    live.advance(T0 + S)
    assert live.flows_on(LAST) == table.of("fabric").flows_on(LAST) == []
    table.take(b"h1", report(flow(1, 1, 5, 50), report=4), None, T0 + S)
    live.advance(T0 + 7 * S)
    assert (live.count(), live.hosts()) == (0, set())


def test_reports_after_a_step_back_of_log_time_replace_those_before(table: FlowTable) -> None:
    flows = table.of("fabric")
    table.take(b"h1", report(flow(1, 1, 5, 10)), append_ns=T0)
    table.take(b"h1", report(flow(1, 1, 5, 20)), append_ns=T0 + 120 * S)
    table.take(b"h1", report(flow(1, 1, 5, 30)), append_ns=T0 + 2 * S)
    flows.advance(T0 + 2 * S)
    assert [each.rate_bps for each in flows.open_flows()] == [30e6]
    flows.advance(T0 + 3 * S)
    assert [each.rate_bps for each in flows.open_flows()] == [30e6], (
        "the report of the future is not applied later"
    )
    assert flows.hosts() == {"h1"}
