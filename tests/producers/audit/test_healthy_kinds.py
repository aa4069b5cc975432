"""Healthy hosts of other kinds than the recorded one: none of them has an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fabrictime.testbed.audit.faults import text
from fabrictime.testbed.audit.recorded import HEALTHY, RecordedHost
from producers.audit.base import run_check
from producers.audit.checks import CHECKS
from schemas.records import AuditStatus

PASSED, SKIPPED, FAILED = AuditStatus.PASSED, AuditStatus.SKIPPED, AuditStatus.FAILED
CPU = "/sys/devices/system/cpu"
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
Plant = Callable[[RecordedHost], None]


def both(*plants: Plant) -> Plant:
    def plant(host: RecordedHost) -> None:
        for each in plants:
            each(host)

    return plant


def later(path: str, content: str) -> Plant:
    """Change a file between two readings."""
    return lambda host: host.later.__setitem__(path, content)


def without(part: str) -> Plant:
    """Remove the files with this part in their paths."""

    def plant(host: RecordedHost) -> None:
        host.files = {path: content for path, content in host.files.items() if part not in path}

    return plant


def added(path: str, content: str) -> Plant:
    """Add to a file."""
    return lambda host: host.files.__setitem__(path, str(host.files[path]) + content)


def printed(command: tuple[str, ...], content: str) -> Plant:
    """Change what a command prints."""

    def plant(host: RecordedHost) -> None:
        assert command in host.commands
        host.commands[command] = content

    return plant


BLOCKED = "812 (python) D 1 812 812 0 -1"
KINDS: dict[str, tuple[str, Plant, AuditStatus]] = {
    "Hyper-V": (
        "node.clock-source",
        text(
            "/sys/devices/system/clocksource/clocksource0/current_clocksource", "hyperv_clocksource_tsc_page"
        ),
        PASSED,
    ),
    "multithreading off": (
        "node.processors",
        both(text(f"{CPU}/present", "0-3"), text(f"{CPU}/smt/control", "off")),
        PASSED,
    ),
    "a core is off beside multithreading": (
        "node.processors",
        both(text(f"{CPU}/present", "0-4"), text(f"{CPU}/smt/control", "off")),
        FAILED,
    ),
    "idle pages in swap": (
        "node.memory",
        text(
            "/proc/meminfo",
            "MemTotal: 2113000000 kB\nMemAvailable: 2050000000 kB\n"
            "SwapTotal: 8000000 kB\nSwapFree: 7900000 kB",
        ),
        PASSED,
    ),
    "a write that takes a moment": (
        "node.blocked",
        both(text("/proc/812/stat", BLOCKED), later("/proc/812/stat", "812 (python) R 1 812 812 0 -1")),
        PASSED,
    ),
    "a write that takes seconds": ("node.blocked", text("/proc/812/stat", BLOCKED), FAILED),
    "no RDMA needs no locked memory": ("software.memlock", without("/sys/class/infiniband/"), SKIPPED),
    "systemd's own limit": (
        "software.memlock",
        text("/proc/1/limits", "Max locked memory         67108864             67108864    bytes"),
        PASSED,
    ),
    "AMD only": ("software.gpu-direct", text("/proc/modules", "amdgpu 1 0 - Live 0x0"), SKIPPED),
    "RAID without redundancy": (
        "storage.raid",
        text("/proc/mdstat", "md0 : active raid0 sdb[1] sda[0]\n      7500 blocks super 1.2 512k chunks\n"),
        PASSED,
    ),
    "volume of a container": (
        "storage.read-only",
        added("/proc/mounts", "/dev/nvme0n1p2 /var/lib/kubelet/pods/1/volume ext4 ro 0 0\n"),
        PASSED,
    ),
    "verified system image": (
        "storage.read-only",
        both(added("/proc/mounts", "/dev/dm-0 /usr ext4 ro 0 0\n"), text("/sys/class/block/dm-0/ro", "1\n")),
        PASSED,
    ),
    "slash at the end in fstab": (
        "storage.fstab",
        added("/etc/fstab", "nfs1:/data /data/ nfs4 rw,hard 0 0\n"),
        PASSED,
    ),
    "several algorithms of NCCL": (
        "software.environment",
        text("/etc/nccl.conf", "NCCL_ALGO=Ring,Tree\nNCCL_PROTO=LL,LL128,Simple\n"),
        PASSED,
    ),
    "comment after a variable": (
        "software.environment",
        text("/etc/profile.d/x.sh", "export NCCL_IB_DISABLE=1 # no NIC\n"),
        FAILED,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_healthy_host_of_another_kind_has_no_error(kind: str) -> None:
    check_id, plant, status = KINDS[kind]
    host = HEALTHY.copy()
    plant(host)
    result = run_check(CHECKS[check_id], host)
    assert result.status is status, result.text
