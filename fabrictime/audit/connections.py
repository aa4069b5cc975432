"""Derives the state of a host's connections from its results, for the table of nodes. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from schemas.records import AuditFinding, AuditResult, AuditStatus

PORTS, CARRIER = "backend.port-state", "backend.carrier"
GID_INDEX, CONNECTIVITY = "backend.gid-index", "fabric.connectivity"
CHECKS: Final = frozenset({PORTS, CARRIER, GID_INDEX, CONNECTIVITY})
"""Ids of the checks whose results `connections` needs."""
DOWN: Final = frozenset({"NOP", "DOWN", "down", "lowerlayerdown", "notpresent"})
"""States of an RDMA port (IBTA) and of an interface (RFC 2863) that is not initialized."""


@dataclass(frozen=True, slots=True)
class Connections:
    """A host's cells in the table of nodes, such as `7 of 8` ports or a value; empty without a result."""

    initialized: str = ""
    active: str = ""
    gid_index: str = ""
    connectivity: str = ""


TITLES: Final = {
    "initialized": "initialized",
    "active": "active",
    "gid_index": "GID index",
    "connectivity": "connectivity",
}
"""Column titles of the fields of `Connections`."""


def connections(results: Mapping[str, AuditResult]) -> Connections:
    """Return the state of a host's connections. `results` are the host's results by check id.

    Ports are those of RDMA devices. Without RDMA devices, they are the interfaces that the agent measures. A
    port counts as initialized in any state except the states in `DOWN`.
    """
    ports = _devices(results, PORTS) or _devices(results, CARRIER)
    return Connections(
        initialized=_share(sum(_is_initialized(port) for port in ports), len(ports)),
        active=_passed(ports),
        gid_index=_gid_indices(results),
        connectivity=_passed(_devices(results, CONNECTIVITY)),
    )


def _devices(results: Mapping[str, AuditResult], check: str) -> list[AuditFinding]:
    result = results.get(check)
    return [finding for finding in result["findings"] if finding["subject"]] if result else []


def _is_initialized(port: AuditFinding) -> bool:
    state = port["text"].replace(";", ",").partition(",")[0]
    return port["status"] != AuditStatus.UNKNOWN and state not in DOWN


def _passed(findings: list[AuditFinding]) -> str:
    return _share(sum(finding["status"] == AuditStatus.PASSED for finding in findings), len(findings))


def _share(count: int, total: int) -> str:
    return f"{count} of {total}" if total else ""


def _gid_indices(results: Mapping[str, AuditResult]) -> str:
    """Return the GID index of the ports as text; if ports differ, all indices, the most frequent first."""
    result = results.get(GID_INDEX)
    counts = Counter(fact["text"] for fact in result["facts"]) if result else Counter[str]()
    return ", ".join(text for text, _ in counts.most_common())
