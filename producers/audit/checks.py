"""All audit checks, by id."""

from __future__ import annotations

from typing import Final

from producers.audit import (
    active,
    addressing,
    affinity,
    amd,
    bonds,
    counters,
    drives,
    environment,
    ethernet,
    gpu,
    hardware,
    kernel_log,
    load,
    marking,
    nic_log,
    node,
    pcie,
    provisioning,
    qos,
    rdma,
    rdma_devices,
    reach,
    services,
    sockets,
    software,
    source_routes,
    stalled,
    storage,
    torch_checks,
    ufm,
    units,
    unknown_lines,
    versions,
)
from producers.audit.base import Check

CHECKS: Final[dict[str, Check]] = {
    check.check_id: check
    for group in (
        *(software, versions, units, environment),
        *(node, hardware),
        *(gpu, amd, stalled),
        *(storage, drives),
        *(pcie, affinity),
        *(addressing, bonds, services, sockets, reach),
        *(rdma, rdma_devices, counters, nic_log, ufm, ethernet, qos, marking, source_routes),
        *(kernel_log, unknown_lines),
        *(active, torch_checks, provisioning, load),
    )
    for check in group.CHECKS
}
"""All checks by id, in the order of the report."""
