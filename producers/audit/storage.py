"""Storage checks: file systems, RAID, NVMe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.host import Host, Missing, Unreadable
from schemas.audit_remedy import remedy
from schemas.records import AuditStatus

LOCAL: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "vfat", "f2fs"})
WRITABLE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"})
MIN_FREE: Final = 0.1
MIN_FREE_INODES: Final = 0.05
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
    """A software RAID array. `members`: one U or _ (missing) each, as `UU_`; empty without redundancy."""

    state: str
    members: str


def arrays(mdstat: str) -> dict[str, Array]:
    """Return the arrays by name in /proc/mdstat: a line `md0 : active raid1 sda[0]`, then one of blocks."""
    array_by_name, name = {}, ""
    for line in mdstat.splitlines():
        if line.startswith("md"):
            name, _, rest = line.partition(" : ")
            array_by_name[name] = Array(rest.split()[0], "")
        elif name and "[" in line and "blocks" in line:
            array_by_name[name] = Array(
                array_by_name[name].state, line.rpartition("[")[2].rstrip("]").strip()
            )
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
    expected = _read_only_in_fstab(host)
    disks = [entry for entry in mounts(host.read("/proc/mounts")) if entry[2] in WRITABLE]
    if not disks:
        raise Missing("no local file system on a disk")
    writable = {device for device, _, _, options in disks if "ro" not in options}
    for device, point, _, options in disks:
        if "ro" not in options:
            yield passed(f"{device} is mounted writable", point)
        elif point in expected or device in writable or _is_write_protected(host, device):
            yield passed(f"{device} is mounted read-only by design", point)
        else:
            yield failed(f"{device} is mounted read-only", point)


def _is_write_protected(host: Host, device: str) -> bool:
    """Return whether a block device is read-only, as that of a verified system image."""
    try:
        return host.read(f"/sys/class/block/{device.removeprefix('/dev/')}/ro") == "1"
    except Missing:
        return False


def _read_only_in_fstab(host: Host) -> set[str]:
    try:
        lines = host.read("/etc/fstab").splitlines()
    except Missing:
        return set()
    parts = [line.split() for line in lines if not line.lstrip().startswith("#")]
    return {
        _unescaped(part[1]).rstrip("/") or "/"
        for part in parts
        if len(part) >= 4 and "ro" in part[3].split(",")
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
        if "noauto" not in options and point.startswith("/"):
            yield checked(
                point in mounted, "mounted" if point in mounted else "in /etc/fstab, not mounted", point
            )


@CHECKS.error("storage.raid", "Software RAID has all its disks", 94)
@remedy.replace("`mdadm --detail` names the failed disk")
def _raid(host: Host) -> Iterator[Finding]:
    array_by_name = arrays(host.read("/proc/mdstat"))
    if not array_by_name:
        raise Missing("no software RAID")
    for name, (state, members) in array_by_name.items():
        is_whole = state == "active" and "_" not in members
        yield checked(is_whole, f"{state}, members [{members}]" if members else state, name)


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
