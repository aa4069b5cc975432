"""Storage checks of drives and shared file systems: SMART, NVMe wear, ZFS pools, mounts that answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from producers.audit.base import Checks, Fact, Finding, checked, failed, passed, stated
from producers.audit.host.base import Host, Missing, Unreadable
from producers.audit.reasons import mismatch
from producers.audit.storage.file_systems import mounts
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

SHARED: Final = frozenset({"nfs", "nfs4", "lustre", "ceph", "gpfs", "beegfs", "wekafs", "cifs", "9p"})
"""Types of file systems that a server on the network provides."""
MAX_WORN_PERCENT: Final = 90
_DRIVE: Final = re.compile(r"nvme\d+n\d+|sd[a-z]+")
"""Names of whole drives. One path of a multipath drive, such as nvme0c1n1, has no device file."""
_NAMESPACE: Final = re.compile(r"nvme\d+(?:c\d+)?n\d+")
BROKEN: Final = ("no end within", "Stale file handle", "Input/output error", "not connected")
"""Error texts that show that the server does not answer; other errors may be a missing permission."""
TRIAL_FILE: Final = ".fabrictime-audit"
TRIAL_S: Final = 20.0
CHECKS: Final = Checks(limit_s=60.0)


def smart(text: str) -> dict[str, Any]:
    """Return the report in the output of `smartctl --json`. Raises ValueError if it is no JSON object."""
    report = json.loads(text)
    if not isinstance(report, dict):
        raise ValueError("smartctl prints no table")
    return report


def _drives(host: Host) -> list[str]:
    """Return the drives with a medium; an empty virtual drive of the BMC has size 0 and is left out."""
    names = [name for name in host.names("/sys/block") if _DRIVE.fullmatch(name)]
    drives = [name for name in names if host.read(f"/sys/block/{name}/size") != "0"]
    if not drives:
        raise Missing("no drive")
    return drives


def _of_each(find: Callable[[dict[str, Any]], Iterator[Finding]]) -> Callable[[Host], Iterator[Finding]]:
    """Return a check's function that runs `find` on each drive's SMART data, also after an unreadable one."""

    def find_all(host: Host) -> Iterator[Finding]:
        for name in _drives(host):
            try:
                data = smart(host.run("smartctl", "--json", "--all", f"/dev/{name}"))
                yield from (replace(finding, subject=name) for finding in find(data))
            except Missing:
                raise
            except (Unreadable, KeyError, TypeError, ValueError) as error:
                yield Finding(name, AuditStatus.UNKNOWN, mismatch(error))

    return find_all


@CHECKS.error("storage.smart", "Drives do not predict their failure", 94)
@remedy.replace("Replace the drive")
@_of_each
def _health(data: dict[str, Any]) -> Iterator[Finding]:
    status = data.get("smart_status")
    if not isinstance(status, dict) or not isinstance(status.get("passed"), bool):
        yield Finding("", AuditStatus.SKIPPED, "the drive has no SMART status")
        return
    yield checked(
        status["passed"], "SMART status passed" if status["passed"] else "the drive predicts its failure"
    )


@CHECKS.error("storage.nvme-wear", "NVMe drives are not worn", 94)
@remedy.replace("Replace the drive that `smartctl --all` describes")
@_of_each
def _wear(data: dict[str, Any]) -> Iterator[Finding]:
    health_log = data.get("nvme_smart_health_information_log")
    if not isinstance(health_log, dict):
        yield Finding("", AuditStatus.SKIPPED, "no NVMe drive")
        return
    warning, media, worn = (
        int(health_log[name]) for name in ("critical_warning", "media_errors", "percentage_used")
    )
    spare, minimum = int(health_log["available_spare"]), int(health_log["available_spare_threshold"])
    yield replace(
        checked(
            not warning and not media and worn < MAX_WORN_PERCENT and spare >= minimum,
            f"warning {warning:#x}, {media:,} media errors, {worn}% worn, {spare}% spare, limit {minimum}%",
        ),
        fact=Fact("worn_percent", str(worn), float(worn)),
    )


@CHECKS.error("storage.nvme-drives", "NVMe controllers have their drives", 94)
@remedy.replace("nvme list; reset the controller, or replace the drive")
def _count(host: Host) -> Iterator[Finding]:
    """Check that each NVMe controller has a drive; the number of drives is compared across the fleet."""
    names = host.names("/sys/class/nvme")
    for name in names:
        namespaces = [entry for entry in host.names(f"/sys/class/nvme/{name}") if _NAMESPACE.fullmatch(entry)]
        yield checked(bool(namespaces), f"drives {', '.join(namespaces) or 'none'}", name)
    yield stated("nvme_controllers", len(names))


@CHECKS.error("storage.zfs", "ZFS pools are online", 96)
@remedy.replace("`zpool status` names the drive")
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


def _shared(host: Host) -> dict[str, set[str]]:
    """Return the options of each shared file system, by mount point. Raises Missing if none is mounted."""
    options_by_point = {
        point: options for _, point, kind, options in mounts(host.read("/proc/mounts")) if kind in SHARED
    }
    if not options_by_point:
        raise Missing("no shared file system is mounted")
    return options_by_point


def _answer(point: str, ask: Callable[[], object]) -> Finding:
    """Return whether a mount answers `ask`. A time-out or stale handle is FAILED, other errors UNKNOWN."""
    try:
        ask()
    except Unreadable as error:
        if any(text in str(error) for text in BROKEN):
            return failed(f"does not answer: {error}", point)
        return Finding(point, AuditStatus.UNKNOWN, str(error))
    return passed("answers", point)


def _stat(host: Host, point: str) -> None:
    """Ask a mount for its size. Raises Unreadable if it does not answer."""
    answer = host.run("stat", "--file-system", point)
    if "File:" not in answer:
        raise Unreadable(answer.strip() or "stat prints nothing")


@CHECKS.error("storage.shared-mounts", "Shared file systems answer", 96)
@remedy.monitor("Check the server and the network to it; remount")
def _mounts_answer(host: Host) -> Iterator[Finding]:
    for point in _shared(host):
        yield _answer(point, partial(_stat, host, point))


@CHECKS.error(
    "storage.shared-writes", "Shared file systems are written and read", 96, limit_s=120.0, active=True
)
@remedy.monitor("Check the server, its free space and the export's rights")
def _mounts_write(host: Host) -> Iterator[Finding]:
    for point, options in _shared(host).items():
        if "ro" in options:
            yield Finding(point, AuditStatus.SKIPPED, "mounted read-only")
            continue
        name = f"{point}/{TRIAL_FILE}-{host.read('/proc/sys/kernel/hostname')}"
        yield _answer(point, partial(_write, host, name))


def _write(host: Host, name: str) -> None:
    """Write a file, read it and remove it.

    Users may write to the folder. `excl` creates a new file, so that a link which a user made there cannot
    redirect the write to another file.
    """
    host.load(TRIAL_S, "rm", "--force", name)
    try:
        host.load(TRIAL_S, "dd", "if=/dev/zero", f"of={name}", "bs=1M", "count=16", "conv=fsync,excl")
        host.load(TRIAL_S, "dd", f"if={name}", "of=/dev/null", "bs=1M", "iflag=nofollow")
    finally:
        host.load(TRIAL_S, "rm", "--force", name)
