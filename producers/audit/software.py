"""Software checks of a host: kernel state, limits, services, modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from producers.audit.base import Check, Finding, checked, failed, passed
from producers.audit.environment import processes
from producers.audit.host import Host, Missing
from schemas.records import AuditAction, AuditCategory, AuditSeverity

__all__ = ["CHECKS"]

TAINTS: Final = {
    2: "a processor outside its specification",
    4: "a machine check",
    5: "a bad page",
    7: "an oops",
    9: "a kernel warning",
    14: "a soft lockup",
}
"""Bits of /proc/sys/kernel/tainted that show a fault (Documentation/admin-guide/tainted-kernels.rst)."""
FAULT_TAINTS: Final = frozenset({4, 5, 7, 14})
MEMLOCK_BYTES: Final = 16 << 30
"""Least limit of locked memory for RDMA, as aws-samples' health check has it."""
JOB_STARTERS: Final = frozenset({"slurmd", "slurmstepd", "containerd", "crio", "kubelet"})
"""Programs whose limits jobs inherit. The limits of process 1 are systemd's own, and no service has them."""


def tainted_by(bits: int) -> list[str]:
    """Return the meaning of the fault bits in the kernel's taint mask."""
    return [text for bit, text in TAINTS.items() if bits >> bit & 1]


def memlock_bytes(limits: str) -> tuple[float, float]:
    """Return the soft and hard limit of locked memory from a process's `limits`; inf where unlimited."""
    for line in limits.splitlines():
        if line.startswith("Max locked memory"):
            soft, hard = line[len("Max locked memory") :].split()[:2]
            return _limit(soft), _limit(hard)
    raise ValueError("no line 'Max locked memory'")


def _limit(text: str) -> float:
    return float("inf") if text == "unlimited" else float(int(text))


def _taint(host: Host) -> Iterator[Finding]:
    bits = int(host.read("/proc/sys/kernel/tainted"))
    found = tainted_by(bits)
    bad = any(bits >> bit & 1 for bit in FAULT_TAINTS)
    yield checked(not bad, f"tainted by {', '.join(found)}" if found else "no fault since boot")


def _memlock(host: Host) -> Iterator[Finding]:
    if not host.names("/sys/class/infiniband"):
        raise Missing("no RDMA device")
    found = {name: pid for pid, name, _ in processes(host) if name in JOB_STARTERS}
    for name, pid in sorted(found.items()) or (("this service", "self"),):
        hard = memlock_bytes(host.read(f"/proc/{pid}/limits"))[1]
        text = "unlimited" if hard == float("inf") else f"{hard / (1 << 30):.3g} GiB"
        text = f"hard limit {text}, expected at least {MEMLOCK_BYTES >> 30} GiB"
        yield checked(hard >= MEMLOCK_BYTES, text, name)


def _failed_units(host: Host) -> Iterator[Finding]:
    host.names("/run/systemd/system")
    listed = host.run("systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--no-pager")
    units = [line.split()[0] for line in listed.splitlines() if line.strip()]
    yield from (failed("failed", unit) for unit in units)
    if not units:
        yield passed("no unit has failed")


def _reboot_required(host: Host) -> Iterator[Finding]:
    host.read("/proc/sys/kernel/osrelease")
    host.names("/run")
    for path in ("/run/reboot-required", "/var/run/reboot-required"):
        try:
            host.read(path)
        except Missing:
            continue
        yield failed(f"{path} is there")
        return
    yield passed("no reboot is pending")


def _transparent_huge_pages(host: Host) -> Iterator[Finding]:
    text = host.read("/sys/kernel/mm/transparent_hugepage/enabled")
    chosen = text.partition("[")[2].partition("]")[0]
    if not chosen:
        raise ValueError(
            f"/sys/kernel/mm/transparent_hugepage/enabled: {text!r:.80}, expected a choice in [ ]"
        )
    yield checked(chosen != "always", f"transparent huge pages: {chosen}, expected madvise or never")


def _numa_balancing(host: Host) -> Iterator[Finding]:
    value = int(host.read("/proc/sys/kernel/numa_balancing"))
    yield checked(value == 0, f"kernel.numa_balancing = {value}, expected 0: it moves pages under a job")


def _processes(host: Host) -> Iterator[Finding]:
    maximum = int(host.read("/proc/sys/kernel/pid_max"))
    now = int(host.read("/proc/loadavg").split()[3].partition("/")[2])
    yield checked(now < 0.8 * maximum, f"{now:,} threads of {maximum:,}", "threads")
    used, _, limit = (int(part) for part in host.read("/proc/sys/fs/file-nr").split())
    yield checked(used < 0.8 * limit, f"{used:,} of {limit:,}", "open files")


def _conntrack(host: Host) -> Iterator[Finding]:
    used = int(host.read("/proc/sys/net/netfilter/nf_conntrack_count"))
    limit = int(host.read("/proc/sys/net/netfilter/nf_conntrack_max"))
    yield checked(used < 0.8 * limit, f"{used:,} of {limit:,} connections tracked")


def _modules(host: Host) -> Iterator[Finding]:
    loaded = {line.split()[0] for line in host.read("/proc/modules").splitlines() if line}
    if "nvidia" not in loaded:
        raise Missing("the driver nvidia is not loaded; others need no further module")
    if not any(name.startswith("mlx5_") for name in host.names("/sys/class/infiniband")):
        raise Missing("no RDMA device of NVIDIA; other makes bring their own module")
    if OPEN_MODULE in host.read("/proc/driver/nvidia/version"):
        yield passed("the open kernel module exports GPU memory by DMA-BUF")
        return
    found = sorted(loaded & {"nvidia_peermem", "nv_peer_mem"})
    if found:
        yield passed(f"{', '.join(found)} is loaded")
    else:
        yield failed("nvidia_peermem is not loaded, expected for GPUDirect RDMA")


OPEN_MODULE: Final = "Open Kernel Module"
"""In the version of NVIDIA's module: RDMA drivers then need no module of peer memory (GPUDirect RDMA's
documentation)."""

CHECKS: Final = (
    Check(
        "software.kernel-taint", AuditCategory.SOFTWARE, "The kernel has met no fault since boot", _taint,
        AuditSeverity.ERROR, AuditAction.REBOOT,
        "Read `dmesg` for the first oops or machine check, then reboot", rows=(91,),
    ),
    Check(
        "software.memlock", AuditCategory.SOFTWARE, "Jobs may lock memory for RDMA", _memlock,
        AuditSeverity.ERROR, AuditAction.MONITOR,
        "Set LimitMEMLOCK=infinity in the service's unit, then restart it", rows=(34,),
    ),
    Check(
        "software.failed-units", AuditCategory.SOFTWARE, "No systemd unit has failed", _failed_units,
        AuditSeverity.WARNING, AuditAction.MONITOR, "`systemctl status UNIT` gives the reason", rows=(101,),
    ),
    Check(
        "software.reboot-required", AuditCategory.SOFTWARE, "No reboot is pending", _reboot_required,
        AuditSeverity.WARNING, AuditAction.REBOOT, "Drain the host and reboot it", rows=(106,),
    ),
    Check(
        "software.huge-pages", AuditCategory.SOFTWARE, "Transparent huge pages do not stall jobs",
        _transparent_huge_pages, AuditSeverity.WARNING, AuditAction.MONITOR,
        "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled", rows=(100,),
    ),
    Check(
        "software.numa-balancing", AuditCategory.SOFTWARE, "NUMA balancing is off", _numa_balancing,
        AuditSeverity.WARNING, AuditAction.MONITOR, "sysctl kernel.numa_balancing=0", rows=(100,),
    ),
    Check(
        "software.table-space", AuditCategory.SOFTWARE, "Threads and open files are far from their limits",
        _processes, AuditSeverity.ERROR, AuditAction.MONITOR, "Find the process that leaks them", rows=(90,),
    ),
    Check(
        "software.conntrack", AuditCategory.SOFTWARE, "The connection tracking table has room", _conntrack,
        AuditSeverity.ERROR, AuditAction.MONITOR, "Raise net.netfilter.nf_conntrack_max or exempt the fabric",
        rows=(100,),
    ),
    Check(
        "software.gpu-direct", AuditCategory.SOFTWARE, "The kernel offers GPUDirect RDMA", _modules,
        AuditSeverity.ERROR, AuditAction.MONITOR, "modprobe nvidia-peermem", rows=(33, 92),
    ),
)  # fmt: skip
