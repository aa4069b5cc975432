"""Storage checks: file systems, RAID, NVMe."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, checked, failed, passed, short_lines
from producers.audit.host.base import Host, Missing, Unreadable
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "vfat", "f2fs"})
WRITABLE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"})
MIN_FREE: Final = 0.1
MIN_FREE_INODES: Final = 0.05
_MEMBERS: Final = re.compile(r"\[([U_]+)\]")
_CONTAINER: Final = re.compile(r"\bsuper external:(?!/)")
"""Metadata that a firmware defines: imsm, ddf (md(4)). Arrays in a container name it: `external:/md127/0`."""
_PROGRESS: Final = re.compile(r"\b((?:resync|recovery|reshape|check|repair) *= *\S+%|resync=\w+)")
_FELL_BACK: Final = re.compile(
    r"EXT4-fs \(([^)]+)\): Remounting filesystem read-only"
    r"|BTRFS[^(]*\(device ([^):]+)[^)]*\): forced readonly"
    r"|F2FS-fs \(([^)]+)\): .*(?:switch to|remount).* ?read-?only",
    re.IGNORECASE,
)
"""Lines of the kernel log for a file system that became read-only, with its device (fs/ext4, btrfs, f2fs)."""
_LOCAL_SOURCES: Final = ("/dev/", "UUID=", "LABEL=", "PARTUUID=", "PARTLABEL=")
"""Beginnings of a local disk in fstab. With nofail it may be absent, like a cloud's temporary disk."""
_FALLEN_OPTIONS: Final = frozenset({"emergency_ro", "shutdown"})
"""Mount options that ext4 shows after such an error (Documentation/filesystems/ext4)."""
CHECKS: Final = Checks()


def mounts(text: str) -> list[tuple[str, str, str, set[str]]]:
    """Return (device, mount point, type, options) of each line of /proc/mounts, without octal escapes."""
    entries = []
    for line in text.splitlines():
        device, point, kind, options, *_ = line.split(" ")
        entries.append((device, _unescaped(point), kind, set(options.split(","))))
    return entries


def _unescaped(text: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, char)
    return text


class Array(NamedTuple):
    """A software RAID array. `members` has U or _ (missing) for each, as `UU_`; empty without redundancy."""

    state: str
    members: str = ""
    is_container: bool = False
    """Whether it only holds the metadata of other arrays; a container is never active."""
    progress: str = ""
    """Action of the kernel on the array, such as `recovery = 12.6%`; empty for nothing."""


def arrays(mdstat: str) -> dict[str, Array]:
    """Return the arrays by name in /proc/mdstat: a line `md0 : active raid1 sda[0]`, then one of blocks."""
    array_by_name, name = {}, ""
    for line in mdstat.splitlines():
        if line.startswith("md"):
            name, _, rest = line.partition(" : ")
            array_by_name[name] = Array(rest.split()[0])
        elif name and "blocks" in line:
            members = _MEMBERS.search(line)
            array_by_name[name] = array_by_name[name]._replace(
                members=members[1] if members else "", is_container=_CONTAINER.search(line) is not None
            )
        elif name and (progress := _PROGRESS.search(line)):
            array_by_name[name] = array_by_name[name]._replace(progress=progress[1])
    return array_by_name


@CHECKS.error("storage.space", "Local file systems have room", 94)
@remedy.monitor("Free space; /var/log and /tmp are usual causes")
def _space(host: Host) -> Iterator[Finding]:
    checked_devices = set()
    for device, point, kind, _ in mounts(host.read("/proc/mounts")):
        if kind not in LOCAL or device in checked_devices:
            continue
        checked_devices.add(device)
        try:
            size, free, inodes, free_inodes = host.space(point)
        except Unreadable as error:
            yield Finding(point, AuditStatus.UNKNOWN, str(error))
            continue
        if not size:
            continue
        yield checked(free >= MIN_FREE * size, f"{free / size:.0%} of {size / 1e9:,.0f} GB free", point)
        if inodes:
            share = free_inodes / inodes
            yield checked(share >= MIN_FREE_INODES, f"{share:.0%} of {inodes:,} inodes free", point)


@CHECKS.error("storage.read-only", "No disk fell back to read-only", 94)
@remedy.replace("`dmesg` shows the I/O error; check the disk, then remount")
def _read_only(host: Host) -> Iterator[Finding]:
    """Find file systems that became read-only: mount options, fstab or the kernel log say that they were not.

    System images mount parts of themselves read-only, without an fstab (Container-Optimized OS, Flatcar).
    """
    is_writable_by_point = _fstab_writable(host)
    disks = [entry for entry in mounts(host.read("/proc/mounts")) if entry[2] in WRITABLE]
    if not disks:
        raise Missing("no local file system on a disk")
    writable = {device for device, _, _, options in disks if "ro" not in options}
    for device, point, _, options in disks:
        if options & _FALLEN_OPTIONS:
            yield failed(f"{device} became read-only after an error", point)
        elif "ro" not in options:
            yield passed(f"{device} is mounted writable", point)
        elif device in writable or _is_write_protected(host, device):
            yield passed(f"{device} is mounted read-only by design", point)
        elif is_writable_by_point.get(point, False):
            yield failed(f"{device} is mounted read-only, writable in /etc/fstab", point)
        else:
            yield _from_log(host, device, point)


def _from_log(host: Host, device: str, point: str) -> Finding:
    """Return whether the kernel log says that a file system without other evidence became read-only."""
    try:
        matches = list(_FELL_BACK.finditer(short_lines(host.run("dmesg", "--kernel"))))
    except Missing:
        matches = []
    except Unreadable as error:
        text = f"{device} is mounted read-only; the kernel log has the reason: {error}"
        return Finding(point, AuditStatus.UNKNOWN, text)
    if any(device.removeprefix("/dev/") in match.groups() for match in matches):
        return failed(f"{device} became read-only after an error, as the kernel log states", point)
    return passed(f"{device} is mounted read-only by design", point)


def _is_write_protected(host: Host, device: str) -> bool:
    """Return whether a block device is read-only, as that of a verified system image."""
    try:
        return host.read(f"/sys/class/block/{device.removeprefix('/dev/')}/ro") == "1"
    except Missing:
        return False


def _fstab_writable(host: Host) -> dict[str, bool]:
    """Return, by mount point, whether /etc/fstab mounts it writable; empty if the file is missing."""
    try:
        lines = host.read("/etc/fstab").splitlines()
    except Missing:
        return {}
    parts = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return {
        _unescaped(part[1]).rstrip("/") or "/": "ro" not in part[3].split(",")
        for part in parts
        if len(part) >= 4
    }


@CHECKS.error("storage.fstab", "All file systems of /etc/fstab are mounted", 96)
@remedy.monitor("mount -a, and check the server of a shared one")
def _fstab(host: Host) -> Iterator[Finding]:
    mounted = {point for _, point, _, _ in mounts(host.read("/proc/mounts"))}
    for line in host.read("/etc/fstab").splitlines():
        parts = line.split()
        if len(parts) < 4 or line.lstrip().startswith("#") or parts[2] == "swap":
            continue
        point, options = _unescaped(parts[1]).rstrip("/") or "/", parts[3].split(",")
        if "noauto" in options or not point.startswith("/"):
            continue
        if point not in mounted and "nofail" in options and parts[0].startswith(_LOCAL_SOURCES):
            yield Finding(point, AuditStatus.SKIPPED, "its disk is not there, which fstab allows (nofail)")
        else:
            text = "mounted" if point in mounted else "in /etc/fstab, not mounted"
            yield checked(point in mounted, text, point)


@CHECKS.error("storage.raid", "Software RAID has all its disks", 94)
@remedy.replace("`mdadm --detail` names the failed disk")
def _raid(host: Host) -> Iterator[Finding]:
    array_by_name = arrays(host.read("/proc/mdstat"))
    if not array_by_name:
        raise Missing("no software RAID")
    for name, array in array_by_name.items():
        if array.is_container:
            yield passed("the container of other arrays", name)
            continue
        parts = (array.state, f"members [{array.members}]" if array.members else "", array.progress)
        is_whole = array.state == "active" and "_" not in array.members
        yield checked(is_whole, ", ".join(filter(None, parts)), name)


@CHECKS.error("storage.nvme", "NVMe controllers are live", 94)
@remedy.replace("`nvme smart-log` and `dmesg` give the reason; reset or replace the drive")
def _nvme(host: Host) -> Iterator[Finding]:
    for name in host.names("/sys/class/nvme"):
        state = host.read(f"/sys/class/nvme/{name}/state")
        yield checked(state == "live", f"controller is {state}, expected live", name)


@CHECKS.warning("storage.fuse", "FUSE file systems keep up", 97)
@remedy.monitor("Restart the file system's daemon")
def _fuse(host: Host) -> Iterator[Finding]:
    connections = host.names("/sys/fs/fuse/connections")
    for name in connections:
        folder = f"/sys/fs/fuse/connections/{name}"
        waiting, limit = (int(host.read(f"{folder}/{kind}")) for kind in ("waiting", "max_background"))
        if waiting < 0.9 * limit:
            yield passed(f"{waiting} of {limit} requests wait", name)
        else:
            yield failed(f"{waiting} of {limit} requests wait: the file system's daemon is stuck", name)
