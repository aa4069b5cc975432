"""All audit checks, by id."""

from __future__ import annotations

from typing import Final

from producers.audit.backend import (
    counters,
    ethernet,
    marking,
    modules,
    qos,
    rdma,
    rdma_devices,
    source_routes,
    ufm,
)
from producers.audit.base import Check
from producers.audit.frontend import addressing, bonds, reach, services, sockets
from producers.audit.gpu import amd, nvidia, stalled
from producers.audit.load import between_hosts, one_host, torch_checks
from producers.audit.logs import kernel_log, nic_log, unknown_lines
from producers.audit.node import affinity, bmc, hardware, pcie, state
from producers.audit.software import environment, kernel, units, versions
from producers.audit.storage import drives, file_systems, provisioning

CHECKS: Final[dict[str, Check]] = {
    check.check_id: check
    for group in (
        *(kernel, versions, units, environment),
        *(state, hardware, bmc),
        *(nvidia, amd, stalled),
        *(file_systems, drives),
        *(pcie, affinity),
        *(addressing, bonds, services, sockets, reach),
        *(rdma, rdma_devices, counters, nic_log, ufm, ethernet, modules, qos, marking, source_routes),
        *(kernel_log, unknown_lines),
        *(one_host, torch_checks, provisioning, between_hosts),
    )
    for check in group.CHECKS
}
"""All checks by id, in the order of the report."""
