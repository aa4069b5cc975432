"""The published health checks that the audit should cover, and the checks of the audit that cover each.

The row numbers are those of the design's list of open auditors (gpud, NVSentinel, Azure, Oracle and others).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from streams.audit.fabric.checks import RULES
from streams.audit.traffic.collectives import RULES as RULES_OF_COLLECTIVES
from streams.audit.traffic.pairs import TRAFFIC_RULES

ROWS: Final[dict[int, str]] = dict(
    enumerate(
        (
            # RDMA, NICs and links
            "Port count and rate of the machine type",
            "Port state",
            "Vanished device",
            "Cards of one host are alike",
            "Link down for minutes",
            "Link flaps",
            "link_downed",
            "symbol_error",
            "link_error_recovery",
            "port_rcv_errors",
            "Fatal link counters",
            "local_ack_timeout_err",
            "Discards",
            "roce_slow_restart",
            "carrier_changes",
            "Repeated degradation",
            "Bit error rate and FEC",
            "Speed, width, firmware and lanes as listed",
            "Interface flags and MTU",
            "GID index and table",
            "PKey",
            "Character devices",
            "802.1X",
            "RTTCC",
            "NIC's PCI settings",
            "HCA self test",
            "Fatal messages of NICs",
            "Time-outs, transceivers and power of NICs",
            "PCIe width of NICs",
            "Planes of multi-plane NICs",
            "Addresses of RDMA interfaces",
            "EFA",
            "GPUDirect module",
            "Memory lock limit",
            "RDMA write bandwidth, host memory",
            "RDMA write bandwidth, GPU memory",
            "RDMA write latency",
            "RDMA loopback on one host",
            "Reach of all NICs by all NICs",
            "Traffic patterns over the fabric",
            "Latency under congestion",
            "Every link under load, counters before and after",
            "Events of the fabric manager",
            "Topology known before use",
            "LLDP daemon",
            "Unhealthy ports of switches",
            # Collectives and training
            "All-reduce in one host",
            "All-reduce over NICs, peer to peer off",
            "All-reduce over hosts",
            "Pairs of hosts, with swapped partners",
            "Bisection of racks",
            "Straggler in a pipeline",
            "Small training run",
            "Overlap of computation and communication",
            "Stalled collective",
            "Crashes of the collective library",
            "Versions and environment of the collective library",
            "Gate before a job starts",
            # GPUs and host bus
            "GPU count",
            "XID",
            "SXid",
            "GPU fell off the bus",
            "GPU memory ECC",
            "Row remap",
            "NVLink",
            "Fabric manager and IMEX",
            "Throttling",
            "Temperature and power",
            "GPU clocks",
            "Persistence, MIG, firmware and driver",
            "GPU idle before a job",
            "PCIe link and errors",
            "Host to device bandwidth",
            "DCGM diagnostics",
            "GPU load and memory test",
            "Silent data corruption",
            "Pairing of GPUs and NICs",
            "PCIe ACS",
            "Hang of the GPU's library",
            "AMD GPUs",
            "Denied software and missing libraries",
            "GPUs in containers",
            # Host, kernel, storage, services, cluster
            "Sockets and cores",
            "Governor and frequency",
            "Memory bandwidth and computation of processors",
            "Memory, DIMMs, swap, OOM",
            "Clock source",
            "Clock synchronised",
            "Lockups and blocked tasks",
            "Processes and file handles",
            "Reboots and uptime",
            "Modules, packages and images",
            "Unknown lines of the kernel log",
            "Space, RAID, SMART and NVMe",
            "Disk bandwidth",
            "Shared file systems",
            "FUSE",
            "IPMI",
            "Reach over the front-end network",
            "Routes, rules, sysctls and rejects",
            "Services",
            "State in the scheduler",
            "Access and certificates",
            "Users, processes and load",
            "Maintenance by the provider",
            "Pending reboot",
            "Provisioning of storage",
            "Environment variables that break jobs",
        ),
        start=1,
    )
)
"""Subject of each published check, in our words, by its number in the design's list."""


def covered(checks: Iterable[tuple[str, tuple[int, ...]]]) -> Mapping[int, list[str]]:
    """Return the ids of the checks that cover each row. `checks`: (id, rows). Raises KeyError for a wrong
    row.
    """
    checks_of_row: dict[int, list[str]] = {row: [] for row in ROWS}
    for check_id, rows in checks:
        for row in rows:
            checks_of_row[row].append(check_id)
    return checks_of_row


COMPUTED: Final[Mapping[str, tuple[int, ...]]] = {
    **{rule.check: rule.rows for rule in (*RULES, *TRAFFIC_RULES, *RULES_OF_COLLECTIVES)},
    "fleet.": (4, 18, 57, 92),
    "sku.": (1, 59),
    "audit gate": (58,),
}
"""Rows that the gate and the computed checks cover, by check id or a prefix of it."""
