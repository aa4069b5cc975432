"""All audit checks, by id."""

from __future__ import annotations

from typing import Final

from producers.audit import (
    active,
    affinity,
    amd,
    backend,
    drives,
    environment,
    frontend,
    gpu,
    hardware,
    kernel_log,
    load,
    node,
    pcie,
    provisioning,
    rdma,
    software,
    stalled,
    storage,
    torch_checks,
    units,
    unknown_lines,
    versions,
)
from producers.audit.base import Check

__all__ = ["CHECKS"]

CHECKS: Final[dict[str, Check]] = {
    check.check_id: check
    for group in (
        *(software, versions, units, environment),
        *(node, hardware),
        *(gpu, amd, stalled),
        *(storage, drives),
        *(pcie, affinity),
        *(frontend, rdma, backend),
        *(kernel_log, unknown_lines),
        *(active, torch_checks, provisioning, load),
    )
    for check in group.CHECKS
}
"""In the order of the report."""
