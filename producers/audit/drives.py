"""Storage checks of drives and shared file systems: SMART, NVMe wear, ZFS pools, mounts that answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from producers.audit.base import Check, Fact, Finding, checked, failed, passed, stated
from producers.audit.host import Host, Missing, Unreadable
from producers.audit.storage import mounts
from schemas.records import AuditAction, AuditCategory, AuditSeverity, AuditStatus

__all__ = ["CHECKS", "smart"]

SHARED: Final = frozenset({"nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "wekafs", "cifs", "9p"})
"""Types of file systems that a server of the network holds."""
MAX_WORN_PERCENT: Final = 90
DRIVE_PREFIXES: Final = ("nvme", "sd")
BROKEN: Final = ("no end within", "Stale file handle", "Input/output error", "not connected")
"""Texts of errors that show a server that does not answer, not a missing right."""
TRIAL_FILE: Final = ".fabrictime-audit"
TRIAL_S: Final = 20.0


def smart(text: str) -> dict[str, Any]:
    """Return what `smartctl --json` prints. Raises ValueError for anything else."""
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("smartctl prints no table")
    return found


def _drives(host: Host) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each drive and its SMART data."""
    names = [name for name in host.names("/sys/block") if name.startswith(DRIVE_PREFIXES)]
    if not names:
        raise Missing("no drive")
    for name in names:
        yield name, smart(host.run("smartctl", "--json", "--all", f"/dev/{name}"))


def _of_each(find: Callable[[dict[str, Any]], Iterator[Finding]]) -> Callable[[Host], Iterator[Finding]]:
    def find_all(host: Host) -> Iterator[Finding]:
        for name, data in _drives(host):
            yield from (replace(each, subject=name) for each in find(data))

    return find_all


def _health(data: dict[str, Any]) -> Iterator[Finding]:
    status = data.get("smart_status")
    if not isinstance(status, dict) or not isinstance(status.get("passed"), bool):
        yield Finding("", AuditStatus.SKIPPED, "the drive has no SMART status")
        return
    yield checked(
        status["passed"], "SMART status passed" if status["passed"] else "the drive predicts its failure"
    )


def _wear(data: dict[str, Any]) -> Iterator[Finding]:
    found = data.get("nvme_smart_health_information_log")
    if not isinstance(found, dict):
        yield Finding("", AuditStatus.SKIPPED, "no NVMe drive")
        return
    warning, media, worn = (
        int(found[name]) for name in ("critical_warning", "media_errors", "percentage_used")
    )
    spare, minimum = int(found["available_spare"]), int(found["available_spare_threshold"])
    yield replace(
        checked(
            not warning and not media and worn < MAX_WORN_PERCENT and spare > minimum,
            f"warning {warning:#x}, {media:,} media errors, {worn}% worn, {spare}% spare, limit {minimum}%",
        ),
        fact=Fact("worn_percent", str(worn), float(worn)),
    )


def _count(host: Host) -> Iterator[Finding]:
    """Check that each NVMe controller has a drive; the number of drives is compared across the fleet."""
    names = host.names("/sys/class/nvme")
    for name in names:
        found = [each for each in host.names("/sys/block") if each.startswith(f"{name}n")]
        yield checked(bool(found), f"drives {', '.join(found) or 'none'}", name)
    yield stated("nvme_controllers", len(names))


def _pools(host: Host) -> Iterator[Finding]:
    base = "/proc/spl/kstat/zfs"
    states = {}
    for name in host.names(base):
        try:
            states[name] = host.read(f"{base}/{name}/state")
        except Missing:  # a file of statistics
            continue
    if not states:
        raise Missing("no ZFS pool")
    for name, state in states.items():
        yield checked(state == "ONLINE", f"pool is {state}, expected ONLINE", name)


def _shared(host: Host) -> list[str]:
    found = [point for _, point, kind, _ in mounts(host.read("/proc/mounts")) if kind in SHARED]
    if not found:
        raise Missing("no shared file system is mounted")
    return found


def _answer(point: str, ask: Callable[[], object]) -> Finding:
    """Return whether a server answers: time-outs and stale handles fail, other errors are UNKNOWN."""
    try:
        ask()
    except Unreadable as error:
        if any(text in str(error) for text in BROKEN):
            return failed(f"does not answer: {error}", point)
        return Finding(point, AuditStatus.UNKNOWN, str(error))
    return passed("answers", point)


def _mounts_answer(host: Host) -> Iterator[Finding]:
    for point in _shared(host):
        yield _answer(point, lambda point=point: host.run("stat", "--file-system", point))  # type: ignore[misc]


def _mounts_write(host: Host) -> Iterator[Finding]:
    for point in _shared(host):
        name = f"{point}/{TRIAL_FILE}-{host.read('/proc/sys/kernel/hostname')}"

        def write(name: str = name) -> None:
            host.load(TRIAL_S, "dd", "if=/dev/zero", f"of={name}", "bs=1M", "count=16", "conv=fsync")
            host.load(TRIAL_S, "dd", f"if={name}", "of=/dev/null", "bs=1M")
            host.load(TRIAL_S, "rm", "--force", name)

        yield _answer(point, write)


def _declared(
    name: str,
    title: str,
    find: Callable[[Host], Iterator[Finding]],
    action: AuditAction,
    remedy: str,
    row: int,
    severity: AuditSeverity = AuditSeverity.ERROR,
    limit_s: float = 60.0,
) -> Check:
    return Check(
        f"storage.{name}",
        AuditCategory.STORAGE,
        title,
        find,
        severity,
        action,
        remedy,
        rows=(row,),
        limit_s=limit_s,
    )


CHECKS: Final = (
    _declared(
        "smart",
        "Drives do not predict their failure",
        _of_each(_health),
        AuditAction.REPLACE,
        "Replace the drive",
        94,
    ),
    _declared(
        "nvme-wear",
        "NVMe drives are not worn",
        _of_each(_wear),
        AuditAction.REPLACE,
        "Replace the drive that `smartctl --all` describes",
        94,
    ),
    _declared(
        "nvme-drives",
        "NVMe controllers have their drives",
        _count,
        AuditAction.REPLACE,
        "nvme list; reset the controller, or replace the drive",
        94,
    ),
    _declared(
        "zfs", "ZFS pools are online", _pools, AuditAction.REPLACE, "`zpool status` names the drive", 96
    ),
    _declared(
        "shared-mounts",
        "Shared file systems answer",
        _mounts_answer,
        AuditAction.MONITOR,
        "Check the server and the network to it; remount",
        96,
    ),
    replace(
        _declared(
            "shared-writes",
            "Shared file systems are written and read",
            _mounts_write,
            AuditAction.MONITOR,
            "Check the server, its free space and the export's rights",
            96,
            limit_s=120.0,
        ),
        active=True,
    ),
)
