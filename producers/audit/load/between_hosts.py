"""Active checks between hosts: load with a partner, to several receivers, and around a ring.

They run only in rounds of `fabrictime audit traffic`, which sets the order of the hosts in each round.
Clients report figures; streams/audit/traffic/pairs.py compares them across pairs and repetitions.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Final

from producers.audit.backend.rdma_ports import DEVICES
from producers.audit.base import Checks, Fact, Finding, checked
from producers.audit.host.base import TRAFFIC, Host, Missing
from producers.audit.load.traffic import Flow, Plan, percentile
from producers.audit.load.traffic_plan import FAN_CHECK, PAIR_CHECK, PLANS, RING_CHECK
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus
from schemas.units import number_text

PORT_ERRORS: Final = (
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
)
"""Counters of an RDMA port that load must not raise. Discards are not among them: load may congest a port."""
NIC_ERRORS: Final = (
    "rx_crc_errors_phy",
    "rx_symbol_err_phy",
    "rx_pcs_symbol_err_phy",
    "link_down_events_phy",
    "tx_errors_phy",
)
"""Counters of ethtool that load must not raise. Bits that FEC corrects occur on any fast link: no errors."""
INTERFACE_ERRORS: Final = ("rx_errors", "tx_errors", "rx_crc_errors", "rx_frame_errors", "tx_carrier_errors")
KILL_S: Final = 2.0
"""The process is killed so long after its own limit."""
Counters = dict[tuple[str, str], int]
"""Values by (device or port, counter)."""
CHECKS: Final = Checks(limit_s=90.0, active=True)


def error_counters(host: Host, devices: frozenset[str]) -> Counters:
    """Return error counters: of all RDMA ports, and of kernel and driver for the interfaces `devices`."""
    counters: Counters = {}
    for interface in host.interfaces():
        if interface.name in devices:
            counters |= {
                (interface.name, name): interface.counters[name]
                for name in INTERFACE_ERRORS
                if name in interface.counters
            }
            with contextlib.suppress(Missing):
                statistics = host.ethtool_statistics(interface.name)
                counters |= {
                    (interface.name, name): statistics[name] for name in NIC_ERRORS if name in statistics
                }
    with contextlib.suppress(Missing):
        for device in host.names(DEVICES):
            for port in host.names(f"{DEVICES}/{device}/ports"):
                folder = f"{DEVICES}/{device}/ports/{port}/counters"
                for name in PORT_ERRORS:
                    with contextlib.suppress(Missing):
                        counters[f"{device}/{port}", name] = int(host.read(f"{folder}/{name}"))
    return counters


def _subject(flow: Flow) -> str:
    return f"to {flow.host}" if flow.is_client else f"from {flow.host}"


def _devices(plan: Plan) -> frozenset[str]:
    """Return this host's interfaces that the flows of a plan use."""
    ends = [flow.flow.split(">")[0 if flow.is_client else 1] for flow in plan.flows]
    return frozenset(end.partition("/")[2] for end in ends)


def _run(host: Host, check_id: str) -> Iterator[tuple[Flow, Mapping[str, float]] | Finding]:
    """Run this host's part of the round; yield each flow with its figures, or a finding with its error."""
    plan = PLANS[check_id](host.traffic_round())
    report = json.loads(host.load(plan.limit_s + KILL_S, TRAFFIC, plan.text()))
    for flow in plan.flows:
        if flow.flow in report["flows"]:
            yield flow, report["flows"][flow.flow]
        elif flow.flow in report["errors"]:
            yield Finding(_subject(flow), AuditStatus.UNKNOWN, str(report["errors"][flow.flow]))


def _grown(before: Counters, after: Counters) -> Iterator[Finding]:
    grown = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    for (device, name), growth in grown.items():
        yield checked(False, f"{name} grew by {growth:,} under load, expected 0", device)
    if not grown:
        yield checked(True, f"{len(after)} error counters unchanged under load")


def _fact(flow: Flow, name: str, value: float, text: str) -> Finding:
    return Finding(flow.flow, AuditStatus.PASSED, text, Fact(name, f"{value:g}", value))


def _rates(flow: Flow, figures: Mapping[str, float]) -> Iterator[Finding]:
    """Yield the findings of a flow. Only its client states figures, as the server's would repeat them."""
    if not flow.is_client:
        yield checked(True, f"received {figures['received_bytes'] / 1e6:,.1f} MB", _subject(flow))
        return
    send, receive = figures["send_bps"] / 1e9, figures["receive_bps"] / 1e9
    idle, loaded = figures["idle_p99_us"], figures["loaded_p99_us"]
    yield _fact(flow, "send_gbps", send, f"{number_text(send)} Gbit/s sent")
    yield _fact(flow, "receive_gbps", receive, f"{number_text(receive)} Gbit/s received")
    yield _fact(flow, "idle_p99_us", idle, f"p99 of idle round trips {idle:,.0f} us")
    yield _fact(flow, "loaded_p99_us", loaded, f"p99 of round trips under load {loaded:,.0f} us")
    burned = min(figures["sent_bytes"], figures["received_bytes"]) / 1e6
    yield _fact(flow, "burned_mb", burned, f"{burned:,.1f} MB in each direction")


@CHECKS.error(PAIR_CHECK, "Load with a partner raises no error counter", 40, 42, 50, 51)
@remedy.replace("Clean or replace cable and transceiver of the port; then run the round again")
def _pair(host: Host) -> Iterator[Finding]:
    """Load the links to this round's partner in both directions; find error counters that grow."""
    devices = _devices(PLANS[PAIR_CHECK](host.traffic_round()))
    before = error_counters(host, devices)
    for outcome in _run(host, PAIR_CHECK):
        if isinstance(outcome, Finding):
            yield outcome
        else:
            yield from _rates(*outcome)
    yield from _grown(before, error_counters(host, devices))


@CHECKS.error(FAN_CHECK, "Receivers of one sender get the same rate, without errors", 40)
@remedy.monitor(
    "Compare the receiver's port with the others: `fabrictime audit traffic --hosts` with its neighbours",
)
def _fan(host: Host) -> Iterator[Finding]:
    """Load the links to several receivers at once; find receivers that get less than the others."""
    rates: dict[str, float] = {}
    for outcome in _run(host, FAN_CHECK):
        if isinstance(outcome, Finding):
            yield outcome
            continue
        yield from _rates(*outcome)
        flow, figures = outcome
        if flow.is_client:
            rates[flow.flow] = figures["send_bps"]
    limits = host.traffic_round().settings
    if len(rates) > 1:
        median = percentile(list(rates.values()), 0.5)
        for name, bps in rates.items():
            share = bps / median if median else 0.0
            text = f"{share:.0%} of the receivers' median rate, expected at least {1 - limits.max_slower:.0%}"
            yield checked(share >= 1 - limits.max_slower, text, name)


@CHECKS.warning(RING_CHECK, "A hop in a ring of sends and receives is short", 52)
@remedy.monitor(
    "The evaluation of the run names the straggler; check its load and the link between the two hosts",
)
def _ring(host: Host) -> Iterator[Finding]:
    """Pass blocks around the ring; find a host whose hop to the next host is slow."""
    for outcome in _run(host, RING_CHECK):
        if isinstance(outcome, Finding):
            yield outcome
            continue
        flow, figures = outcome
        hop, limit = figures["hop_p90_ms"], host.traffic_round().settings.straggler_ms
        text = f"nine of ten hops take at most {hop:.2f} ms, expected below {limit:g}"
        finding = checked(hop < limit, text, flow.flow)
        yield Finding(finding.subject, finding.status, finding.text, Fact("hop_p90_ms", f"{hop:g}", hop))


_LINK: Final = "Clean or replace cable and transceiver of the port; then run the round again"
