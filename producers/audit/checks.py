"""All audit checks, by id."""

from __future__ import annotations

from typing import Final

from producers.audit import amd, backend, frontend, gpu, kernel_log, node, pcie, rdma, software, storage
from producers.audit.base import Check

__all__ = ["CHECKS"]

CHECKS: Final[dict[str, Check]] = {
    check.check_id: check
    for group in (software, node, gpu, amd, storage, pcie, frontend, rdma, backend, kernel_log)
    for check in group.CHECKS
}
"""In the order of the report."""
