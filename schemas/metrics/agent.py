"""Metrics of a host's agent: its probes, clock page, flows, actions and audit."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from schemas import records
from schemas.metrics.base import Detail, Merge
from schemas.metrics.common import PROBERS, counter, gauge, symbols
from schemas.records import ActionOutcome


class ActionResult(StrEnum):
    """Groups of `ActionOutcome`, by which a host's agent counts actions."""

    APPLIED = "applied"
    OBSERVED = "observed"
    REFUSED = "refused"
    FAILED = "failed"
    REPAIRED = "repaired"


RESULTS: Final[Mapping[str, ActionResult]] = {
    ActionOutcome.APPLIED: ActionResult.APPLIED,
    ActionOutcome.ENDED: ActionResult.APPLIED,
    ActionOutcome.REVERTED: ActionResult.APPLIED,
    ActionOutcome.OBSERVED: ActionResult.OBSERVED,
    ActionOutcome.FAILED: ActionResult.FAILED,
    ActionOutcome.LOCAL_REPAIR: ActionResult.REPAIRED,
}
"""Maps outcome to its group; all others are REFUSED."""


PROBES: Final = (
    gauge("nics", "NICs that are probed from here.", PROBERS, "nics"),
    gauge("probe_peers", "Peers that these NICs probe, summed over the NICs.", PROBERS, "peers"),
    counter("probes_sent_total", "Probe requests sent.", PROBERS, "probes"),
    counter("probes_lost_total", "Probe requests without a reply in time.", PROBERS, "probes"),
    counter("probes_answered_total", "Requests of peers that were answered.", PROBERS, "probes"),
    counter(
        "probe_packets_refused_total", "Packets with a wrong tag, time, form or receiver.", PROBERS, "packets"
    ),
    gauge(
        "probe_rate_ratio",
        "Lowest share of the configured probe rate that a NIC sends.",
        PROBERS,
        "ratio",
        Merge.MIN,
    ),
    counter(
        "nic_probes_sent_total",
        "Probe requests that a NIC sent.",
        PROBERS,
        "probes",
        detail=Detail.PER_NIC,
        nic=(),
    ),
    counter(
        "nic_probes_lost_total",
        "Probe requests of a NIC without a reply in time.",
        PROBERS,
        "probes",
        detail=Detail.PER_NIC,
        nic=(),
    ),
    gauge("nic_probe_peers", "Peers that a NIC probes.", PROBERS, "peers", detail=Detail.PER_NIC, nic=()),
)
HOSTS: Final = (
    gauge(
        "clock_pages",
        "Clock pages of hosts, by state.",
        ("actuator",),
        "pages",
        state=symbols(records.ClockSync),
    ),
    gauge(
        "clock_page_bound_seconds",
        "Largest error bound of a usable clock page.",
        ("actuator",),
        "seconds",
        Merge.MAX,
    ),
    counter("clock_page_steps_total", "Steps of fabric time that clock pages made.", ("actuator",), "steps"),
    gauge("flows", "Flows that the endpoints of programs report to the actuator.", ("act",), "flows"),
    gauge("actions_in_force", "Actions on flows that are in force.", ("act",), "actions"),
    counter(
        "actions_total", "Actions on flows, by result.", ("act",), "actions", result=symbols(ActionResult)
    ),
    gauge(
        "audit_findings",
        "Checks of hosts that failed when they last ran, by severity.",
        ("auditor",),
        "findings",
        severity=symbols(records.AuditSeverity),
    ),
)
