"""Software checks of a host: kernel state, limits, services, modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from producers.audit.backend.rdma_ports import all_devices
from producers.audit.base import Checks, Finding, checked, failed, passed
from producers.audit.gpu.sku import NVIDIA, gpu_addresses
from producers.audit.host.base import Host, Missing
from producers.audit.software.environment import processes
from schemas.audit_remedy import remedy
from schemas.units import number_text

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
"""Least limit of locked memory for RDMA (health check of aws-samples)."""
JOB_STARTERS: Final = frozenset({"slurmd", "slurmstepd", "containerd", "crio", "kubelet"})
"""Programs whose limits jobs inherit. Process 1 is no guide: no service has systemd's own limits."""
CHECKS: Final = Checks()


def tainted_by(bits: int) -> list[str]:
    """Return the meanings of the bits of the kernel's taint mask that show a fault."""
    return [text for bit, text in TAINTS.items() if bits >> bit & 1]


def memlock_bytes(limits: str) -> tuple[float, float]:
    """Return the (soft, hard) limit of locked memory in the text of /proc/PID/limits; inf if unlimited."""
    for line in limits.splitlines():
        if line.startswith("Max locked memory"):
            soft, hard = line[len("Max locked memory") :].split()[:2]
            return _limit(soft), _limit(hard)
    raise ValueError("no line 'Max locked memory'")


def _limit(text: str) -> float:
    return float("inf") if text == "unlimited" else float(int(text))


@CHECKS.error("software.kernel-taint", "The kernel has met no fault since boot", 91)
@remedy.reboot("Read `dmesg` for the first oops or machine check, then reboot")
def _taint(host: Host) -> Iterator[Finding]:
    bits = int(host.read("/proc/sys/kernel/tainted"))
    reasons = tainted_by(bits)
    bad = any(bits >> bit & 1 for bit in FAULT_TAINTS)
    yield checked(not bad, f"tainted by {', '.join(reasons)}" if reasons else "no fault since boot")


@CHECKS.error("software.memlock", "Jobs may lock memory for RDMA", 34)
@remedy.monitor("Set LimitMEMLOCK=infinity in the service's unit, then restart it")
def _memlock(host: Host) -> Iterator[Finding]:
    all_devices(host)
    pids = {name: pid for pid, name, _ in processes(host) if name in JOB_STARTERS}
    for name, pid in sorted(pids.items()) or (("this service", "self"),):
        hard = memlock_bytes(host.read(f"/proc/{pid}/limits"))[1]
        text = "unlimited" if hard == float("inf") else f"{number_text(hard / (1 << 30))} GiB"
        text = f"hard limit {text}, expected at least {MEMLOCK_BYTES >> 30} GiB"
        yield checked(hard >= MEMLOCK_BYTES, text, name)


@CHECKS.warning("software.failed-units", "No systemd unit has failed", 101)
@remedy.monitor("`systemctl status UNIT` gives the reason")
def _failed_units(host: Host) -> Iterator[Finding]:
    host.names("/run/systemd/system")
    listed = host.run("systemctl", "list-units", "--state=failed", "--plain", "--no-legend", "--no-pager")
    units = [line.split()[0] for line in listed.splitlines() if line.strip()]
    yield from (failed("failed", unit) for unit in units)
    if not units:
        yield passed("no unit has failed")


REBOOT_FILES: Final = (
    *("/run/reboot-required", "/var/run/reboot-required"),
    *("/run/reboot-needed", "/var/run/reboot-needed"),
)
"""Files of a pending reboot: of Debian and Ubuntu, and of SUSE."""


@CHECKS.warning("software.reboot-required", "No reboot is pending", 106)
@remedy.reboot("Drain the host and reboot it")
def _reboot_required(host: Host) -> Iterator[Finding]:
    host.read("/proc/sys/kernel/osrelease")
    host.names("/run")
    for path in REBOOT_FILES:
        try:
            host.read(path)
        except Missing:
            continue
        yield failed(f"{path} is there")
        return
    yield passed("no reboot is pending")


@CHECKS.warning("software.huge-pages", "Transparent huge pages do not stall jobs", 100)
@remedy.monitor("echo madvise > /sys/kernel/mm/transparent_hugepage/enabled")
def _transparent_huge_pages(host: Host) -> Iterator[Finding]:
    text = host.read("/sys/kernel/mm/transparent_hugepage/enabled")
    choice = text.partition("[")[2].partition("]")[0]
    if not choice:
        raise ValueError(
            f"/sys/kernel/mm/transparent_hugepage/enabled: {text!r:.80}, expected a choice in [ ]"
        )
    yield checked(choice != "always", f"transparent huge pages: {choice}, expected madvise or never")


@CHECKS.warning("software.numa-balancing", "NUMA balancing is off", 100)
@remedy.monitor("sysctl kernel.numa_balancing=0")
def _numa_balancing(host: Host) -> Iterator[Finding]:
    value = int(host.read("/proc/sys/kernel/numa_balancing"))
    yield checked(value == 0, f"kernel.numa_balancing = {value}, expected 0: it moves pages under a job")


@CHECKS.error("software.table-space", "Threads and open files are far from their limits", 90)
@remedy.monitor("Find the process that leaks them")
def _processes(host: Host) -> Iterator[Finding]:
    maximum = int(host.read("/proc/sys/kernel/pid_max"))
    now = int(host.read("/proc/loadavg").split()[3].partition("/")[2])
    yield checked(now < 0.8 * maximum, f"{now:,} threads of {maximum:,}", "threads")
    used, _, limit = (int(part) for part in host.read("/proc/sys/fs/file-nr").split())
    yield checked(used < 0.8 * limit, f"{used:,} of {limit:,}", "open files")


@CHECKS.error("software.conntrack", "The connection tracking table has room", 100)
@remedy.monitor("Raise net.netfilter.nf_conntrack_max or exempt the fabric")
def _conntrack(host: Host) -> Iterator[Finding]:
    used = int(host.read("/proc/sys/net/netfilter/nf_conntrack_count"))
    limit = int(host.read("/proc/sys/net/netfilter/nf_conntrack_max"))
    yield checked(used < 0.8 * limit, f"{used:,} of {limit:,} connections tracked")


@CHECKS.error("software.gpu-direct", "The kernel offers GPUDirect RDMA", 33, 92)
@remedy.monitor("modprobe nvidia-peermem")
def _modules(host: Host) -> Iterator[Finding]:
    if not gpu_addresses(host, NVIDIA):
        raise Missing("no NVIDIA GPU on PCIe; others need no further module")
    loaded = {line.split()[0] for line in host.read("/proc/modules").splitlines() if line}
    if "nvidia" not in loaded:
        raise Missing("the driver nvidia is not loaded; others need no further module")
    if not any(name.startswith("mlx5_") for name in all_devices(host)):
        raise Missing("no RDMA device of NVIDIA; other makes bring their own module")
    if OPEN_MODULE in host.read("/proc/driver/nvidia/version"):
        yield passed("the open kernel module exports GPU memory by DMA-BUF")
        return
    modules = sorted(loaded & {"nvidia_peermem", "nv_peer_mem"})
    if modules:
        yield passed(f"{', '.join(modules)} is loaded")
    else:
        yield failed("nvidia_peermem is not loaded, expected for GPUDirect RDMA")


OPEN_MODULE: Final = "Open Kernel Module"
"""Text in the version of NVIDIA's open kernel module, with which RDMA drivers need no module of peer memory
(documentation of GPUDirect RDMA)."""
